"""Kernels that end in integer activations: norm_quantize (CPU), scale_quantize (GPU), silu_mul_quantize, quantize. Row-invariant.

Per group of 32 (16 on the GPU): scale d = max|x| / levels, code = round-half-even(x / d), and d * sum of codes for the minimum term of
4-bit weights (the rule of llama.cpp's Q8_1, with f32 scales). The GPU's packed dot takes int8 (127 levels), four codes to a word in
the order 0 4 1 5 | 2 6 3 7 of every eight, which is how both weight formats unpack. The CPU's pairwise dot takes int16 at the same
speed, so there the codes have 15 bits (32,767 levels, natural order) and the result is that of f32 activations to about 1e-5.

On the GPU each half of a group has its own scale: 8 bits are few, and a scale for 16 elements halves what they lose (docs/numerics.md).
A group is three 16-byte vectors in one buffer: the codes of each half, and (scale, scale, sum of both halves' scale * codes, sum of
squares); a row holds the first vectors of all its groups, then the second, then the third, so that neighbouring threads load
neighbouring vectors. The squares are those of the residual stream before the norm's weight: RMSNorm is a factor 1 / rms(x) common to
a row's groups, so its producer quantizes x * weight group by group, and the linear that reads it sums the squares and multiplies at
its end (linear_gpu.py). A norm then needs no dispatch that sees the whole row. On the CPU norm and quantization are one kernel.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm.script.ir_builder import tirx as T

from .base import ARGS, GROUP, Form, Op, Params, by_row
from .ir import (
    F32X4,
    I32X4,
    barrier,
    cpu_func,
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
    when,
)

LEVELS = {"cpu": 32767.0, "gpu": 127.0}


# Magnitudes are compared as integers: the bits of |x| order like |x|, and NaN is above Inf above the rest. A float maximum may drop a
# NaN (TVM's, WGSL's), and a damaged row would go on as zeros with finite logits.
MAGNITUDE_BITS = 0x7FFFFFFF
NOT_FINITE_BITS = 0x7F800000  # Inf and above
QUIET_NAN_BITS = 0x7FC00000
LEAST_SCALE = (
    1e-37  # a smaller scale gives codes 0: near 1.2e-38 and below, 1 / scale overflows or GPUs flush to 0
)


def _emit_scale(peak_bits, levels: float, numbers) -> None:
    """numbers[0] = scale, NaN for a group that is not finite; numbers[1] = 1 / scale, or 0."""
    fine = peak_bits < T.int32(NOT_FINITE_BITS)
    scale = T.reinterpret("float32", peak_bits) / f32(levels)
    nan = T.reinterpret("float32", T.bitwise_or(peak_bits, T.int32(QUIET_NAN_BITS)))
    store(numbers, 0, T.Select(fine, scale, nan))
    usable = T.And(fine, numbers[0] >= f32(LEAST_SCALE))
    store(numbers, 1, T.Select(usable, f32(1.0) / T.max(numbers[0], f32(LEAST_SCALE)), f32(0)))


def _emit_sum(peak_bits, numbers, total, xs, group_at) -> None:
    """Write (scale, scale * sum of codes); both NaN for a group that is not finite."""
    fine = peak_bits < T.int32(NOT_FINITE_BITS)
    store(xs, group_at * 2, numbers[0])
    product = numbers[0] * T.cast(total, "float32")
    store(xs, group_at * 2 + 1, T.Select(fine, product, numbers[0]))


def _emit_group_cpu(value: Callable, xq, xs, at, group_at) -> None:
    """Quantize 32 values to xq[at..], with (scale, sum) at xs[2 * group_at]; value(i) gives elements 4i..4i+3.

    Loops and a local array, not unrolled expressions: TVM would copy each value into every use.
    """
    values, numbers = local(8, F32X4), local(2, "float32")
    peak, total, codes = local(1, I32X4), local(1, I32X4), local(1, I32X4)
    ints = local(2, "int32")  # bits of the largest magnitude; all ones, or 0 where values are not finite
    store(peak, 0, splat(T.int32(0)))
    store(total, 0, splat(T.int32(0)))
    with T.serial(0, 8) as i:
        store(values, i, value(i))
        magnitude = T.bitwise_and(T.reinterpret(I32X4, values[i]), splat(T.int32(MAGNITUDE_BITS)))
        store(peak, 0, T.max(peak[0], magnitude))
    store(ints, 0, max_lanes(peak[0]))
    _emit_scale(ints[0], LEVELS["cpu"], numbers)
    # NaN to int is undefined, and differs between WASM and this CPU: such a group's codes are 0
    store(ints, 1, T.Select(ints[0] < T.int32(NOT_FINITE_BITS), T.int32(-1), T.int32(0)))
    with T.serial(0, 8) as i:
        finite = T.reinterpret(F32X4, T.bitwise_and(T.reinterpret(I32X4, values[i]), splat(ints[1])))
        store(codes, 0, T.cast(T.nearbyint(finite * splat(numbers[1])), I32X4))
        store(total, 0, total[0] + codes[0])
        store4(xq, at + 4 * i, T.cast(codes[0], "int16x4"))
    _emit_sum(ints[0], numbers, sum_lanes(total[0]), xs, group_at)


WORDS = GROUP // 4  # packed words of a group, one GPU thread each
ORDER = (0, 4, 1, 5)  # k of a word's four bytes inside its eight; the odd word of an eight adds 2


HALF_WORDS = WORDS // 2
VECTORS = 3  # 16-byte vectors of one quantized group on the GPU
GROUP_WORDS = (
    4 * VECTORS
)  # 32-bit words of it: 8 of codes, then scale, scale * sum of codes, sum of squares, nothing


def first_of_word(word):
    """The first of the four elements that packed word `word` of a row holds; the others lie ORDER behind it."""
    return T.shift_right(word, 1) * 8 + T.bitwise_and(word, 1) * 2


class WordQuantizer:
    """GPU: every thread quantizes one packed word (4 values); the 8 threads of a group agree through workgroup memory.

    `emit` holds two barriers: every thread of the workgroup must reach it. Between two calls there must be a barrier.
    """

    def __init__(self, num_threads: int, tx):
        self.tx = tx
        self.first = T.bind(T.bitwise_and(tx, T.int32(~(HALF_WORDS - 1))))  # the half's first thread
        self.peaks, self.sums = shared(num_threads, "int32"), shared(num_threads, "int32")
        self.squares = shared(num_threads, "float32")
        self.values, self.numbers = local(4, "float32"), local(2, "float32")
        self.ints, self.square = local(3, "int32"), local(1, "float32")  # peak bits, sum, word

    def emit(self, fill: Callable, valid, word, x, row, num_groups: int) -> None:
        """fill(k, values) stores elements k + ORDER of the row and gives what counts as their squares, or None; `word` counts the row's
        words, and the row has num_groups groups. Where `valid` is false nothing is written, but values are filled all
        the same: no load waits for `valid`."""
        values, ints, tx = self.values, self.ints, self.tx
        raws = fill(T.bind(first_of_word(word)), values)
        store(self.square, 0, f32(0))
        for raw in raws or ():
            store(self.square, 0, fma(raw, raw, self.square[0]))
        store(ints, 0, T.int32(0))
        for j in range(4):
            magnitude = T.bitwise_and(T.reinterpret("int32", values[j]), T.int32(MAGNITUDE_BITS))
            store(ints, 0, T.max(ints[0], magnitude))
        store(self.peaks, tx, ints[0])
        barrier()
        self._scale(self.first)
        self._pack()
        store(self.sums, tx, ints[1])
        store(self.squares, tx, self.square[0])
        barrier()
        group = T.bind(T.shift_right(word, 3))
        at = T.bind(row * num_groups * GROUP_WORDS + group * 4)
        plane = num_groups * 4
        with when(valid):
            half = T.bind(T.bitwise_and(T.shift_right(word, 2), 1))
            store(x, at + half * plane + T.bitwise_and(word, 3), T.reinterpret("uint32", ints[2]))
        with when(T.And(valid, T.bitwise_and(word, WORDS - 1) == 0)):
            numbers = local(3, "float32")  # both scales, the sum
            store(numbers, 2, f32(0))
            for each in range(2):
                first = tx + each * HALF_WORDS
                self._scale(first)
                store(numbers, each, self.numbers[0])
                store(ints, 1, T.int32(0))
                for other in range(HALF_WORDS):
                    store(ints, 1, ints[1] + self.sums[first + other])
                fine = ints[0] < T.int32(NOT_FINITE_BITS)
                product = fma(self.numbers[0], T.cast(ints[1], "float32"), numbers[2])
                store(numbers, 2, T.Select(fine, product, self.numbers[0]))
            for other in range(1, WORDS):
                store(self.square, 0, self.square[0] + self.squares[tx + other])
            for i, number in enumerate((numbers[0], numbers[1], numbers[2], self.square[0])):
                store(x, at + 2 * plane + i, T.reinterpret("uint32", number))

    def _scale(self, first) -> None:
        """ints[0] and numbers of the half whose first thread is `first`."""
        store(self.ints, 0, self.peaks[first])
        for other in range(1, HALF_WORDS):
            store(self.ints, 0, T.max(self.ints[0], self.peaks[first + other]))
        _emit_scale(self.ints[0], LEVELS["gpu"], self.numbers)

    def _pack(self) -> None:
        """ints[1] = the sum of the four codes, ints[2] = the word."""
        ints, code = self.ints, local(1, "int32")
        store(ints, 1, T.int32(0))
        store(ints, 2, T.int32(0))
        for j in range(4):
            store(code, 0, T.cast(T.round(self.values[j] * self.numbers[1]), "int32"))
            store(ints, 1, ints[1] + code[0])
            moved = T.shift_left(T.bitwise_and(code[0], T.int32(255)), T.int32(8 * j))
            store(ints, 2, T.bitwise_or(ints[2], moved))


def codes_gpu(m: int, k: int, name: str = "codes") -> tuple[str, int, str]:
    """The buffer a WordQuantizer writes."""
    return (name, m * (k // GROUP) * GROUP_WORDS, "uint32")


def _outputs(m: int, k: int) -> list[tuple[str, int, str]]:
    return [("xq", m * k, "int16"), ("xs", m * (k // GROUP) * 2, "float32")]


def _valid(args, row):
    return row < args[1]


# --- norm_quantize: RMSNorm, then quantize ---------------------------------------------------------------------------


def _norm_cpu(name: str, p: Params):
    m, k, eps = int(p["m"]), int(p["k"]), float(p["eps"])

    def body(share, args, x, weight, xq, xs):
        with share.of(args[1]) as row:
            acc = local(1, F32X4)
            store(acc, 0, splat(f32(0)))
            with T.serial(0, k // 4) as i:
                v = T.bind(load4(x, row * k + i * 4))
                store(acc, 0, acc[0] + v * v)
            inverse = T.bind(f32(1.0) / T.sqrt(sum_lanes(acc[0]) * f32(1.0 / k) + f32(eps)))
            with T.serial(0, k // GROUP) as g:
                at = T.bind(row * k + g * GROUP)

                def value(i):
                    return load4(x, at + 4 * i) * splat(inverse) * load4(weight, g * GROUP + 4 * i)

                _emit_group_cpu(value, xq, xs, at, row * (k // GROUP) + g)

    params = [
        ("args", ARGS, "int32"),
        ("x", m * k, "float32"),
        ("weight", k, "float32"),
        *_outputs(m, k),
    ]
    return cpu_func(name, params, body)


# --- silu_mul_quantize and quantize -------------------------------------------------------------


def _act_cpu(name: str, p: Params):
    m, k = int(p["m"]), int(p["k"])

    def body(share, args, gate_up, xq, xs):
        with share.of(args[1] * (k // GROUP)) as group:
            row, g = T.bind(T.truncdiv(group, k // GROUP)), T.bind(T.truncmod(group, k // GROUP))
            gate = local(1, F32X4)

            def value(i):
                store(gate, 0, load4(gate_up, row * 2 * k + g * GROUP + 4 * i))
                up = load4(gate_up, row * 2 * k + k + g * GROUP + 4 * i)
                return gate[0] / (splat(f32(1.0)) + exp4(splat(f32(0)) - gate[0])) * up

            _emit_group_cpu(value, xq, xs, row * k + g * GROUP, group)

    return cpu_func(name, [("args", ARGS, "int32"), ("gate_up", m * 2 * k, "float32"), *_outputs(m, k)], body)


def _quantize_cpu(name: str, p: Params):
    m, k = int(p["m"]), int(p["k"])

    def body(share, args, x, xq, xs):
        with share.of(args[1] * (k // GROUP)) as group:
            row, g = T.bind(T.truncdiv(group, k // GROUP)), T.bind(T.truncmod(group, k // GROUP))

            def value(i):
                return load4(x, row * k + g * GROUP + 4 * i)

            _emit_group_cpu(value, xq, xs, row * k + g * GROUP, group)

    return cpu_func(name, [("args", ARGS, "int32"), ("x", m * k, "float32"), *_outputs(m, k)], body)


PART_GROUPS = 16  # groups of SwiGLU that are worth a part: some 2 us
WORD_THREADS = 64


def words_gpu(name: str, p: Params, sources: list[tuple[str, int, str]], fill: Callable):
    """A kernel that only computes and quantizes: fill(args, sources, row, column, values) as WordQuantizer's, element `column`."""
    m, k = int(p["m"]), int(p["k"])
    words = k // 4

    def body(args, *buffers):
        with threads(-(-words // WORD_THREADS), m, 1, WORD_THREADS) as (bx, row, _, tx):
            valid = T.And(_valid(args, row), bx * WORD_THREADS + tx < words)
            word = T.bind(T.min(bx * WORD_THREADS + tx, words - 1))
            WordQuantizer(WORD_THREADS, tx).emit(
                lambda column, values: fill(args, buffers[:-1], row, column, values),
                valid,
                word,
                buffers[-1],
                row,
                k // GROUP,
            )

    return prim_func(name, [("args", ARGS, "int32"), *sources, codes_gpu(m, k)], body)


def silu_mul(gate, up):
    """SiLU(gate) * up on the GPU."""
    return gate / (f32(1.0) + T.exp(f32(0) - gate)) * up


def _act_gpu(name: str, p: Params):
    m, k = int(p["m"]), int(p["k"])

    def fill(_args, buffers, row, column, values):
        at = T.bind(row * 2 * k + column)
        for j, offset in enumerate(ORDER):
            store(values, j, silu_mul(buffers[0][at + offset], buffers[0][at + k + offset]))

    return words_gpu(name, p, [("gate_up", m * 2 * k, "float32")], fill)


def _scale_gpu(name: str, p: Params):
    m, k = int(p["m"]), int(p["k"])

    def fill(_args, buffers, row, column, values):
        raws = [T.bind(buffers[0][row * k + column + offset]) for offset in ORDER]
        for j, offset in enumerate(ORDER):
            store(values, j, raws[j] * buffers[1][column + offset])
        return raws

    return words_gpu(name, p, [("x", m * k, "float32"), ("weight", k, "float32")], fill)


def _act_parts(p: Params) -> int:
    return int(p["m"]) * max(1, int(p["k"]) // (PART_GROUPS * GROUP))


_X = (("args", "read"), ("x", "read"))
_WEIGHT = ("weight", "read")
_GATE_UP = (("args", "read"), ("gate_up", "read"))
_CPU_OUT = (("xq", "write"), ("xs", "write"))
_GPU_OUT = (("codes", "write"),)
NORM_QUANTIZE = Op("norm_quantize", cpu=Form((*_X, _WEIGHT, *_CPU_OUT), _norm_cpu, by_row))
SCALE_QUANTIZE = Op("scale_quantize", gpu=Form((*_X, _WEIGHT, *_GPU_OUT), _scale_gpu))
SILU_MUL_QUANTIZE = Op(
    "silu_mul_quantize",
    Form((*_GATE_UP, *_CPU_OUT), _act_cpu, _act_parts),
    Form((*_GATE_UP, *_GPU_OUT), _act_gpu),
)
QUANTIZE = Op("quantize", cpu=Form((*_X, *_CPU_OUT), _quantize_cpu, by_row))
