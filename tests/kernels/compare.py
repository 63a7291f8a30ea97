"""Is a device's result what the twin says? Tolerances live here, one table, each with its reason.

`problems` returns one line for every argument that is wrong. Floats may differ by a share of the largest value of their row (or of the
whole, for state); integers are exact; a code may be off only as far as its quotient was from a tie.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from specdec_compiler.kernels import Params
from specdec_compiler.kernels.attention_gpu import GPU_SPLIT
from specdec_compiler.kernels.twins import activation_codes, readable

from .forms import CHOOSING
from .inputs import NAMED_OF

# share of the row's largest magnitude; f32 carries 6e-8
TOLERANCE = {
    "embed": 2e-7,  # a product and a sum
    "embed_rows": 2e-7,
    "concat2": 0.0,
    "concat3": 0.0,
    "linear": 1e-5,  # up to 48 terms in turn, each up to sqrt(48) times the result
    "linear_add": 1e-5,
    "normed_linear": 1e-5,
    "linear_rows": 1e-5,
    "linear_add_quantize": 1e-5,
    "gate_up_quantize": 1e-5,
    "qkv_rope": 1e-5,
    "rope_append": 4e-7,  # two products and a sum
    "attention": 1e-5,  # exp of a score with an error of D roundings
    "choose_measured": 2e-5,  # the same; a sum of products
    "choose_measured_named": 2e-5,
    "draw": 4e-7,  # of q: a sum and a product
    "draw_named": 4e-7,
    "filtered": 2e-6,  # a quotient, two products and three sums
    "logprobs": 2e-5,  # as of score
    "score": 2e-5,  # WGSL's exp and log: some units in the last place of a sum over the vocabulary
}
PAGES_F16 = (
    6e-4  # of a row of pages, on the GPU: half a unit in the last place of an f16, 2**-11, and the rotation
)
SQUARES = 1e-5  # 32 products
LEAST = 1e-37  # what is smaller may become 0
SCALE = 1e-5  # of a quantization scale: norm's root and sum, silu's exp
CODE = {127: 0.005, 32767: 0.2}  # how far past a tie, in codes: levels times the error of value / scale


def _near(expected: np.ndarray, got: np.ndarray, share: float, unit: float = 0.0) -> bool:
    """Within `share` of the largest finite magnitude of each row, or of `unit`; not finite exactly where expected."""
    finite = np.isfinite(expected)
    if not np.array_equal(finite, np.isfinite(got)):
        return False
    expected, got = np.where(finite, expected, 0), np.where(finite, got, 0).astype(np.float64)
    largest = np.maximum(np.abs(expected).max(axis=-1, keepdims=True), unit)
    return bool((np.abs(got - expected) <= share * largest + LEAST).all())


def _quantized(expected: Mapping[str, np.ndarray], got: Mapping[str, np.ndarray], levels: int) -> list[str]:
    """Scale near, codes near their quotients, sum exact for the codes that came; groups with a NaN or Inf say so by their scale."""
    rows, k = expected["xq"].shape
    halves = expected["xs"].shape[2] - 1  # scales of a group
    scale = expected["xs"][..., :halves].reshape(rows, -1)
    xs = got["xs"][: expected["xs"].size].astype(np.float64).reshape(expected["xs"].shape)
    scales = xs[..., :halves].reshape(rows, -1)
    if not np.array_equal(np.isfinite(scale), np.isfinite(scales)):
        return ["xs: a scale is finite where it must not be, or the reverse"]
    fine = np.isfinite(scale)
    codes = activation_codes(got["xq"], k, levels)[:rows].reshape(*scale.shape, -1)
    quotients = expected["xq"].reshape(codes.shape)
    wrong = []
    tiny = fine & (np.abs(scale) < 1e-36)  # too small for full precision, and for any result: may become 0
    full = fine & ~tiny
    if (np.abs(scales - scale)[full] > SCALE * scale[full]).any():
        wrong.append("xs: wrong scale")
    if (np.abs(scales)[tiny] > 2e-36).any():
        wrong.append("xs: wrong tiny scale")
    if (np.abs(codes - quotients)[full] > 0.5 + CODE[levels]).any():
        wrong.append("xq: wrong code")
    if (np.abs(codes)[fine] > levels).any():
        wrong.append("xq: a code is out of range")
    parts = (scales * codes.sum(axis=2)).reshape(rows, -1, halves)
    sums, whole = parts.sum(axis=2), fine.reshape(parts.shape).all(axis=2)
    allowed = 3e-7 * np.abs(parts).sum(axis=2) + 1e-37
    if (np.abs(xs[..., halves] - sums) > allowed)[whole].any():
        wrong.append("xs: not scale times the sum of codes")
    if np.isfinite(xs[..., halves])[~whole].any():
        wrong.append("xs: a group is not finite, but its sum is")
    return wrong


def _tolerance(op: str, name: str, levels: int) -> float:
    if name == "squares":
        return SQUARES
    pages = name in ("k_pages", "v_pages") and levels == 127
    return PAGES_F16 if pages else TOLERANCE["attention" if op == "attend" else op]


def _merged(p: Params, got: Mapping[str, np.ndarray], rows: int) -> np.ndarray:
    """The attention output, from the splits that the GPU's first kernel left: what the codes are the rounding of."""
    h, d = int(p["h"]), int(p["d"])
    out, start = np.zeros((rows, h, d), np.float32), int(got["args"][0]) if "args" in got else int(p["start"])
    partial = got["partial"].astype(np.float64).reshape(int(p["m"]), h, -1, d + 2)
    for row in range(rows):
        splits = partial[row, :, : (start + row) // GPU_SPLIT + 1]
        scale = np.exp(splits[..., d] - splits[..., d].max(axis=1, keepdims=True))[..., None]
        out[row] = (splits[..., :d] * scale).sum(axis=1) / (splits[..., d + 1 :] * scale).sum(axis=1)
    return out.ravel()


def _ids(expected: np.ndarray, got: np.ndarray, vocab: int) -> list[str]:
    any_id = expected[:, 0] == -1
    got = got.reshape(expected.shape)
    exact = np.array_equal(expected[~any_id], got[~any_id])
    flagged = (got[any_id, 1] == 0).all() and (got[any_id, 0] >= 0).all() and (got[any_id, 0] < vocab).all()
    return [] if exact and flagged else [f"out: {got.tolist()}, not {expected.tolist()}"]


def _kept(expected: np.ndarray, got: np.ndarray, share: float) -> list[str]:
    """Dropped ids are -3e38, others near; a row of NaN must have something that is not finite, or nothing but dropped ids."""
    got = got[: expected.size].reshape(expected.shape)
    bad = np.isnan(expected).any(axis=1)
    dropped = (got[bad] == np.float32(-3e38)).all(axis=1)
    if (np.isfinite(got[bad]).all(axis=1) & ~dropped).any():
        return ["kept: a row is finite that must not be"]
    seen = np.where(got[~bad] == np.float32(-3e38), -np.inf, got[~bad])
    differing = int((np.isfinite(seen) != np.isfinite(expected[~bad])).sum())
    if differing:
        return [f"kept: {differing} ids stay or fall wrongly"]
    return [] if _near(expected[~bad], seen, share) else ["kept: wrong value"]


def problems(
    op: str, p: Params, levels: int, expected: Mapping[str, np.ndarray], got: Mapping[str, np.ndarray]
) -> list[str]:
    """What is wrong with `got`; nothing when the list is empty."""
    got = readable(p, got)
    if "partial" in got and op == "attend":
        got["out"] = _merged(p, got, len(expected["out"]))
    wrong = _quantized(expected, got, levels) if "xq" in expected else []
    if op in CHOOSING:
        wrong += _ids(expected["out"], got["out"], int(p["n"]) * (NAMED_OF if "named" in op else 1))
    if "kept" in expected:
        return _kept(expected["kept"], got["kept"], TOLERANCE[op])
    for name, value in expected.items():
        if name in ("xq", "xs") or (op in CHOOSING and name == "out") or name not in got:
            continue
        prefix = got[name][: value.size].reshape(value.shape)
        if value.dtype.kind == "i":
            good = np.array_equal(value, prefix)
        elif name == "stats":  # nats, of rows that are finite
            fine = np.isfinite(value).all(axis=-1)
            good = _near(value[fine], prefix[fine], _tolerance(op, name, levels), 1.0)
        else:
            good = _near(value, prefix, _tolerance(op, name, levels))
        if not good:
            with np.errstate(invalid="ignore"):
                worst = np.nanmax(np.abs(prefix.astype(np.float64) - value))
            wrong.append(f"{name}: off by up to {worst:.3g}, largest {np.nanmax(np.abs(value)):.3g}")
    return wrong
