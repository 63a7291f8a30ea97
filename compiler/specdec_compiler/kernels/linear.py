"""Thin GEMM: out[M, N] (+ residual) = activations (int8 groups) x 4- or 8-bit weight groups. Row-invariant.

Weights [N, K] lie in blocks of 4 rows (quantize.py): one 16-byte vector holds 4 rows, so four row sums live in the four lanes
of one accumulator and no horizontal sum is needed. Integer sums are exact in any order; the f32 order for a row is: groups
ascending, acc + (scale * (x_scale * dot) + minimum * x_sum). M never enters it.
"""

from __future__ import annotations

from functools import partial

from tvm.script.ir_builder import tirx as T

from .base import ARGS, GROUP, Op, Params, ceil_div
from .ir import (
    F32X4,
    I32X4,
    barrier,
    cpu_func,
    dot_i16,
    f32,
    fma,
    load4,
    local,
    prim_func,
    shared,
    splat,
    store,
    store4,
    threads,
    when,
)

ROW_TILE = 4  # rows that share unpacked weights on the CPU. More spill; several blocks at once are too many streams of memory
# Up to so many rows a group's chunks are unrolled: loads of weights run ahead. Beyond, LLVM would compute one row's sum after the
# other and spill every unpacked weight between them: then they are a loop.
UNROLLED_ROWS = 2


def _chunks(fmt: str) -> int:
    """16-byte vectors of one group of 4 rows."""
    return 4 if fmt == "q4" else 8


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
        with T.serial(0, _chunks(fmt)) as chunk:
            dots(chunk)
    else:
        for chunk in range(_chunks(fmt)):
            dots(T.int32(chunk))


def _cpu(name: str, p: Params, residual: bool):
    m, n, k, fmt = int(p["m"]), int(p["n"]), int(p["k"]), str(p["fmt"])
    groups, blocks, chunks, tile = k // GROUP, n // 4, _chunks(fmt), min(m, ROW_TILE)
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


LANES = 32  # threads along K of one GPU workgroup
STRIDE = LANES + 1  # of one output's partial sums in workgroup memory: no two outputs' in one bank
GPU_ROWS = 8  # activation rows of one GPU workgroup


def _gpu_dot(fmt: str, w, xq, word_at, x_at, rows: int, iacc):
    """Add one group's integer dots of 4 weight rows x `rows` activation rows to iacc[row * 4 + weight_row]."""
    chunks, shifts = (4, (0, 4)) if fmt == "q4" else (8, (None,))
    x = [[T.bind(xq[x_at(row) + half]) for half in range(2)] for row in range(rows)]
    for c in range(chunks):
        vector = T.bind(w[word_at(chunks, c)])
        for h, shift in enumerate(shifts):
            x_word = c * len(shifts) + h
            for r in range(4):
                word = T.Shuffle([vector], [r])
                if shift is not None:
                    word = T.bitwise_and(T.shift_right(word, T.uint32(shift)), T.uint32(0x0F0F0F0F))
                for row in range(rows):
                    codes = T.Shuffle([x[row][x_word // 4]], [x_word % 4])
                    dot = T.call_pure_extern("int32", "dot4I8Packed", word, codes)
                    store(iacc, row * 4 + r, iacc[row * 4 + r] + dot)


def _gpu(name: str, p: Params, residual: bool):
    m, n, k, fmt = int(p["m"]), int(p["n"]), int(p["k"]), str(p["fmt"])
    groups, blocks, rows = k // GROUP, n // 4, min(m, GPU_ROWS)
    grid_x, scales = min(blocks, 32768), 2 if fmt == "q4" else 1

    def body(args, xq, xs, w, ws, *rest):
        out = rest[-1]
        with threads(grid_x, ceil_div(blocks, grid_x), m // rows, LANES) as (bx, by, bz, tx):
            acc, iacc = local(rows * 4, "float32"), local(rows * 4, "int32")
            partial = shared(rows * 4 * STRIDE, "float32")
            nb = T.bind(by * grid_x + bx)
            row0 = T.bind(bz * rows)
            for i in range(rows * 4):
                store(acc, i, f32(0))
            with when(T.And(nb < blocks, row0 < args[1])), T.serial(0, ceil_div(groups, LANES)) as step:
                g = T.bind(step * LANES + tx)
                with when(g < groups):
                    for i in range(rows * 4):
                        store(iacc, i, T.int32(0))
                    _gpu_dot(
                        fmt,
                        w,
                        xq,
                        lambda words, c: (nb * words + c) * groups + g,
                        lambda row: ((row0 + row) * groups + g) * 2,
                        rows,
                        iacc,
                    )
                    scale = T.bind(ws[nb * scales * groups + g])
                    minimum = T.bind(ws[(nb * scales + 1) * groups + g]) if fmt == "q4" else None
                    for row in range(rows):
                        at = ((row0 + row) * groups + g) * 2
                        x_scale, x_sum = T.bind(xs[at]), T.bind(xs[at + 1])
                        for r in range(4):
                            i = row * 4 + r
                            scaled = T.bind(x_scale * T.cast(iacc[i], "float32"))
                            total = fma(T.Shuffle([scale], [r]), scaled, acc[i])
                            if minimum is not None:
                                total = fma(T.Shuffle([minimum], [r]), x_sum, total)
                            store(acc, i, total)
            for i in range(rows * 4):
                store(partial, i * STRIDE + tx, acc[i])
            barrier()
            with when(T.And(tx < rows * 4, nb < blocks)):
                total = local(1, "float32")
                store(total, 0, f32(0))
                with T.serial(0, LANES) as j:
                    store(total, 0, total[0] + partial[tx * STRIDE + j])
                row = T.bind(row0 + T.shift_right(tx, 2))
                with when(row < args[1]):
                    at = T.bind(row * n + nb * 4 + T.bitwise_and(tx, 3))
                    store(out, at, rest[0][at] + total[0] if residual else total[0])

    weights = blocks * groups * (4 if fmt == "q4" else 8)
    params = [
        ("args", ARGS, "int32"),
        ("xq", m * groups * 2, "uint32x4"),
        ("xs", m * groups * 2, "float32"),
        ("w", weights, "uint32x4"),
        ("ws", blocks * groups * scales, "float32x4"),
        *([("residual", m * n, "float32")] if residual else []),
        ("out", m * n, "float32"),
    ]
    return prim_func(name, params, body)


_IN = (("args", "read"), ("xq", "read"), ("xs", "read"), ("w", "read"), ("ws", "read"))
LINEAR = Op(
    "linear",
    (*_IN, ("out", "write")),
    partial(_cpu, residual=False),
    partial(_gpu, residual=False),
    cpu_parts=_cpu_parts,
)
LINEAR_ADD = Op(
    "linear_add",
    (*_IN, ("residual", "read"), ("out", "write")),
    partial(_cpu, residual=True),
    partial(_gpu, residual=True),
    cpu_parts=_cpu_parts,
)
