"""Several drafters in order: the first that proposes wins, or the one that a schedule names, before anything is drawn.

Knows drafters by their interface only. Invariant: every drafter hears every outcome, also of rounds that
another won.
"""

from __future__ import annotations

from collections.abc import Sequence as Drafters
from typing import Any

from specdec_runtime.decode.choice import Offer
from specdec_runtime.decode.interfaces import Drafter, Outcome, Steps
from specdec_runtime.decode.sequence import Sequence
from specdec_runtime.faults import ContractError


class ChainDrafter:
    """Asks each in turn."""

    name = "chain"
    idle = False

    def __init__(self, drafters: Drafters[Drafter]) -> None:
        self._drafters = tuple(drafters)

    @property
    def fallbacks(self) -> dict[str, int]:
        """All reasons together; no two drafters of a chain use the same name for one."""
        return {reason: count for drafter in self._drafters for reason, count in drafter.fallbacks.items()}

    def begin(self, sequence: Sequence, kind: str = "step") -> None:
        for drafter in self._drafters:
            drafter.begin(sequence, kind)

    def offers(self, sequence: Sequence) -> list[Offer]:
        return [offer for drafter in self._drafters for offer in drafter.offers(sequence)]

    def part(self, source: str) -> Drafter:
        for drafter in self._drafters:
            if drafter.name == source:
                return drafter
        raise ContractError(f"no drafter of this chain is called {source!r}", "drafters/chain.py")

    def propose(self, sequence: Sequence, budget: int, rounds: int = 1) -> Steps:
        for drafter in self._drafters:
            proposal = yield from drafter.propose(sequence, budget, rounds)
            if proposal is not None:
                return proposal
        return None

    def drafted(self, values: list[list[Any]], number: int) -> list[int]:
        raise ContractError("a chain proposes nothing of its own", "drafters/chain.py")

    def failed(self, reason: str) -> None:
        raise ContractError("a chain proposes nothing of its own", "drafters/chain.py")

    def observe(self, outcome: Outcome) -> None:
        for drafter in self._drafters:
            drafter.observe(outcome)
