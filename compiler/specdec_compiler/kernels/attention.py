"""Causal attention over paged K and V: KV split every 256 absolute positions, splits merged in ascending order. Row-invariant.

One row's result depends on its own position and the pages only: in a split, scores, their maximum, exp, sum and the weighted
sum of V run in ascending position; then (max, sum, acc) of the splits are merged as in flash decoding (Dao et al. 2023). The
CPU form is one kernel; the GPU form is attention_split (a workgroup per row, head, split) and attention_merge. V slots
past the row are never used, K slots past it only under a select: stale pages cannot leak in.
"""

from __future__ import annotations

from tvm.script.ir_builder import tirx as T

from .base import ARGS, SPLIT, Op, Params, ceil_div, cpu_only, gpu_only
from .ir import (
    F32X4,
    add,
    barrier,
    cpu_func,
    exp1,
    exp4,
    f32,
    fma,
    load4,
    local,
    max_lanes,
    prim_func,
    shared,
    splat,
    store,
    store4,
    sum_lanes,
    threads,
    tree_of,
    when,
)
from .quantize import words_gpu
from .rope import kv_elements

NEGATIVE = -3.0e38  # below every score; exp of it minus any maximum is 0


def _shapes(p: Params):
    return (int(p[key]) for key in ("m", "h", "kv", "d", "s", "ctx"))


def _inputs(p: Params):
    return [
        ("args", ARGS, "int32"),
        ("q", int(p["m"]) * int(p["h"]) * int(p["d"]), "float32"),
        ("page_table", int(p["pages"]), "int32"),
        ("k_pages", kv_elements(p), "float32"),
        ("v_pages", kv_elements(p), "float32"),
    ]


# --- CPU ---------------------------------------------------------------------------------------------------------------


def _cpu_scores(q, k_pages, page_table, scores, q_at, head, base, count, p: Params):
    """scores[g * SPLIT + i] = q_g . k_i / sqrt(D) for the group's query heads and the split's positions; -big past count."""
    _, h, kv, d, s, _ = _shapes(p)
    per_group = h // kv
    with T.serial(0, T.truncdiv(count + (s - 1), s)) as chunk:
        page = T.bind(page_table[T.truncdiv(base, s) + chunk])
        left = T.bind(T.min(count - chunk * s, s))
        with T.serial(0, T.truncdiv(left + 3, 4)) as four:
            acc = local(per_group, F32X4)
            for g in range(per_group):
                store(acc, g, splat(f32(0)))
            with T.serial(0, d) as i:
                key = T.bind(load4(k_pages, ((page * kv + head) * d + i) * s + four * 4))
                for g in range(per_group):
                    store(acc, g, acc[g] + splat(q[q_at + g * d + i]) * key)
            at = T.bind(chunk * s + four * 4)
            inside = T.Ramp(four * 4, 1, 4) < splat(left)
            for g in range(per_group):
                scaled = acc[g] * splat(f32(d**-0.5))
                store4(scores, g * SPLIT + at, T.Select(inside, scaled, splat(f32(NEGATIVE))))


def _cpu_softmax(scores, offset, count, peak, total):
    """Replace scores by exp(score - max) in place; peak[0] = max, total[0] = sum."""
    fours = T.bind(T.truncdiv(count + 3, 4))
    top, acc = local(1, F32X4), local(1, F32X4)
    store(top, 0, splat(f32(NEGATIVE)))
    with T.serial(0, fours) as i:
        store(top, 0, T.max(top[0], load4(scores, offset + i * 4)))
    store(peak, 0, max_lanes(top[0]))
    store(acc, 0, splat(f32(0)))
    with T.serial(0, fours) as i:
        # lanes past count hold NEGATIVE: exp4 clamps, so they are put to 0 by hand
        score = T.bind(load4(scores, offset + i * 4))
        weight = exp4(score - splat(peak[0]))
        weight = T.bind(T.Select(score > splat(f32(NEGATIVE)), weight, splat(f32(0))))
        store4(scores, offset + i * 4, weight)
        store(acc, 0, acc[0] + weight)
    store(total, 0, sum_lanes(acc[0]))


def _cpu_values(scores, v_pages, page_table, result, head, base, count, p: Params):
    """result[g * D + i] = sum over the split's positions, ascending, of weight * V."""
    _, h, kv, d, s, _ = _shapes(p)
    per_group, lanes = h // kv, min(4, d // 4)
    with T.serial(0, d // (4 * lanes)) as part:
        acc = local(per_group * lanes, F32X4)
        for i in range(per_group * lanes):
            store(acc, i, splat(f32(0)))
        with T.serial(0, T.truncdiv(count + (s - 1), s)) as chunk:
            page = T.bind(page_table[T.truncdiv(base, s) + chunk])
            with T.serial(0, T.min(count - chunk * s, s)) as slot:
                for j in range(lanes):
                    at = ((page * kv + head) * s + slot) * d + (part * lanes + j) * 4
                    value = T.bind(load4(v_pages, at))
                    for g in range(per_group):
                        weight = splat(scores[g * SPLIT + chunk * s + slot])
                        store(acc, g * lanes + j, acc[g * lanes + j] + weight * value)
        for g in range(per_group):
            for j in range(lanes):
                store4(result, g * d + (part * lanes + j) * 4, acc[g * lanes + j])


def _cpu_merge(result, merged, g: int, peak, total, peaks, totals, split, d: int):
    """Merge one split into (peaks, totals, merged); the first split is taken as it is."""
    with T.If(split == 0):
        with T.Then():
            store(peaks, g, peak[0])
            store(totals, g, total[0])
            with T.serial(0, d // 4) as i:
                store4(merged, g * d + i * 4, load4(result, g * d + i * 4))
        with T.Else():
            top = T.bind(T.max(peaks[g], peak[0]))
            old, new = T.bind(exp1(peaks[g] - top)), T.bind(exp1(peak[0] - top))
            store(totals, g, totals[g] * old + total[0] * new)
            store(peaks, g, top)
            with T.serial(0, d // 4) as i:
                both = load4(merged, g * d + i * 4) * splat(old) + load4(result, g * d + i * 4) * splat(new)
                store4(merged, g * d + i * 4, both)


def _cpu(name: str, p: Params):
    m, h, kv, d, _, _ = _shapes(p)
    per_group = h // kv

    def body(share, args, q, page_table, k_pages, v_pages, out):
        scores = local(per_group * SPLIT, "float32")
        result, merged = local(per_group * d, "float32"), local(per_group * d, "float32")
        peaks, totals = local(per_group, "float32"), local(per_group, "float32")
        sums = local(per_group, "float32")
        peak, total = local(1, "float32"), local(1, "float32")
        with share.of(args[1] * kv) as unit:
            row, head = T.bind(T.truncdiv(unit, kv)), T.bind(T.truncmod(unit, kv))
            length = T.bind(args[0] + row + 1)
            q_at = T.bind(row * h * d + head * per_group * d)
            with T.serial(0, T.truncdiv(length + (SPLIT - 1), SPLIT)) as split:
                base = T.bind(split * SPLIT)
                count = T.bind(T.min(length - base, SPLIT))
                _cpu_scores(q, k_pages, page_table, scores, q_at, head, base, count, p)
                split_peaks = local(per_group, "float32")
                for g in range(per_group):
                    _cpu_softmax(scores, g * SPLIT, count, peak, total)
                    store(split_peaks, g, peak[0])
                    store(sums, g, total[0])
                _cpu_values(scores, v_pages, page_table, result, head, base, count, p)
                for g in range(per_group):
                    store(peak, 0, split_peaks[g])
                    store(total, 0, sums[g])
                    _cpu_merge(result, merged, g, peak, total, peaks, totals, split, d)
            for g in range(per_group):
                inverse = T.bind(f32(1.0) / totals[g])
                with T.serial(0, d // 4) as i:
                    store4(out, q_at + g * d + i * 4, load4(merged, g * d + i * 4) * splat(inverse))

    return cpu_func(name, [*_inputs(p), ("out", m * h * d, "float32")], body)


# --- GPU ---------------------------------------------------------------------------------------------------------------

THREADS = (
    256  # one thread a position of the split while scoring; D threads times THREADS / D parts while summing V
)
STEP = 8  # positions (or dimensions) whose loads are in flight together


def num_splits(context: int) -> int:
    """Splits of a full context."""
    return ceil_div(context, SPLIT)


def _partial(p: Params) -> tuple[str, int, str]:
    m, h, _, d, _, ctx = _shapes(p)
    return ("partial", m * h * num_splits(ctx) * (d + 2), "float32")


def _lanes(d: int) -> int:
    """Threads across the head dimension while summing V: the power of two at or above it."""
    return 1 << (d - 1).bit_length()


def _gpu_score(q, k_pages, page_table, acc, q_at, kv_head, base, at, p: Params) -> None:
    """acc[0] = q . k / sqrt(D) of one position, summed in ascending dimension."""
    _, _, kv, d, s, _ = _shapes(p)
    page = T.bind(page_table[T.truncdiv(base + at, s)])
    key = T.bind((page * kv + kv_head) * d * s + T.truncmod(base + at, s))
    with T.serial(0, d // STEP) as step:
        for j in range(STEP):
            i = step * STEP + j
            store(acc, 0, fma(q[q_at + i], k_pages[key + i * s], acc[0]))
    store(acc, 0, acc[0] * f32(d**-0.5))


def _gpu_values(v_pages, page_table, scores, acc, kv_head, base, count, i, part, p: Params) -> None:
    """acc[0] = sum of weight * V[i] over the part's positions, ascending. Slots past count are read (their page is
    mapped somewhere) but selected away: a stale NaN must not meet a zero weight."""
    _, _, kv, d, s, _ = _shapes(p)
    chunk = SPLIT * _lanes(d) // THREADS
    first = T.bind(part * chunk)
    steps = T.max(T.min(T.truncdiv(count - first + (STEP - 1), STEP), chunk // STEP), 0)
    with T.serial(0, steps) as step:
        at = T.bind(first + step * STEP)
        page = T.bind(page_table[T.truncdiv(base + at, s)])
        value = T.bind(((page * kv + kv_head) * s + T.truncmod(base + at, s)) * d + i)
        for j in range(STEP):
            inside = T.Select(at + j < count, v_pages[value + j * d], f32(0))
            store(acc, 0, fma(scores[at + j], inside, acc[0]))


def _split_gpu(name: str, p: Params):
    m, h, kv, d, _, ctx = _shapes(p)
    splits, lanes = num_splits(ctx), _lanes(d)

    def body(args, q, page_table, k_pages, v_pages, partial):
        with threads(splits, h, m, THREADS) as (split, head, row, tx):
            scores, red = shared(SPLIT, "float32"), shared(THREADS, "float32")
            acc, peak, total = local(1, "float32"), local(1, "float32"), local(1, "float32")
            base, kv_head = T.bind(split * SPLIT), T.bind(T.truncdiv(head, h // kv))
            length = T.bind(T.Select(row < args[1], args[0] + row + 1, 0))
            count = T.bind(T.max(T.min(length - base, SPLIT), 0))
            # uniform: the count comes from args (read-only) and the workgroup; empty splits end here, barriers and all
            with when(count > 0):
                store(acc, 0, f32(0))
                with when(tx < count):
                    _gpu_score(q, k_pages, page_table, acc, (row * h + head) * d, kv_head, base, tx, p)
                store(peak, 0, acc[0])
                store(red, tx, T.Select(tx < count, acc[0], f32(NEGATIVE)))
                barrier()
                tree_of(red, tx, THREADS, T.max)
                store(total, 0, red[0])
                barrier()
                # stored, not bound to a name: an expression is evaluated where it is used, after peak is overwritten
                store(acc, 0, T.Select(tx < count, T.exp(peak[0] - total[0]), f32(0)))
                store(peak, 0, total[0])
                store(scores, tx, acc[0])
                store(red, tx, acc[0])
                barrier()
                tree_of(red, tx, THREADS, add)
                store(total, 0, red[0])
                barrier()
                store(acc, 0, f32(0))
                i, part = T.bind(T.truncmod(tx, lanes)), T.bind(T.truncdiv(tx, lanes))
                _gpu_values(v_pages, page_table, scores, acc, kv_head, base, count, i, part, p)
                store(red, tx, acc[0])
                barrier()
                out = T.bind(((row * h + head) * splits + split) * (d + 2))
                with when(tx < d):
                    store(acc, 0, red[tx])
                    for other in range(1, THREADS // lanes):
                        store(acc, 0, acc[0] + red[other * lanes + tx])
                    store(partial, out + tx, acc[0])
                with when(tx == 0):
                    store(partial, out + d, peak[0])
                    store(partial, out + d + 1, total[0])

    return prim_func(name, [*_inputs(p), _partial(p)], body)


def _merged(p: Params):
    """value(args, partial, row, column): the attention output, the splits of a head merged in ascending order."""
    _, h, _, d, _, ctx = _shapes(p)
    splits = num_splits(ctx)

    def value(args, partial, row, column):
        acc, peak, total = local(1, "float32"), local(1, "float32"), local(1, "float32")
        top, old, new = local(1, "float32"), local(1, "float32"), local(1, "float32")
        head, i = T.bind(T.truncdiv(column, d)), T.bind(T.truncmod(column, d))
        start = T.bind((row * h + head) * splits * (d + 2))
        store(acc, 0, partial[start + i])
        store(peak, 0, partial[start + d])
        store(total, 0, partial[start + d + 1])
        with T.serial(0, T.truncdiv(args[0] + row, SPLIT)) as done:
            at = T.bind(start + (done + 1) * (d + 2))
            store(top, 0, T.max(peak[0], partial[at + d]))
            store(old, 0, T.exp(peak[0] - top[0]))
            store(new, 0, T.exp(partial[at + d] - top[0]))
            store(acc, 0, fma(partial[at + i], new[0], acc[0] * old[0]))
            store(total, 0, fma(partial[at + d + 1], new[0], total[0] * old[0]))
            store(peak, 0, top[0])
        return acc[0] / total[0]

    return value


MERGE_THREADS = 64


def _merge_gpu(name: str, p: Params):
    m, h, _, d, _, _ = _shapes(p)

    def body(args, partial, out):
        with threads(ceil_div(h * d, MERGE_THREADS), m, 1, MERGE_THREADS) as (bx, row, _, tx):
            column = T.bind(bx * MERGE_THREADS + tx)
            with when(T.And(row < args[1], column < h * d)):
                store(out, row * h * d + column, _merged(p)(args, partial, row, column))

    return prim_func(name, [("args", ARGS, "int32"), _partial(p), ("out", m * h * d, "float32")], body)


def _merge_quantize_gpu(name: str, p: Params):
    """The same values, quantized at once for the output projection."""
    m, h, _, d, _, _ = _shapes(p)
    return words_gpu(name, {"m": m, "k": h * d}, _partial(p), _merged(p))


_IN = (("args", "read"), ("q", "read"), ("page_table", "read"), ("k_pages", "read"), ("v_pages", "read"))
ATTENTION = Op(
    "attention", (*_IN, ("out", "write")), _cpu, cpu_only, cpu_parts=lambda p: int(p["m"]) * int(p["kv"])
)
ATTENTION_SPLIT = Op("attention_split", (*_IN, ("partial", "write")), gpu_only, _split_gpu)
ATTENTION_MERGE = Op(
    "attention_merge", (("args", "read"), ("partial", "read"), ("out", "write")), gpu_only, _merge_gpu
)
ATTENTION_MERGE_QUANTIZE = Op(
    "attention_merge_quantize",
    (("args", "read"), ("partial", "read"), ("xq", "write"), ("xs", "write")),
    gpu_only,
    _merge_quantize_gpu,
)
