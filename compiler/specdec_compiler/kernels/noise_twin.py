"""NumPy twin of noise.py: decode/rng.py over arrays of ids. Bits are exact, logarithms double. Knows neither TVM nor devices."""

from __future__ import annotations

import numpy as np
from specdec_runtime.decode.rng import PARITY, ROTATIONS, ROUNDS, STREAM_BITS, WORD


def random_bits(ints: np.ndarray, position: int, ids: np.ndarray, stream: int) -> np.ndarray:
    """The first word of Threefry at (position, id), for each id; the seed is in the first two of `ints`."""
    low, high = (int(word) & WORD for word in ints[:2])
    keys = low, high, low ^ high ^ PARITY
    a = np.full(len(ids), position + keys[0], np.int64) & WORD
    b = (ids.astype(np.int64) + (stream << STREAM_BITS) + keys[1]) & WORD
    for number in range(ROUNDS):
        turn = ROTATIONS[number % 8]
        a = (a + b) & WORD
        b = ((b << turn | b >> (32 - turn)) & WORD) ^ a
        if number % 4 == 3:
            group = number // 4 + 1
            a = (a + keys[group % 3]) & WORD
            b = (b + keys[(group + 1) % 3] + group) & WORD
    return a


def gumbel(ints: np.ndarray, position: int, ids: np.ndarray, stream: int) -> np.ndarray:
    """The Gumbel noise of each id."""
    bits = random_bits(ints, position, ids, stream)
    v = (bits + 0.5) * 2.0**-32
    return -np.log(np.where(v < 0.25, -np.log1p(-v), -np.log((WORD - bits + 0.5) * 2.0**-32)))
