"""Thin GEMM: out[M, N] (+ residual) = activations (integer groups) x 4- or 8-bit weight groups. Row-invariant. On the CPU.

Weights [N, K] lie in blocks of 4 rows (quantize.py): one 16-byte vector holds 4 rows, so four row sums live in the four lanes
of one accumulator and no horizontal sum is needed. Integer sums are exact in any order; the f32 order for a row is: groups
ascending; acc + (scale * (x_scale * dot) + minimum * x_sum). M never enters it.
"""

from __future__ import annotations

from functools import partial

from tvm.script.ir_builder import tirx as T

from .base import ARGS, GROUP, Form, Op, Params, weight_chunks
from .ir import F32X4, I32X4, cpu_func, dot_i16, f32, load4, local, splat, store, store4
from .linear_gpu import LINEAR_GPU

ROW_TILE = 4  # rows that share unpacked weights on the CPU. More spill; several blocks at once are too many streams of memory
# Up to so many rows a group's chunks are unrolled: loads of weights run ahead. Beyond, LLVM would compute one row's sum after the
# other and spill every unpacked weight between them: then they are a loop.
UNROLLED_ROWS = 2


def _weight_pairs(fmt: str, word):
    """The int16x8 vectors of one 16-byte vector of 4 rows, each with the place of its pair of k behind _first_k.

    q4: nibble t of every 16-bit half. q8: the low and the high bytes of each half.
    """
    if fmt == "q4":
        for t in range(4):
            nibble = T.bitwise_and(T.shift_right(word, splat(T.int16(4 * t), 8)), splat(T.int16(15), 8))
            yield T.bind(nibble), 2 * t
    else:
        low = T.shift_right(T.shift_left(word, splat(T.int16(8), 8)), splat(T.int16(8), 8))
        yield T.bind(low), 0
        yield T.bind(T.shift_right(word, splat(T.int16(8), 8))), 4


def _first_k(fmt: str, chunk):
    """The first k of a chunk in its group (q8: order 0 4 1 5 | 2 6 3 7 in every eight)."""
    if fmt == "q4":
        return chunk * 8
    return T.shift_right(chunk, 1) * 8 + T.bitwise_and(chunk, 1) * 2


def _group_dots(fmt: str, w, xq, vector_at, x_at, rows: int, iacc) -> None:
    """iacc[row] = the integer dots of one group."""

    def dots(chunk) -> None:
        word = T.bind(w[T.Ramp(vector_at(chunk) * 8, 1, 8)])
        for pair, position in _weight_pairs(fmt, word):
            for r in range(rows):
                two = xq[T.Ramp(x_at(r) + _first_k(fmt, chunk) + position, 1, 2)]
                activations = T.reinterpret("int16x8", splat(T.reinterpret("int32", two)))
                store(iacc, r, iacc[r] + dot_i16(pair, activations))

    for r in range(rows):
        store(iacc, r, splat(T.int32(0)))
    if rows > UNROLLED_ROWS:
        with T.serial(0, weight_chunks(fmt)) as chunk:
            dots(chunk)
    else:
        for chunk in range(weight_chunks(fmt)):
            dots(T.int32(chunk))


def _cpu(name: str, p: Params, residual: bool):
    m, n, k, fmt = int(p["m"]), int(p["n"]), int(p["k"]), str(p["fmt"])
    groups, blocks, chunks, tile = k // GROUP, n // 4, weight_chunks(fmt), min(m, ROW_TILE)
    scales = 2 if fmt == "q4" else 1

    def body(share, args, xq, xs, w, ws, *rest):
        out = rest[-1]
        acc, iacc = local(tile, F32X4), local(tile, I32X4)
        num_rows = T.bind(args[1])
        with share.of(blocks) as nb, T.serial(0, T.truncdiv(num_rows + (tile - 1), tile)) as mt:
            row0 = T.bind(mt * tile)
            for r in range(tile):
                store(acc, r, splat(f32(0)))
            with T.serial(0, groups) as g:
                vector_at = lambda chunk: (nb * chunks + chunk) * groups + g  # noqa: E731
                _group_dots(fmt, w, xq, vector_at, lambda r: (row0 + r) * k + g * GROUP, tile, iacc)
                scale = T.bind(load4(ws, (nb * scales * groups + g) * 4))
                minimum = T.bind(load4(ws, ((nb * scales + 1) * groups + g) * 4)) if fmt == "q4" else None
                for r in range(tile):
                    at = ((row0 + r) * groups + g) * 2
                    term = scale * (splat(xs[at]) * T.cast(iacc[r], F32X4))
                    if minimum is not None:
                        term = term + minimum * splat(xs[at + 1])
                    store(acc, r, acc[r] + term)
            for r in range(tile):
                at = (row0 + r) * n + nb * 4
                store4(out, at, load4(rest[0], at) + acc[r] if residual else acc[r])

    weights = blocks * groups * (32 if fmt == "q4" else 64)
    params = [
        ("args", ARGS, "int32"),
        ("xq", m * k, "int16"),
        ("xs", m * groups * 2, "float32"),
        ("w", weights, "int16"),
        ("ws", blocks * groups * scales * 4, "float32"),
        *([("residual", m * n, "float32")] if residual else []),
        ("out", m * n, "float32"),
    ]
    return cpu_func(name, params, body)


def _cpu_parts(p: Params) -> int:
    return int(p["n"]) // 4


_IN = (("args", "read"), ("xq", "read"), ("xs", "read"), ("w", "read"), ("ws", "read"))
_RESIDUAL, _OUT = ("residual", "read"), ("out", "write")
LINEAR = Op("linear", Form((*_IN, _OUT), partial(_cpu, residual=False), _cpu_parts), LINEAR_GPU)
LINEAR_ADD = Op("linear_add", cpu=Form((*_IN, _RESIDUAL, _OUT), partial(_cpu, residual=True), _cpu_parts))
