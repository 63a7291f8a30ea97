"""The draft model: a small model on the device guesses, step by step, inside the target's own submit.

Knows one model and its KV. Invariants: its KV is one or two short of the committed tokens, or stale
(shorter, then caught up by prefill before the next draft); the last drafted token is never fed, so a fully
accepted run leaves it two short; of several rounds in one submit each but the first begins with the last two
tokens, and at the end it is two short; a fault of its own costs speed, never an answer: its KV is dropped and
it rests before it tries again.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from specdec_runtime.decode.cache import ModelCache
from specdec_runtime.decode.choice import MODEL, Offer, Stepwise
from specdec_runtime.decode.effects import Read, Readback, Submit
from specdec_runtime.decode.interfaces import Outcome, Proposal, Steps
from specdec_runtime.decode.prefill import prefill_chunk
from specdec_runtime.decode.sequence import Sequence
from specdec_runtime.faults import DeviceFault
from specdec_runtime.plan.schema import OUT_ROWS, Model

REST_CYCLES = 8  # after the first fault; doubled by each further one
MAX_DOUBLINGS = 6
GOING_ON = {"step": "draft.accept", "sample": "draft.accept", "draw": "draft.follow"}  # between two rounds


class ModelDrafter:
    """Drafts with the plan's draft model."""

    name = MODEL
    idle = False

    def __init__(self, model: Model) -> None:
        self._model = model
        self.begin(Sequence(()))

    def begin(self, sequence: Sequence, kind: str = "step", cache: ModelCache | None = None) -> None:
        self._kind = kind
        self.fallbacks: dict[str, int] = {}
        self._sequence = sequence
        self._cache = cache or ModelCache(self._model)
        self._num_appended = 0  # rows the proposal being verified appends to the KV, at most
        self._drafted = (0, 0)  # drafts a round and rounds of that proposal
        self._guess: list[int] = []  # its ids, where it is of one round
        self._guessed_at = 0  # how many tokens were committed then
        self.num_steps = 0  # that were submits of their own
        self._num_faults = 0
        self._rest = 0  # cycles to sit out

    def offers(self, sequence: Sequence) -> list[Offer]:
        ready = not self._rest and self._room(sequence) > 0
        return [Offer(MODEL, 0, lag=len(sequence) - self._cache.cached_len)] if ready else []

    def part(self, source: str) -> ModelDrafter:
        return self

    def propose(self, sequence: Sequence, budget: int, rounds: int = 1) -> Steps:
        room = self._room(sequence)
        num_drafted = min(budget, room)
        if self._rest or num_drafted <= 0:
            return None
        try:
            yield from self._catch_up(sequence)
        except DeviceFault:
            self.failed("device_fault")
            return None
        return self._steps(len(sequence), num_drafted, min(rounds, (room + 1) // (num_drafted + 1)))

    def propose_stepwise(self, sequence: Sequence, budget: int, decider: Stepwise) -> Steps:
        """Up to `budget` drafts, each of a submit of its own; after each one `decider` says whether to draft another (F10).

        They are the model's first choices at any temperature: drafts that the target's own draw is compared with may be any.
        """
        num_drafted = min(budget, self._room(sequence))
        if self._rest or num_drafted <= 0:
            return None
        self._guess, self._guessed_at = [], len(sequence)
        ids = self._guess
        confidences: list[tuple[float, float]] = []
        try:
            yield from self._catch_up(sequence)
            while len(ids) < num_drafted and (not ids or decider.goes_on(confidences)):
                found = yield from self._measured_step(sequence, len(ids))
                if found is None:
                    break
                ids.append(found[0])
                confidences.append(found[1:])
        except DeviceFault:
            self.failed("device_fault")
            return None
        return Proposal(self, len(ids), ids) if ids else None

    def drafted(self, values: list[list[Any]], number: int) -> list[int]:
        """The ids up to the first row that is of no use; what the steps after it made of it is of none either."""
        (out,), num_drafted = values, self._drafted[0]
        first = number * (num_drafted + 1)  # between the drafts of two rounds lies the row of a known token
        out = out[2 * first : 2 * (first + num_drafted)]
        ids: list[int] = []
        for token_id, is_finite in zip(out[::2], out[1::2], strict=True):
            if not is_finite or not 0 <= token_id < self._model.vocab_size:
                self.failed("draft_not_finite" if not is_finite else "draft_bad_id")
                self._rest += number  # the rounds before it are heard of too
                break
            ids.append(token_id)
        if self._drafted[1] == 1 and not self._guess:
            self._guess = ids
        return ids

    def failed(self, reason: str) -> None:
        self.fallbacks[reason] = self.fallbacks.get(reason, 0) + 1
        self._rest = 1 + (REST_CYCLES << min(self._num_faults, MAX_DOUBLINGS))  # this cycle, and then so many
        self._num_faults += 1
        self._num_appended = 0
        self._cache.rollback(0)

    def observe(self, outcome: Outcome) -> None:
        self._rest = max(0, self._rest - 1)
        if self._num_appended:
            self._cache.landed(self._num_appended)
            self._num_appended = 0
        # A round's last draft is never fed. One round has no row for it; several may end in one that was accepted whole.
        self._cache.rollback(len(self._sequence) - (1 if self._drafted[1] <= 1 else 2))
        self._cache.rollback(self._guessed_at + self._num_right())
        self._guess = []

    def _num_right(self) -> int:
        """Guesses of a single round that are what was committed; a grammar may have put others in their places."""
        if not self._guess:
            return len(self._sequence)  # nothing to compare: no limit
        committed = self._sequence.ids[self._guessed_at :]
        right = (guess == token_id for guess, token_id in zip(self._guess, committed, strict=False))
        return next(
            (place for place, same in enumerate(right) if not same), min(len(self._guess), len(committed))
        )

    def _catch_up(self, sequence: Sequence) -> Generator[Submit, Readback, None]:
        """Prefill until a step program can take what is left."""
        while len(sequence) - self._cache.cached_len not in self._model.widths:
            yield from prefill_chunk(sequence, self._cache, len(sequence) - 1, "draft")

    def _room(self, sequence: Sequence) -> int:
        """Drafts that the context holds: the last one is read off the step at position committed + num_drafted - 2."""
        room = self._model.max_context - len(sequence) + 1
        if room <= 0:
            self.fallbacks["draft_context"] = 1  # it stays so to the end: one reason, not one a cycle
        return room

    def _measured_step(
        self, sequence: Sequence, num_before: int
    ) -> Generator[Submit, Readback, tuple[int, float, float] | None]:
        """One draft and how sure the model is of it; None where its row is of no use."""
        num_rows = len(sequence) + num_before - self._cache.cached_len
        writes = sequence.token_writes(len(sequence)) + self._cache.feed(num_rows, 0, feedback=1)
        row = 2 * (num_rows - 1), 2  # the last one, in both
        reads: list[Read] = [("draft.out", *row), ("draft.stats", *row)]
        readback = yield Submit("draft", writes, [f"draft.measure_{num_rows}"], reads)
        self.num_steps += 1
        sequence.landed(len(sequence))
        self._cache.landed(num_rows)
        self._drafted = 1, 1
        ids, (logprob, entropy) = self.drafted(readback.values[:1], 0), readback.values[1]
        return (ids[0], logprob, entropy) if ids else None

    def _steps(self, committed: int, num_drafted: int, rounds: int) -> Proposal:
        """One step over the tokens it lacks, then steps that each read the id the one before wrote.

        Their rows lie in `out` one after the other; the first draft is in the last row of the first step. A further round
        begins with a step over the last two tokens, which are all that it can lack then.
        """
        num_rows = committed - self._cache.cached_len
        rounds = min(rounds, (OUT_ROWS - num_rows + 2) // (num_drafted + 1)) if 2 in self._model.widths else 1
        self._drafted = num_drafted, rounds
        self._guess, self._guessed_at = [], committed
        num_more = rounds * (num_drafted + 1) - 2
        self._num_appended = num_rows + num_more
        writes = self._cache.feed(num_rows, num_more, feedback=1)
        step = f"draft.{self._kind}"
        steps = [f"{step}_1"] * (num_drafted - 1)
        calls, again = [f"{step}_{num_rows}", *steps], [GOING_ON[self._kind], f"{step}_2", *steps]
        reads: list[Read] = [("draft.out", 2 * (num_rows - 1), 2 * (rounds * (num_drafted + 1) - 1))]
        return Proposal(
            self, num_drafted, writes=writes, calls=calls, reads=reads, rounds=rounds, again=again
        )
