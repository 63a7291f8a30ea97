"""A drafter whose drafts the test chooses: the answer that plain decoding gave, right, wrong, or wrong in places.

Knows no model. Where a guess is wrong depends on its place alone, so that a draft is the same in whichever round it comes.
"""

from __future__ import annotations

from collections.abc import Sequence as Ids
from typing import Any

from specdec_runtime.decode.cache import ModelCache
from specdec_runtime.decode.choice import Offer
from specdec_runtime.decode.interfaces import Outcome, Proposal, Steps
from specdec_runtime.decode.sequence import Sequence

QUALITIES = ("right", "mixed", "wrong")


class ToldDrafter:
    """Drafts from a known answer."""

    name = "told"
    idle = False

    def __init__(self, answer: Ids[int], quality: str, vocab: int) -> None:
        self._answer, self._vocab = answer, vocab
        self._is_wrong = {
            "right": lambda place: False,
            "mixed": lambda place: place * 0x9E3779B1 >> 7 & 3 == 0,  # about a quarter, without a period
            "wrong": lambda place: True,
        }[quality]
        self.fallbacks: dict[str, int] = {}

    def begin(self, sequence: Sequence, kind: str = "step", cache: ModelCache | None = None) -> None:
        pass

    def offers(self, sequence: Sequence) -> list[Offer]:
        return []

    def part(self, source: str) -> ToldDrafter:
        return self

    def propose(self, sequence: Sequence, budget: int, rounds: int = 1) -> Steps:
        start = len(sequence) - sequence.prompt_len
        ids = [self._guess(place) for place in range(start, min(start + budget, len(self._answer)))]
        return Proposal(self, len(ids), ids) if ids else None
        yield  # a generator, like drafters that need the device

    def _guess(self, place: int) -> int:
        return (self._answer[place] + self._is_wrong(place)) % self._vocab

    def drafted(self, values: list[list[Any]], number: int) -> list[int]:
        return []

    def failed(self, reason: str) -> None:
        raise AssertionError(reason)

    def observe(self, outcome: Outcome) -> None:
        pass
