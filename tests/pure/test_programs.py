"""The policy a device's self-test leaves: which programs run, what is refused, what the result says."""

import json

import pytest
from exactness_suite import VOCAB
from plan_factory import load_made, make_plan
from simulate import generate, seeded
from specdec_runtime import drive
from specdec_runtime.backends.scripted import ScriptedBackend
from specdec_runtime.decode.programs import ANY, Programs, programs_from_json
from specdec_runtime.decode.request import MAX_ROUNDS, MAX_STEPS
from specdec_runtime.decode.score import score
from specdec_runtime.faults import ContractError, RequestError
from specdec_runtime.worker import Engine

PLAN = load_made(vocab_size=VOCAB, draft={}, eos_ids=())
MODEL = PLAN.target_model
TARGET = seeded(3, VOCAB)
PROMPT = [1, 2, 3, 1, 2, 3, 1, 2, 3, 1]


def calls_of(backend: ScriptedBackend) -> set[str]:
    return {call for batch in backend.submits for call in batch.calls}


def test_widths_and_feeding() -> None:
    assert [ANY.width(MODEL, rows) for rows in range(1, 9)] == [1, 2, 4, 4, 8, 8, 8, 8]
    assert [Programs("widest").width(MODEL, rows) for rows in (1, 2, 8)] == [8, 8, 8]
    assert Programs("plain").width(MODEL, 1) == 1 and Programs("plain").max_rows(MODEL) == 1
    assert Programs("plain").feeding(MODEL) == ("target.prefill", MODEL.prefill_width)
    assert Programs("plain", False).feeding(MODEL) == ("target.verify_1", 1)
    assert Programs("widest", False).feeding(MODEL) == ("target.verify_8", 8)


@pytest.mark.parametrize(
    "data", [{}, None, {"verify": "some", "prefill": True}, {"verify": "any", "prefill": 1}]
)
def test_what_is_no_policy(data) -> None:
    with pytest.raises(ContractError):
        programs_from_json(data)
    plan = json.dumps(make_plan())
    state = json.loads(Engine(plan, json.dumps(data)).ready()) if data is not None else {"error": 1}
    assert "error" in state


@pytest.mark.parametrize(
    ("programs", "width", "rows", "program"),
    [
        (ANY, 2, 2, 2),
        (Programs("widest"), 2, 2, 8),
        (Programs("widest", False), 1, 1, 8),
        (Programs("plain"), 8, 1, 1),
        (Programs("plain", False), 4, 1, 1),
    ],
)
def test_scores_by_trusted_programs(programs, width, rows, program) -> None:
    given = [4, 5, 6, 7, 8]
    plain = drive.run(score(PLAN, PROMPT, given, 1), ScriptedBackend(PLAN, TARGET))["positions"]
    backend = ScriptedBackend(PLAN, TARGET)
    assert drive.run(score(PLAN, PROMPT, given, width, programs), backend)["positions"] == plain
    scored = [batch for batch in backend.submits if batch.kind == "score"]
    assert {tuple(batch.calls) for batch in scored} == {
        (f"target.verify_{program}", f"target.score_{program}")
    }
    assert len(scored) == -(-len(given) // rows)
    feeding = programs.feeding(MODEL)[0]
    assert calls_of(backend) == {feeding, *scored[0].calls}


def test_the_reason_is_in_the_result() -> None:
    barred = generate(PLAN, TARGET, PROMPT, drafter="model", programs=Programs("plain"))
    assert barred.result["speculation"]["fallbacks"] == {"rows_differ": 1}
    assert barred.result["speculation"]["num_drafted"] == 0
    assert barred.result["speculation"]["drafter"] == "model", "what was asked"
    assert not any(call.startswith("draft.") for call in calls_of(barred.backend))
    off = generate(PLAN, TARGET, PROMPT, drafter="off", programs=Programs("plain"))
    assert off.result["speculation"]["fallbacks"] == {}
    assert off.ids == barred.ids == generate(PLAN, TARGET, PROMPT).ids


@pytest.mark.parametrize("steps", [0, -1, MAX_STEPS + 1, True, "4", 1.0])
def test_steps_that_cannot_be(steps) -> None:
    with pytest.raises(RequestError, match="plain_steps"):
        generate(PLAN, TARGET, PROMPT, steps=steps)


@pytest.mark.parametrize("rounds", [0, -1, MAX_ROUNDS + 1, True, "2", 1.0])
def test_rounds_that_cannot_be(rounds) -> None:
    with pytest.raises(RequestError, match="rounds"):
        generate(PLAN, TARGET, PROMPT, rounds=rounds)


def test_cancel_between_submits_of_several_steps() -> None:
    whole = generate(PLAN, TARGET, PROMPT, 14, steps=4)
    assert [len(emit.ids) for emit in whole.emits] == [1, 4, 4, 4, 1], "the first token waits for no other"
    prefills = sum(batch.kind == "prefill" for batch in whole.backend.submits)
    for at in range(prefills, prefills + 5):
        cut = generate(PLAN, TARGET, PROMPT, 14, steps=4, cancel_at=at)
        assert cut.result["finish_reason"] == "cancelled"
        assert cut.ids == whole.ids[: max(0, 4 * (at - prefills) - 3)]


def test_several_steps_may_differ_between_requests_on_one_device() -> None:
    """Tokens, args and pages that a request left behind are none of the next one's business."""
    backend = ScriptedBackend(PLAN, TARGET)
    for steps, prompt in ((8, PROMPT), (1, PROMPT[:3]), (3, PROMPT[2:]), (MAX_STEPS, [5]), (1, PROMPT)):
        expected = generate(PLAN, TARGET, prompt).ids
        assert generate(PLAN, TARGET, prompt, steps=steps, backend=backend).ids == expected
