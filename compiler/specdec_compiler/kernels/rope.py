"""Rotary embedding of q and k, and the append of K and V to their pages. Row-invariant: a row touches its own position only.

Layouts: qkv [M, (heads + 2 kv_heads) * D]; table [context, D] (D/2 cosines, then D/2 sines); K pages [page, kv_head, D, slot],
V pages [page, kv_head, slot, D]; rotate-half pairs (i, i + D/2). Rows past num_rows write nothing.
"""

from __future__ import annotations

from tvm.script.ir_builder import tirx as T

from .base import ARGS, Op, Params, by_row
from .ir import cpu_func, load4, prim_func, store, store4, threads, when


def kv_elements(p: Params) -> int:
    """Elements of one layer's K (or V) pages."""
    return int(p["pages"]) * int(p["s"]) * int(p["kv"]) * int(p["d"])


def _params(p: Params):
    m, h, kv, d = int(p["m"]), int(p["h"]), int(p["kv"]), int(p["d"])
    return [
        ("args", ARGS, "int32"),
        ("qkv", m * (h + 2 * kv) * d, "float32"),
        ("table", int(p["ctx"]) * d, "float32"),
        ("page_table", int(p["pages"]), "int32"),
        ("k_pages", kv_elements(p), "float32"),
        ("v_pages", kv_elements(p), "float32"),
        ("q", m * h * d, "float32"),
    ]


def _cpu(name: str, p: Params):
    h, kv, d, s = int(p["h"]), int(p["kv"]), int(p["d"]), int(p["s"])
    width, half = (h + 2 * kv) * d, d // 2

    def body(share, args, qkv, table, page_table, k_pages, v_pages, q):
        with share.of(args[1]) as row:
            position = T.bind(args[0] + row)
            page = T.bind(page_table[T.truncdiv(position, s)])
            slot = T.bind(T.truncmod(position, s))
            with T.serial(0, half // 4) as i4:
                i = T.bind(i4 * 4)
                cos = T.bind(load4(table, position * d + i))
                sin = T.bind(load4(table, position * d + half + i))
                with T.serial(0, h + kv) as head:
                    at = T.bind(row * width + head * d + i)
                    a, b = T.bind(load4(qkv, at)), T.bind(load4(qkv, at + half))
                    first, second = T.bind(a * cos - b * sin), T.bind(b * cos + a * sin)
                    with T.If(head < h):
                        with T.Then():
                            out = T.bind(row * h * d + head * d + i)
                            store4(q, out, first)
                            store4(q, out + half, second)
                        with T.Else():
                            k_at = T.bind(((page * kv + head - h) * d + i) * s + slot)
                            for j in range(4):
                                store(k_pages, k_at + j * s, T.Shuffle([first], [j]))
                                store(k_pages, k_at + (half + j) * s, T.Shuffle([second], [j]))
            with T.serial(0, kv) as head, T.serial(0, d // 4) as i:
                value = load4(qkv, row * width + (h + kv + head) * d + i * 4)
                store4(v_pages, ((page * kv + head) * s + slot) * d + i * 4, value)

    return cpu_func(name, _params(p), body)


def _gpu(name: str, p: Params):
    m, h, kv, d, s = int(p["m"]), int(p["h"]), int(p["kv"]), int(p["d"]), int(p["s"])
    width, half = (h + 2 * kv) * d, d // 2

    def body(args, qkv, table, page_table, k_pages, v_pages, q):
        with threads(-(-(h + 2 * kv) * d // 64), m, 1, 64) as (bx, row, _, tx):
            column = T.bind(bx * 64 + tx)
            with when(T.And(row < args[1], column < width)):
                position = T.bind(args[0] + row)
                page = T.bind(page_table[T.truncdiv(position, s)])
                slot = T.bind(T.truncmod(position, s))
                head, i = T.bind(T.truncdiv(column, d)), T.bind(T.truncmod(column, d))
                value = T.bind(qkv[row * width + column])
                low = T.bind(i < half)
                pair = T.bind(qkv[row * width + column + T.Select(low, T.int32(half), T.int32(-half))])
                angle = T.bind(position * d + T.truncmod(i, half))
                sin = T.Select(low, f32_neg(table[angle + half]), table[angle + half])
                rotated = T.bind(T.call_pure_extern("float32", "fma", pair, sin, value * table[angle]))
                with T.If(head < h):
                    with T.Then():
                        store(q, row * h * d + column, rotated)
                    with T.Else(), T.If(head < h + kv):
                        with T.Then():
                            store(k_pages, ((page * kv + head - h) * d + i) * s + slot, rotated)
                        with T.Else():
                            store(v_pages, ((page * kv + head - h - kv) * s + slot) * d + i, value)

    return prim_func(name, _params(p), body)


def f32_neg(x):
    """-x as a product, exact in every backend."""
    return x * T.float32(-1.0)


ROPE_APPEND = Op(
    "rope_append",
    (
        ("args", "read"),
        ("qkv", "read"),
        ("table", "read"),
        ("page_table", "read"),
        ("k_pages", "read_write"),
        ("v_pages", "read_write"),
        ("q", "write"),
    ),
    _cpu,
    _gpu,
    cpu_parts=by_row,
)
