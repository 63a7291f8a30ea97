"""What the decode core and its drafters know of each other.

A drafter proposes, hears every outcome, and may be told that its proposal could not be run. Knows no
concrete drafter. Invariants: a proposal holds at most `budget` drafts, chosen before any of them is
verified; a drafter that has nothing to offer, or whose model failed, returns None and the round is a plain
step; no drafter can change what is committed.
"""

from __future__ import annotations

from collections.abc import Generator
from collections.abc import Sequence as Ids
from typing import Any, NamedTuple, Protocol

from specdec_runtime.decode.cache import ModelCache
from specdec_runtime.decode.choice import Offer, Stepwise
from specdec_runtime.decode.effects import Read, Readback, Submit, Write
from specdec_runtime.decode.sequence import Sequence


class Outcome(NamedTuple):
    """What one cycle did."""

    ids: list[int]  # committed, in order
    num_drafted: int
    num_accepted: int  # drafts that were committed
    num_evaluated: int  # drafts judged: the accepted and the first rejected
    finish_reason: str | None
    undecided: bool  # the row after the last committed token was not finite
    pieces: list[str] | None = None  # what may be shown of each id; None: no stop strings were asked for
    logprobs: list[dict[str, Any]] | None = None  # of each id; None: not asked for

    def as_plain(self) -> Outcome:
        """The same tokens, where what was committed as drafts were the target's own steps."""
        return self._replace(num_drafted=0, num_accepted=0, num_evaluated=0)


class Proposal(NamedTuple):
    """Drafts for the next positions: ids the host knows, or calls that write them to `tokens`.

    With `rounds` above 1 the device accepts the drafts itself and goes on: `again` lies between two verify passes.
    """

    source: Drafter
    num_drafted: int  # in every round
    ids: Ids[int] = ()  # known to the host; empty where `calls` make them
    writes: Ids[Write] = ()  # these three go into the verify pass's own submit, before it
    calls: Ids[str] = ()
    reads: Ids[Read] = ()
    rounds: int = 1
    again: Ids[str] = ()  # accepts the round before, and drafts the next one


Steps = Generator[Submit, Readback, Proposal | None]


class Drafter(Protocol):
    """Guesses what the target will say."""

    name: str
    idle: bool  # it never proposes: rounds are plain steps, and several of them may share a submit

    @property
    def fallbacks(self) -> dict[str, int]:
        """Reason -> how often this drafter could not serve, in this request."""
        ...

    def begin(self, sequence: Sequence, kind: str = "step", cache: ModelCache | None = None) -> None:
        """A new request; the sequence holds its prompt and will grow. kind: how a draft model chooses, "step"
        (argmax), "sample" (with the target's noise) or "draw" (for itself, to be judged); cache: its KV, where some of it is kept."""
        ...

    def offers(self, sequence: Sequence) -> list[Offer]:
        """What could be drafted now, by source; nothing is drawn, and no state that a proposal depends on changes."""
        ...

    def part(self, source: str) -> Drafter:
        """The drafter of that source: this one, or one inside it."""
        ...

    def propose(self, sequence: Sequence, budget: int, rounds: int = 1) -> Steps:
        """1 to `budget` drafts in each of 1 to `rounds` rounds, or None. May yield submits of its own first (kind "draft")."""
        ...

    def drafted(self, values: list[list[Any]], number: int) -> list[int]:
        """The drafted ids of round `number`, from the values of the proposal's reads; fewer where the rest must not be used,
        and then no later round is asked for."""
        ...

    def failed(self, reason: str) -> None:
        """The submit with this drafter's proposal failed; nothing of it was committed."""
        ...

    def observe(self, outcome: Outcome) -> None:
        """One cycle is over, whoever proposed; those of one submit are told when all of them are committed."""
        ...


class StepwiseDrafter(Drafter, Protocol):
    """One that can also stop between its steps: the draft model."""

    num_steps: int  # those of `propose_stepwise` that the device has run, in this request

    def propose_stepwise(self, sequence: Sequence, budget: int, decider: Stepwise) -> Steps:
        """As `propose`; each step is a submit of its own, and `decider` says whether another follows."""
        ...
