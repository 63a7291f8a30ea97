"""Thin GEMM on the GPU, with what surrounds it: the factor of the RMSNorm before it (param eps), the residual sum and the quantization
after it (linear_add_quantize), SiLU and product (gate_up_quantize), rotary and append (qkv_rope). Row-invariant.

A workgroup makes a tile of weight rows: `blocks` blocks of 4 rows, each by `lanes` threads along K. Lanes take groups of K in turn; one
thread an output adds the lanes' partial sums in lane order. Lanes, and so a row's order of sums, follow from K alone, never from M. A
group is two integer dots, one for each half and its activation scale, then the minimum times the group's sum.

Param `rows`: the weights at hand are that many rows of the matrix of n, and out begins at the first's column of all n (emit/rows.py).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

from tvm.script.ir_builder import tirx as T

from .base import ARGS, GROUP, Form, Op, Params, ceil_div, weight_chunks, weight_rows
from .ir import barrier, f32, fma, local, prim_func, shared, store, threads, when
from .quantize import ORDER, VECTORS, WORDS, WordQuantizer, codes_gpu, first_of_word, silu_mul
from .rope import APPENDED, Appender, append_params

LANES = 32  # at most
GPU_ROWS = 4  # activation rows of one workgroup: with 8, registers leave too few warps on a multiprocessor
PARTIALS = 2176  # partial sums kept in workgroup memory at a time
BIAS = 0x4B400000  # the bits of 1.5 * 2**23: a float that has an integer below 2**22 added to its bits is larger by that integer
TILE_BLOCKS = 8  # of a tile whose 32 rows become one group of the next layer's activations


def _lanes(k: int, most: int) -> int:
    """Threads along K: no more than needed for the same number of steps; at least 4, so that a tile has a thread an output."""
    groups = k // GROUP
    return max(4, ceil_div(groups, ceil_div(groups, most)))


def _words(fmt: str, vectors: list, r: int) -> list:
    """The words of weight row r in half a group, four codes each, in the order of the activations' words."""
    shifts = (0, 4) if fmt == "q4" else (None,)
    words = []
    for vector in vectors:
        word = T.Shuffle([vector], [r])
        for shift in shifts:
            four = (
                word
                if shift is None
                else T.bitwise_and(T.shift_right(word, T.uint32(shift)), T.uint32(0x0F0F0F0F))
            )
            words.append(T.bind(four))
    return words


class _Tile:
    """One workgroup's tile while it is computed."""

    def __init__(self, p: Params, blocks: int, most_lanes: int):
        self.m, self.n, self.k, self.fmt = int(p["m"]), weight_rows(p), int(p["k"]), str(p["fmt"])
        self.eps = float(p["eps"]) if "eps" in p else None
        self.groups, self.blocks, self.rows = self.k // GROUP, blocks, min(self.m, GPU_ROWS)
        self.lanes = _lanes(self.k, most_lanes)
        self.threads, self.columns = self.lanes * blocks, 4 * blocks
        self.stride = self.lanes | 1  # odd: no two outputs' sums start in one bank
        self.per_pass = self.rows  # rows summed at a time
        while self.per_pass > 1 and (
            self.per_pass * self.columns > self.threads
            or self.per_pass * self.columns * self.stride > PARTIALS
        ):
            self.per_pass //= 2

    def inputs(self) -> list[tuple[str, int, str]]:
        """args, activations and weights, as every kernel here begins."""
        size, q4 = self.n // 4 * self.groups, self.fmt == "q4"
        return [
            ("args", ARGS, "int32"),
            ("codes", self.m * self.groups * VECTORS, "uint32x4"),
            ("w", size * (4 if q4 else 8), "uint32x4"),
            ("ws", size * (2 if q4 else 1), "float32x4"),
        ]

    def run(self, args, x, w, ws, tx, row0, block_at, output, early=None) -> None:
        """Compute the tile. block_at(b) is the block of 4 weight rows that place b of the tile takes. output(row, column, value,
        loaded) is what one thread does with each finished sum: row counts from row0, column from the tile's first; `loaded` is what
        early(row, column) gave before the lanes' sums were added, so that its load does not wait for them."""
        acc, num_rows = local(self.rows * 4, "float32"), local(1, "int32")
        loaded = local(self.rows // self.per_pass, "float32")
        place, lane_id = T.bind(T.truncdiv(tx, self.lanes)), T.bind(T.truncmod(tx, self.lanes))
        nb = T.bind(block_at(place))
        store(num_rows, 0, args[1])
        steps = ceil_div(self.groups, self.lanes)
        together = 2 if steps == 2 and self.rows <= 2 else 1  # loads of so many groups are in flight together
        looped = steps > together

        def load_early(early: Callable):
            for i, first in enumerate(range(0, self.rows, self.per_pass)):
                row, column = self._output(tx, first)
                store(loaded, i, early(T.min(row, self.rows - 1), column))

        if early and not looped:
            load_early(early)
        for i in range(self.rows * 4):
            store(acc, i, f32(0))
        inside = nb < self.n // 4
        if self.m > self.rows:  # with one workgroup for all rows nothing waits for args
            inside = T.And(inside, row0 < args[1])
        squares = self._squares(x, place, lane_id, row0)
        with when(inside), T.serial(0, ceil_div(steps, together)) as step:
            for i in range(together):
                g = T.bind((step * together + i) * self.lanes + lane_id)
                with when(g < self.groups) if self.groups % self.lanes else nullcontext():
                    self._group(x, w, ws, nb, row0, g, acc)
        if early and looped:  # a load before a loop is waited for before the loop: measured
            load_early(early)
        self._sums(num_rows, tx, row0, acc, squares, output, loaded, place, lane_id)

    def _output(self, tx, first: int):
        """(row, column) of the sum that a thread finishes in the pass that begins with row `first`."""
        return T.bind(T.truncdiv(tx, self.columns) + first), T.bind(T.truncmod(tx, self.columns))

    def _squares(self, x, place, lane_id, row0):
        """With a norm: each lane's sum of squares of its groups, in a loop of its own, a place of the tile taking the rows place,
        place + blocks, ..: in the loop of products they would take every thread's time for every row."""
        if self.eps is None:
            return None
        turns = ceil_div(self.rows, self.blocks)
        squares = local(turns, "float32")
        for i in range(turns):
            row = T.bind(row0 + T.min(place + i * self.blocks, self.rows - 1))
            store(squares, i, f32(0))
            with T.serial(0, ceil_div(self.groups, self.lanes)) as step:
                g = T.bind(step * self.lanes + lane_id)
                with when(g < self.groups) if self.groups % self.lanes else nullcontext():
                    numbers = x[(row * VECTORS + 2) * self.groups + g]
                    store(squares, i, squares[i] + T.reinterpret("float32", T.Shuffle([numbers], [3])))
        return squares

    def _group(self, x, w, ws, nb, row0, g, acc) -> None:
        """Add one group of K to the lane's sums. Each weight is unpacked once for all rows; what a row needs is loaded at its use."""
        groups, scales, chunks = self.groups, 2 if self.fmt == "q4" else 1, weight_chunks(self.fmt)
        vectors = [T.bind(w[(nb * chunks + c) * groups + g]) for c in range(chunks)]
        scale = T.bind(ws[nb * scales * groups + g])
        minimum = T.bind(ws[(nb * scales + 1) * groups + g]) if scales == 2 else None
        halves = (vectors[: chunks // 2], vectors[chunks // 2 :])
        words = [[_words(self.fmt, half, r) for r in range(4)] for half in halves]
        for row in range(self.rows):
            at = (row0 + row) * groups * VECTORS + g
            numbers = T.bind(x[at + 2 * groups])
            for half in range(2):
                codes = T.bind(x[at + half * groups])
                x_scale = T.bind(T.reinterpret("float32", T.Shuffle([numbers], [half])))
                for r in range(4):
                    total = T.int32(BIAS)
                    for i, word in enumerate(words[half][r]):
                        total = total + T.call_pure_extern(
                            "int32", "dot4I8Packed", word, T.Shuffle([codes], [i])
                        )
                    dot = T.reinterpret("float32", T.bind(total)) - T.reinterpret("float32", T.int32(BIAS))
                    store(
                        acc,
                        row * 4 + r,
                        fma(T.Shuffle([scale], [r]), T.bind(x_scale * dot), acc[row * 4 + r]),
                    )
            if minimum is not None:
                x_sum = T.bind(T.reinterpret("float32", T.Shuffle([numbers], [2])))
                for r in range(4):
                    store(acc, row * 4 + r, fma(T.Shuffle([minimum], [r]), x_sum, acc[row * 4 + r]))

    def _sums(self, num_rows, tx, row0, acc, squares, output, loaded, place, lane_id) -> None:
        """Add the lanes' sums through workgroup memory, some rows at a time; with a norm, its factor from the squares likewise."""
        outputs = self.per_pass * self.columns
        partial = shared(outputs * self.stride, "float32")
        square_sums = shared(self.rows * self.stride, "float32") if self.eps is not None else None
        total, square = local(1, "float32"), local(1, "float32")
        if squares is not None and square_sums is not None:
            for i in range(ceil_div(self.rows, self.blocks)):
                row = T.bind(place + i * self.blocks)
                with when(row < self.rows):
                    store(square_sums, row * self.stride + lane_id, squares[i])
        for first in range(0, self.rows, self.per_pass):
            if first:
                barrier()
            for i in range(self.per_pass):
                for r in range(4):
                    at = T.bind((i * self.columns + place * 4 + r) * self.stride + lane_id)
                    store(partial, at, acc[(first + i) * 4 + r])
            barrier()
            with when(tx < outputs):
                row, column = self._output(tx, first)
                store(total, 0, f32(0))
                store(square, 0, f32(0))
                with T.serial(0, self.lanes) as j:
                    store(total, 0, total[0] + partial[tx * self.stride + j])
                    if square_sums is not None:
                        store(square, 0, square[0] + square_sums[row * self.stride + j])
                if self.eps is not None:
                    mean = fma(square[0], f32(1.0 / self.k), f32(self.eps))
                    store(total, 0, total[0] * (f32(1.0) / T.sqrt(mean)))
                with when(row0 + row < num_rows[0]):
                    output(row, column, total[0], loaded[first // self.per_pass])

    def quantize(self, args, tx, row0, group, num_groups: int, fill, codes) -> None:
        """Quantize group `group` of each of the tile's rows: fill(row, i, values) as WordQuantizer's, element i of the group."""
        barrier()
        quantizer, words = WordQuantizer(self.threads, tx), self.rows * WORDS
        for i in range(ceil_div(words, self.threads)):
            if i:
                barrier()  # what one turn wrote for its group is still read by others
            at = T.bind(i * self.threads + tx)
            row = T.bind(T.min(T.shift_right(at, 3), self.rows - 1))
            word = T.bind(group * WORDS + T.bitwise_and(at, WORDS - 1))
            valid = T.And(at < words, row0 + row < args[1])
            quantizer.emit(
                lambda k, values, row=row: fill(row, k - group * GROUP, values),
                valid,
                word,
                codes,
                row0 + row,
                num_groups,
            )


LINEAR_BLOCKS = 4  # blocks of a tile that ends in f32


def _gpu(name: str, p: Params):
    tile = _Tile(p, LINEAR_BLOCKS, LANES)
    m, n, columns = tile.m, tile.n, int(p["n"])
    tiles = ceil_div(n // 4, LINEAR_BLOCKS)
    grid_x = min(tiles, 32768)

    def body(args, x, w, ws, out):
        with threads(grid_x, ceil_div(tiles, grid_x), m // tile.rows, tile.threads, near=True) as (
            bx,
            by,
            bz,
            tx,
        ):
            first = T.bind((by * grid_x + bx) * LINEAR_BLOCKS)
            row0 = T.bind(bz * tile.rows)

            def output(row, column, value, _):
                with when(first * 4 + column < n):
                    store(out, T.bind((row0 + row) * columns + first * 4 + column), value)

            tile.run(args, x, w, ws, tx, row0, lambda b: first + b, output)

    return prim_func(name, [*tile.inputs(), ("out", (m - 1) * columns + n, "float32")], body)


def _add_quantize_gpu(name: str, p: Params):
    """The residual stream after this linear, and its quantized product with the next norm's weight."""
    tile = _Tile(p, TILE_BLOCKS, LANES)
    m, n = tile.m, tile.n

    def body(args, x, w, ws, residual, weight, out, next_codes):
        with threads(n // GROUP, 1, m // tile.rows, tile.threads, near=True) as (group, _, bz, tx):
            sums, row0 = shared(tile.rows * GROUP, "float32"), T.bind(bz * tile.rows)
            scales = local(4, "float32")  # the next norm's weights of this thread's word

            def place(row, column):
                return (row0 + row) * n + group * GROUP + column

            def output(row, column, value, loaded):
                store(sums, row * GROUP + column, loaded + value)
                store(out, T.bind(place(row, column)), sums[row * GROUP + column])

            def block_at(b):
                return group * TILE_BLOCKS + b

            def early(row, column):
                first_k = T.bind(first_of_word(T.bitwise_and(tx, WORDS - 1)))
                for j, offset in enumerate(ORDER):
                    store(scales, j, weight[group * GROUP + first_k + offset])
                return residual[place(row, column)]

            def fill(row, i, values):
                raws = [T.bind(sums[row * GROUP + i + offset]) for offset in ORDER]
                for j, raw in enumerate(raws):
                    store(values, j, raw * scales[j])
                return raws

            tile.run(args, x, w, ws, tx, row0, block_at, output, early)
            tile.quantize(args, tx, row0, group, n // GROUP, fill, next_codes)

    params = [("residual", m * n, "float32"), ("weight", n, "float32"), ("out", m * n, "float32")]
    return prim_func(name, [*tile.inputs(), *params, codes_gpu(m, n, "next_codes")], body)


def _gate_up_gpu(name: str, p: Params):
    """SiLU(gate) * up, quantized: a tile is 32 rows of the gate and the 32 of up beside them."""
    tile = _Tile(p, 2 * TILE_BLOCKS, LANES // 2)
    m, ffn = tile.m, tile.n // 2

    def body(args, x, w, ws, next_codes):
        with threads(ffn // GROUP, 1, m // tile.rows, tile.threads, near=True) as (group, _, bz, tx):
            sums, row0 = shared(tile.rows * 2 * GROUP, "float32"), T.bind(bz * tile.rows)

            def block_at(b):
                up = T.Select(b < TILE_BLOCKS, T.int32(0), T.int32(ffn // 4 - TILE_BLOCKS))
                return group * TILE_BLOCKS + b + up

            def output(row, column, value, _):
                store(sums, row * 2 * GROUP + column, value)

            def fill(row, i, values):
                for j, offset in enumerate(ORDER):
                    at = row * 2 * GROUP + i + offset
                    store(values, j, silu_mul(sums[at], sums[at + GROUP]))

            tile.run(args, x, w, ws, tx, row0, block_at, output)
            tile.quantize(args, tx, row0, group, ffn // GROUP, fill, next_codes)

    return prim_func(name, [*tile.inputs(), codes_gpu(m, ffn, "next_codes")], body)


def _qkv_rope_gpu(name: str, p: Params):
    """Rotary q, and K and V appended to their pages. A tile is rows of one head: up to 16 of its first half and those of the second
    half that they are rotated with."""
    d = int(p["d"])
    blocks = next(n for n in (4, 3, 2, 1) if d // 8 % n == 0)  # of each half
    width, tiles = 4 * blocks, d // 8 // blocks  # rows of a half, tiles of a head
    tile = _Tile(p, 2 * blocks, LANES)
    heads, pairs = int(p["h"]) + 2 * int(p["kv"]), width // 2

    def body(args, x, w, ws, table, page_table, pages, q):
        with threads(heads * tiles, 1, tile.m // tile.rows, tile.threads, near=True) as (bx, _, bz, tx):
            sums, row0 = shared(tile.rows * 2 * width, "float32"), T.bind(bz * tile.rows)
            head, first = T.bind(T.truncdiv(bx, tiles)), T.bind(T.truncmod(bx, tiles) * width)

            def block_at(b):
                half = T.Select(b < blocks, T.int32(0), T.int32(d // 8 - blocks))
                return T.shift_right(head * d + first, 2) + half + b

            def output(row, column, value, _):
                store(sums, row * 2 * width + column, value)

            def word_of(i: int):
                """(row, which half, first of its two columns in the half) of a thread's i-th word."""
                at = T.bind(T.min(i * tile.threads + tx, tile.rows * 2 * pairs - 1))
                row, word = T.bind(T.truncdiv(at, 2 * pairs)), T.bind(T.truncmod(at, 2 * pairs))
                return row, T.bind(T.truncdiv(word, pairs)), T.bind(T.truncmod(word, pairs) * 2)

            words = range(ceil_div(tile.rows * 2 * pairs, tile.threads))
            appenders = [Appender(p) for _ in words]
            for i, appender in zip(words, appenders, strict=True):
                row, half, column = word_of(i)
                appender.early(args, table, page_table, row0 + row, first + column + half * (d // 2))
            tile.run(args, x, w, ws, tx, row0, block_at, output)
            barrier()
            for i, appender in zip(words, appenders, strict=True):
                row, half, column = word_of(i)
                at = T.bind(row * 2 * width + column)
                valid = T.And(i * tile.threads + tx < tile.rows * 2 * pairs, row0 + row < args[1])
                with when(valid):
                    appender.put(
                        lambda j, at=at, half=half: sums[at + half * width + j],
                        lambda j, at=at, half=half: sums[at + (1 - half) * width + j],
                        row0 + row,
                        head,
                        first + column + half * (d // 2),
                        pages,
                        q,
                    )

    return prim_func(name, [*tile.inputs(), *append_params(p)], body)


_IN = (("args", "read"), ("codes", "read"), ("w", "read"), ("ws", "read"))
_RESIDUAL, _OUT, _NEXT = ("residual", "read"), ("out", "write"), ("next_codes", "write")
LINEAR_GPU = Form((*_IN, _OUT), _gpu)
LINEAR_ADD_QUANTIZE = Op(
    "linear_add_quantize", gpu=Form((*_IN, _RESIDUAL, ("weight", "read"), _OUT, _NEXT), _add_quantize_gpu)
)
GATE_UP_QUANTIZE = Op("gate_up_quantize", gpu=Form((*_IN, _NEXT), _gate_up_gpu))
QKV_ROPE = Op("qkv_rope", gpu=Form((*_IN, *APPENDED), _qkv_rope_gpu))
