"""Teacher forcing on the scripted backend: right rows, the same answer for every width, refusals, retries."""

import pytest
from exactness_suite import VOCAB
from plan_factory import load_made
from simulate import seeded
from specdec_runtime import drive
from specdec_runtime.backends.scripted import Script, ScriptedBackend, flat_scores
from specdec_runtime.decode.effects import Progress
from specdec_runtime.decode.score import score
from specdec_runtime.faults import DeviceFault, RequestError

PLAN = load_made(vocab_size=VOCAB, max_context=40, prefill_width=4, page_size=4)
TARGET = seeded(21, VOCAB)
PROMPT, GIVEN = [1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12, 0, 1, 2, 3, 4]


def positions(width, script=None, prompt=PROMPT, given=GIVEN, **options):
    backend = ScriptedBackend(PLAN, TARGET, script=script)
    return drive.run(score(PLAN, prompt, given, width), backend, **options)["positions"], backend


def twin(prompt, given):
    """By definition: each given id after all before it."""
    rows = []
    for index, token_id in enumerate(given):
        prefix = tuple(prompt + given[:index])
        margin, logprob, _ = flat_scores(prefix, token_id)
        rows.append({"id": token_id, "top_id": TARGET(prefix), "margin": margin, "logprob": logprob})
    return rows


@pytest.mark.parametrize("width", [1, 2, 4, 8])
@pytest.mark.parametrize("prompt", [[3], PROMPT, list(range(12))])
def test_every_width_gives_the_twins_rows(width, prompt):
    found, backend = positions(width, prompt=prompt)
    assert found == twin(prompt, GIVEN)
    passes = [batch for batch in backend.submits if batch.kind == "score"]
    assert len(passes) == -(-len(GIVEN) // width)
    assert all(batch.calls == [f"target.verify_{width}", f"target.score_{width}"] for batch in passes)


def test_one_id():
    assert positions(8, given=[5])[0] == twin(PROMPT, [5])


def test_up_to_the_context_and_no_further():
    given = [5] * (40 - len(PROMPT))
    assert positions(4, given=given)[0] == twin(PROMPT, given)
    with pytest.raises(RequestError, match="context of 40"):
        score(PLAN, PROMPT, [*given, 5], 4)


@pytest.mark.parametrize(
    ("prompt", "given", "width", "where"),
    [
        ([], [1], 1, "prompt_ids"),
        ([1], [], 1, "score_ids"),
        ([1], [VOCAB], 1, "score_ids[0]"),
        ([VOCAB], [1], 1, "prompt_ids[0]"),
        ([1], [1], 3, "width"),
        ([1], [1], True, "width"),
        ([1], [1], "8", "width"),
    ],
)
def test_refusals_come_before_any_effect(prompt, given, width, where):
    with pytest.raises(RequestError) as caught:
        score(PLAN, prompt, given, width)
    assert caught.value.where == where


def test_a_row_that_is_not_finite_is_scored_again_once():
    clean = positions(4)[1]
    number = next(n for n, batch in enumerate(clean.submits) if batch.kind == "score") + 1
    bad = {(number, "target.verify_4", 2)}
    found, backend = positions(4, Script(not_finite=bad))
    assert found == twin(PROMPT, GIVEN) and len(backend.submits) == len(clean.submits) + 1
    with pytest.raises(DeviceFault, match="twice"):
        positions(4, Script(not_finite=bad | {(number + 1, "target.verify_4", 0)}))


def test_progress_reaches_its_total():
    seen = []
    positions(2, on_effect=seen.append)
    steps = [effect for effect in seen if isinstance(effect, Progress)]
    assert [step.done for step in steps] == sorted({step.done for step in steps})
    assert steps[-1].done == steps[-1].total == len(PROMPT) + len(GIVEN) - 1


def test_cancel_keeps_what_was_scored():
    calls = iter([False] * 4)
    backend = ScriptedBackend(PLAN, TARGET)
    result = drive.run(score(PLAN, PROMPT, GIVEN, 2), backend, None, lambda: next(calls, True))
    assert result["finish_reason"] == "cancelled"
    assert (
        result["positions"] == twin(PROMPT, GIVEN)[: len(result["positions"])]
        and len(result["positions"]) == 4
    )
