"""What goes wrong on a device: rows that are not finite, submits that fail, answers of the wrong shape."""

from itertools import pairwise

import pytest
from exactness_suite import VOCAB
from plan_factory import load_made
from simulate import generate, mostly, plain_ids, seeded
from specdec_runtime import drive
from specdec_runtime.backends.scripted import Script, ScriptedBackend
from specdec_runtime.decode.effects import Emit, Readback
from specdec_runtime.decode.request import Request
from specdec_runtime.decode.round import decode
from specdec_runtime.drafters.draft_model import REST_CYCLES
from specdec_runtime.drafters.registry import make_drafter
from specdec_runtime.faults import ContractError, DeviceFault

PLAN = load_made(
    vocab_size=VOCAB, max_context=120, prefill_width=4, draft={"max_context": 120, "prefill_width": 4}
)
TARGET = seeded(11, VOCAB)
DRAFT = mostly(TARGET, seeded(12, VOCAB), 80)
PROMPT = [1, 5, 6, 7, 5, 6]
ANSWER = plain_ids(TARGET, PROMPT, 40, 120)


def run(script, drafter="model", k=4, max_tokens=40, rounds=1):
    return generate(PLAN, TARGET, PROMPT, max_tokens, drafter, k, DRAFT, script, eos_ids=(), rounds=rounds)


CLEAN = run(None)
SUBMITS = CLEAN.backend.submits
ROUNDS = [number for number, batch in enumerate(SUBMITS) if batch.kind == "round"]


@pytest.mark.parametrize("submit", ROUNDS[:5])
@pytest.mark.parametrize("row", range(5))
def test_a_target_row_that_is_not_finite_is_retried_plainly(submit, row):
    program = SUBMITS[submit].calls[-1]
    result = run(Script(not_finite={(submit, program, row)}))
    assert result.ids == ANSWER
    if row == 0:
        retry = result.backend.submits[submit + 1]
        assert retry.calls == ["target.verify_1"], "the retry has no drafts"


def test_a_plain_row_that_is_not_finite_is_retried_too():
    result = run(Script(not_finite={(4, "target.verify_1", 0)}), drafter="off")
    assert result.ids == ANSWER
    assert result.result["speculation"]["num_target_passes"] == 41


@pytest.mark.parametrize("drafter", ["off", "model"])
def test_not_finite_twice_is_a_device_fault(drafter):
    bad = {(number, f"target.verify_{width}", 0) for number in (5, 6) for width in (1, 8)}
    with pytest.raises(DeviceFault, match="twice"):
        run(Script(not_finite=bad), drafter=drafter)


def test_rows_after_the_first_rejection_are_not_judged():
    """A bad row that nobody would have read does not matter."""
    wrong = generate(
        PLAN, TARGET, PROMPT, 20, "model", 4, lambda prefix: (TARGET(prefix) + 1) % VOCAB, eos_ids=()
    )
    rounds = [number for number, batch in enumerate(wrong.backend.submits) if batch.kind == "round"]
    script = Script(
        not_finite={(number, "target.verify_8", row) for number in rounds for row in (1, 2, 3, 4)}
    )
    again = generate(
        PLAN, TARGET, PROMPT, 20, "model", 4, lambda prefix: (TARGET(prefix) + 1) % VOCAB, script, ()
    )
    assert again.ids == wrong.ids and len(again.backend.submits) == len(wrong.backend.submits)


@pytest.mark.parametrize("step", range(4))
@pytest.mark.parametrize("call", ["draft.step_1", "draft.step_2"])
def test_a_draft_that_is_not_finite_cuts_the_drafts_and_rests(call, step):
    """Drafts before the bad row stand as ever."""
    cycles = zip(ROUNDS, CLEAN.emits, strict=False)
    submit, whole = next(
        (number, emit)
        for number, emit in cycles
        if SUBMITS[number].calls[0] == call and emit.num_accepted == emit.num_drafted == 4
    )
    result = run(Script(not_finite_calls={(submit, step)}))
    assert result.ids == ANSWER
    assert result.result["speculation"]["fallbacks"] == {"draft_not_finite": 1}
    cut = result.emits[CLEAN.emits.index(whole)]
    assert (cut.num_drafted, cut.num_accepted, cut.ids) == (step, step, whole.ids[: step + 1])
    kinds = [batch.kind for batch in result.backend.submits[submit + 1 :]]
    assert kinds[:REST_CYCLES] == ["verify"] * REST_CYCLES and "round" in kinds, "it rests, then tries again"


def test_a_draft_of_one_step_over_two_rows_is_judged_by_its_second_row():
    clean = run(None, k=1)
    submit = next(n for n, batch in enumerate(clean.backend.submits) if "draft.step_2" in batch.calls)
    assert run(Script(not_finite={(submit, "draft.step_2", 0)}), k=1).result["speculation"]["fallbacks"] == {}
    bad = run(Script(not_finite={(submit, "draft.step_2", 1)}), k=1)
    assert bad.result["speculation"]["fallbacks"] == {"draft_not_finite": 1} and bad.ids == ANSWER


def test_a_draft_id_outside_the_vocabulary_is_no_draft():
    result = generate(PLAN, TARGET, PROMPT, 40, "model", 3, lambda prefix: VOCAB + 5, eos_ids=())
    assert result.ids == ANSWER
    assert set(result.result["speculation"]["fallbacks"]) == {"draft_bad_id"}
    assert result.result["speculation"]["num_drafted"] == 0


def test_repeated_faults_rest_longer_and_longer():
    result = generate(PLAN, TARGET, PROMPT, 60, "model", 3, lambda prefix: VOCAB, eos_ids=())
    rounds = [number for number, batch in enumerate(result.backend.submits) if batch.kind == "round"]
    catch_ups = [number for number, batch in enumerate(result.backend.submits) if batch.kind == "draft"]
    plain = [len(set(range(a + 1, b)) - set(catch_ups)) for a, b in pairwise(rounds)]
    assert plain == [REST_CYCLES, 2 * REST_CYCLES]
    assert result.result["speculation"]["fallbacks"] == {"draft_bad_id": 3}


@pytest.mark.parametrize("when", ["fail_before", "fail_after"])
@pytest.mark.parametrize("submit", range(len(SUBMITS)))
def test_one_failed_submit(when, submit):
    """With drafting in it: a plain step instead. Without: the fault reaches the caller. No wrong token."""
    kind = SUBMITS[submit].kind
    script = Script(**{when: {submit: DeviceFault("lost", "submit", "reload")}})
    if kind in ("prefill", "verify"):
        with pytest.raises(DeviceFault, match="lost"):
            run(script)
        return
    result = run(script)
    assert result.ids == ANSWER
    assert result.result["speculation"]["fallbacks"] == {"device_fault": 1}
    assert [token_id for emit in result.emits for token_id in emit.ids] == ANSWER


@pytest.mark.parametrize("when", ["fail_before", "fail_after"])
@pytest.mark.parametrize("rounds", [2, 4])
def test_one_failed_submit_of_several_rounds(when, rounds):
    """Nothing of it is committed, whatever the device did: plain steps from the last token, then drafts again."""
    clean = run(None, rounds=rounds)
    failing = [number for number, batch in enumerate(clean.backend.submits) if batch.kind == "round"]
    assert len(failing) > 2
    for submit in failing:
        result = run(Script(**{when: {submit: DeviceFault("lost", "submit", "reload")}}), rounds=rounds)
        assert result.ids == ANSWER
        assert result.result["speculation"]["fallbacks"] == {"device_fault": 1}
        assert [token_id for emit in result.emits for token_id in emit.ids] == ANSWER


@pytest.mark.parametrize("call", range(23))
def test_a_draft_that_is_not_finite_ends_its_submits_rounds(call):
    """The device goes on with an id that means nothing; what it is told after that is not read."""
    clean = run(None, k=4, rounds=4)
    first = next(number for number, batch in enumerate(clean.backend.submits) if batch.kind == "round")
    assert len(clean.backend.submits[first].calls) == 23
    result = run(Script(not_finite_calls={(first, call)}), k=4, rounds=4)
    assert result.ids == ANSWER
    name = clean.backend.submits[first].calls[call]
    spoilt = {"draft_not_finite": 1} if name.startswith("draft.step") else {}
    assert result.result["speculation"]["fallbacks"] in (spoilt, {})
    assert not spoilt or call > 4 or result.result["speculation"]["fallbacks"] == spoilt
    if result.result["speculation"]["fallbacks"]:
        kinds = [batch.kind for batch in result.backend.submits[first + 1 :]]
        rested = next(number for number, kind in enumerate(kinds) if kind != "verify")
        assert rested == REST_CYCLES, "so many submits, in whichever round it was found"


def test_a_device_that_stands_elsewhere_is_a_fault_before_anything_is_committed():
    class Elsewhere(ScriptedBackend):
        def submit(self, batch):
            answer = super().submit(batch)
            if "draft.accept" in batch.calls:
                answer.values[-1][0] += 1
            return answer

    backend, seen = Elsewhere(PLAN, TARGET, DRAFT), []
    effects = decode(PLAN, Request(PROMPT, 40, 3, (), rounds=2), make_drafter("model", PLAN))
    with pytest.raises(DeviceFault, match="stands at position"):
        drive.run(effects, backend, seen.append)
    assert not any(isinstance(effect, Emit) for effect in seen)


def test_a_device_that_stays_lost():
    lost = {number: DeviceFault("lost", "submit", "reload") for number in range(ROUNDS[1], ROUNDS[1] + 2)}
    with pytest.raises(DeviceFault, match="lost"):
        run(Script(fail_before=lost))


def test_a_bug_of_the_backend_is_not_retried():
    with pytest.raises(ZeroDivisionError):
        run(Script(fail_before={ROUNDS[1]: ZeroDivisionError()}))


def test_a_target_id_outside_the_vocabulary_is_a_device_fault():
    with pytest.raises(DeviceFault, match="token id"):
        generate(PLAN, lambda prefix: VOCAB, PROMPT, 5)


class Liar(ScriptedBackend):
    """Answers with one number too few."""

    def submit(self, batch):
        values, ms = super().submit(batch)
        return Readback([read[:-1] for read in values], ms)


class Untimed(ScriptedBackend):
    def submit(self, batch):
        return Readback(super().submit(batch).values, [])


@pytest.mark.parametrize("kind", [Liar, Untimed])
def test_a_readback_of_the_wrong_shape_is_a_contract_error(kind):
    effects = decode(PLAN, Request(PROMPT, 5), make_drafter("off", PLAN))
    with pytest.raises(ContractError):
        drive.run(effects, kind(PLAN, TARGET))
