"""Sequences counted against a law: Pearson's chi-square with an exact p-value, and how small a difference it finds.

Knows neither models nor devices. Invariant: a cell expects EXPECTED sequences at least.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from math import erfc, exp, lgamma, log, sqrt
from typing import NamedTuple

import numpy as np

EXPECTED = 5.0

Run = tuple[int, ...]
Law = Mapping[Run, float]


class Fit(NamedTuple):
    """A chi-square, and how likely one as large is where the sequences follow the law."""

    statistic: float
    freedom: int
    p: float

    def __str__(self) -> str:
        return f"chi-square {self.statistic:.1f} of {self.freedom}, p {self.p:.2g}"


def fit(counts: Mapping[Run, int], law: Law) -> Fit:
    """A sequence of probability 0 that came is infinitely wrong."""
    if not counts.keys() <= law.keys():
        return Fit(float("inf"), 1, 0.0)
    total = sum(counts.values())
    observed, wanted = np.array([(counts.get(run, 0), share * total) for run, share in law.items()]).T
    observed, wanted = pooled(observed, wanted)
    statistic = float(((observed - wanted) ** 2 / wanted).sum())
    return Fit(statistic, len(wanted) - 1, tail(statistic, len(wanted) - 1))


def pooled(observed: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All cells of small expectation as one; where even that is small, it joins the least of the others."""
    order = np.argsort(wanted)
    observed, wanted = observed[order], wanted[order]
    num = int((wanted < EXPECTED).sum())
    if 0 < num < len(wanted) and wanted[:num].sum() < EXPECTED:
        num += 1
    if num:
        observed, wanted = (np.append(each[num:], each[:num].sum()) for each in (observed, wanted))
    return observed, wanted


def tail(statistic: float, freedom: int) -> float:
    """Of the chi-square law with a whole number of degrees of freedom."""
    half = statistic / 2
    if half <= 0:
        return 1.0
    odd = freedom % 2
    steps = (j + odd / 2 for j in range(freedom // 2))
    terms = (exp(j * log(half) - half - lgamma(j + 1)) for j in steps)
    return min(1.0, sum(terms) + (erfc(sqrt(half)) if odd else 0.0))


def tilted(law: Law, by: float) -> dict[Run, float]:
    """A law whose total-variation distance is `by`, as hard to see as any: about half of it more by one factor, the rest less."""
    runs, share, above = sorted(law, key=law.__getitem__), 0.0, set[Run]()
    for run in reversed(runs):
        if share + law[run] <= 0.5:
            above.add(run)
            share += law[run]
    return {run: law[run] * (1 + by / share if run in above else 1 - by / (1 - share)) for run in runs}


def told(law: Law, count: int, by: float, limit: float, tries: int = 400) -> float:
    """The share of samples of a law that far off whose p is below the limit."""
    off = tilted(law, by)
    drawn_from, wanted = np.array([(off[run] * count, share * count) for run, share in law.items()]).T
    drawn_from, wanted = pooled(drawn_from, wanted)
    samples = np.random.default_rng(1).multinomial(count, drawn_from / drawn_from.sum(), tries)
    statistics = np.sort(((samples - wanted) ** 2 / wanted).sum(axis=1)).tolist()
    num_passed = bisect_left(statistics, True, key=lambda each: tail(each, len(wanted) - 1) < limit)
    return 1 - num_passed / tries
