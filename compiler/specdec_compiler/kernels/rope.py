"""Rotary embedding of q and k, and the append of K and V to their pages. Row-invariant: a row touches its own position only.

Layouts: qkv [M, (heads + 2 kv_heads) * D]; table [context, D] (D/2 cosines, then D/2 sines); K pages [page, kv_head, D, slot],
V pages [page, kv_head, slot, D]; rotate-half pairs (i, i + D/2). Rows past num_rows write nothing. The GPU keeps pages in f16, two
neighbouring dimensions to a 32-bit word ([page, kv_head, D/2, slot], behind them [page, kv_head, slot, D/2], one buffer): WGSL packs
and unpacks them on every device, with or without f16 arithmetic.
"""

from __future__ import annotations

from tvm.script.ir_builder import tirx as T

from .base import ARGS, Form, Op, Params, by_row
from .ir import cpu_func, fma, is_finite_bits, load4, local, prim_func, store, store4, threads, when


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


F16_MAX = 65504.0
APPEND_THREADS = 64


def _pack(a, b):
    """Two f32 as a word of two f16; WGSL leaves what does not fit open, so it is held at the ends."""
    ends = [T.max(T.min(x, T.float32(F16_MAX)), T.float32(-F16_MAX)) for x in (a, b)]
    # a NaN passes on as it is: min and max may drop it
    kept = [T.Select(is_finite_bits(x), end, x) for x, end in zip((a, b), ends, strict=True)]
    return T.call_pure_extern("uint32", "pack2x16float", T.call_pure_extern("float32x2", "vec2f", *kept))


class Appender:
    """GPU: rotates two neighbouring dimensions of a head, which are a word of the pages, and puts them where they belong."""

    def __init__(self, p: Params):
        self.h, self.kv, self.d, self.s = (int(p[key]) for key in ("h", "kv", "d", "s"))
        self.v_at = kv_elements(p) // 2  # V lies behind K
        self.values = local(4, "float32")  # as they come, then rotated
        self.angles = local(4, "float32")  # cosines, then sines with the sign of their half

    def early(self, args, table, page_table, row, i) -> None:
        """What only position and dimension decide: may be loaded before the values are there."""
        half = self.d // 2
        position = T.bind(args[0] + row)
        self.block = T.bind(page_table[T.truncdiv(position, self.s)] * self.kv)
        self.slot = T.bind(T.truncmod(position, self.s))
        angle = T.bind(position * self.d + T.truncmod(i, half))
        for j in range(2):
            store(self.angles, j, table[angle + j])
            sin = T.bind(table[angle + half + j])
            store(self.angles, 2 + j, T.Select(i < half, f32_neg(sin), sin))

    def put(self, value, partner, row, head, i, pages, q) -> None:
        """value(j) and partner(j): elements i + j of the head, and those half a head away."""
        half, h, values, angles = self.d // 2, self.h, self.values, self.angles
        for j in range(2):
            store(values, j, value(j))
            store(values, 2 + j, fma(partner(j), angles[2 + j], values[j] * angles[j]))
        pair = T.bind(T.shift_right(i, 1))
        with T.If(head < h):
            with T.Then():
                for j in range(2):
                    store(q, (row * h + head) * self.d + i + j, values[2 + j])
            with T.Else(), T.If(head < h + self.kv):
                with T.Then():
                    at = ((self.block + head - h) * half + pair) * self.s + self.slot
                    store(pages, at, _pack(values[2], values[3]))
                with T.Else():
                    at = self.v_at + ((self.block + head - h - self.kv) * self.s + self.slot) * half + pair
                    store(pages, at, _pack(values[0], values[1]))


def append_params(p: Params) -> list[tuple[str, int, str]]:
    """The GPU's buffers beside args and what is rotated."""
    m, h, d = int(p["m"]), int(p["h"]), int(p["d"])
    return [
        ("table", int(p["ctx"]) * d, "float32"),
        ("page_table", int(p["pages"]), "int32"),
        ("pages", kv_elements(p), "uint32"),
        ("q", m * h * d, "float32"),
    ]


def _gpu(name: str, p: Params):
    m, h, kv, d = int(p["m"]), int(p["h"]), int(p["kv"]), int(p["d"])
    width, half = (h + 2 * kv) * d, d // 2

    def body(args, qkv, table, page_table, pages, q):
        blocks = -(-width // 2 // APPEND_THREADS)
        with threads(blocks, m, 1, APPEND_THREADS) as (bx, row, _, tx):
            column = T.bind((bx * APPEND_THREADS + tx) * 2)
            with when(T.And(row < args[1], column < width)):
                head, i = T.bind(T.truncdiv(column, d)), T.bind(T.truncmod(column, d))
                at = T.bind(row * width + column)
                other = T.bind(at + T.Select(i < half, T.int32(half), T.int32(-half)))
                appender = Appender(p)
                appender.early(args, table, page_table, row, i)
                appender.put(lambda j: qkv[at + j], lambda j: qkv[other + j], row, head, i, pages, q)

    params = [("args", ARGS, "int32"), ("qkv", m * width, "float32"), *append_params(p)]
    return prim_func(name, params, body)


def f32_neg(x):
    """-x as a product, exact in every backend."""
    return x * T.float32(-1.0)


_IN = (("args", "read"), ("qkv", "read"), ("table", "read"), ("page_table", "read"))
_CPU_PAGES = (("k_pages", "read_write"), ("v_pages", "read_write"))
APPENDED = (("table", "read"), ("page_table", "read"), ("pages", "read_write"), ("q", "write"))  # on the GPU
ROPE_APPEND = Op(
    "rope_append",
    Form((*_IN, *_CPU_PAGES, ("q", "write")), _cpu, by_row),
    Form((*_IN[:2], *APPENDED), _gpu),
)
