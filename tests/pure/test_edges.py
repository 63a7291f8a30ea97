"""The edge cases of the design, rule by rule: refusals, caps, EOS, the end of the context, cancel."""

import pytest
from exactness_suite import VOCAB
from plan_factory import load_made
from simulate import always_ending, generate, passes, plain_ids, seeded
from specdec_runtime.decode.request import Request
from specdec_runtime.decode.round import decode
from specdec_runtime.drafters.registry import make_drafter
from specdec_runtime.faults import RequestError

DRAFTERS = ("off", "ngram", "model", "chain")
EOS = 2
PLAN = load_made(vocab_size=VOCAB, max_context=24, page_size=4, draft={"max_context": 24})
TARGET = seeded(3, VOCAB)
PROMPT = [1, 5, 6, 7, 5, 6]


def request_error(plan=PLAN, drafter="off", **fields):
    """The refusal, which must come before any effect."""
    with pytest.raises(RequestError) as caught:
        decode(
            plan, Request(**{"prompt_ids": PROMPT, "max_tokens": 4, **fields}), make_drafter(drafter, plan)
        )
    assert caught.value.where and caught.value.action
    return caught.value


@pytest.mark.parametrize(
    ("ids", "where"),
    [
        ([], "prompt_ids"),
        ([1, VOCAB], "prompt_ids[1]"),
        ([-1], "prompt_ids[0]"),
        ([1, 2.0], "prompt_ids[1]"),
        ([True], "prompt_ids[0]"),
        (["1"], "prompt_ids[0]"),
        ("12", "prompt_ids"),
        (None, "prompt_ids"),
    ],
)
def test_prompts_that_are_no_token_ids(ids, where):
    assert request_error(prompt_ids=ids).where == where


@pytest.mark.parametrize("extra", [0, 1, 500])
def test_a_prompt_that_leaves_no_room_for_one_token(extra):
    error = request_error(prompt_ids=[1] * (24 + extra))
    assert error.where == "prompt_ids" and "24" in error.message and "23" in error.action


def test_the_longest_prompt_gets_its_one_token():
    run = generate(PLAN, TARGET, [1] * 23, max_tokens=9, drafter="model", k=7, eos_ids=())
    assert run.ids == plain_ids(TARGET, [1] * 23, 1, 24)
    assert run.result["finish_reason"] == "length"
    assert [one.rows for one in passes(run)] == [1]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", -1),
        ("max_tokens", 1.5),
        ("max_tokens", None),
        ("k", 8),
        ("k", -1),
        ("k", True),
        ("k", "4"),
    ],
)
def test_counts_that_make_no_sense(field, value):
    assert request_error(**{field: value}).where == field


def test_eos_ids_of_the_request_are_checked():
    assert request_error(eos_ids=[VOCAB]).where == "eos_ids[0]"


def test_drafters_that_do_not_exist():
    with pytest.raises(RequestError, match="no drafter"):
        make_drafter("eagle", PLAN)
    with pytest.raises(RequestError, match="no draft model"):
        make_drafter("model", load_made())
    assert make_drafter("chain", load_made()).name == "chain"


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_no_tokens_asked_for_no_device_work(drafter):
    run = generate(PLAN, TARGET, PROMPT, max_tokens=0, drafter=drafter, k=7)
    assert (run.ids, run.result["finish_reason"], run.backend.submits, run.emits) == ([], "length", [], [])
    assert run.result["speculation"]["num_target_passes"] == 0


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_one_token_asked_for_nothing_drafted(drafter):
    run = generate(PLAN, TARGET, PROMPT, max_tokens=1, drafter=drafter, k=7)
    assert run.ids == plain_ids(TARGET, PROMPT, 1, 24)
    assert [one.rows for one in passes(run)] == [1]
    assert run.result["speculation"]["num_draft_passes"] == 0


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("k", [0, 1, 4, 7])
@pytest.mark.parametrize("at", range(12))
def test_eos_at_every_position(drafter, k, at):
    target = always_ending(TARGET, len(PROMPT) + at, EOS)
    run = generate(PLAN, target, PROMPT, max_tokens=12, drafter=drafter, k=k)
    assert run.ids == plain_ids(target, PROMPT, 12, 24, (EOS,))
    assert len(run.ids) == at + 1 and run.ids[-1] == EOS
    assert run.result["finish_reason"] == "stop", "on the last allowed token stop beats length"
    assert run.result["usage"]["completion_tokens"] == at + 1


def test_first_token_eos():
    run = generate(PLAN, lambda prefix: EOS, PROMPT, max_tokens=9, drafter="model", k=7)
    assert run.ids == [EOS] and run.result["finish_reason"] == "stop"
    counts = run.result["speculation"]
    assert (counts["num_accepted"], counts["num_evaluated"], counts["num_drafted"]) == (1, 1, 7)


def test_a_request_may_have_its_own_eos_ids():
    target = always_ending(TARGET, len(PROMPT) + 2, EOS)
    assert len(generate(PLAN, target, PROMPT, 9, eos_ids=()).ids) == 9
    other = generate(PLAN, target, PROMPT, 9).ids[0]
    assert generate(PLAN, target, PROMPT, 9, eos_ids=(other,)).ids == [other]


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("cap", range(1, 20))
def test_every_cap_around_the_context_end(drafter, cap):
    run = generate(PLAN, TARGET, PROMPT, max_tokens=cap, drafter=drafter, k=5, eos_ids=())
    assert run.ids == plain_ids(TARGET, PROMPT, cap, 24)
    assert len(run.ids) == min(cap, 24 - len(PROMPT))
    assert max(one.start + one.rows for one in passes(run)) <= 23, "no KV past what can be committed"


@pytest.mark.parametrize("draft_context", [1, 2, 5, 6, 7, 8, 11, 18])
def test_a_draft_model_with_a_shorter_context(draft_context):
    plan = load_made(
        vocab_size=VOCAB, max_context=24, draft={"max_context": draft_context, "prefill_width": 3}
    )
    run = generate(plan, TARGET, PROMPT, max_tokens=30, drafter="model", k=4, eos_ids=())
    assert run.ids == plain_ids(TARGET, PROMPT, 30, 24)
    assert run.result["speculation"]["fallbacks"] == {"draft_context": 1}
    drafted = max((one.start + 1 + len(one.drafts) for one in passes(run) if one.drafts), default=0)
    assert drafted == (draft_context + 1 if draft_context >= len(PROMPT) else 0), (
        "drafts go as far as they can"
    )


@pytest.mark.parametrize("widths", [[1], [1, 2], [1, 4]])
def test_k_is_cut_to_the_widest_pass(widths):
    plan = load_made(vocab_size=VOCAB, widths=widths, draft={})
    run = generate(plan, TARGET, PROMPT, max_tokens=10, drafter="model", k=7, eos_ids=())
    assert run.ids == plain_ids(TARGET, PROMPT, 10, 48)
    assert max(one.rows for one in passes(run)) == widths[-1]


def test_the_narrowest_program_that_holds_the_rows():
    run = generate(PLAN, TARGET, PROMPT, max_tokens=14, drafter="model", k=6, eos_ids=(), draft=TARGET)
    for batch, one in zip(
        [batch for batch in run.backend.submits if batch.kind == "round"], passes(run), strict=False
    ):
        width = int(batch.calls[-1].rpartition("_")[2])
        assert width in (1, 2, 4, 8) and one.rows <= width and (width == 1 or one.rows > width // 2)


def test_prefill_chunks_end_at_multiples_of_the_width():
    plan = load_made(vocab_size=VOCAB, prefill_width=8)
    run = generate(plan, TARGET, list(range(1, 13)) * 2, max_tokens=1)
    fed = [batch.writes for batch in run.backend.submits if batch.kind == "prefill"]
    args = [values for writes in fed for name, _, values in writes if name == "target.args"]
    assert args == [[0, 8, 0, 0], [8, 8, 0, 0], [16, 7, 0, 0]]


def test_a_prompt_of_one_token_needs_no_prefill():
    run = generate(PLAN, TARGET, [4], max_tokens=3)
    assert run.ids == plain_ids(TARGET, [4], 3, 24)
    assert {batch.kind for batch in run.backend.submits} == {"verify"}


def test_off_writes_nothing_but_the_new_token_and_args():
    run = generate(load_made(vocab_size=VOCAB, page_size=64), TARGET, PROMPT, max_tokens=6, eos_ids=())
    for batch in run.backend.submits[2:]:
        assert [(name, len(values)) for name, _, values in batch.writes] == [
            ("tokens", 1),
            ("target.args", 4),
        ]
        assert batch.calls == ["target.verify_1"] and batch.reads == [("target.out", 0, 2)]


@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_cancel_at_every_submit_then_the_same_again(drafter, rounds):
    """In prefill, in the draft's catch-up and in every round; the backend keeps its state in between."""
    plan = load_made(
        vocab_size=VOCAB, prefill_width=3, page_size=2, draft={"prefill_width": 2, "page_size": 2}
    )
    whole = generate(plan, TARGET, PROMPT * 2, 14, drafter, 4, eos_ids=(), rounds=rounds)
    kinds = set()
    for at in range(len(whole.backend.submits)):
        cut = generate(plan, TARGET, PROMPT * 2, 14, drafter, 4, eos_ids=(), cancel_at=at, rounds=rounds)
        assert cut.result["finish_reason"] == "cancelled"
        assert cut.ids == whole.ids[: len(cut.ids)] and len(cut.ids) < 14
        assert [token_id for emit in cut.emits for token_id in emit.ids] == cut.ids
        assert len(cut.backend.submits) == at, "nothing is submitted after the cancel"
        kinds.add(whole.backend.submits[at].kind)
        again = generate(
            plan, TARGET, PROMPT * 2, 14, drafter, 4, eos_ids=(), backend=cut.backend, rounds=rounds
        )
        assert again.ids == whole.ids
        assert again.result["speculation"] == whole.result["speculation"]
    assert kinds >= {"prefill"} | ({"round", "draft"} if drafter == "model" else {"verify"})


def test_a_cancel_after_the_last_submit_comes_too_late():
    whole = generate(PLAN, TARGET, PROMPT, 5, eos_ids=())
    late = generate(PLAN, TARGET, PROMPT, 5, eos_ids=(), cancel_at=len(whole.backend.submits))
    assert late.result["finish_reason"] == "length" and late.ids == whole.ids


def test_other_requests_on_the_same_device_state():
    """Stale KV, stale page tables and stale tokens of one request mean nothing to the next."""
    backend = generate(PLAN, TARGET, [9, 8, 7, 6, 5, 4, 3], 15, "model", 7, eos_ids=()).backend
    for prompt in ([1], PROMPT, [9, 8, 7], [12] * 20):
        run = generate(PLAN, TARGET, prompt, 9, "chain", 3, eos_ids=(), backend=backend)
        assert run.ids == plain_ids(TARGET, prompt, 9, 24)
