"""From what filter.py kept to an id: the largest of value + noise, the lowest id of equals. The noise is that of sample.py.

On the GPU this is where ids fall: `truncate` says the least value that stays, `pick_split` writes what is kept.
"""

from __future__ import annotations

from specdec_runtime.decode.rng import NOISE
from specdec_runtime.plan.sampling_layout import NOISE as HAS_NOISE
from tvm.script.ir_builder import tirx as T

from .base import ARGS, OUT_ROWS, Form, Op, Params, by_row
from .filter import DROPPED, LARGEST, gpu_stride
from .ir import F32X4, cpu_func, f32, is_finite_bits, load4, local, splat, store, when
from .noise import INTS, gumbel, random_bits
from .sample import _flag, _Row
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


def _noisy(p: Params):
    """GPU: what one thread compares of one id; kept becomes its value, and DROPPED below the row's limit."""
    vocab, padded = int(p["n"]), int(p["padded"])

    def weigh(value, token_id, row, args, ints, limits, kept):
        result = local(1, "float32")
        stays = T.Or(value >= limits[row], T.Not(is_finite_bits(value)))
        store(result, 0, T.Select(stays, value, f32(DROPPED)))
        store(kept, row * padded + token_id, result[0])
        for first in range(vocab, padded, vocab):  # behind the vocabulary
            with when(first + token_id < padded):
                store(kept, row * padded + first + token_id, f32(DROPPED))
        with when(T.And(_flag(ints, HAS_NOISE), result[0] >= f32(-LARGEST))):
            bits = random_bits(ints, args[0] + row + 1, T.cast(token_id, "uint32"), NOISE)
            store(result, 0, result[0] + gumbel(bits[0]))
        return T.Select(result[0] < f32(-LARGEST), f32(LOWEST), result[0])

    return weigh


def _pick_split_gpu(name: str, p: Params):
    m, padded = int(p["m"]), int(p["padded"])
    limits, kept = ("limits", m, "float32"), ("kept", m * padded, "float32")
    return argmax_split_gpu(
        name, p, weigh=([INTS, limits], _noisy(p)), results=[kept], stride=gpu_stride(padded)
    )


_INPUTS = (("args", "read"), ("logits", "read"), ("ints", "read"))
PICK = Op("pick", cpu=Form((*_INPUTS, ("out", "write")), _pick_cpu, by_row))
_LIMITED = (*_INPUTS, ("limits", "read"), ("partial", "write"), ("kept", "write"))
PICK_SPLIT = Op("pick_split", gpu=Form(_LIMITED, _pick_split_gpu))
