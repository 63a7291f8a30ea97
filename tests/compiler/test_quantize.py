"""Group quantization: error and edge cases; packing against a slow obvious twin, and the round trip."""

import numpy as np
import pytest
from specdec_compiler.quantize import (
    QuantWeight,
    dequantize,
    pack_q4,
    pack_q8,
    quantize,
    unpack_q4,
    unpack_q8,
)
from specdec_runtime.faults import ArtifactError, ContractError


def random_weights(n: int, k: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, k)).astype(np.float32)


def random_codes(n: int, k: int, format: str) -> QuantWeight:
    rng = np.random.default_rng(n * 1000 + k)
    scale = rng.standard_normal((n, k // 32)).astype(np.float32)
    if format == "q8":
        return QuantWeight("q8", rng.integers(-128, 128, (n, k)).astype(np.int8), scale, None)
    minimum = rng.standard_normal((n, k // 32)).astype(np.float32)
    return QuantWeight("q4", rng.integers(0, 16, (n, k)).astype(np.uint8), scale, minimum)


def same(a: QuantWeight, b: QuantWeight) -> bool:
    minimums = (a.minimum is None) == (b.minimum is None) and (
        a.minimum is None or b.minimum is None or np.array_equal(a.minimum, b.minimum)
    )
    return (
        a.format == b.format
        and np.array_equal(a.codes, b.codes)
        and np.array_equal(a.scale, b.scale)
        and minimums
    )


def round_to_ends(weights: np.ndarray) -> np.ndarray:
    """The plain rule without a search: codes spread from the group's least to its greatest weight."""
    x = weights.reshape(len(weights), -1, 32)
    low = x.min(axis=2, keepdims=True)
    scale = (x.max(axis=2, keepdims=True) - low) / 15
    return (np.rint((x - low) / scale) * scale + low).reshape(weights.shape)


@pytest.mark.parametrize("tail", ["normal", "heavy", "shifted"])
def test_q4_search_beats_rounding_between_the_ends(tail):
    weights = random_weights(64, 256)
    weights = {"normal": weights, "heavy": weights**3, "shifted": weights + 5}[tail]
    found = dequantize(quantize(weights, "q4", "w"))
    error, plain = np.mean((found - weights) ** 2), np.mean((round_to_ends(weights) - weights) ** 2)
    assert error < 0.9 * plain


def test_q4_never_much_worse_than_half_a_step_of_the_range():
    weights = random_weights(50, 96, seed=3)
    groups = weights.reshape(50, -1, 32)
    step = np.repeat((groups.max(axis=2) - groups.min(axis=2)) / 15, 32, axis=1)
    # The search may clip the ends to serve the middle: 16.4 steps over the range clip at most 1.4 of them.
    assert np.all(np.abs(dequantize(quantize(weights, "q4", "w")) - weights) <= 1.5 * step)


def test_q8_is_half_a_step_away_at_most_and_symmetric():
    weights = random_weights(33, 64)
    quantized = quantize(weights, "q8", "w")
    step = np.repeat(np.abs(weights.reshape(33, 2, 32)).max(axis=2) / 127, 32, axis=1)
    assert np.all(np.abs(dequantize(quantized) - weights) <= 0.5001 * step)
    assert same(quantize(-weights, "q8", "w"), QuantWeight("q8", -quantized.codes, quantized.scale, None))


@pytest.mark.parametrize("format", ["q4", "q8"])
@pytest.mark.parametrize("value", [0.0, 1.5, -3.25, 1e-42, 9e14, -9e14])
def test_constant_groups(format, value):
    weights = np.full((3, 64), value, np.float32)
    assert np.allclose(dequantize(quantize(weights, format, "w")), weights, rtol=1e-6, atol=1e-42)


def test_q4_of_exactly_sixteen_levels_is_exact():
    weights = np.tile(np.arange(32) % 16, (5, 2)).astype(np.float32) * 0.5 - 3
    assert np.array_equal(dequantize(quantize(weights, "q4", "w")), weights)


@pytest.mark.parametrize("format", ["q4", "q8"])
@pytest.mark.parametrize("size", [1e-42, 1e-38, 1e-30, 1e-20, 1e14])
def test_extreme_sizes_stay_finite_and_close(format, size):
    weights = np.clip(random_weights(4, 64), -3, 3) * np.float32(size)
    assert np.allclose(dequantize(quantize(weights, format, "w")), weights, atol=0.3 * size + 2e-30)


def test_absurd_sizes_are_refused():
    with pytest.raises(ArtifactError, match="as large as"):
        quantize(random_weights(4, 64) * np.float32(1e16), "q4", "w")


@pytest.mark.parametrize("format", ["q4", "q8"])
def test_chunks_do_not_change_the_result(format):
    weights = random_weights(1200, 576)  # more than one chunk
    parts = [quantize(weights[i : i + 100], format, "w") for i in range(0, 1200, 100)]
    whole = quantize(weights, format, "w")
    assert np.array_equal(whole.codes, np.concatenate([p.codes for p in parts]))
    assert np.array_equal(whole.scale, np.concatenate([p.scale for p in parts]))


@pytest.mark.parametrize("format", ["q4", "q8"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_weight_that_is_not_finite_is_named(format, bad):
    weights = random_weights(4, 64)
    weights[2, 33] = bad
    with pytest.raises(ArtifactError, match=r"\[2, 33\].*layers\.3\.q"):
        quantize(weights, format, "layers.3.q")


def test_rows_that_are_no_multiple_of_the_group_are_refused():
    with pytest.raises(ArtifactError, match="multiple of 32"):
        quantize(random_weights(4, 48), "q4", "w")


def twin_pack_q4(weight: QuantWeight, pad_to: int) -> dict[str, np.ndarray]:
    n, k = weight.shape
    padded = -(-n // pad_to) * pad_to
    w = np.zeros((padded // 4, k // 32, 4, 4), np.uint32)
    for row in range(n):
        for g in range(k // 32):
            for c in range(4):
                for i in range(8):
                    code = int(weight.codes[row, 32 * g + 8 * c + 2 * (i % 4) + i // 4])
                    w[row // 4, g, c, row % 4] |= np.uint32(code << (4 * i))
    return {"w": w}


@pytest.mark.parametrize(("n", "k", "pad_to"), [(4, 32, 4), (5, 64, 4), (7, 96, 32)])
def test_pack_q4_against_its_twin(n, k, pad_to):
    weight = random_codes(n, k, "q4")
    packed = pack_q4(weight, pad_to)
    assert packed["w"].dtype == np.dtype("<u4")
    assert np.array_equal(packed["w"], twin_pack_q4(weight, pad_to)["w"])
    assert weight.minimum is not None
    for row in range(n):
        assert np.array_equal(packed["s"][row // 4, :, row % 4], weight.scale[row])
        assert np.array_equal(packed["m"][row // 4, :, row % 4], weight.minimum[row])


def test_pack_q8_against_its_definition():
    weight = random_codes(6, 64, "q8")
    packed = pack_q8(weight)
    assert packed["w"].shape == (2, 2, 8, 4, 4)
    for row in range(6):
        for k in range(64):
            assert packed["w"][row // 4, k // 32, k % 32 // 4, row % 4, k % 4] == weight.codes[row, k]


@pytest.mark.parametrize(("n", "k"), [(1, 32), (4, 64), (301, 64), (1030, 576), (64, 1536)])
@pytest.mark.parametrize("pad_to", [4, 32])
def test_round_trip_and_padding(n, k, pad_to):
    q4, q8 = random_codes(n, k, "q4"), random_codes(n, k, "q8")
    packed4, packed8 = pack_q4(q4, pad_to), pack_q8(q8, pad_to)
    blocks = -(-n // pad_to) * pad_to // 4
    assert packed4["w"].shape == (blocks, k // 32, 4, 4)
    assert packed8["w"].shape == (blocks, k // 32, 8, 4, 4)
    assert same(unpack_q4(packed4, n), q4)
    assert same(unpack_q8(packed8, n), q8)
    padding = unpack_q4(packed4, 4 * blocks)
    assert padding.minimum is not None
    assert not padding.codes[n:].any()
    assert not padding.scale[n:].any()
    assert not padding.minimum[n:].any()


def test_packing_the_wrong_format_is_a_bug():
    with pytest.raises(ContractError):
        pack_q4(random_codes(4, 32, "q8"))
    with pytest.raises(ContractError):
        pack_q8(random_codes(4, 32, "q8"), pad_to=6)


def test_an_inconsistent_weight_is_a_bug():
    good = random_codes(4, 64, "q4")
    with pytest.raises(ContractError):
        QuantWeight("q4", good.codes, good.scale, None)
    with pytest.raises(ContractError):
        QuantWeight("q8", good.codes, good.scale, None)
