"""How long the draft's runs are: from per-position agreement on the champion's own greedy text to tokens a target pass.

Pure. On the champion's text a draft that is right up to a position has seen the very tokens it would have drafted itself, so
agreement position by position, in the true context, is all that greedy verification looks at.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Runs(NamedTuple):
    """Counts over one or many texts."""

    tokens: int
    passes: int
    accepted: int
    evaluated: int

    @property
    def tokens_per_pass(self) -> float:
        return self.tokens / self.passes

    @property
    def acceptance(self) -> float:
        """accepted / evaluated (exactness.md F4)."""
        return self.accepted / self.evaluated if self.evaluated else 0.0


def runs(agreements: Sequence[Sequence[bool]], k: int) -> Runs:
    """agreements: per text, per written position, whether the draft's choice is the champion's; k drafts a pass."""
    tokens = passes = accepted = evaluated = 0
    for text in agreements:
        at = 0
        while at < len(text):
            drafted = min(k, len(text) - at - 1)  # the pass gives one token more than it accepts
            run = 0
            while run < drafted and text[at + run]:
                run += 1
            accepted += run
            evaluated += min(run + 1, drafted)
            passes += 1
            at += run + 1
        tokens += len(text)
    return Runs(tokens, passes, accepted, evaluated)
