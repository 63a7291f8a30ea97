"""A million draws a mode through the production random numbers, at a vocabulary of three: chi-square, fixed seeds, Bonferroni.

Of what the exact enumeration cannot see: streams, positions, and noise that two decisions share.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from noise import chi_square, draw, gumbel, quantile, random_bits, uniform
from sampled_cycles import DRAFT, START, TARGET, VOCAB, Keys, counts, law, plain, run
from specdec_runtime.decode import rng

NUM = 1_000_000
SEEDS = np.arange(NUM, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
CASES = [("reject", 1), ("reject", 3), ("block", 2), ("block", 3), ("plain", 0), ("coupled", 1)]
LIMIT = 0.001 / len(CASES)


def fits(ids: np.ndarray) -> bool:
    statistic, freedom = chi_square(counts(ids), law())
    return statistic < quantile(freedom, LIMIT)


def test_the_twin_has_the_runtimes_bits() -> None:
    seeds = np.array([0, 1, 2**32, 0x0123456789ABCDEF, 2**64 - 1], np.uint64)
    for position, token, stream in ((0, 0, 0), (7, 49151, 1), (rng.cycle_position(90, 7), 2, 3)):
        found = random_bits(seeds, position, token, stream)
        assert [int(one) for one in found] == [
            rng.random_bits(int(s), position, token, stream) for s in seeds
        ]
        near = [rng.gumbel(int(s), position, token, stream) for s in seeds]
        assert gumbel(seeds, position, token, stream) == pytest.approx(near, rel=1e-12)
    assert float(uniform(seeds, 5)[3]) == rng.uniform(0x0123456789ABCDEF, 5)


@pytest.mark.parametrize(("mode", "k"), CASES[:4])
def test_a_mode_keeps_the_targets_law(mode: str, k: int) -> None:
    assert fits(run(mode, SEEDS, k))


def test_the_target_alone_has_its_law() -> None:
    assert fits(plain(SEEDS))


def test_a_coupled_draft_is_accepted_as_often_as_computed() -> None:
    p, q = np.tile(TARGET[0], (NUM, 1)), np.tile(DRAFT[0], (NUM, 1))
    equal = draw(SEEDS, START, p, rng.NOISE) == draw(SEEDS, START, q, rng.NOISE)
    found = np.array([equal.sum(), NUM - equal.sum()])
    statistic, freedom = chi_square(found, np.array([32 / 55, 23 / 55]))
    assert statistic < quantile(freedom, LIMIT)


def test_vector_noise_shared_by_proposal_and_residual() -> None:
    """p = (.1, .6, .3), q = (.5, .3, .2): the wrong (.100, .623, .277)."""
    ids = _first_from(Keys(residual=rng.DRAFT))
    assert np.bincount(ids, minlength=VOCAB) / NUM == pytest.approx([0.100, 0.623, 0.277], abs=0.0015)
    honest = np.bincount(_first_from(Keys()), minlength=VOCAB)
    statistic, freedom = chi_square(honest, TARGET[0])
    assert statistic < quantile(freedom, LIMIT)


def _first_from(keys: Keys) -> np.ndarray:
    from sampled_cycles import cycle

    zeros = np.zeros(NUM, np.int64)
    return cycle("reject", SEEDS, zeros, zeros + START, 1, keys)[0][:, 0]


def _no_offset(position, offset):
    return position


MUTANTS = {
    "residual_with_the_drafts_noise": ("reject", 1, Keys(residual=rng.DRAFT)),
    "block_redrawn_with_the_same_noise": ("block", 3, Keys(place=_no_offset)),
    "positions_shifted": ("reject", 2, replace(Keys(), place=lambda position, offset: position * 0 + START)),
    "one_noise_for_a_cycle": ("block", 3, Keys(place=lambda position, offset: position - offset)),
}


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_shared_noise_is_noticed(name: str) -> None:
    mode, k, keys = MUTANTS[name]
    assert not fits(run(mode, SEEDS, k, keys))


def test_reject_alone_would_forgive_the_same_noise() -> None:
    """Rows after the first rejected decide nothing there; a schedule that looks at them would not be forgiven, nor is `block`."""
    assert fits(run("reject", SEEDS, 3, Keys(place=_no_offset)))
