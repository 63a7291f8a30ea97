"""From logits to a sampled id: the largest of (logit + bias) / T + noise, the lowest id of equals. Else as argmax (select.py).

The largest of z_v + Gumbel noise is at v with probability softmax(z)_v, and one that the draft model draws with the same noise is often
the same (docs/sampling.md). The noise of a row belongs to (seed, position of the token that is chosen, id): never to the row, the pass
or the model. Without the flag for noise it is the argmax of what the bias leaves. Does not know top-k and other filters. Row i's flag
is 0 where a raw logit is not finite, and where the bias bans every id.
"""

from __future__ import annotations

from functools import partial

from specdec_runtime.decode.rng import LARGEST_GUMBEL, NOISE
from specdec_runtime.plan.sampling_layout import BIAS, FLAGS, INVERSE_T, LEAST
from specdec_runtime.plan.sampling_layout import NOISE as HAS_NOISE
from tvm.script.ir_builder import tirx as T

from .base import ARGS, OUT_ROWS, Form, Op, Params, by_row
from .ir import (
    F32X4,
    I32X4,
    cpu_func,
    f32,
    fma,
    is_finite_bits,
    lane,
    load4,
    local,
    max_lanes,
    splat,
    store,
    store4,
    when,
)
from .noise import FLOATS, INTS, gumbel, gumbel_bound4, random_bits
from .select import LOWEST, argmax_split_gpu, logits_buffer, names_buffer, out_row


def _bias_buffer(p: Params) -> tuple[str, int, str]:
    return ("bias", int(p["bias"]), "float32")


def _flag(ints, flag: int):
    return T.bitwise_and(ints[FLAGS], flag) != 0


class _Row:
    """CPU: one row's search, four ids at a time."""

    def __init__(self, p: Params, row, args, logits, ints, floats, bias, names):
        self.vocab, self.first = int(p["n"]), row * int(p["padded"])
        self.logits, self.ints, self.bias, self.names = logits, ints, bias, names
        self.position = T.bind(args[0] + row + 1)
        self.has_noise, self.has_bias = T.bind(_flag(ints, HAS_NOISE)), T.bind(_flag(ints, BIAS))
        self.scale = T.bind(floats[INVERSE_T])
        self.best, self.best_id, self.ok = local(1, "float32"), local(1, "int32"), local(1, I32X4)
        self.values, self.ids, self.bits = local(4, "float32"), local(4, "int32"), local(4, "uint32")
        self.z, self.hope, self.noise = local(1, F32X4), local(1, "float32"), local(1, "float32")
        store(self.best, 0, f32(LOWEST))
        store(self.best_id, 0, T.int32(0))
        store(self.ok, 0, splat(T.int32(1)))

    def search(self) -> None:
        with T.serial(0, self.vocab // 4) as i:
            self.four(i * 4, 4)
        if self.vocab % 4:
            self.four(T.int32(self.vocab // 4 * 4), self.vocab % 4)

    def four(self, at, count: int) -> None:
        """The logits from `at` on, `count` of them: most fours cannot win whatever their noise, and cost no more than argmax."""
        self.weigh(at, count)
        store(self.hope, 0, max_lanes(self.z[0]))
        limit = T.Select(self.has_noise, f32(LARGEST_GUMBEL), f32(0))
        with when(self.hope[0] + limit > self.best[0]):
            store4(self.values, 0, self.z[0])
            self.name(at)
            with when(self.has_noise):
                ids = T.reinterpret("uint32x4", load4(self.ids, 0))
                bits = random_bits(self.ints, self.position, ids, NOISE, 4)
                store4(self.bits, 0, bits[0])
                store(self.hope, 0, max_lanes(self.z[0] + gumbel_bound4(bits[0])[0]))
            with when(self.hope[0] > self.best[0]), T.serial(0, 4) as j:
                self.consider(j)

    def weigh(self, at, count: int) -> None:
        raw = local(2, F32X4)  # logits, with the bias
        store(raw, 0, load4(self.logits, self.first + at))
        inside = T.Ramp(T.int32(0), 1, 4) < splat(T.int32(count))
        bad = splat(T.int32(0))
        if count < 4:
            bad = T.Select(inside, bad, self.ok[0])
        store(self.ok, 0, T.Select(is_finite_bits(raw[0], 4), self.ok[0], bad))
        store(raw, 1, raw[0])
        with when(self.has_bias):
            store(raw, 1, raw[0] + self.biases(at))
        store(
            self.z,
            0,
            T.Select(raw[1] < splat(f32(LEAST)), splat(f32(LOWEST)), raw[1] * splat(self.scale)),
        )
        if count < 4:
            store(self.z, 0, T.Select(inside, self.z[0], splat(f32(LOWEST))))

    def name(self, at) -> None:
        """The four ids, into `ids`; behind the last one it is that again."""
        if not self.names:
            store4(self.ids, 0, T.Ramp(at, 1, 4))
            return
        for j in range(4):
            store(self.ids, j, self.names[0][T.min(at + j, self.vocab - 1)])

    def biases(self, at):
        if not self.names:
            return load4(self.bias, at)
        self.name(at)
        for j in range(4):
            store(self.values, j, self.bias[self.ids[j]])
        return load4(self.values, 0)

    def consider(self, j) -> None:
        """Ids ascend: of equals the first stays."""
        store(self.noise, 0, f32(0))
        with when(self.has_noise):
            store(self.noise, 0, gumbel(self.bits[j]))
        store(self.noise, 0, self.values[j] + self.noise[0])
        with when(self.noise[0] > self.best[0]):
            store(self.best, 0, self.noise[0])
            store(self.best_id, 0, self.ids[j])

    def flag(self):
        ok = self.ok[0]
        finite = T.min(T.min(lane(ok, 0), lane(ok, 1)), T.min(lane(ok, 2), lane(ok, 3)))
        return T.Select(self.best[0] > f32(LOWEST), finite, T.int32(0))


def _sample_cpu(name: str, p: Params, named: bool = False):
    def body(share, args, logits, ints, floats, bias, *rest):
        *names, out = rest
        with share.of(args[1]) as row:
            search = _Row(p, row, args, logits, ints, floats, bias, names)
            search.search()
            at = T.bind(out_row(args, row) * 2)
            store(out, at, search.best_id[0])
            store(out, at + 1, search.flag())

    inputs = [
        ("args", ARGS, "int32"),
        logits_buffer(p),
        INTS,
        FLOATS,
        _bias_buffer(p),
        *names_buffer(p, named),
    ]
    return cpu_func(name, [*inputs, ("out", OUT_ROWS * 2, "int32")], body)


def _weighed(logit, token_id, row, args, ints, floats, bias):
    """GPU: what one thread compares of one id."""
    numbers = local(2, "float32")  # logit with its bias; the result
    store(numbers, 0, logit)
    with when(_flag(ints, BIAS)):
        store(numbers, 0, logit + bias[token_id])
    store(numbers, 1, numbers[0] * floats[INVERSE_T])
    with when(_flag(ints, HAS_NOISE)):
        bits = random_bits(ints, args[0] + row + 1, T.cast(token_id, "uint32"), NOISE)
        store(numbers, 1, fma(numbers[0], floats[INVERSE_T], gumbel(bits[0])))
    return T.Select(numbers[0] < f32(LEAST), f32(LOWEST), numbers[1])


def _sample_split_gpu(name: str, p: Params, named: bool = False):
    return argmax_split_gpu(name, p, named=named, weigh=([INTS, FLOATS, _bias_buffer(p)], _weighed))


_INPUTS = (("args", "read"), ("logits", "read"), ("ints", "read"), ("floats", "read"), ("bias", "read"))
_NAMED = (*_INPUTS, ("ids", "read"))
SAMPLE = Op("sample", cpu=Form((*_INPUTS, ("out", "write")), _sample_cpu, by_row))
SAMPLE_NAMED = Op(
    "sample_named", cpu=Form((*_NAMED, ("out", "write")), partial(_sample_cpu, named=True), by_row)
)
SAMPLE_SPLIT = Op("sample_split", gpu=Form((*_INPUTS, ("partial", "write")), _sample_split_gpu))
SAMPLE_SPLIT_NAMED = Op(
    "sample_split_named", gpu=Form((*_NAMED, ("partial", "write")), partial(_sample_split_gpu, named=True))
)
