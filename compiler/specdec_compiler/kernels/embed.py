"""Embedding lookup from the packed table (quantize.py layout), and concat of projections whose formats differ. Row-invariant.

Params `first_row` and `rows`, on the GPU: the table at hand is that part of all n rows, and ids outside it are left to the other parts
(emit/rows.py).
"""

from __future__ import annotations

from contextlib import nullcontext

from tvm.script.ir_builder import tirx as T

from .base import ARGS, GROUP, Form, Op, Params, by_row, weight_rows
from .ir import cpu_func, prim_func, store, threads, when

ORDER8 = ((0, 4, 1, 5), (2, 6, 3, 7))  # byte -> k inside eight, for even and odd words of the 8-bit layout


def _code_cpu(fmt: str, w, at, row4, g_k: int):
    """The integer code of k = g_k inside its group, from int16 words; at(chunks, c) is the vector of chunk c."""
    eight, k = divmod(g_k, 8)
    if fmt == "q4":
        nibble = k // 2 + 4 * (k % 2)  # k = 2 * (nibble % 4) + nibble // 4
        word = w[at(4, eight) * 8 + row4 * 2 + nibble // 4]
        return T.cast(T.bitwise_and(T.shift_right(word, T.int16(4 * (nibble % 4))), T.int16(15)), "int32")
    odd = 0 if k in ORDER8[0] else 1
    byte = ORDER8[odd].index(k)
    word = w[at(8, eight * 2 + odd) * 8 + row4 * 2 + byte // 2]
    return T.cast(T.shift_right(T.shift_left(word, T.int16(8 * (1 - byte % 2))), T.int16(8)), "int32")


def _code_gpu(fmt: str, w, at, row4, g_k):
    """The same on the GPU from uint32 words; g_k may be an expression."""
    eight, k = T.shift_right(g_k, 3), T.bitwise_and(g_k, 7)
    if fmt == "q4":
        nibble = T.shift_right(k, 1) + 4 * T.bitwise_and(k, 1)
        word = w[at(4, eight) * 4 + row4]
        return T.cast(T.bitwise_and(T.shift_right(word, T.cast(nibble * 4, "uint32")), T.uint32(15)), "int32")
    odd = T.bitwise_and(T.shift_right(k, 1), 1)
    byte = T.bitwise_and(k, 1) * 2 + T.shift_right(k, 2)
    word = w[at(8, eight * 2 + odd) * 4 + row4]
    moved = T.reinterpret("int32", T.shift_left(word, T.cast((3 - byte) * 8, "uint32")))
    return T.shift_right(moved, T.int32(24))


def _token(args, tokens, row, vocab: int):
    """The id of a row, clamped: rows past the valid ones may hold anything."""
    return T.max(T.min(tokens[args[0] + row], T.int32(vocab - 1)), T.int32(0))


def _params(p: Params, device: str):
    m, hidden, rows, fmt = int(p["m"]), int(p["k"]), weight_rows(p), str(p["fmt"])
    blocks = (rows + 3) // 4 * (hidden // GROUP)
    # the head pads its rows to `padded`; both ops read one tensor, so the size is a lower bound here
    words = blocks * (32 if fmt == "q4" else 64)
    table = ("w", words, "int16") if device == "cpu" else ("w", words // 2, "uint32")
    per_scale = 8 if fmt == "q4" else 4
    return [
        ("args", ARGS, "int32"),
        ("tokens", int(p["tokens"]), "int32"),
        table,
        ("ws", blocks * per_scale, "float32"),
        ("x", m * hidden, "float32"),
    ]


def _value(fmt: str, code, ws, nb, g, groups: int, row4):
    if fmt == "q4":
        scale, minimum = ws[(nb * 2 * groups + g) * 4 + row4], ws[((nb * 2 + 1) * groups + g) * 4 + row4]
        return T.cast(code, "float32") * scale + minimum
    return T.cast(code, "float32") * ws[(nb * groups + g) * 4 + row4]


def _vector_at(nb, g, groups: int):
    """at(chunks, c): index of the 16-byte vector of chunk c, in the layout of emit/weights.py."""
    return lambda chunks, c: (nb * chunks + c) * groups + g


def _cpu(name: str, p: Params):
    hidden, vocab, fmt = int(p["k"]), int(p["n"]), str(p["fmt"])
    groups = hidden // GROUP

    def body(share, args, tokens, w, ws, x):
        with share.of(args[1]) as row:
            token = T.bind(_token(args, tokens, row, vocab))
            row4 = T.bind(T.bitwise_and(token, 3))
            nb = T.bind(T.shift_right(token, 2))
            with T.serial(0, groups) as g:
                for k in range(GROUP):
                    code = _code_cpu(fmt, w, _vector_at(nb, g, groups), row4, k)
                    value = _value(fmt, code, ws, nb, g, groups, row4)
                    store(x, row * hidden + g * GROUP + k, value)

    return cpu_func(name, _params(p, "cpu"), body)


def _gpu(name: str, p: Params):
    m, hidden, vocab, fmt = int(p["m"]), int(p["k"]), int(p["n"]), str(p["fmt"])
    groups, rows = hidden // GROUP, weight_rows(p)

    def body(args, tokens, w, ws, x):
        with threads(-(-hidden // 64), m, 1, 64) as (bx, row, _, tx):
            k = T.bind(bx * 64 + tx)
            with when(T.And(row < args[1], k < hidden)):
                token = T.bind(_token(args, tokens, row, vocab))
                inside = nullcontext()
                if "first_row" in p:
                    token = T.bind(token - int(p["first_row"]))
                    inside = when(T.And(token >= 0, token < rows))
                with inside:
                    nb, g = T.bind(T.shift_right(token, 2)), T.bind(T.shift_right(k, 5))
                    row4 = T.bind(T.bitwise_and(token, 3))
                    code = _code_gpu(fmt, w, _vector_at(nb, g, groups), row4, T.bitwise_and(k, 31))
                    store(x, row * hidden + k, _value(fmt, code, ws, nb, g, groups, row4))

    return prim_func(name, _params(p, "gpu"), body)


def _concat_parts(p: Params) -> list[int]:
    return [int(part) for part in str(p["parts"]).split("x")]


def _concat_params(p: Params):
    m, parts = int(p["m"]), _concat_parts(p)
    sources = [(f"x{i}", m * width, "float32") for i, width in enumerate(parts)]
    return [("args", ARGS, "int32"), *sources, ("out", m * sum(parts), "float32")]


def _concat_cpu(name: str, p: Params):
    parts = _concat_parts(p)

    def body(share, args, *buffers):
        with share.of(args[1]) as row:
            offset = 0
            for source, width in zip(buffers[:-1], parts, strict=True):
                with T.serial(0, width) as i:
                    store(buffers[-1], row * sum(parts) + offset + i, source[row * width + i])
                offset += width

    return cpu_func(name, _concat_params(p), body)


def _concat_gpu(name: str, p: Params):
    m, parts = int(p["m"]), _concat_parts(p)

    def body(args, *buffers):
        with threads(-(-max(parts) // 64), m, 1, 64) as (bx, row, _, tx):
            i, offset = T.bind(bx * 64 + tx), 0
            for source, width in zip(buffers[:-1], parts, strict=True):
                with when(T.And(row < args[1], i < width)):
                    store(buffers[-1], row * sum(parts) + offset + i, source[row * width + i])
                offset += width

    return prim_func(name, _concat_params(p), body)


_EMBED_ARGS = (("args", "read"), ("tokens", "read"), ("w", "read"), ("ws", "read"), ("x", "write"))


def _concat_op(count: int) -> Op:
    args = (("args", "read"), *((f"x{i}", "read") for i in range(count)), ("out", "write"))
    return Op(f"concat{count}", Form(args, _concat_cpu, by_row), Form(args, _concat_gpu))


EMBED = Op("embed", Form(_EMBED_ARGS, _cpu, by_row), Form(_EMBED_ARGS, _gpu))
CONCAT2, CONCAT3 = _concat_op(2), _concat_op(3)
