"""Grammars in the decode core: every speculative answer is the plain one, masks belong to their rows, forced tokens are free."""

from array import array
from itertools import product

import pytest
from plan_factory import load_made
from simulate import Run
from specdec_runtime import drive
from specdec_runtime.backends.scripted import Script
from specdec_runtime.decode.effects import Constrain, Emit, Submit, Walk
from specdec_runtime.decode.grammar import only_id, walk
from specdec_runtime.decode.request import Request
from specdec_runtime.decode.round import decode
from specdec_runtime.decode.sampling import MODES, Sampling
from specdec_runtime.decode.state import STEPS
from specdec_runtime.drafters.registry import make_drafter
from specdec_runtime.faults import DeviceFault, RequestError
from toy_grammar import EOS, VOCAB, MaskedBackend, Toy, ToyMatcher, best, defined, mix, seeded_grammar

PROMPT = [3, 4, 5, 3, 4, 5, 3, 4]
GRAMMAR = {"type": "regex", "pattern": "a"}  # the toy matcher does not read it
SIZES = {"max_context": 40, "page_size": 4}


def plan():
    return load_made(vocab_size=VOCAB, draft={**SIZES, "prefill_width": 4}, eos_ids=[EOS], **SIZES)


def draft_model(seed, allowed, percent):
    """Says what the target will say on so many prefixes, without knowing the grammar on the others."""

    def next_id(prefix):
        if mix("coin", prefix) % 100 < percent and len(prefix) >= len(PROMPT):
            answer = prefix[len(PROMPT) :]
            if EOS not in answer:
                return best(seed, prefix, allowed(answer))
        return mix("wrong", prefix) % VOCAB

    return next_id


def run(
    seed=1, allowed=None, drafter="off", k=4, max_tokens=20, percent=70, script=None, **also
) -> tuple[Run, Toy]:
    made, allowed = plan(), allowed or seeded_grammar(seed)
    backend = MaskedBackend(made, seed, draft_model(seed, allowed, percent), script)
    toy, emits = Toy(allowed), []
    request = Request(PROMPT, max_tokens, k, grammar=GRAMMAR, **also)
    result = drive.run(
        decode(made, request, make_drafter(drafter, made)),
        backend,
        lambda effect: emits.append(effect) if isinstance(effect, Emit) else None,
        matchers=toy,
    )
    return Run(result, backend, emits), toy


def passes(backend):
    return [batch for batch in backend.submits if batch.masks]


def start_and_drafts(batch):
    """Of a target's pass: where it starts, and what it verifies."""
    start = next(values[0] for name, _, values in batch.writes if name == "target.args")
    tokens = [(first, values) for name, first, values in batch.writes if name == "tokens"]
    drafts = [token_id for first, values in tokens for token_id in values[start + 1 - first :]]
    assert len(drafts) == batch.masks - 1
    return start, drafts


@pytest.mark.parametrize("drafter", ["off", "ngram", "model", "chain"])
def test_speculation_changes_no_answer(drafter):
    for seed, k, forced, heat in product(range(12), (0, 1, 3, 7), (0, 50, 100), (0, 1.5)):
        allowed, sampling = seeded_grammar(seed, forced), Sampling(temperature=heat, seed=seed)
        percent = 100 if seed % 3 else 30
        found, _ = run(seed, allowed, drafter, k, percent=percent, sampling=sampling)
        expected = defined(seed, allowed, PROMPT, 20, SIZES["max_context"], sampling)
        assert found.ids == expected, (seed, k, forced, percent)
        assert [token_id for emit in found.emits for token_id in emit.ids] == expected
        assert found.result["finish_reason"] == ("stop" if expected[-1] == EOS else "length")
        counts = found.result["speculation"]
        assert counts["num_forced_accepted"] <= counts["num_forced"] <= counts["num_drafted"]
        assert counts["num_drafted"] >= counts["num_accepted"] >= counts["num_forced_accepted"]
        steps = [call for batch in found.backend.submits for call in batch.calls if call.startswith(STEPS)]
        assert counts["num_draft_passes"] == len(steps)


@pytest.mark.parametrize("drafter", ["ngram", "model", "chain"])
def test_every_mode_is_judged_by_equality(drafter):
    """A grammar cuts and replaces drafts by their values: `reject` and `block` draw with the target's noise, as `coupled` does."""
    accepted = 0
    for seed, forced in product(range(6), (0, 50)):
        told = []
        for mode in MODES:
            sampling = Sampling(temperature=1.5, mode=mode, seed=seed)
            found, _ = run(seed, seeded_grammar(seed, forced), drafter, 3, sampling=sampling)
            speculation = found.result["speculation"]
            assert speculation["mode"] == mode
            calls = [batch.calls for batch in found.backend.submits]
            told.append((found.ids, calls, speculation | {"mode": None}))
        assert told[0] == told[1] == told[2]
        accepted += told[0][2]["num_accepted"] - told[0][2]["num_forced_accepted"]
    assert accepted > 0


def test_a_forced_run_costs_one_pass():
    """Nine forced tokens and the end: with k 4 two passes of five."""
    allowed = seeded_grammar(3, 100)
    plain, _ = run(3, allowed, k=0)
    found, _ = run(3, allowed, k=4)
    assert len(plain.ids) == 10 and found.ids == plain.ids
    assert len(passes(plain.backend)) == 10 and len(passes(found.backend)) == 2
    counts = found.result["speculation"]
    # the tenth token is the second pass's own
    assert (counts["num_forced"], counts["num_forced_accepted"], counts["num_accepted"]) == (8, 8, 8)
    assert counts["schedule"]["choices"] == {"forced 4": 2}


def test_rounds_of_a_model_are_two_submits_and_lookups_one():
    found, _ = run(6, seeded_grammar(6, 0), "model", 3, percent=50)
    submits = [batch for batch in found.backend.submits if not batch.calls[0].endswith("prefill")]
    assert [batch.kind for batch in submits[:4]] == ["draft", "verify"] * 2
    assert submits[1].masks >= 1 and len(submits[1].calls) == 1 and submits[0].masks == 0
    found, _ = run(5, seeded_grammar(5, 0), "ngram", 3)
    assert {batch.kind for batch in found.backend.submits} == {"prefill", "verify"}


def test_a_cut_draft_is_never_verified():
    """What the target's passes were given is allowed by the grammar, row by row."""
    allowed = seeded_grammar(2, 30)
    found, _ = run(2, allowed, "model", 7, percent=40)
    assert found.result["speculation"]["num_cut"] > 0
    ids = PROMPT + found.ids
    for batch in passes(found.backend):
        start, drafts = start_and_drafts(batch)
        answer = tuple(ids[len(PROMPT) : start + 1])
        for token_id in drafts:
            assert token_id in allowed(answer)
            answer += (token_id,)


def test_the_matcher_hears_committed_tokens_only():
    """After a rejected draft it stands where the answer does."""
    rejected = 0
    for seed in range(12):
        found, toy = run(seed, seeded_grammar(seed, 0), "model", 5, percent=20)
        assert found.ids[: len(toy.matcher.answer)] == list(toy.matcher.answer)
        counts = found.result["speculation"]
        rejected += counts["num_drafted"] - counts["num_accepted"]
    assert rejected > 0


def test_the_draft_model_is_fed_what_was_committed():
    """Where the grammar put another id in a guess's place, the draft's KV must not keep the guess: its next first guess tells."""
    allowed, replaced = seeded_grammar(6, 60), 0
    for seed in range(20):
        model = draft_model(seed, allowed, 50)
        found, _ = run(seed, allowed, "model", 4, percent=50)
        ids = PROMPT + found.ids
        replaced += found.result["speculation"]["num_cut"]
        length = len(PROMPT)
        for batch, readback in zip(found.backend.submits, found.backend.readbacks, strict=True):
            assert readback is not None
            if batch.calls[0].startswith("draft.step"):
                assert readback.values[0][0] == model(tuple(ids[:length]))
            if batch.masks:
                start, drafts = start_and_drafts(batch)
                right = [a == b for a, b in zip(drafts, readback.values[0][::2], strict=False)]
                length = start + 1 + [*right, False].index(False) + 1
    assert replaced > 20


def test_the_end_is_only_where_the_grammar_has_it():
    for seed in range(8):
        found, toy = run(seed, k=3)
        assert toy.asked[0].stop_ids == [EOS] and toy.asked[0].row_words == 1
        assert EOS not in found.ids[:-1] and found.ids[-1] == EOS
        assert EOS in toy.allowed(tuple(found.ids[:-1]))


def test_a_row_that_is_not_finite_gets_its_plain_retry_and_its_mask():
    script = Script(not_finite={(1, "target.filter_4", 0)})
    allowed = seeded_grammar(7, 100)
    found, _ = run(7, allowed, k=3, script=script)
    assert found.ids == defined(7, allowed, PROMPT, 20, 40)
    assert [batch.masks for batch in passes(found.backend)][:2] == [4, 1]


def test_a_lost_draft_submit_costs_speed_only():
    allowed = seeded_grammar(8, 30)
    script = Script(fail_before={number: DeviceFault("lost") for number in (5,)})
    found, _ = run(8, allowed, "model", 3, percent=100, script=script)
    assert found.ids == defined(8, allowed, PROMPT, 20, 40)
    assert found.result["speculation"]["fallbacks"] == {"device_fault": 1}


def test_a_device_that_ignores_the_mask_is_told():
    backend = MaskedBackend(plan(), 1, lambda prefix: 0)
    toy = Toy(seeded_grammar(1, 0))
    wrong = next(token_id for token_id in range(1, VOCAB) if token_id not in toy.allowed(()))
    backend._choose = lambda lane, operation, prefix, out_row: wrong
    with pytest.raises(DeviceFault, match="the grammar forbids"):
        drive.run(
            decode(plan(), Request(PROMPT, 9, 0, grammar=GRAMMAR), make_drafter("off", plan())),
            backend,
            matchers=toy,
        )


def test_a_grammar_without_a_way_on_is_refused():
    with pytest.raises(RequestError, match="no token"):
        run(1, lambda answer: frozenset({3}) if not answer else frozenset())


def test_without_an_engine_it_is_refused():
    with pytest.raises(RequestError, match="no grammar engine"):
        drive.run(
            decode(plan(), Request(PROMPT, 9, 0, grammar=GRAMMAR), make_drafter("off", plan())),
            MaskedBackend(plan(), 1, lambda prefix: 0),
        )


@pytest.mark.parametrize("also", [{"eos_ids": ()}, {"grammar": {"type": "xml"}}])
def test_what_cannot_be_kept_to_is_refused_before_any_effect(also):
    with pytest.raises(RequestError):
        decode(plan(), Request(PROMPT, 9, 0, **{"grammar": GRAMMAR, **also}), make_drafter("off", plan()))


# walk: the rule itself


def matcher(*rows):
    """Allowed ids by how many are accepted."""
    sets = [frozenset(row) for row in rows]
    return ToyMatcher(lambda answer: sets[len(answer)], [EOS])


def test_walk_forces_cuts_and_comes_back():
    toy = matcher({1, 2}, {5}, {6}, {1, 2}, {1, 2})
    walked, rows = walk(toy, Walk([1], [9, 6, 7], 5))
    # 9 was wrong, and what was guessed after it goes too
    assert (walked.ids, walked.forced) == ([5, 6], [0, 1])
    assert [row[0] for row in rows] == [1 << 5, 1 << 6, 0b110]
    assert toy.answer == (1,)
    walked, _ = walk(toy, Walk([5], [6, 2, 8], 5))
    assert (walked.ids, walked.forced) == ([6, 2], [0])  # 8 is cut
    assert toy.answer == (1, 5)


def test_walk_ends_at_a_stop():
    toy = matcher({1}, {EOS, 3}, {4})
    walked, rows = walk(toy, Walk([], [1, EOS, 3], 3))
    assert walked.ids == [1, EOS] and len(rows) == 3 and toy.answer == ()


def test_only_id():
    assert only_id(array("I", [0, 1 << 31])) == 63
    assert only_id(array("I", [1, 1])) is None and only_id(array("I", [0, 0])) is None


def test_masks_are_padded_to_their_rows():
    from specdec_runtime.masks import Masks

    masks = Masks(Toy(seeded_grammar(1)))
    effects = decode(plan(), Request(PROMPT, 9, 0, grammar=GRAMMAR), make_drafter("off", plan()))
    constrain = next(effects)
    assert isinstance(constrain, Constrain)
    masks.constrain(constrain._replace(row_words=3))
    masks.walk(Walk([], [], 0))
    batch = masks.into(Submit("verify", [], [], [], 1))
    (_, first, words) = batch.writes[0]
    assert first == 0 and len(words) == 3 and list(words[1:]) == [0, 0]
