"""A grammar in the round: the drafts become known, the matcher walks them, and one pass verifies them under their masks.

Knows no grammar engine and no device: the matcher lives with the pump (effects.py, grammar.py). Such a round is one submit
where the drafts are known to the host, and two where a model makes them: it drafts, its ids are read, then masks and pass.
Invariants: one `Walk` a round; the matcher is told of committed ids only, each once; a plain pass has the mask of its row too.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from itertools import takewhile
from typing import Any

from specdec_runtime.decode.commit import Limits
from specdec_runtime.decode.effects import Constrain, Walk, Walked
from specdec_runtime.decode.interfaces import Outcome, Proposal
from specdec_runtime.decode.sequence import Sequence
from specdec_runtime.faults import ContractError
from specdec_runtime.grammars import lowered
from specdec_runtime.plan.schema import Plan


class Forced:
    """What proposes where no drafter does: it names the rounds whose drafts are all the grammar's own."""

    name = "forced"
    idle = True
    fallbacks: Mapping[str, int] = {}

    def drafted(self, values: list[list[Any]], number: int) -> list[int]:
        return []

    def failed(self, reason: str) -> None:
        pass


FORCED: Any = Forced()  # a proposal's source; it is never asked as a drafter


class Constraint:
    """One request's grammar as the core sees it."""

    def __init__(self, plan: Plan, grammar: Mapping[str, Any], limits: Limits) -> None:
        target = plan.target_model
        words = -(-target.padded_vocab // 32)
        self._constrain = Constrain(
            "ebnf", lowered(grammar), sorted(limits.eos_ids), target.vocab_size, words
        )
        self._told_len = 0
        self.num_rows = 0  # masks of the walk before this pass
        # drafts of the pass that are the drafter's, before the first that the grammar put in its place
        self._own = 0
        self._forced: list[int] = []
        self.counts = {"num_forced": 0, "num_forced_accepted": 0, "num_cut": 0}

    def begin(self) -> Constrain:
        return self._constrain

    def asked(self, sequence: Sequence, drafted: list[int], budget: int) -> Walk:
        accepted = sequence.ids[max(self._told_len, sequence.prompt_len) :]
        self._told_len = len(sequence)
        return Walk(accepted, drafted, budget)

    def walked(self, drafted: list[int], walked: Walked) -> None:
        """The pass will verify these."""
        ids = walked.ids
        pairs = zip(drafted, ids, strict=False)
        self._own = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        self._forced = list(walked.forced)
        self.num_rows = len(ids) + 1
        self.counts["num_forced"] += len(self._forced)
        self.counts["num_cut"] += len(drafted) - self._own

    def settle(self, outcome: Outcome) -> None:
        """A cycle is over."""
        self.counts["num_forced_accepted"] += sum(place < outcome.num_accepted for place in self._forced)

    def own(self, rounds: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
        """(accepted, evaluated) of what the drafter itself guessed; nothing where none of it was verified."""
        own = self._own
        return tuple((min(accepted, own), min(judged, own)) for accepted, judged in rounds if own)


def constrain(
    constraint: Constraint, sequence: Sequence, proposal: Proposal | None, budget: int
) -> Generator[Walk, Walked, Proposal | None]:
    """A proposal of known ids as the grammar leaves it: the forbidden cut, the forced put in; None: a plain pass."""
    drafted = list(proposal.ids) if proposal else []
    walked = yield constraint.asked(sequence, drafted, budget)
    if not isinstance(walked, Walked) or len(walked.ids) > budget:
        raise ContractError(f"a walk of {budget} drafts was answered with {walked!r}", "Walked")
    constraint.walked(drafted, walked)
    if not walked.ids:
        return None
    source = proposal.source if proposal and walked.ids[:1] == drafted[:1] else FORCED
    return Proposal(source, len(walked.ids), walked.ids)
