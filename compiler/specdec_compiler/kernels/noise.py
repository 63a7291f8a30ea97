"""Noise of sampling as TIR: the bits of decode/rng.py, and from them exponential and Gumbel numbers in float32.

The one form serves both devices; on the CPU the bits come for four ids at once. Knows neither logits nor programs. Both logarithms
are polynomials of our own: -log(1 - v) keeps its digits where v is small (WGSL has no log1p), and devices agree but for rounding.
"""

from __future__ import annotations

from specdec_runtime.decode.rng import PARITY, ROTATIONS, ROUNDS, STREAM_BITS, WORD
from specdec_runtime.plan.schema import SAMPLING_FLOATS, SAMPLING_INTS
from tvm.script.ir_builder import tirx as T

from .ir import LOG_POLY, f32, local, splat, store

INTS = ("ints", SAMPLING_INTS, "int32")  # of docs/plan.md's sampling.ints
FLOATS = ("floats", SAMPLING_FLOATS, "float32")
ROOT_HALF = 0.70710678118654752
SMALL = 0.29289  # up to here the logarithm's polynomial is taken at -v itself: 1 - v stays in [sqrt 1/2, 1]


def random_bits(ints, position, ids, stream: int, lanes: int = 1):
    """The first word of Threefry at (position, id) for each of `lanes` ids (uint32): a buffer of one element."""
    dtype = "uint32" if lanes == 1 else f"uint32x{lanes}"

    def wide(value):
        return splat(value, lanes) if lanes > 1 else value

    def const(value: int):
        return wide(T.uint32(value))

    low, high = (T.bind(T.reinterpret("uint32", ints[i])) for i in range(2))
    third = T.bind(T.bitwise_xor(T.bitwise_xor(low, high), T.uint32(PARITY)))
    keys = [wide(key) for key in (low, high, third)]
    # locals, not T.bind: TVM inlines bound vectors into every use
    a, b = local(1, dtype), local(1, dtype)
    store(a, 0, wide(T.cast(position, "uint32") + low))
    store(b, 0, ids + const(stream << STREAM_BITS) + keys[1])
    for number in range(ROUNDS):
        turn = ROTATIONS[number % 8]
        store(a, 0, a[0] + b[0])
        turned = T.bitwise_or(T.shift_left(b[0], const(turn)), T.shift_right(b[0], const(32 - turn)))
        store(b, 0, T.bitwise_xor(turned, a[0]))
        if number % 4 == 3:
            group = number // 4 + 1
            store(a, 0, a[0] + keys[group % 3])
            store(b, 0, b[0] + keys[(group + 1) % 3] + const(group))
    return a


def uniform(bits):
    """In (0, 1], from one word; above 1/2 in steps of 2^-24."""
    # the constant by its bits: WGSL text has seven digits
    return (T.cast(bits, "float32") + f32(0.5)) * T.reinterpret("float32", T.int32(0x2F800000))


def _log(x):
    """As ir.log1, each step in a local: bound values are written out at each use, and WGSL would grow without bound."""
    word, f = local(1, "int32"), local(4, "float32")  # f: P, then mantissa - 1, exponent, square
    store(word, 0, T.reinterpret("int32", x))
    mantissa = T.bitwise_or(T.bitwise_and(word[0], T.int32(0x007FFFFF)), T.int32(0x3F000000))
    exponent = T.cast(T.shift_right(word[0], 23) - 126, "float32")
    store(f, 1, T.reinterpret("float32", mantissa))
    store(f, 2, T.Select(f[1] < f32(ROOT_HALF), exponent - f32(1), exponent))
    store(f, 1, T.Select(f[1] < f32(ROOT_HALF), f[1] + f[1], f[1]) - f32(1))
    store(f, 3, f[1] * f[1])
    _polynomial(f, f[1])
    store(f, 0, f[0] * f[1] * f[3] + f[2] * f32(-2.12194440e-4) - f[3] * f32(0.5))
    return f[1] + f[0] + f[2] * f32(0.693359375)


def _polynomial(f, m) -> None:
    """f[0] = P(m) of log(1 + m) = m - m^2 / 2 + m^3 P(m)."""
    store(f, 0, f32(LOG_POLY[0]))
    for coefficient in LOG_POLY[1:]:
        store(f, 0, f[0] * m + f32(coefficient))


def exponential(bits):
    """-log(1 - v) of the uniform v of those bits: exact to float32 at both ends."""
    f = local(4, "float32")  # P, v, 1 - v before it is rounded, the result where v is small
    store(f, 1, uniform(bits))
    store(f, 2, uniform(T.bitwise_xor(bits, T.uint32(WORD))))
    _polynomial(f, f32(0) - f[1])
    store(f, 3, f[1] + f[1] * f[1] * (f32(0.5) + f[0] * f[1]))
    return T.Select(f[1] < f32(SMALL), f[3], f32(0) - _log(f[2]))


def gumbel(bits):
    """-log of that: at most decode/rng.py's LARGEST_GUMBEL."""
    return f32(0) - _log(exponential(bits))


def gumbel_bound4(bits):
    """Not below `gumbel` of four words, without a logarithm: -log E <= -log v, and v is at least a power of two. A buffer of one."""
    half, bound = local(1, "float32x4"), local(1, "float32x4")
    store(half, 0, T.cast(T.reinterpret("int32x4", T.shift_right(bits, splat(T.uint32(1)))), "float32x4"))
    exponent = T.shift_right(
        T.reinterpret("int32x4", half[0]), splat(T.int32(23))
    )  # of v * 2^31, biased by 127
    # a thousandth for the rounding of both
    store(
        bound, 0, T.cast(splat(T.int32(158)) - exponent, "float32x4") * splat(f32(0.69315)) + splat(f32(1e-3))
    )
    return bound
