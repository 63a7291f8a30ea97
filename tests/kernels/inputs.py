"""Random arguments for every op, in the kernels' layouts. Outputs begin as a sentinel, so that untouched places show.

Invariants: the same (op, params, seed) gives the same arrays; rows past num_rows and cache slots past the last valid row hold junk
(NaN, ids outside the vocabulary) that must not leak into a result.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from specdec_compiler.emit.weights import packed_matrix, rope_table
from specdec_compiler.kernels import Params
from specdec_compiler.kernels.base import GROUP, MAX_ROWS, OUT_ROWS, weight_rows
from specdec_compiler.kernels.judge import STATS_WORDS
from specdec_compiler.kernels.quantize import GROUP_WORDS
from specdec_compiler.kernels.rope import kv_elements
from specdec_compiler.kernels.twins import pack_activations, pack_groups, pack_pages, page_index
from specdec_compiler.quantize import QuantWeight
from specdec_runtime.plan.schema import (
    BANNED_FIELDS,
    MAX_BANNED,
    SAMPLING_FLOATS,
    SAMPLING_INTS,
    TOP_FIELDS,
    VERDICT_FIELDS,
    VERDICT_ROWS,
)

from .forms import Arrays

UNTOUCHED = -777
NAMED_OF = 3  # the ids that have a logit are one in so many
ROPE_THETA = 10000.0


def floats(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32).ravel()


def blank(size: int, dtype=np.float32) -> np.ndarray:
    return np.full(size, UNTOUCHED, np.int64).astype(dtype)


@cache
def matrix(n: int, k: int, fmt: str) -> dict[str, np.ndarray]:
    """A packed random matrix: its w and ws."""
    rng = np.random.default_rng([n, k, len(fmt), int(fmt[1])])
    low, high, dtype = (0, 16, np.uint8) if fmt == "q4" else (-127, 128, np.int8)
    codes = rng.integers(low, high, (n, k)).astype(dtype)
    scale = rng.uniform(0.5, 2, (n, k // GROUP)).astype(np.float32)
    minimum = rng.uniform(-16, -4, (n, k // GROUP)).astype(np.float32) if fmt == "q4" else None
    parts = packed_matrix(QuantWeight(fmt, codes, scale, minimum), 4)
    return {name: np.ascontiguousarray(part).ravel() for name, part in parts.items()}


def activations(rng: np.random.Generator, m: int, k: int, levels: int) -> Arrays:
    halves = 1 if levels > 127 else 2
    codes = rng.integers(-levels, levels + 1, (m, k // GROUP, halves, GROUP // halves))
    scale = (rng.uniform(0.5, 2, (m, k // GROUP, halves)) / levels).astype(np.float32)
    sums = (scale * codes.sum(axis=3)).sum(axis=2, keepdims=True)
    xs = np.concatenate([scale, sums], axis=2).astype(np.float32).ravel()
    xq = pack_activations(codes.reshape(m, k), levels)
    if levels > 127:
        return {"xq": xq, "xs": xs}
    return {"codes": pack_groups(xq, xs, rng.uniform(1, 60, (m, k // GROUP)))}


def blank_codes(m: int, k: int, levels: int, name: str = "codes") -> Arrays:
    if levels > 127:
        return {"xq": blank(m * k, np.int16), "xs": blank(m * k // GROUP * 2)}
    return {name: blank(m * k // GROUP * GROUP_WORDS, np.int32).view(np.uint32)}


def _cache_arrays(p: Params, rng: np.random.Generator, levels: int, first_stale: int, junk: float) -> Arrays:
    """Page table and pages; positions from first_stale on hold junk."""
    table = {"page_table": rng.permutation(int(p["pages"])).astype(np.int32)}
    pages = {name: floats(rng, kv_elements(p)) for name in ("k_pages", "v_pages")}
    for position in range(first_stale, int(p["ctx"])):
        for head in range(int(p["kv"])):
            k_at, v_at = page_index(p, table, position, head)
            pages["k_pages"][k_at] = junk
            pages["v_pages"][v_at] = junk
    return table | (pages if levels > 127 else {"pages": pack_pages(p, **pages)})


def _embed(p, rng, levels, start, rows):
    n, k = int(p["n"]), int(p["k"])
    tokens = rng.integers(0, n, int(p["tokens"])).astype(np.int32)
    tokens[start + rows :: 2] = -5
    tokens[start + rows + 1 :: 2] = 1 << 30
    table = matrix(weight_rows(p), k, str(p["fmt"]))
    return {"tokens": tokens, **table, "x": blank(int(p["m"]) * k)}


def _norm_quantize(p, rng, levels, start, rows):
    m, k = int(p["m"]), int(p["k"])
    return {"x": floats(rng, m, k) * 3, "weight": floats(rng, k), **blank_codes(m, k, levels)}


def _quantize(p, rng, levels, start, rows):
    m, k = int(p["m"]), int(p["k"])
    return {"x": floats(rng, m, k), **blank_codes(m, k, levels)}


def _silu_mul_quantize(p, rng, levels, start, rows):
    m, k = int(p["m"]), int(p["k"])
    return {"gate_up": floats(rng, m, 2 * k) * 3, **blank_codes(m, k, levels)}


def _linear(p, rng, levels, start, rows):
    m, n, k = (int(p[key]) for key in "mnk")
    weights = matrix(weight_rows(p), k, str(p["fmt"]))
    return {**activations(rng, m, k, levels), **weights, "out": blank(m * n)}


def _linear_add(p, rng, levels, start, rows):
    residual = floats(rng, int(p["m"]), int(p["n"])) * 10
    return _linear(p, rng, levels, start, rows) | {"residual": residual}


def _linear_add_quantize(p, rng, levels, start, rows):
    m, n = int(p["m"]), int(p["n"])
    more = {"weight": floats(rng, n), **blank_codes(m, n, levels, "next_codes")}
    return _linear_add(p, rng, levels, start, rows) | more


def _gate_up_quantize(p, rng, levels, start, rows):
    arrays = _linear(p, rng, levels, start, rows)
    m, n = int(p["m"]), arrays.pop("out").size // int(p["m"])
    return arrays | blank_codes(m, n // 2, levels, "next_codes")


def _qkv_rope(p, rng, levels, start, rows):
    arrays = _linear(p, rng, levels, start, rows) | _rope_append(p, rng, levels, start, rows)
    return {name: array for name, array in arrays.items() if name not in ("out", "qkv")}


def _rope_append(p, rng, levels, start, rows):
    m, h, kv, d = (int(p[key]) for key in ("m", "h", "kv", "d"))
    table = rope_table(ROPE_THETA, int(p["ctx"]), d).ravel()
    pages = _cache_arrays(p, rng, levels, int(p["ctx"]), 0)
    return {"qkv": floats(rng, m, h + 2 * kv, d), "table": table, **pages, "q": blank(m * h * d)}


def _attention(p, rng, levels, start, rows):
    m, h, d = (int(p[key]) for key in ("m", "h", "d"))
    pages = _cache_arrays(p, rng, levels, start + rows, np.nan)
    return {"q": floats(rng, m, h, d) * 2, **pages, "out": blank(m * h * d)}


def _attend(p, rng, levels, start, rows):
    arrays = _attention(p, rng, levels, start, rows)
    size = arrays.pop("out").size
    return arrays | blank_codes(1, size, levels)


def _concat(p, rng, levels, start, rows):
    m, parts = int(p["m"]), [int(part) for part in str(p["parts"]).split("x")]
    sources = {f"x{i}": floats(rng, m, width) for i, width in enumerate(parts)}
    return {**sources, "out": blank(m * sum(parts))}


def _logits(p, rng):
    """Padding columns hold what would win or spoil the row, were it looked at."""
    logits = floats(rng, int(p["m"]), int(p["padded"])).reshape(int(p["m"]), -1) * 3
    logits[:, int(p["n"]) :: 2] = 1e30
    logits[:, int(p["n"]) + 1 :: 2] = np.nan
    return logits.ravel()


def _choose(p, rng, levels, start, rows):
    tokens = rng.integers(0, 1000, int(p["tokens"])).astype(np.int32)
    out, done = blank(OUT_ROWS * 2, np.int32), blank(1, np.int32)
    return {"logits": _logits(p, rng), "out": out, "tokens": tokens, "done": done}


def _choose_measured(p, rng, levels, start, rows):
    return _choose(p, rng, levels, start, rows) | {"stats": blank(OUT_ROWS * 2)}


def _choose_sampled(p, rng, levels, start, rows):
    """Noise at a temperature of 0.7; a bias that must not be read."""
    sampling = _sampling(rng, int(p["bias"]))
    return _choose(p, rng, levels, start, rows) | sampling


def _sampling(rng, size: int) -> Arrays:
    ints, numbers = blank(SAMPLING_INTS, np.int32), blank(SAMPLING_FLOATS)
    ints[:2], ints[6], numbers[0] = rng.integers(-(2**31), 2**31, 2), 1, 1 / 0.7
    return {"ints": ints, "floats": numbers, "bias": np.full(size, np.nan, np.float32)}


def _filtered(p, rng, levels, start, rows):
    """Noise at a temperature of 0.7, nothing else; what no flag names must not be read. Many ids come more than once before `start`."""
    n, padded = int(p["n"]), int(p["padded"])
    tokens = rng.integers(0, n, int(p["tokens"])).astype(np.int32)
    tokens[::3] = rng.integers(0, min(n, 20), len(tokens[::3]))
    tokens[start + rows :] = 1 << 30
    ints, numbers = blank(SAMPLING_INTS, np.int32), blank(SAMPLING_FLOATS)
    ints[:2], ints[2], ints[4], ints[6] = rng.integers(-(2**31), 2**31, 2), 0, 0, 1
    numbers[:3] = 1 / 0.7, 1, 0
    return {
        "tokens": tokens,
        "logits": _logits(p, rng),
        "ints": ints,
        "floats": numbers,
        "bias": np.full(padded, np.nan, np.float32),
        "mask": np.zeros(OUT_ROWS * -(-padded // 32), np.uint32),
        "banned": blank(MAX_BANNED * BANNED_FIELDS, np.int32),
        "kept": blank(int(p["m"]) * padded),
    }


def _choose_filtered(p, rng, levels, start, rows):
    arrays = _filtered(p, rng, levels, start, rows)
    del arrays["kept"]
    return {**arrays, "out": blank(OUT_ROWS * 2, np.int32), "done": blank(1, np.int32)}


def _logprobs(p, rng, levels, start, rows):
    out = rng.integers(-1, int(p["n"]) + 1, OUT_ROWS * 2).astype(np.int32)
    return {"logits": _logits(p, rng), "out": out, "top": blank(OUT_ROWS * TOP_FIELDS)}


def _named(maker):
    """The same where the logits are of some ids only."""

    def make(p, rng, levels, start, rows):
        n = int(p["n"])
        ids = np.sort(rng.choice(NAMED_OF * n, n, replace=False)).astype(np.int32)
        return maker(p, rng, levels, start, rows) | {"ids": ids}

    return make


def _score(p, rng, levels, start, rows):
    ids = rng.integers(0, int(p["n"]), MAX_ROWS).astype(np.int32)
    return {"logits": _logits(p, rng), "score_ids": ids, "score": blank(MAX_ROWS * 3)}


def _accept(p, rng, levels, start, rows):
    """The target's rows of a few passes, all fine, and drafts that differ from all of them."""
    out = rng.integers(0, int(p["n"]), (OUT_ROWS, 2)).astype(np.int32)
    out[:, 1] = 1
    tokens = rng.integers(1000, 2000, int(p["tokens"])).astype(np.int32)
    draft_args = np.array([start + rows - 1, 1, 1, 9], np.int32)
    return {"out": out.ravel(), "tokens": tokens, "draft_args": draft_args, "done": blank(1, np.int32)}


def _follow(p, rng, levels, start, rows):
    verdict = rng.integers(0, int(p["n"]), (VERDICT_ROWS, VERDICT_FIELDS)).astype(np.int32)
    verdict[:, 0], verdict[:, 2] = rng.integers(0, max(rows, 1), VERDICT_ROWS), 1
    return {name: value for name, value in _accept(p, rng, levels, start, rows).items() if name != "out"} | {
        "verdict": verdict.ravel()
    }


def _draw(p, rng, levels, start, rows):
    """The second draft of its cycle; a bias that must not be read."""
    sampling = _choose_sampled(p | {"bias": p["columns"]}, rng, levels, start, rows)
    target_args = np.array([start + rows - 2, 4, 0, 0], np.int32)
    return {**sampling, "target_args": target_args, "q": blank(MAX_ROWS * int(p["columns"]))}


def _draw_named(p, rng, levels, start, rows):
    ids = np.sort(rng.choice(int(p["vocab"]), int(p["n"]), replace=False)).astype(np.int32)
    return _draw(p, rng, levels, start, rows) | {"ids": ids}


def _judge(p, rng, levels, start, rows):
    """Rows of p and q that are alike; drafts that are likely in both; junk in other rows and in columns past the vocabulary."""
    columns, vocab = int(p["columns"]), int(p["vocab"])
    logits = floats(rng, MAX_ROWS, columns).reshape(MAX_ROWS, -1) * 2
    q = logits + floats(rng, MAX_ROWS, columns).reshape(MAX_ROWS, -1)
    tokens = rng.integers(0, vocab, int(p["tokens"])).astype(np.int32)
    tokens[start + 1 : start + 1 + MAX_ROWS] = np.argmax((logits + q)[:, :vocab], axis=1)
    logits[rows:], q[max(rows - 1, 0) :], logits[:, vocab:], q[:, vocab:] = np.nan, np.nan, 1e30, np.nan
    out = rng.integers(0, vocab, (OUT_ROWS, 2)).astype(np.int32)
    out[:, 1] = 1
    return {
        **_sampling(rng, columns),
        "logits": logits.ravel(),
        "q": q.ravel(),
        "tokens": tokens,
        "out": out.ravel(),
        "z": blank(MAX_ROWS * columns),
        "stats": blank(2 * MAX_ROWS * STATS_WORDS),
        "mass": blank(MAX_ROWS),
        "verdict": blank(VERDICT_ROWS * VERDICT_FIELDS, np.int32),
        "done": blank(1, np.int32),
    }


_MAKERS = {
    "embed": _embed,
    "embed_rows": _embed,
    "norm_quantize": _norm_quantize,
    "scale_quantize": _norm_quantize,
    "linear": _linear,
    "linear_rows": _linear,
    "normed_linear": _linear,
    "linear_add": _linear_add,
    "linear_add_quantize": _linear_add_quantize,
    "gate_up_quantize": _gate_up_quantize,
    "qkv_rope": _qkv_rope,
    "rope_append": _rope_append,
    "attention": _attention,
    "attend": _attend,
    "quantize": _quantize,
    "silu_mul_quantize": _silu_mul_quantize,
    "concat2": _concat,
    "concat3": _concat,
    "choose": _choose,
    "choose_measured": _choose_measured,
    "choose_named": _named(_choose),
    "choose_measured_named": _named(_choose_measured),
    "choose_sampled": _choose_sampled,
    "choose_sampled_named": _named(_choose_sampled),
    "filtered": _filtered,
    "choose_filtered": _choose_filtered,
    "logprobs": _logprobs,
    "score": _score,
    "accept": _accept,
    "follow": _follow,
    "draw": _draw,
    "draw_named": _draw_named,
    "judge": _judge,
}


def make_inputs(op: str, p: Params, levels: int, rng: np.random.Generator, start: int, rows: int) -> Arrays:
    """Every argument of one call: row i is at position start + i, `rows` of the width's rows are valid."""
    args = np.array([start, rows, 0, 0], np.int32)
    return {"args": args, **_MAKERS[op](p, rng, levels, start, rows)}
