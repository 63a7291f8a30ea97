"""The draft model: a small model on the device guesses, step by step, inside the target's own submit.

Knows one model and its KV. Invariants: its KV is one or two short of the committed tokens, or stale
(shorter, then caught up by prefill before the next draft); the last drafted token is never fed, so a fully
accepted run leaves it two short; a fault of its own costs speed, never an answer: its KV is dropped and it
rests before it tries again.
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
from specdec_runtime.plan.schema import MAX_ROWS, Model

REST_CYCLES = 8  # after the first fault; doubled by each further one
MAX_DOUBLINGS = 6
MEASURE = (
    "draft.measure_1"  # after a step: (log-probability of its choice, entropy) of the last row of the step
)
MEASURED = "draft.measure"


class ModelDrafter:
    """Drafts with the plan's draft model."""

    name = MODEL
    idle = False

    def __init__(self, model: Model) -> None:
        self._model = model
        self.begin(Sequence(()))

    def begin(self, sequence: Sequence) -> None:
        self.fallbacks: dict[str, int] = {}
        self._sequence = sequence
        self._cache = ModelCache(self._model)
        self._num_appended = 0  # rows the proposal being verified appends to the KV
        self._num_faults = 0
        self._rest = 0  # cycles to sit out

    def offers(self, sequence: Sequence) -> list[Offer]:
        ready = not self._rest and self._room(sequence) > 0
        return [Offer(MODEL, 0, lag=len(sequence) - self._cache.cached_len)] if ready else []

    def part(self, source: str) -> ModelDrafter:
        return self

    def propose(self, sequence: Sequence, budget: int) -> Steps:
        num_drafted = min(budget, self._room(sequence))
        if self._rest or num_drafted <= 0:
            return None
        try:
            yield from self._catch_up(sequence)
        except DeviceFault:
            self.failed("device_fault")
            return None
        return self._steps(len(sequence), num_drafted)

    def propose_stepwise(self, sequence: Sequence, budget: int, decider: Stepwise) -> Steps:
        """Up to `budget` drafts, each of a submit of its own; after each one `decider` says whether to draft another (F10)."""
        num_drafted = min(budget, self._room(sequence))
        if self._rest or num_drafted <= 0:
            return None
        ids: list[int] = []
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

    def drafted(self, values: list[list[Any]]) -> list[int]:
        """The ids up to the first row that is of no use; what the steps after it made of it is of none either."""
        (out,) = values
        ids: list[int] = []
        for token_id, is_finite in zip(out[::2], out[1::2], strict=True):
            if not is_finite or not 0 <= token_id < self._model.vocab_size:
                self.failed("draft_not_finite" if not is_finite else "draft_bad_id")
                break
            ids.append(token_id)
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
        self._cache.rollback(len(self._sequence) - 1)

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
        calls = [f"draft.step_{num_rows}", MEASURE]
        reads: list[Read] = [("draft.out", 2 * (num_rows - 1), 2), (MEASURED, 0, 2)]
        readback = yield Submit("draft", writes, calls, reads)
        sequence.landed(len(sequence))
        self._cache.landed(num_rows)
        ids, (logprob, entropy) = self.drafted(readback.values[:1]), readback.values[1]
        return (ids[0], logprob, entropy) if ids else None

    def _steps(self, committed: int, num_drafted: int) -> Proposal:
        """One step over the tokens it lacks, then steps that each read the id the one before wrote.

        Their rows lie in `out` one after the other; the first draft is in the last row of the first step.
        """
        num_rows = committed - self._cache.cached_len
        num_drafted = min(num_drafted, MAX_ROWS + 1 - num_rows)
        self._num_appended = num_rows + num_drafted - 1
        writes = self._cache.feed(num_rows, num_drafted - 1, feedback=1)
        calls = [f"draft.step_{num_rows}"] + ["draft.step_1"] * (num_drafted - 1)
        reads: list[Read] = [("draft.out", 2 * (num_rows - 1), 2 * num_drafted)]
        return Proposal(self, num_drafted, writes=writes, calls=calls, reads=reads)
