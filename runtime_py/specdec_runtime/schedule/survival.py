"""What a source's drafts are worth now: a belief about its acceptance, moved by every round that it drafts.

The acceptance alpha of the first draft is one of a few levels; draft j stands with probability alpha ** shape[j], given that those
before it stood. A round that accepted n and then rejected one multiplies each level's weight by the chance of exactly that. Text
changes, so with every committed token a share HAZARD of the weight returns to the prior: a belief follows a change within a few
rounds, which counts of the past would not. Then E[N | k] = sum over levels of weight * (1 + sum of survival products) (F4), and
the lower bound of confidence is the same at a low quantile of the weights (F5). Knows no cost. Deterministic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from operator import mul

LEVELS = (0.02, 0.1, 0.2, 0.3, 0.4, 0.5, 0.58, 0.66, 0.74, 0.81, 0.87, 0.92, 0.96, 0.99)
HAZARD = 1 / 48  # of a change, a committed token
MAX_FORGOTTEN = 0.5  # however long nothing was seen
LOW, HIGH = 0.25, 0.9
MAX_K = 7


class Belief:
    """One source."""

    def __init__(self, by_position: Sequence[float], strength: float) -> None:
        """by_position: prior acceptance of each draft, given that those before it stood; strength: drafts the prior counts for."""
        first = min(max(by_position[0], 0.02), 0.98)
        shape = [math.log(min(max(a, 0.02), 0.98)) / math.log(first) for a in by_position]
        shape += [shape[-1]] * (MAX_K - len(shape))
        self._stands = [[level**power for level in LEVELS] for power in shape]
        self._falls = [[1 - stands for stands in row] for row in self._stands]
        self._values = self._expectations()
        self._prior = _beta(first, strength)
        self._weights = list(self._prior)
        self._means: list[float] | None = None
        self._low = self._quantile(LOW)
        self.high = [
            row[self._quantile(HIGH)] for row in self._values
        ]  # by k: what may be hoped for at best, a priori

    def _expectations(self) -> list[list[float]]:
        """[k][level]: tokens of a round of k drafts."""
        values, survival = [[1.0] * len(LEVELS)], [1.0] * len(LEVELS)
        for stands in self._stands:
            survival = list(map(mul, survival, stands))
            values.append([value + more for value, more in zip(values[-1], survival, strict=True)])
        return values

    def _quantile(self, share: float) -> int:
        total = 0.0
        for index, weight in enumerate(self._weights):
            total += weight
            if total >= share:
                return index
        return len(LEVELS) - 1

    def mean(self, k: int) -> float:
        """Tokens that a round of k drafts is expected to commit."""
        if self._means is None:
            self._means = [sum(map(mul, self._weights, row)) for row in self._values]
        return self._means[k]

    def lower(self, k: int) -> float:
        """The same, at the lower bound of confidence."""
        return self._values[k][self._low]

    @property
    def acceptance(self) -> float:
        return sum(map(mul, self._weights, LEVELS))

    def saw(self, accepted: int, evaluated: int, num_tokens: int) -> None:
        """A round; num_tokens: committed since the last one."""
        kept = max(1 - MAX_FORGOTTEN, (1 - HAZARD) ** num_tokens)
        weights = [
            kept * weight + (1 - kept) * prior
            for weight, prior in zip(self._weights, self._prior, strict=True)
        ]
        for stands in self._stands[:accepted]:
            weights = list(map(mul, weights, stands))
        if evaluated > accepted:
            weights = list(map(mul, weights, self._falls[accepted]))
        total = sum(weights)
        self._weights = [weight / total for weight in weights]
        self._means = None
        self._low = self._quantile(LOW)


def _beta(mean: float, strength: float) -> list[float]:
    """Weights of the levels: a Beta density of this mean and so many counts more than one of each kind."""
    edges = [0.0, *((a + b) / 2 for a, b in pairwise(LEVELS)), 1.0]
    weights = [
        level ** (mean * strength) * (1 - level) ** ((1 - mean) * strength) * (high - low)
        for level, low, high in zip(LEVELS, edges, edges[1:], strict=False)
    ]
    total = sum(weights)
    return [weight / total for weight in weights]
