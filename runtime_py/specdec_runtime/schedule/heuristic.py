"""k follows the last round: wider after full acceptance, narrower after a rejection.

The form of Hugging Face transformers' assisted generation (`num_assistant_tokens_schedule="heuristic"`), which adds 2 and takes 1;
a pass here costs what the next of 1, 2, 4, 8 rows does, so k moves along 1, 3, 7. Knows no cost and never stops drafting.
"""

from __future__ import annotations

from typing import Any

from specdec_runtime.decode.choice import NATURAL_KS, Choice, Done, View, any_drafter


class Heuristic:
    """One step up, one step down."""

    name = "heuristic"
    version = 1
    looks = False

    def __init__(self, k: int) -> None:
        self._ks = [width for width in NATURAL_KS if width < k] + [k]
        self._at = min(1, len(self._ks) - 1)

    def choose(self, view: View) -> Choice:
        return any_drafter(view, self._ks[self._at])

    def observe(self, done: Done) -> None:
        for accepted, _ in done.rounds:
            up = accepted == done.choice.k
            self._at = min(self._at + 1, len(self._ks) - 1) if up else max(self._at - 1, 0)

    def report(self) -> dict[str, Any]:
        return {"k": self._ks[self._at]}
