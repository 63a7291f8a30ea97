"""What passes cost on one device, in milliseconds: measured at load, refined by the times of submits while a request runs.

Knows no clock: times come in. Formulas (F5): n plain steps cost S + n * tv(1), drafting k of them by the model
S + R * (k * td + tv(k + 1)) for R rounds and R - 1 times ta (the device accepts a round and goes on) and AGAIN of the host's part
of S (it judges and commits one round after the other), by lookup S + tv(k + 1); each chunk that brings the draft's KV up to date
adds draft_read. A further round's first step has two rows, and costs what one does.
Invariants: every cost is finite and above 0; a verify pass of some rows costs what the narrowest program that holds them does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from specdec_runtime.decode.choice import MODEL, Choice
from specdec_runtime.decode.programs import Programs
from specdec_runtime.plan.schema import MAX_ROWS, Model, Plan

# how far one submit moves the costs of its parts, and all others with them, towards its time
PULL, PULL_ALL = 0.2, 0.12
AGAIN = 0.2  # of the host's work for a submit, which each further round in it takes again
OUTLIER = 2.0  # a submit that took longer or shorter by this factor counts as this factor


@dataclass(frozen=True, slots=True)
class Costs:
    """Milliseconds on this device; `how` says how they were found."""

    sync: float  # S: what a submit costs beyond its passes
    verify: dict[int, float]  # by the width of the program
    draft_step: float | None = None  # of one row or two; None: no draft model
    draft_read: float | None = None  # a chunk of the draft's prefill, as it delays the submit after it
    target_read: float = 0.0  # the same of the target's
    outside: float = 0.0  # the part of S that Readback.ms does not contain: on a CPU all of it
    accept: float = 0.0  # ta: between two rounds of a submit
    how: str = "assumed"
    target_chunk: int = 32  # tokens that a chunk of a prefill reads
    draft_chunk: int = 32
    chunks_in_ms: bool = False  # Readback.ms of a submit holds the draft's chunks that ran ahead of it

    def rows(self, num_rows: int) -> float:
        """A verify pass of so many rows."""
        return self.verify[min(width for width in self.verify if width >= num_rows)]

    def host(self, rounds: int) -> float:
        """The part of a submit of so many rounds that Readback.ms does not contain."""
        return self.outside * (1 + AGAIN * (rounds - 1))

    def through(self, programs: Programs, model: Model) -> Costs:
        """The costs where a device's self-test leaves other programs for the rows."""
        return replace(self, verify={rows: self.rows(programs.width(model, rows)) for rows in self.verify})

    def json(self) -> dict[str, Any]:
        verify = {str(width): round(ms, 4) for width, ms in self.verify.items()}
        step, read = (None if ms is None else round(ms, 4) for ms in (self.draft_step, self.draft_read))
        fields = {"sync": round(self.sync, 4), "verify": verify, "draft_step": step, "draft_read": read}
        return {
            **fields,
            "target_read": round(self.target_read, 4),
            "accept": round(self.accept, 4),
            "outside": round(self.outside, 4),
            "how": self.how,
        }


# a CPU's proportions: the careful guess
ASSUMED = Costs(0.7, {rows: 2.5 + 4.5 * rows for rows in range(1, MAX_ROWS + 1)}, 1.5, 20.0, 100.0, 0.2)


def assumed(plan: Plan) -> Costs:
    """Where nothing was measured; the times of the run's own submits then pull them into place."""
    model, draft = plan.target_model, plan.draft_model
    verify = {width: ASSUMED.verify[width] for width in model.widths}
    costs = replace(ASSUMED, verify=verify, target_chunk=model.prefill_width)
    if draft is None:
        return replace(costs, draft_step=None, draft_read=None)
    return replace(costs, draft_chunk=draft.prefill_width)


_PARTS = ("sync", "draft_step", "draft_read", "accept")


class LiveCosts:
    """The costs as they are now: each submit's time pulls the parts it was made of, in proportion, and the others less: most drifts
    are the clock's, common to all."""

    def __init__(self, costs: Costs) -> None:
        self._first = costs
        self._again = AGAIN * costs.outside
        self._scale: dict[str | int, float] = dict.fromkeys((*_PARTS, *costs.verify), 1.0)
        widths = sorted(costs.verify)
        self._width = [next(w for w in widths if w >= rows) for rows in range(widths[-1] + 1)]  # by rows
        self._rebuild()

    @property
    def costs(self) -> Costs:
        """As they are now."""
        verify = {width: self._verify[width] for width in self._first.verify}
        step = None if self._first.draft_step is None else self._step
        read = None if self._first.draft_read is None else self._read
        now = {"sync": self.sync, "verify": verify, "draft_step": step, "draft_read": read}
        return replace(self._first, **now, accept=self._accept)

    def time(self, choice: Choice, lag: int = 0) -> float:
        """What the submit of a choice takes, and what must be read into the draft's KV before it."""
        source, k, rounds, steps = choice
        if source is None:
            return self.sync + steps * self._verify[1]
        verify = self._verify[k + 1]
        if source != MODEL:
            return self.sync + verify
        passes = rounds * (k * self._step + verify) + (rounds - 1) * (self._accept + self._again)
        return self.sync + passes + (self.reading(lag) if lag > 2 else 0.0)

    def reading(self, lag: int) -> float:
        """Chunks that end at multiples of the prefill's width, until two tokens or fewer are left."""
        return -(-max(0, lag - 2) // self._first.draft_chunk) * self._read

    def ran(self, choice: Choice, ms: float, lag: int = 0, pull: float = PULL) -> None:
        """A submit of this choice took so long; the draft's KV lacked lag tokens before."""
        if not (math.isfinite(ms) and ms > 0):
            return
        chunks = self.reading(lag) if choice.source == MODEL and self._first.chunks_in_ms else 0.0
        expected = max(self.time(choice) + chunks - self._first.host(choice.rounds), 1e-6)
        ratio = min(OUTLIER, max(1 / OUTLIER, ms / expected))
        rest = 1 - chunks / expected  # the more of it chunks took, the less it says of all else
        own, other = 1 + pull * rest * (ratio - 1), 1 + PULL_ALL * rest * (ratio - 1)
        width, scale = self._width[choice.k + 1], self._scale
        for part in scale:
            mine = part == width or part == "sync" or (part == "draft_step" and choice.source == MODEL)
            scale[part] *= own if mine else other
        if chunks:
            scale["draft_read"] *= (1 + pull * (ratio - 1)) / other
        self._rebuild()

    def _rebuild(self) -> None:
        first, scale = self._first, self._scale
        self.sync = first.outside + (first.sync - first.outside) * scale["sync"]
        self._verify = [first.verify[width] * scale[width] for width in self._width]  # by rows
        self._step = (first.draft_step or 0.0) * scale["draft_step"]
        self._read = (first.draft_read or 0.0) * scale["draft_read"]
        self._accept = first.accept * scale["accept"]
