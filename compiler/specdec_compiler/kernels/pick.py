"""From what filter.py kept to an id: the largest of value + noise, the lowest id of equals. The noise is that of sample.py."""

from __future__ import annotations

from specdec_runtime.decode.rng import NOISE
from tvm.script.ir_builder import tirx as T

from .base import ARGS, OUT_ROWS, Form, Op, Params, by_row
from .filter import LARGEST
from .ir import F32X4, cpu_func, f32, is_finite_bits, load4, local, splat, store, when
from .noise import INTS, gumbel, random_bits
from .sample import HAS_NOISE, _flag, _Row
from .select import LOWEST, argmax_split_gpu, logits_buffer, out_row


class _Kept(_Row):
    """CPU: a row of values; those of ids that cannot be chosen are finite and far below all others."""

    def __init__(self, p: Params, row, args, kept, ints):
        super().__init__(p, row, args, kept, ints, [f32(1)], None, [])

    def weigh(self, at, count: int) -> None:
        raw = local(1, F32X4)
        store(
            raw, 0, load4(self.logits, self.first + at)
        )  # behind the vocabulary there are only dropped ones
        store(self.ok, 0, T.Select(is_finite_bits(raw[0], 4), self.ok[0], splat(T.int32(0))))
        store(self.z, 0, raw[0])


def _pick_cpu(name: str, p: Params):
    def body(share, args, kept, ints, out):
        with share.of(args[1]) as row:
            search = _Kept(p, row, args, kept, ints)
            search.search()
            at = T.bind(out_row(args, row) * 2)
            store(out, at, search.best_id[0])
            store(out, at + 1, search.flag())

    out = ("out", OUT_ROWS * 2, "int32")
    return cpu_func(name, [("args", ARGS, "int32"), _kept(p), INTS, out], body)


def _kept(p: Params) -> tuple[str, int, str]:
    return ("logits", *logits_buffer(p)[1:])


def _noisy(value, token_id, row, args, ints):
    """GPU: what one thread compares of one id."""
    result = local(1, "float32")
    store(result, 0, value)
    with when(_flag(ints, HAS_NOISE)):
        bits = random_bits(ints, args[0] + row + 1, T.cast(token_id, "uint32"), NOISE)
        store(result, 0, value + gumbel(bits[0]))
    return T.Select(value < f32(-LARGEST), f32(LOWEST), result[0])


def _pick_split_gpu(name: str, p: Params):
    return argmax_split_gpu(name, p, weigh=([INTS], _noisy))


_INPUTS = (("args", "read"), ("logits", "read"), ("ints", "read"))
PICK = Op("pick", cpu=Form((*_INPUTS, ("out", "write")), _pick_cpu, by_row))
PICK_SPLIT = Op("pick_split", gpu=Form((*_INPUTS, ("partial", "write")), _pick_split_gpu))
