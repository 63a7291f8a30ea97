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
from functools import lru_cache
from itertools import pairwise
from operator import mul
from typing import NamedTuple

LEVELS = (0.02, 0.1, 0.2, 0.3, 0.4, 0.5, 0.58, 0.66, 0.74, 0.81, 0.87, 0.92, 0.96, 0.99)
HAZARD = 1 / 48  # of a change, a committed token
MAX_FORGOTTEN = 0.5  # however long nothing was seen
LOW, HIGH = 0.25, 0.9
MAX_K = 7


class Table(NamedTuple):
    """What follows from a prior: the same for every request."""

    stands: list[list[float]]  # [draft][level]: the chance that it stands
    falls: list[list[float]]
    values: list[list[float]]  # [k][level]: tokens of a round of k drafts
    prior: list[float]  # weights of the levels
    high: list[float]  # by k: what may be hoped for at best, a priori


@lru_cache(maxsize=64)
def _table(by_position: tuple[float, ...], strength: float) -> Table:
    first = min(max(by_position[0], 0.02), 0.98)
    shape = [math.log(min(max(a, 0.02), 0.98)) / math.log(first) for a in by_position]
    shape += [shape[-1]] * (MAX_K - len(shape))
    stands = [[level**power for level in LEVELS] for power in shape]
    values, survival = [[1.0] * len(LEVELS)], [1.0] * len(LEVELS)
    for row in stands:
        survival = list(map(mul, survival, row))
        values.append([value + more for value, more in zip(values[-1], survival, strict=True)])
    prior = _beta(first, strength)
    falls = [[1 - chance for chance in row] for row in stands]
    at = _quantile(prior, HIGH)
    return Table(stands, falls, values, prior, [row[at] for row in values])


def _quantile(weights: list[float], share: float) -> int:
    total = 0.0
    for index, weight in enumerate(weights):
        total += weight
        if total >= share:
            return index
    return len(LEVELS) - 1


class Belief:
    """One source."""

    def __init__(self, by_position: Sequence[float], strength: float) -> None:
        """by_position: prior acceptance of each draft, given that those before it stood; strength: drafts the prior counts for."""
        self._table = _table(tuple(by_position), strength)
        self._weights = self._table.prior
        self._means: list[float] | None = None
        self._low = _quantile(self._weights, LOW)
        self.high = self._table.high

    def means(self) -> list[float]:
        """By k: tokens that a round of k drafts is expected to commit."""
        if self._means is None:
            self._means = [sum(map(mul, self._weights, row)) for row in self._table.values]
        return self._means

    def lowers(self) -> list[float]:
        """The same, at the lower bound of confidence."""
        return [row[self._low] for row in self._table.values]

    @property
    def acceptance(self) -> float:
        return sum(map(mul, self._weights, LEVELS))

    def saw(self, accepted: int, evaluated: int, num_tokens: int) -> None:
        """A round; num_tokens: committed since the last one."""
        table = self._table
        kept = max(1 - MAX_FORGOTTEN, (1 - HAZARD) ** num_tokens)
        weights = [
            kept * weight + (1 - kept) * prior
            for weight, prior in zip(self._weights, table.prior, strict=True)
        ]
        for stands in table.stands[:accepted]:
            weights = list(map(mul, weights, stands))
        if evaluated > accepted:
            weights = list(map(mul, weights, table.falls[accepted]))
        total = sum(weights)
        self._weights = [weight / total for weight in weights]
        self._means = None
        self._low = _quantile(self._weights, LOW)


def _beta(mean: float, strength: float) -> list[float]:
    """Weights of the levels: a Beta density of this mean and so many counts more than one of each kind."""
    edges = [0.0, *((a + b) / 2 for a, b in pairwise(LEVELS)), 1.0]
    weights = [
        level ** (mean * strength) * (1 - level) ** ((1 - mean) * strength) * (high - low)
        for level, low, high in zip(LEVELS, edges, edges[1:], strict=False)
    ]
    total = sum(weights)
    return [weight / total for weight in weights]
