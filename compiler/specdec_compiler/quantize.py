"""Group quantization: the q4 and q8 weight formats, their packing for the device, and the inverses.

Groups are 32 weights along K (a matrix is [N = out, K = in], a product is x @ W.T). q4: w = scale * code +
minimum with codes 0..15; q8: w = scale * code with codes -127..127 (-128 only when repacked). Scales and
minimums are f32. Knows nothing of files, models or kernels. Invariants: packing loses nothing; the same input
gives the same bytes (float sums run in a fixed order, over the leading axis); temporaries are a few MiB.

Rule for floats -> q4: for each group, 11 candidate scales around (max - min) / 15 give codes; a least-squares
line through (code, weight) gives scale and minimum; the least squared error wins (ties: the first candidate).
Rule for floats -> q8: scale = max|w| / 127, round to nearest, ties to even.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from specdec_runtime.faults import ArtifactError, ContractError

GROUP = 32
ROWS_PER_BLOCK = 4
Format = Literal["q4", "q8"]

MAX_WEIGHT = 1e15  # no trained weight comes near; squares of larger ones would overflow the search

_CHUNK_WEIGHTS = 1 << 18  # weights quantized at once: the temporaries stay in the cache
# Nibble i of a packed word holds k = 2 * (i % 4) + i // 4 of its 8: the nibbles of the lower half are the
# even k's, those of the upper half the odd k's.
_NIBBLE_K = np.array([2 * (i % 4) + i // 4 for i in range(8)])
_K_NIBBLE = np.argsort(_NIBBLE_K)


@dataclass(frozen=True)
class QuantWeight:
    """A matrix of N rows and K columns in a group format.

    codes: q4 uint8 [N, K] in 0..15, q8 int8 [N, K]; scale: f32 [N, K/32]; minimum: f32 [N, K/32] for q4, None
    for q8.
    """

    format: Format
    codes: np.ndarray
    scale: np.ndarray
    minimum: np.ndarray | None

    def __post_init__(self) -> None:
        if self.format not in ("q4", "q8"):
            raise ContractError(f"unknown group format {self.format!r}", "QuantWeight", "use q4 or q8")
        n, k = self.codes.shape
        code_type = np.uint8 if self.format == "q4" else np.int8
        wanted = [(self.codes, code_type, (n, k)), (self.scale, np.float32, (n, k // GROUP))]
        if self.minimum is not None:
            wanted.append((self.minimum, np.float32, (n, k // GROUP)))
        good = all(a.dtype == dtype and a.shape == shape for a, dtype, shape in wanted)
        if not good or k % GROUP or (self.minimum is None) == (self.format == "q4"):
            raise ContractError(
                f"a {self.format} weight has inconsistent parts", "QuantWeight", "fix its maker"
            )

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K)."""
        return self.codes.shape[0], self.codes.shape[1]


def quantize(weights: np.ndarray, format: Format, where: str) -> QuantWeight:
    """Floats [N, K] -> QuantWeight. `where` names the tensor in errors.

    Raises ArtifactError when K is no multiple of 32 or a weight is NaN, infinite or beyond 1e15.
    """
    check_groups(weights.shape, where)
    check_finite(weights, where)
    largest = float(np.abs(weights).max())
    if largest > MAX_WEIGHT:
        raise ArtifactError(
            f"a weight is as large as {largest:.3g}", where, "the file is damaged: get it again"
        )
    return _quantize_q4(weights) if format == "q4" else _quantize_q8(weights)


def check_groups(shape: tuple[int, ...], where: str) -> None:
    """Raise ArtifactError unless shape is [N, K] with K a multiple of the group size."""
    if len(shape) != 2 or shape[1] % GROUP or 0 in shape:
        raise ArtifactError(
            f"the matrix has shape {list(shape)}, but its rows must be a multiple of {GROUP} long",
            where,
            "use a model whose hidden and feed-forward sizes are multiples of 32",
        )


def check_finite(values: np.ndarray, where: str, what: str = "weight") -> None:
    """Raise ArtifactError naming the first NaN or infinite value."""
    finite = np.isfinite(values)
    if not finite.all():
        index = np.unravel_index(int(np.argmin(finite)), values.shape)
        place = ", ".join(str(int(i)) for i in index)
        raise ArtifactError(
            f"the {what} at [{place}] is {float(values[index])}",
            where,
            "the file is damaged or was converted wrongly: get or convert it again",
        )


def dequantize(weight: QuantWeight, rows: slice = slice(None)) -> np.ndarray:
    """QuantWeight -> f32 [rows, K]: scale * code (+ minimum), rounded to f32 after each operation."""
    codes = weight.codes[rows]
    grouped = codes.reshape(len(codes), -1, GROUP).astype(np.float32)
    grouped *= weight.scale[rows, :, None]
    if weight.minimum is not None:
        grouped += weight.minimum[rows, :, None]
    return grouped.reshape(codes.shape)


def pack_q4(weight: QuantWeight, pad_to: int = ROWS_PER_BLOCK) -> dict[str, np.ndarray]:
    """q4 -> the bytes a kernel reads; N is padded with zeros to a multiple of pad_to.

    w: uint32 [N/4, K/32, 4 (chunk c of 8 k's), 4 (row r)]: the row is 4 * nb + r; nibble i holds
    k = 32 * g + 8 * c + 2 * (i % 4) + i // 4. s, m: f32 [N/4, K/32, 4 (r)]: scales and minimums.
    Raises ContractError when the weight is not q4.
    """
    _expect(weight, "q4")
    blocks, groups = _padded_rows(weight, pad_to) // ROWS_PER_BLOCK, weight.shape[1] // GROUP
    words = np.zeros((blocks, groups, 4, ROWS_PER_BLOCK, 4), np.uint8)
    for chunk, codes in _blocks_of_rows(weight):
        nibbles = codes.reshape(-1, ROWS_PER_BLOCK, groups, 4, 8)[..., _NIBBLE_K]
        pairs = nibbles[..., 0::2] | (nibbles[..., 1::2] << 4)  # [blocks, r, g, c, 4 bytes]
        words[chunk] = pairs.transpose(0, 2, 3, 1, 4)
    assert weight.minimum is not None
    return {
        "w": words.view("<u4")[..., 0],
        "s": _pack_groups(weight.scale, blocks),
        "m": _pack_groups(weight.minimum, blocks),
    }


def pack_q8(weight: QuantWeight, pad_to: int = ROWS_PER_BLOCK) -> dict[str, np.ndarray]:
    """q8 -> the bytes a kernel reads; N is padded with zeros to a multiple of pad_to.

    w: int8 [N/4, K/32, 8 (c), 4 (row r), 4 (j)]: row 4 * nb + r, k = 32g + 4c + j. s: f32 [N/4, K/32, 4 (r)].
    Raises ContractError when the weight is not q8.
    """
    _expect(weight, "q8")
    blocks, groups = _padded_rows(weight, pad_to) // ROWS_PER_BLOCK, weight.shape[1] // GROUP
    packed = np.zeros((blocks, groups, 8, ROWS_PER_BLOCK, 4), np.int8)
    for chunk, codes in _blocks_of_rows(weight):
        packed[chunk] = codes.reshape(-1, ROWS_PER_BLOCK, groups, 8, 4).transpose(0, 2, 3, 1, 4)
    return {"w": packed, "s": _pack_groups(weight.scale, blocks)}


def unpack_q4(packed: dict[str, np.ndarray], num_rows: int) -> QuantWeight:
    """The inverse of pack_q4; num_rows is N before padding."""
    blocks, groups = packed["w"].shape[:2]
    pairs = np.ascontiguousarray(packed["w"], "<u4")[..., None].view(np.uint8).transpose(0, 3, 1, 2, 4)
    nibbles = np.stack([pairs & 15, pairs >> 4], axis=-1).reshape(*pairs.shape[:4], 8)[..., _K_NIBBLE]
    codes = nibbles.reshape(blocks * ROWS_PER_BLOCK, groups * GROUP)[:num_rows]
    return QuantWeight(
        "q4", codes, _unpack_groups(packed["s"], num_rows), _unpack_groups(packed["m"], num_rows)
    )


def unpack_q8(packed: dict[str, np.ndarray], num_rows: int) -> QuantWeight:
    """The inverse of pack_q8; num_rows is N before padding."""
    blocks, groups = packed["w"].shape[:2]
    codes = packed["w"].transpose(0, 3, 1, 2, 4).reshape(blocks * ROWS_PER_BLOCK, groups * GROUP)[:num_rows]
    return QuantWeight("q8", codes, _unpack_groups(packed["s"], num_rows), None)


def _quantize_q8(weights: np.ndarray) -> QuantWeight:
    n, k = weights.shape
    codes, scale = np.empty((n, k), np.int8), np.empty((n, k // GROUP), np.float32)
    for rows in _chunks(n, k):
        x = weights[rows].astype(np.float32).reshape(-1, k // GROUP, GROUP)
        # A scale that rounds to 0 (a group of zeros or denormals) must not divide.
        step = np.abs(x).max(axis=2) / np.float32(127)
        scale[rows] = step
        divisor = np.maximum(step, np.finfo(np.float32).tiny)
        codes[rows] = np.clip(np.rint(x / divisor[:, :, None]), -127, 127).reshape(-1, k)
    return QuantWeight("q8", codes, scale, None)


def _quantize_q4(weights: np.ndarray) -> QuantWeight:
    n, k = weights.shape
    groups = k // GROUP
    codes = np.empty((n, k), np.uint8)
    scale, minimum = np.empty((n, groups), np.float32), np.empty((n, groups), np.float32)
    for rows in _chunks(n, k):
        # [32, groups]: a sum over the leading axis adds in order, so every machine gets the same bits.
        x = np.ascontiguousarray(weights[rows].astype(np.float32).reshape(-1, GROUP).T)
        q, s, m = _search_q4(x)
        codes[rows] = q.T.reshape(-1, k)
        scale[rows], minimum[rows] = s.reshape(-1, groups), m.reshape(-1, groups)
    return QuantWeight("q4", codes, scale, minimum)


def _search_q4(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x: f32 [32, G] -> codes uint8 [32, G], scale f32 [G], minimum f32 [G] by the rule at the file's top."""
    low, high = x.min(axis=0), x.max(axis=0)
    # A spread below 1e-30 is a constant group for every purpose; the floor keeps the divisions finite.
    spread = np.maximum(high - low, np.float32(1e-30))
    mean = x.sum(axis=0) / np.float32(GROUP)
    centred = x - mean
    best = np.full(x.shape[1], -1, np.float32)
    slope = np.zeros_like(best)
    code_mean = np.zeros_like(best)
    for step in range(11):
        # 14.4 / spread .. 16.4 / spread: below 15 the ends shrink inwards, above it they are clipped.
        q = _round_codes(x, low, np.float32(14.4 + 0.2 * step) / spread)
        q_mean = q.sum(axis=0) / np.float32(GROUP)
        covariance = (q * centred).sum(axis=0)
        variance = np.maximum((q * q).sum(axis=0) - GROUP * q_mean * q_mean, np.float32(1e-6))
        explained = covariance * (covariance / variance)  # the squared error is a constant minus this
        better = explained > best
        best = np.where(better, explained, best)
        slope = np.where(better, covariance / variance, slope)
        code_mean = np.where(better, q_mean, code_mean)
    minimum = mean - slope * code_mean
    flat = slope <= 0
    inverse = np.where(flat, np.float32(0), 1 / np.where(flat, np.float32(1), slope))
    return _round_codes(x, minimum, inverse).astype(np.uint8), slope, minimum


def _round_codes(x: np.ndarray, low: np.ndarray, inverse_scale: np.ndarray) -> np.ndarray:
    q = x - low
    q *= inverse_scale
    np.rint(q, out=q)
    return np.clip(q, 0, 15, out=q)


def _chunks(n: int, k: int) -> Iterator[slice]:
    rows = max(1, _CHUNK_WEIGHTS // k)
    for start in range(0, n, rows):
        yield slice(start, min(n, start + rows))


def _blocks_of_rows(weight: QuantWeight) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield (slice of 4-row blocks, their codes [rows, K]), the last block filled up with zero rows."""
    n, k = weight.shape
    step = max(ROWS_PER_BLOCK, _CHUNK_WEIGHTS // k // ROWS_PER_BLOCK * ROWS_PER_BLOCK)
    for start in range(0, n, step):
        codes = weight.codes[start : start + step]
        missing = -len(codes) % ROWS_PER_BLOCK
        if missing:
            codes = np.concatenate([codes, np.zeros((missing, k), codes.dtype)])
        first = start // ROWS_PER_BLOCK
        yield slice(first, first + len(codes) // ROWS_PER_BLOCK), codes


def _padded_rows(weight: QuantWeight, pad_to: int) -> int:
    if pad_to % ROWS_PER_BLOCK or pad_to <= 0:
        raise ContractError(f"pad_to = {pad_to}", "pack", "pad to a multiple of 4 rows")
    return -(-weight.shape[0] // pad_to) * pad_to


def _pack_groups(values: np.ndarray, blocks: int) -> np.ndarray:
    padded = np.zeros((blocks * ROWS_PER_BLOCK, values.shape[1]), np.float32)
    padded[: len(values)] = values
    return np.ascontiguousarray(padded.reshape(blocks, ROWS_PER_BLOCK, -1).transpose(0, 2, 1))


def _unpack_groups(values: np.ndarray, num_rows: int) -> np.ndarray:
    blocks, groups = values.shape[:2]
    return np.ascontiguousarray(values.transpose(0, 2, 1).reshape(blocks * ROWS_PER_BLOCK, groups)[:num_rows])


def _expect(weight: QuantWeight, format: Format) -> None:
    if weight.format != format:
        raise ContractError(
            f"a {weight.format} weight came to pack_{format}", f"pack_{format}", "pick by weight.format"
        )
