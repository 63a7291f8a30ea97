"""Chain and draft model: who proposes, who hears, and where the draft's KV stands."""

import pytest
from exactness_suite import VOCAB
from plan_factory import load_made
from simulate import generate, mostly, passes, plain_ids, seeded
from specdec_runtime import drive
from specdec_runtime.backends.scripted import ScriptedBackend
from specdec_runtime.decode.interfaces import Outcome, Proposal
from specdec_runtime.decode.request import Request
from specdec_runtime.decode.round import decode
from specdec_runtime.drafters.chain import ChainDrafter
from specdec_runtime.drafters.draft_model import ModelDrafter
from specdec_runtime.drafters.registry import drafter_names, make_drafter
from specdec_runtime.faults import ContractError

PLAN = load_made(vocab_size=VOCAB, draft={"prefill_width": 4})
TARGET = seeded(5, VOCAB)
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5]


class Scripted:
    """Proposes the ids it was given, one list a call, and writes down what it hears."""

    idle = False

    def __init__(self, name, proposals):
        self.name = name
        self.fallbacks = {}
        self.proposals = list(proposals)
        self.asked = 0
        self.heard: list[Outcome] = []

    def begin(self, sequence, kind="step"):
        self.heard.clear()

    def offers(self, sequence):
        return []

    def part(self, source):
        return self

    def propose(self, sequence, budget, rounds=1):
        self.asked += 1
        ids = self.proposals.pop(0) if self.proposals else []
        return Proposal(self, len(ids), ids) if ids else None
        yield

    def drafted(self, values, number):
        return []

    def failed(self, reason):
        raise AssertionError(reason)

    def observe(self, outcome):
        self.heard.append(outcome)


def serve(drafter, max_tokens=6, k=3):
    backend = ScriptedBackend(PLAN, TARGET)
    return drive.run(decode(PLAN, Request(PROMPT, max_tokens, k, ()), drafter), backend)


def test_the_first_that_proposes_wins_and_all_hear_everything():
    first, second = Scripted("first", [[1], [], [2]]), Scripted("second", [[3, 4], [5]])
    result = serve(ChainDrafter([first, second]))
    assert result["token_ids"] == plain_ids(TARGET, PROMPT, 6, 48)
    cycles = result["speculation"]["num_cycles"]
    assert first.heard == second.heard and len(first.heard) == cycles
    assert second.asked == first.asked - 2, "asked only where the first had nothing"
    assert [outcome.num_drafted for outcome in first.heard][:3] == [1, 2, 1]


def test_outcomes_tell_what_was_committed():
    answer = plain_ids(TARGET, PROMPT, 6, 48)
    right = Scripted("right", [answer[:3]])
    serve(right)
    first = right.heard[0]
    assert first == Outcome(answer[:4], 3, 3, 3, None, False)
    assert right.heard[-1].finish_reason == "length"
    assert [token_id for outcome in right.heard for token_id in outcome.ids] == answer


def test_a_drafter_that_proposes_too_much_is_a_bug():
    with pytest.raises(ContractError, match="5 drafts of 3"):
        serve(Scripted("greedy", [[1, 2, 3, 4, 5]]))


def test_chain_has_nothing_of_its_own():
    chain = ChainDrafter([])
    for call in (lambda: chain.drafted([], 0), lambda: chain.failed("x")):
        with pytest.raises(ContractError):
            call()


def test_chain_sums_reasons():
    one, two = Scripted("one", []), Scripted("two", [])
    one.fallbacks["a"] = 1
    two.fallbacks["b"] = 2
    assert ChainDrafter([one, two]).fallbacks == {"a": 1, "b": 2}


def test_names():
    assert drafter_names(PLAN) == ["off", "model", "ngram", "chain"]
    assert drafter_names(load_made()) == ["off", "ngram", "chain"]
    for name in drafter_names(PLAN):
        assert make_drafter(name, PLAN).name == name


class Watched(ModelDrafter):
    """Notes after each cycle how far its KV lags behind the committed tokens."""

    def begin(self, sequence, kind="step"):
        super().begin(sequence, kind)
        self.lags = []

    def observe(self, outcome):
        super().observe(outcome)
        self.lags.append(
            (outcome.num_accepted == outcome.num_drafted, len(self._sequence) - self._cache.cached_len)
        )


@pytest.mark.parametrize("k", [1, 2, 4, 7])
def test_the_draft_lags_by_one_or_after_full_acceptance_by_two(k):
    assert PLAN.draft_model
    drafter = Watched(PLAN.draft_model)
    backend = ScriptedBackend(PLAN, TARGET, mostly(TARGET, seeded(6, VOCAB), 90))
    drive.run(decode(PLAN, Request(PROMPT, 30, k, ()), drafter), backend)
    assert {lag for full, lag in drafter.lags[:-2] if not full} <= {1}
    assert {lag for full, lag in drafter.lags[:-2] if full} == {2}


class Honest(ScriptedBackend):
    """Compares what a pass builds on, the KV of all positions before its own, with the tokens there."""

    def submit(self, batch):
        answer = super().submit(batch)
        for name, _, values in batch.writes:
            role, _, tensor = name.partition(".")
            if tensor == "args":
                read = [self._lanes[role]._read(place) for place in range(values[0])]
                assert read == self.tensors["tokens"][: values[0]], f"{role}'s KV is not that of the tokens"
        return answer


def serve_honest(rounds, k, quality, seed):
    plan = load_made(vocab_size=VOCAB, max_context=80, draft={"max_context": 80, "prefill_width": 4})
    target = seeded(seed, VOCAB)
    backend = Honest(plan, target, mostly(target, seeded(6, VOCAB), quality))
    return generate(plan, target, PROMPT, 60, "model", k, eos_ids=(), backend=backend, rounds=rounds)


QUALITIES = [(rounds, k, quality) for rounds in (1, 2, 4) for k in (1, 3, 7) for quality in (0, 60, 90, 100)]


@pytest.mark.parametrize(("rounds", "k", "quality"), QUALITIES)
def test_what_is_claimed_of_the_kv_is_there(rounds, k, quality):
    for seed in range(4):
        serve_honest(rounds, k, quality, seed)


def test_a_draft_that_claims_its_last_unfed_token_is_noticed(monkeypatch):
    """After several rounds, of which the last alone was accepted whole."""

    def observe(self, outcome):
        if self._num_appended:
            self._cache.landed(self._num_appended)
            self._num_appended = 0
        self._cache.rollback(len(self._sequence) - 1)

    monkeypatch.setattr(ModelDrafter, "observe", observe)
    with pytest.raises(AssertionError, match="draft's KV"):
        for rounds, k, quality in QUALITIES:
            test_what_is_claimed_of_the_kv_is_there(rounds, k, quality)


def test_one_submit_a_round_whatever_the_lag():
    run = generate(PLAN, TARGET, PROMPT, 30, "model", 4, mostly(TARGET, seeded(6, VOCAB), 80), eos_ids=())
    kinds = [batch.kind for batch in run.backend.submits]
    first = kinds.index("round")
    assert set(kinds[first:]) <= {"round", "verify"}
    first_calls = {batch.calls[0] for batch in run.backend.submits[first:-1]}
    assert first_calls == {"draft.step_1", "draft.step_2"}
    assert len(passes(run)) == len(kinds) - first


@pytest.mark.parametrize("k", [3, 6, 7])
def test_the_rows_of_all_draft_steps_fit_into_out(k):
    """A draft that may lag by 8 tokens: a first step of many rows leaves room for fewer rounds."""
    wide = load_made(vocab_size=VOCAB, max_context=64, draft={"widths": [1, 2, 4, 8], "max_context": 64})
    seen = set()
    for prompt_len in range(1, 10):
        prompt = PROMPT[:prompt_len]
        run = generate(wide, TARGET, prompt, 34, "model", k, TARGET, eos_ids=(), rounds=4)
        assert run.ids == plain_ids(TARGET, prompt, 34, 64)
        first = next(batch for batch in run.backend.submits if batch.kind == "round")
        rows = int(first.calls[0].rpartition("_")[2])
        assert run.emits[0].num_drafted == run.emits[0].num_accepted == k
        rounds = sum(call.startswith("target.") for call in first.calls)
        assert rounds == min(4, (34 - rows) // (k + 1))
        seen.add(rounds)
    assert seen == ({4} if k == 3 else {3, 4})


def test_a_draft_without_a_step_of_two_rows_has_one_round_a_submit():
    narrow = load_made(vocab_size=VOCAB, draft={"widths": [1]})
    run = generate(narrow, TARGET, PROMPT, 20, "model", 3, TARGET, eos_ids=(), rounds=4)
    assert run.ids == plain_ids(TARGET, PROMPT, 20, 48)
    assert not any("draft.accept" in batch.calls for batch in run.backend.submits)


@pytest.mark.parametrize("draft_context", range(9, 30))
def test_rounds_end_with_the_drafts_context(draft_context):
    """The backend refuses a row past a context; the answer goes on without the draft."""
    plan = load_made(vocab_size=VOCAB, draft={"max_context": draft_context, "prefill_width": 4})
    for k in (1, 3, 7):
        run = generate(plan, TARGET, PROMPT, 30, "model", k, TARGET, eos_ids=(), rounds=4)
        assert run.ids == plain_ids(TARGET, PROMPT, 30, 48)
        assert run.result["speculation"]["fallbacks"] == {"draft_context": 1}


@pytest.mark.parametrize("rounds", [2, 4])
def test_a_champion_as_its_own_draft_is_accepted_whole_in_every_round(rounds):
    """Also where the device went on by itself: a draft that reads wrong tokens or rows costs acceptance."""
    run = generate(PLAN, TARGET, PROMPT, 33, "model", 3, TARGET, eos_ids=(), rounds=rounds)
    counts = run.result["speculation"]
    assert counts["num_accepted"] == counts["num_evaluated"] == counts["num_drafted"]
    whole = [batch for batch in run.backend.submits if batch.calls.count("target.verify_4") == rounds]
    assert len(whole) == 32 // (4 * rounds), "all rounds but the last submit's"


def test_a_stale_draft_catches_up_by_chunks_that_end_at_multiples():
    """The n-gram drafter serves for a while; the model's KV is then far behind."""
    plan = load_made(vocab_size=VOCAB, max_context=100, draft={"max_context": 100, "prefill_width": 4})
    repeating = seeded(2, VOCAB, memory=2)
    run = generate(plan, repeating, PROMPT, 60, "chain", 3, mostly(repeating, TARGET, 50), eos_ids=())
    chunks = [
        values
        for batch in run.backend.submits
        if batch.kind == "draft"
        for name, _, values in batch.writes
        if name == "draft.args"
    ]
    assert run.ids == plain_ids(repeating, PROMPT, 60, 100)
    assert chunks and all((start + rows) % 4 == 0 or rows < 4 for start, rows, _, _ in chunks)
    fed = [position for start, rows, _, _ in chunks for position in range(start, start + rows)]
    assert len(fed) == len(set(fed)), "no position is prefilled twice"
