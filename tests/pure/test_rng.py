"""The counter-based random numbers: published bits, both ends of the uniform, and the law of what is drawn with them."""

from collections import Counter
from itertools import product
from math import exp, isfinite, log

import pytest
from specdec_runtime.decode import rng
from specdec_runtime.decode.rng import exponential, gumbel, random_bits, seed_words, threefry, uniform

# counter, key -> result: the known answers that Random123 publishes for threefry2x32 of 20 rounds
KNOWN = [
    ((0x00000000, 0x00000000), (0x00000000, 0x00000000), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
    ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xC4923A9C, 0x483DF7A0)),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_published_known_answers(counter, key, expected):
    assert threefry(key, counter) == expected


def test_a_seed_is_two_words_and_both_matter():
    assert seed_words(0x0123456789ABCDEF) == (0x89ABCDEF, 0x01234567)
    bits = {random_bits(seed, 5, 7) for seed in (0, 1, 1 << 32, (1 << 64) - 1)}
    assert len(bits) == 4


def test_streams_positions_and_ids_do_not_share_bits():
    drawn = [random_bits(3, p, v, s) for p, v, s in product(range(20), range(20), range(4))]
    assert len(set(drawn)) == len(drawn)


def test_both_ends_are_open_and_keep_their_digits(monkeypatch):
    for bits, v, e in [(0, 2.0**-33, 2.0**-33), (rng.WORD, 1 - 2.0**-33, 33 * log(2))]:
        monkeypatch.setattr(rng, "random_bits", lambda *args, bits=bits: bits)
        assert uniform(0, 0) == v
        assert exponential(0, 0, 0) == pytest.approx(e, rel=1e-9)
        assert isfinite(gumbel(0, 0, 0)) and gumbel(0, 0, 0) < rng.LARGEST_GUMBEL


def test_the_largest_of_logit_and_noise_follows_the_softmax():
    logits = [0.0, 1.0, -1.0, 2.0, 0.5]
    total, draws = sum(map(exp, logits)), 20_000
    counts = Counter(max(range(5), key=lambda v, p=p: logits[v] + gumbel(17, p, v)) for p in range(draws))
    chi = sum(
        (counts[v] - draws * exp(z) / total) ** 2 / (draws * exp(z) / total) for v, z in enumerate(logits)
    )
    assert chi < 18.5  # 0.1 % of the law with 4 degrees of freedom
