"""Small helpers over TVM's TIR builder, shared by every kernel file.

A kernel is a Python function that builds one PrimFunc: Python loops are unrolled at build time, ``T.serial`` loops stay
loops. Vectors on the CPU are four lanes of 32 bits (one WASM v128). This file knows nothing of models or plans.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from ..passes import intrinsics

F32X4 = "float32x4"
I32X4 = "int32x4"


def prim_func(name: str, params: list[tuple[str, int, str]], body: Callable[..., None]) -> tirx.PrimFunc:
    """Build a PrimFunc of flat buffers; `params` lists (name, elements, dtype); `body` gets the buffers in that order."""
    with IRBuilder() as builder, T.prim_func():
        T.func_name(name)
        buffers = [T.arg(arg, T.buffer((size,), dtype)) for arg, size, dtype in params]
        T.func_attr({"tirx.noalias": True})
        body(*buffers)
    function: Any = builder.get()
    return function.with_attr("global_symbol", name)


class Share:
    """A CPU kernel's share of its work: part `part` of `parts`, both passed at the call.

    Every element is computed by the same operations whichever part it falls to, so bits do not depend on `parts`.
    """

    def __init__(self, part, parts):
        self.part, self.parts = part, parts

    def of(self, count):
        """A loop over this part's run of `count` units of work that do not need each other."""
        start = T.bind(T.truncdiv(count * self.part, self.parts))
        return T.serial(start, T.truncdiv(count * (self.part + 1), self.parts))

    def whole(self):
        """`if` around work that is not split: the first part does all of it."""
        return when(self.part == 0)


def cpu_func(name: str, params: list[tuple[str, int, str]], body: Callable[..., None]) -> tirx.PrimFunc:
    """A CPU kernel: prim_func with the scalars `part` and `parts` after its buffers; `body` gets its Share, then the buffers."""
    with IRBuilder() as builder, T.prim_func():
        T.func_name(name)
        buffers = [T.arg(arg, T.buffer((size,), dtype)) for arg, size, dtype in params]
        part, parts = T.arg("part", T.int32()), T.arg("parts", T.int32())
        T.func_attr({"tirx.noalias": True})
        body(Share(part, parts), *buffers)
    function: Any = builder.get()
    return function.with_attr("global_symbol", name)


def load4(buf, offset):
    """Four consecutive elements as a vector."""
    return buf[T.Ramp(offset, 1, 4)]


def store4(buf, offset, value):
    """Store a vector of four at consecutive elements."""
    T.buffer_store(buf, value, [T.Ramp(offset, 1, 4)])


def store(buf, index, value):
    """Store one element."""
    T.buffer_store(buf, value, [index])


def splat(value, lanes: int = 4):
    """The same scalar in every lane."""
    return T.Broadcast(value, lanes)


def f32(value: float):
    """An f32 constant."""
    return T.float32(value)


def lane(vector, index: int):
    """One lane of a vector."""
    return T.Shuffle([vector], [index])


def local(size: int, dtype: str):
    """Registers or stack memory private to one call or thread."""
    return T.alloc_buffer((size,), dtype, scope="local")


def sum_lanes(vector):
    """((l0 + l1) + (l2 + l3)): a written-out order, the same for every width."""
    return (lane(vector, 0) + lane(vector, 1)) + (lane(vector, 2) + lane(vector, 3))


def max_lanes(vector):
    """The largest lane."""
    return T.max(T.max(lane(vector, 0), lane(vector, 1)), T.max(lane(vector, 2), lane(vector, 3)))


def dot_i16(a, b):
    """Pairwise dot of int16x8: int32x4 with lane j = a[2j] b[2j] + a[2j+1] b[2j+1]. Lowered per target by passes/intrinsics.py."""
    return T.call_intrin(I32X4, intrinsics.OP_NAME, a, b)


MAX_GRID = 65535  # workgroups a dimension that every device has


@contextmanager
def threads(grid_x: int, grid_y: int, grid_z: int, block_x: int, near: bool = False):
    """A GPU launch: yields (block x, block y, block z, thread x). TVM's WGSL has no block z, so z is folded into y; with `near` into x,
    where it fits: the blocks of one x, which read the same weights, then run side by side."""
    if near and grid_y == 1 and grid_z > 1 and grid_x * grid_z <= MAX_GRID:
        with (
            T.launch_thread("blockIdx.x", grid_x * grid_z) as xz,
            T.launch_thread("threadIdx.x", block_x) as tx,
        ):
            yield T.bind(T.truncdiv(xz, grid_z)), T.int32(0), T.bind(T.truncmod(xz, grid_z)), tx
        return
    with T.launch_thread("blockIdx.x", grid_x) as x, T.launch_thread("threadIdx.x", block_x) as tx:
        if grid_y * grid_z == 1:
            yield x, T.int32(0), T.int32(0), tx
            return
        with T.launch_thread("blockIdx.y", grid_y * grid_z) as y:
            if grid_z == 1:
                yield x, y, T.int32(0), tx
            elif grid_y == 1:
                yield x, T.int32(0), y, tx
            else:
                yield x, T.truncmod(y, grid_y), T.truncdiv(y, grid_y), tx


def shared(size: int, dtype: str):
    """Workgroup memory of a GPU kernel."""
    return T.alloc_buffer((size,), dtype, scope="shared")


def barrier():
    """Wait for every thread of the workgroup; only in uniform control flow."""
    T.evaluate(T.tvm_storage_sync("shared"))


def storage_barrier():
    """GPU: and what they wrote to buffers is there for all of the workgroup."""
    T.evaluate(T.call_extern("void", "storageBarrier"))


def tree(lane_id, size: int, combine: Callable) -> None:
    """GPU: halve `size` neighbouring threads' values again and again: combine(step) adds what lies `step` on to a thread's own.

    A written-out order with a barrier after each step; the result is the first thread's. Only in uniform control flow.
    """
    step = size // 2
    while step:
        with when(lane_id < step):
            combine(step)
        barrier()
        step //= 2


def tree_of(buffer, tx, size: int, merge: Callable) -> None:
    """The tree over one workgroup array: buffer[0] = merge of all."""
    tree(tx, size, lambda step: store(buffer, tx, merge(buffer[tx], buffer[tx + step])))


def _atomic(function: str, buffer, index, *values):
    return T.call_extern("int32", function, T.address_of(buffer[index]), *values)


def atomic_store(buffer, index, value) -> None:
    """GPU: an int32 in workgroup memory. A buffer that is used by one of these five is used by nothing else (passes/lower.py)."""
    T.evaluate(_atomic("atomicStore", buffer, index, value))


def atomic_add(buffer, index, value) -> None:
    """Add to it; in any order, integers give the same sum."""
    T.evaluate(_atomic("atomicAdd", buffer, index, value))


def atomic_next(buffer, index):
    """Its value, and one is added to it: each thread gets another number."""
    return _atomic("atomicAdd", buffer, index, T.int32(1))


def atomic_or(buffer, index, value) -> None:
    """Set bits of it."""
    T.evaluate(_atomic("atomicOr", buffer, index, value))


def atomic_load(buffer, index):
    """Its value."""
    return _atomic("atomicLoad", buffer, index)


def add(a, b):
    """a + b, as a merge of tree_of."""
    return a + b


def fma(a, b, c):
    """WGSL fma, explicit so that every width rounds at the same points."""
    return T.call_pure_extern("float32", "fma", a, b, c)


@contextmanager
def when(condition):
    """`if condition:` around the body."""
    with T.If(condition), T.Then():
        yield


def exp4(x):
    """exp of float32x4 on the CPU: Cephes expf (range reduction by ln 2, degree-5 polynomial), no fma, so that WASM and native agree.

    Inputs under -87 give 0 to within one denormal step; callers pass values <= 0 or logits of ordinary size.
    """
    # locals, not T.bind: TVM inlines bound vectors into every use, and this expression would grow without bound
    v = local(3, F32X4)  # x, n, r
    store(v, 0, T.max(T.min(x, splat(f32(88.0))), splat(f32(-87.0))))
    store(v, 1, T.nearbyint(v[0] * splat(f32(1.44269504088896341))))
    store(v, 2, v[0] - v[1] * splat(f32(0.693359375)) - v[1] * splat(f32(-2.12194440e-4)))
    poly = splat(f32(1.9875691500e-4))
    for coefficient in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        poly = poly * v[2] + splat(f32(coefficient))
    store(v, 0, poly * (v[2] * v[2]) + v[2] + splat(f32(1.0)))
    power = T.reinterpret(F32X4, T.shift_left(T.cast(v[1], I32X4) + splat(127), splat(23)))
    store(v, 0, v[0] * power)
    return v[0]


LOG_POLY = (
    7.0376836292e-2,
    -1.1514610310e-1,
    1.1676998740e-1,
    -1.2420140846e-1,
    1.4249322787e-1,
    -1.6668057665e-1,
    2.0000714765e-1,
    -2.4999993993e-1,
    3.3333331174e-1,
)


def log1(x):
    """Natural log of one positive normal f32 on the CPU: Cephes logf (mantissa to [sqrt 1/2, sqrt 2), degree-8 polynomial), no fma."""
    bits = T.bind(T.reinterpret("int32", x))
    exponent = T.bind(T.shift_right(bits, 23) - 126)
    half = T.bind(
        T.reinterpret("float32", T.bitwise_or(T.bitwise_and(bits, T.int32(0x007FFFFF)), T.int32(0x3F000000)))
    )
    small = T.bind(half < f32(0.70710678118654752))
    e = T.bind(T.cast(T.Select(small, exponent - 1, exponent), "float32"))
    m = T.bind(T.Select(small, half + half, half) - f32(1.0))
    square = T.bind(m * m)
    poly = f32(LOG_POLY[0])
    for coefficient in LOG_POLY[1:]:
        poly = T.bind(poly * m + f32(coefficient))
    y = T.bind(poly * m * square + e * f32(-2.12194440e-4) - square * f32(0.5))
    return T.bind(m + y + e * f32(0.693359375))


def exp1(x):
    """exp of one f32 by the vector routine, so that scalar and vector code agree."""
    return lane(exp4(splat(x)), 0)


def is_finite_bits(x, lanes: int = 1):
    """True where an f32's exponent is not all ones (neither Inf nor NaN), by its bits: compilers may assume NaN away."""
    if lanes == 1:
        return T.bitwise_and(T.reinterpret("int32", x), T.int32(0x7F800000)) != T.int32(0x7F800000)
    mask = splat(T.int32(0x7F800000), lanes)
    return T.bitwise_and(T.reinterpret(f"int32x{lanes}", x), mask) != mask
