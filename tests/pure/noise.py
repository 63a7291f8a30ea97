"""decode/rng.py over NumPy arrays: the same bits for a million seeds at once, and the quantile of the chi-square law."""

from __future__ import annotations

from math import sqrt
from statistics import NormalDist

import numpy as np
from specdec_runtime.decode import rng

Words = np.ndarray


def threefry(key: tuple[Words, Words], counter: tuple[Words, Words]) -> Words:
    """The first word of each block; all uint32."""
    keys = (*key, key[0] ^ key[1] ^ np.uint32(rng.PARITY))
    with np.errstate(over="ignore"):
        a, b = counter[0] + keys[0], counter[1] + keys[1]
        for number in range(rng.ROUNDS):
            a = a + b
            turn = rng.ROTATIONS[number % 8]
            b = ((b << np.uint32(turn)) | (b >> np.uint32(32 - turn))) ^ a
            if number % 4 == 3:
                group = number // 4 + 1
                a = a + keys[group % 3]
                b = b + keys[(group + 1) % 3] + np.uint32(group)
    return a


def random_bits(seeds: Words, position, token_id: int, stream: int) -> Words:
    key = (seeds & rng.WORD).astype(np.uint32), (seeds >> np.uint64(32)).astype(np.uint32)
    where = np.broadcast_to(np.asarray(position, np.uint32), seeds.shape)
    return threefry(key, (where, np.full(seeds.shape, token_id + (stream << rng.STREAM_BITS), np.uint32)))


def uniform(seeds: Words, position, stream: int = rng.ACCEPT) -> np.ndarray:
    return (random_bits(seeds, position, 0, stream) + 0.5) * 2.0**-32


def gumbel(seeds: Words, position, token_id: int, stream: int) -> np.ndarray:
    v = (random_bits(seeds, position, token_id, stream) + 0.5) * 2.0**-32
    return -np.log(np.where(v < 0.25, -np.log1p(-v), -np.log(1.0 - v)))


def draw(seeds: Words, position, weights: np.ndarray, stream: int) -> np.ndarray:
    """argmax over ids of log(weight) + noise; weights [seeds, ids]."""
    with np.errstate(divide="ignore"):
        logs = np.log(weights)
    ids = range(weights.shape[1])
    return np.argmax(np.stack([logs[:, v] + gumbel(seeds, position, v, stream) for v in ids], axis=1), axis=1)


def chi_square(found: np.ndarray, wanted: np.ndarray) -> tuple[float, int]:
    """(statistic, degrees of freedom) of counts against a law; an id of probability 0 that was seen is infinitely wrong."""
    expected = wanted * found.sum()
    if found[expected == 0].any():
        return float("inf"), 1
    kept = expected > 0
    return float(((found[kept] - expected[kept]) ** 2 / expected[kept]).sum()), int(kept.sum()) - 1


def quantile(freedom: int, tail: float) -> float:
    """Of the chi-square law, by Wilson and Hilferty: within a percent for tails of tests."""
    z, c = NormalDist().inv_cdf(1 - tail), 2 / (9 * freedom)
    return freedom * (1 - c + z * sqrt(c)) ** 3
