"""A tiny pair, native: the sequences of every mode and drafter follow the distribution that the target's own logits have.

10,000 a way, 2,000 in CI: chi-square, fixed seeds, Bonferroni over all tests of a run, those in the browser included.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
from chi_square import Law, fit, tail, told
from laws import (
    BACKENDS,
    FEW,
    LIMIT,
    NATIVE_WAYS,
    SEEN,
    SEEN_TOGETHER,
    TINY_SEED,
    VOCAB,
    Drawn,
    Way,
    asked,
    check_way,
    kinds,
    together,
)
from native_laws import draw, native_law
from runs import Native


@pytest.fixture(scope="module")
def native(tiny_bundle) -> Native:
    return Native(tiny_bundle(TINY_SEED, VOCAB))


@pytest.fixture(scope="module")
def law_of(native: Native) -> Callable[..., Law]:
    """By sampling and length."""
    return cache(lambda sampling, length: native_law(native, sampling, length))


@pytest.fixture(scope="module")
def drawn(native: Native, pytestconfig: pytest.Config) -> Callable[[Way], Drawn]:
    """Each way once."""
    _, count = asked("native", bool(pytestconfig.getoption("--all-exact")))
    return cache(lambda way: draw(native, way, count, NATIVE_WAYS.index(way)))


@pytest.mark.parametrize("way", NATIVE_WAYS, ids=str)
def test_sequences_follow_the_targets_distribution(law_of, drawn, way: Way) -> None:
    found = fit(drawn(way).counts, law_of(*way.law))
    print(way, found)
    check_way(way, drawn(way))
    assert found.p > LIMIT, found


@pytest.mark.parametrize("kind", kinds(NATIVE_WAYS), ids=str)
def test_all_ways_together_do(law_of, drawn, kind: tuple[str, int]) -> None:
    """A fault that they share is seen where it is much smaller."""
    counts = together(drawn(way) for way in NATIVE_WAYS if way.law == kind)
    found = fit(counts, law_of(*kind))
    print(kind, counts.total(), found)
    assert found.p > LIMIT, found


@pytest.mark.parametrize("everything", [True, False])
@pytest.mark.parametrize("backend", BACKENDS)
def test_other_distributions_would_be_seen(law_of, backend: str, everything: bool) -> None:
    """What docs/exactness.md says of the counts; and samples of the law itself pass."""
    ways, count = asked(backend, everything)
    which = 0 if everything else 1
    for kind in kinds(ways):
        assert told(law_of(*kind), count, SEEN[backend][which], LIMIT) >= 0.9, kind
        assert told(law_of(*kind), count, 0.0, LIMIT) == 0, kind
        if kind[0] == FEW:
            total = count * sum(way.law == kind for way in ways)
            assert told(law_of(*kind), total, SEEN_TOGETHER[backend][which], LIMIT) >= 0.9, kind


def test_tails_of_the_chi_square_law() -> None:
    """Values of published tables."""
    for freedom, statistic, p in (
        (1, 3.841, 0.05),
        (2, 13.816, 0.001),
        (7, 18.475, 0.01),
        (100, 149.449, 0.001),
    ):
        assert tail(statistic, freedom) == pytest.approx(p, rel=1e-3)
    assert tail(0.0, 3) == 1
