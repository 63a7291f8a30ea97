"""Medians with their intervals, and the verdicts of models/strata/README.md.

The interval of a median is distribution-free, from order statistics: of n values the number B below the median is
binomial (n, 1/2), so the d-th smallest and the d-th largest hold it between them with the probability that
d <= B <= n - d (W. J. Conover, Practical Nonparametric Statistics, 3rd edition, 1999, section 3.2). d is the largest
that leaves at least LEVEL. No randomness, no sorting out of values. Invariant:
fewer values than LEVEL needs have no interval, and no verdict comes of them.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

LEVEL = 0.95
THRESHOLDS = {"promote_above": 1.0, "delete_below": 0.97}
PROMOTE, DELETE, KEEP = "promote", "delete", "keep measuring"


@dataclass(frozen=True)
class Median:
    """A median, the quartiles around it, and the interval with its true level (at least LEVEL)."""

    num: int
    median: float
    quartiles: tuple[float, float]
    interval: tuple[float, float] | None
    level: float | None

    def json(self) -> dict:
        def rounded(pair):
            return pair and [round(value, 4) for value in pair]

        return {
            "num": self.num,
            "median": round(self.median, 4),
            "quartiles": rounded(self.quartiles),
            "interval": rounded(self.interval),
            "level": self.level and round(self.level, 4),
        }


def coverage(num: int, rank: int) -> float:
    """How likely the rank-th smallest and the rank-th largest of num values have the median between them."""
    return 1 - 2 * sum(comb(num, i) for i in range(rank)) / 2**num


def interval_rank(num: int) -> int:
    """The largest rank that leaves LEVEL; 0 where even the extremes do not."""
    return max((rank for rank in range(1, num // 2 + 1) if coverage(num, rank) >= LEVEL), default=0)


def median_of(values: Sequence[float]) -> Median:
    """All that is said of one sample; there must be a value."""
    ranked = sorted(values)
    rank = interval_rank(len(ranked))
    if len(ranked) > 1:
        low, _, high = statistics.quantiles(ranked, n=4, method="inclusive")
    else:
        low = high = ranked[0]
    return Median(
        len(ranked),
        statistics.median(ranked),
        (low, high),
        (ranked[rank - 1], ranked[-rank]) if rank else None,
        coverage(len(ranked), rank) if rank else None,
    )


def verdict(speedup: Median, partial: bool = False) -> str:
    """By the declared thresholds."""
    if speedup.interval is None or partial:
        return KEEP
    low, high = speedup.interval
    if low > THRESHOLDS["promote_above"]:
        return PROMOTE
    return DELETE if high < THRESHOLDS["delete_below"] else KEEP
