"""Prompt lookup: what followed the last time these tokens were seen.

Knows token ids only. The longest suffix (MAX_LEN down to MIN_LEN tokens) that occurred before wins, and of
its occurrences the most recent. Invariants: the index grows by the tokens committed since the last call, so
the work of a cycle does not grow with the context; an n-gram is indexed only once a token follows it, so a
suffix never finds itself.
"""

from __future__ import annotations

from typing import Any

from specdec_runtime.decode.choice import NGRAM, Offer
from specdec_runtime.decode.interfaces import Outcome, Proposal, Steps
from specdec_runtime.decode.sequence import Sequence
from specdec_runtime.plan.schema import MAX_ROWS

MAX_LEN = 4
MIN_LEN = 2  # one token alone matches nearly everywhere and is nearly always wrong


class NgramDrafter:
    """Drafts from the prompt and the answer so far."""

    name = NGRAM
    idle = False

    def __init__(self) -> None:
        self.fallbacks: dict[str, int] = {}
        self._index: list[dict[tuple[int, ...], int]] = []
        self._indexed = 0

    def begin(self, sequence: Sequence, kind: str = "step") -> None:
        self._index = [{} for _ in range(MAX_LEN + 1)]  # by n-gram length: n-gram -> where its successor lies
        self._indexed = 0

    def offers(self, sequence: Sequence) -> list[Offer]:
        length, _ = self._match(sequence.ids)
        return [Offer(NGRAM, MAX_ROWS - 1, match_len=length)] if length else []

    def part(self, source: str) -> NgramDrafter:
        return self

    def propose(self, sequence: Sequence, budget: int, rounds: int = 1) -> Steps:
        ids = self._lookup(sequence.ids, budget)
        return Proposal(self, len(ids), ids) if ids else None
        yield  # makes this a generator, like drafters that need the device

    def drafted(self, values: list[list[Any]], number: int) -> list[int]:
        return []

    def failed(self, reason: str) -> None:
        pass

    def observe(self, outcome: Outcome) -> None:
        pass

    def _lookup(self, ids: list[int], budget: int) -> list[int]:
        length, start = self._match(ids)
        return _copy(ids, start, budget) if length else []

    def _match(self, ids: list[int]) -> tuple[int, int]:
        """Length of the longest suffix seen before, and where its successor lies; (0, 0): none was."""
        self._catch_up(ids)
        for length in range(MAX_LEN, MIN_LEN - 1, -1):
            start = self._index[length].get(tuple(ids[-length:]))
            if start is not None:
                return length, start
        return 0, 0

    def _catch_up(self, ids: list[int]) -> None:
        for end in range(self._indexed + 1, len(ids)):
            for length in range(MIN_LEN, min(MAX_LEN, end) + 1):
                self._index[length][tuple(ids[end - length : end])] = end
        self._indexed = max(self._indexed, len(ids) - 1)


def _copy(ids: list[int], start: int, budget: int) -> list[int]:
    """`budget` ids from start on; past the end the copy reads itself, so a cycle goes on round."""
    known = ids[start : start + budget]
    period = len(ids) - start
    while len(known) < budget:
        known.append(known[len(known) - period])
    return known
