"""The random numbers of sampling: a counter in, the same bits out, on every device and in any order (docs/sampling.md).

Threefry-2x32 with 20 rounds (Salmon, Moraes, Dror, Shaw: Parallel random numbers, SC11). Key: the seed's two words; counter:
the absolute position of the token that is chosen, and an id with the number of a stream above it. Knows no device: the kernels
compute the same bits (kernels/noise.py); their logarithms are float32, those here double. Invariant: no state; nothing is drawn
twice for two purposes, since each purpose has its stream.
"""

from __future__ import annotations

from math import log, log1p

# streams: coupling; a draft's own draw; accept or not (id 0); residual and bonus draw
NOISE, DRAFT, ACCEPT, RESIDUAL = 0, 1, 2, 3
STREAM_BITS = 28  # ids are below 2^28
WORD = 0xFFFFFFFF
ROUNDS = 20
ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)
PARITY = 0x1BD11BDA
LARGEST_GUMBEL = 22.875  # a little above -log of the smallest exponential, 2^-33


def threefry(key: tuple[int, int], counter: tuple[int, int]) -> tuple[int, int]:
    """Two words of 32 random bits."""
    keys = (*key, key[0] ^ key[1] ^ PARITY)
    a, b = (counter[0] + keys[0]) & WORD, (counter[1] + keys[1]) & WORD
    for number in range(ROUNDS):
        a = (a + b) & WORD
        turn = ROTATIONS[number % 8]
        b = ((b << turn | b >> (32 - turn)) & WORD) ^ a
        if number % 4 == 3:
            group = number // 4 + 1
            a = (a + keys[group % 3]) & WORD
            b = (b + keys[(group + 1) % 3] + group) & WORD
    return a, b


def seed_words(seed: int) -> tuple[int, int]:
    """Low and high word of a seed of 64 bits."""
    return seed & WORD, seed >> 32 & WORD


def random_bits(seed: int, position: int, token_id: int, stream: int = NOISE) -> int:
    """The 32 bits of one (position, id) of a stream: the first word of the block."""
    return threefry(seed_words(seed), (position, token_id + (stream << STREAM_BITS)))[0]


def uniform(seed: int, position: int, token_id: int = 0, stream: int = ACCEPT) -> float:
    """In (0, 1), never 0 or 1: the middle of one of 2^32 equal steps."""
    return (random_bits(seed, position, token_id, stream) + 0.5) * 2.0**-32


def exponential(seed: int, position: int, token_id: int, stream: int = NOISE) -> float:
    """-log(1 - v) of the uniform v, exact to a double at both ends."""
    bits = random_bits(seed, position, token_id, stream)
    v = (bits + 0.5) * 2.0**-32
    return -log1p(-v) if v < 0.25 else -log((WORD - bits + 0.5) * 2.0**-32)


def gumbel(seed: int, position: int, token_id: int, stream: int = NOISE) -> float:
    """-log of that. The largest of log p_v + gumbel_v over all ids v is at v with probability p_v."""
    return -log(exponential(seed, position, token_id, stream))


CYCLE_BITS = 24  # positions are below 2^24


def cycle_position(position: int, offset: int) -> int:
    """The counter's position of a draw that a later cycle may make again at the same position: with how far from the cycle's first
    undecided token it lies. No two cycles that committed anything begin at the same token, so the pair never comes back."""
    return position + (offset << CYCLE_BITS)
