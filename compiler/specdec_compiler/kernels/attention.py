"""Causal attention on the CPU, over paged K and V: split by absolute positions, merged as in flash decoding (Dao et al. 2023).

Row-invariant: one row's result depends on its own position and the pages only. Splits are of 256 positions; in a split scores, their
maximum, exp, sum and the weighted sum of V run in ascending position, and splits are merged in ascending order. Slots past the row are
not read: stale pages cannot leak in. The GPU's kernels are in attention_gpu.py.
"""

from __future__ import annotations

from tvm.script.ir_builder import tirx as T

from .base import ARGS, SPLIT, Form, Op, Params
from .ir import (
    F32X4,
    cpu_func,
    exp1,
    exp4,
    f32,
    load4,
    local,
    max_lanes,
    splat,
    store,
    store4,
    sum_lanes,
)
from .rope import kv_elements

NEGATIVE = -3.0e38  # below every score; exp of it minus any maximum is 0


def attention_shapes(p: Params):
    """m, h, kv, d, s and ctx of an attention op."""
    return (int(p[key]) for key in ("m", "h", "kv", "d", "s", "ctx"))


def _inputs(p: Params):
    return [
        ("args", ARGS, "int32"),
        ("q", int(p["m"]) * int(p["h"]) * int(p["d"]), "float32"),
        ("page_table", int(p["pages"]), "int32"),
        ("k_pages", kv_elements(p), "float32"),
        ("v_pages", kv_elements(p), "float32"),
    ]


def _cpu_scores(q, k_pages, page_table, scores, q_at, head, base, count, p: Params):
    """scores[g * SPLIT + i] = q_g . k_i / sqrt(D) for the group's query heads and the split's positions; -big past count."""
    _, h, kv, d, s, _ = attention_shapes(p)
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
    _, h, kv, d, s, _ = attention_shapes(p)
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
    m, h, kv, d, _, _ = attention_shapes(p)
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


_IN = (("args", "read"), ("q", "read"), ("page_table", "read"), ("k_pages", "read"), ("v_pages", "read"))
ATTENTION = Op("attention", cpu=Form((*_IN, ("out", "write")), _cpu, lambda p: int(p["m"]) * int(p["kv"])))
