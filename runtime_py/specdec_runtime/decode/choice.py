"""What the decode core and a schedule know of each other: what may be drafted now, what is tried, what became of it.

A schedule chooses before every cycle, and before anything is drawn for it (F10): a `View` holds counts of committed tokens
and nothing of a draft, so no choice can depend on the value of a token that it decides to verify. Knows no policy.
Invariants: a choice changes speed, never which tokens are committed; one schedule serves one request; without a schedule
the core uses `Fixed`.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

MODEL, NGRAM = "model", "ngram"
ANY = "any"  # whichever of the drafters has something, in their own order
NATURAL_KS = (1, 3, 7)  # with the last token they fill programs of 2, 4 and 8 rows


class Offer(NamedTuple):
    """What a drafter could do now."""

    source: str
    num_ids: int  # drafts it has at hand, where they cost no pass
    match_len: int = 0  # of a lookup
    lag: int = 0  # committed tokens that its KV lacks


class View(NamedTuple):
    """What a schedule may look at."""

    remaining: int  # tokens that may still be committed
    max_drafts: int  # drafts a pass may verify now; 0: plain steps only
    max_steps: int = 1  # plain steps a submit may hold
    max_rounds: int = 1  # draft-and-verify rounds a submit may hold, source "model" only; less near the end
    ngram_len: int = 0  # tokens that the n-gram lookup matched; 0: it has nothing to offer
    ngram_ids: int = 0  # ids it can offer then
    model_ready: bool = False  # there is a draft model, it does not rest after a fault, its context has room
    model_lag: int = 0  # committed tokens that its KV lacks
    prompt_len: int = 0


class Choice(NamedTuple):
    """What the next submit is to be."""

    source: str | None = None  # MODEL, NGRAM, ANY; None: plain steps
    k: int = 0  # drafts a round
    rounds: int = 1
    steps: int = 1  # plain steps, where source is None

    @property
    def label(self) -> str:
        """As a run's report counts it: "plain 4", "ngram 3", "model 7", "model 3 (2 rounds)"."""
        if self.source is None:
            return f"plain {self.steps}"
        return f"{self.source} {self.k}" + (f" ({self.rounds} rounds)" if self.rounds > 1 else "")


class Done(NamedTuple):
    """What a cycle did. `choice` is what was really run: plain where the chosen drafter had nothing."""

    choice: Choice
    num_committed: int
    # (accepted, evaluated) of each round up to the answer's end; () for plain steps, and where no draft was of use
    rounds: tuple[tuple[int, int], ...]
    ms: float  # the submit with the target in it, by Readback.ms; 0 where it was not timed
    lag: int = 0  # of the draft's KV before it


class Schedule(Protocol):
    """Decides what a submit tries."""

    name: str
    version: int
    looks: bool  # it wants to know what could be drafted, and may choose several plain steps; else its view says neither

    def choose(self, view: View) -> Choice: ...

    def observe(self, done: Done) -> None: ...

    def report(self) -> dict[str, Any]:
        """What the run's JSON says of it, less name, version and the choices that were made."""
        ...


class Fixed:
    """Always as many drafts as asked, by the first drafter that has any."""

    name = "fixed"
    version = 1
    looks = False

    def choose(self, view: View) -> Choice:
        return any_drafter(view, view.max_drafts)

    def observe(self, done: Done) -> None:
        pass

    def report(self) -> dict[str, Any]:
        return {}


def any_drafter(view: View, k: int) -> Choice:
    """k drafts, fewer where the budget ends; plain where it has none."""
    k = min(k, view.max_drafts)
    return Choice(ANY, k, view.max_rounds) if k else Choice()


class Stepwise(Protocol):
    """A schedule that also decides between the model's draft steps, each then a submit of its own."""

    def goes_on(self, confidences: list[tuple[float, float]]) -> bool:
        """Draft one more, after drafts of these (log-probability, entropy)? They are all verified (F10)."""
        ...


def stepwise(schedule: Schedule) -> Stepwise | None:
    """The schedule, where it is one of these."""
    return schedule if hasattr(schedule, "goes_on") else None  # type: ignore[return-value]
