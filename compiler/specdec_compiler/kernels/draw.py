"""The draws of `reject` and `block` from a row of z: the largest of log weight + noise. The draft model's own draw, whose z stays.

`keep_q` writes a draft step's processed logits, (logit + bias) / T, in its row of `draft.q`, over all ids of the target: LOWEST
where the draft's head has no logit or the bias bans the id; what is not finite stays so. `draw_q` draws the draft from exactly
that row. A draw of a cycle has the noise of (position, its distance from the cycle's first undecided token): a later cycle that
draws again at the position gets other noise (decode/rng.py, cycle_position). The cycle begins behind the target's args[0].
Knows no accept rule.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from specdec_runtime.decode.rng import CYCLE_BITS, DRAFT, LARGEST_GUMBEL
from specdec_runtime.plan.sampling_layout import BIAS, FLAGS, INVERSE_T, LEAST
from tvm.script.ir_builder import tirx as T

from .base import ARGS, MAX_ROWS, OUT_ROWS, Form, Op, Params, ceil_div
from .ir import (
    F32X4,
    I32X4,
    barrier,
    cpu_func,
    f32,
    is_finite_bits,
    lane,
    load4,
    local,
    max_lanes,
    prim_func,
    shared,
    splat,
    store,
    store4,
    threads,
    tree,
    when,
)
from .noise import FLOATS, INTS, gumbel, gumbel_bound4, random_bits
from .select import LOWEST, names_buffer, out_row
from .select import _advance as advance
from .select import _consider as consider

THREADS = 256
MARGIN = 1e-3  # of rounding, where a bound must not be below a value


def q_buffer(p: Params) -> tuple[str, int, str]:
    return ("q", MAX_ROWS * int(p["columns"]), "float32")


def cycle_place(position, offset):
    """decode/rng.py's cycle_position."""
    return position + T.shift_left(offset, T.int32(CYCLE_BITS))


def weigh(logit, ints, floats, bias, token_id):
    """(logit + bias) / T of one id; LOWEST where it is banned; a logit that is not finite stays as it is."""
    numbers = local(2, "float32")
    store(numbers, 0, logit)
    with when(T.bitwise_and(ints[FLAGS], BIAS) != 0):
        store(numbers, 0, logit + bias[token_id])
    store(numbers, 1, T.Select(numbers[0] < f32(LEAST), f32(LOWEST), numbers[0] * floats[INVERSE_T]))
    return T.Select(is_finite_bits(logit), numbers[1], logit)


def weigh4(logits, at, ints, floats, bias, ids):
    """The same for the four logits from `at` on, of ids from `ids` on."""
    numbers = local(2, F32X4)
    store(numbers, 0, load4(logits, at))
    store(numbers, 1, numbers[0])
    with when(T.bitwise_and(ints[FLAGS], BIAS) != 0):
        store(numbers, 1, numbers[0] + load4(bias, ids))
    scaled = numbers[1] * splat(floats[INVERSE_T])
    kept = T.Select(numbers[1] < splat(f32(LEAST)), splat(f32(LOWEST)), scaled)
    return T.Select(is_finite_bits(numbers[0], 4), kept, numbers[0])


# --- the search ----------------------------------------------------------------------------------------------------------


class CpuSearch:
    """The largest value + noise over all ids, four at a time; `best` stays LOWEST and `best_id` -1 where every value is LOWEST."""

    def __init__(self, vocab: int, ints, position, stream: int):
        self.vocab, self.ints, self.position, self.stream = vocab, ints, position, stream
        self.best, self.best_id = local(1, "float32"), local(1, "int32")
        self.hopes, self.top, self.sum = local(1, F32X4), local(1, "float32"), local(1, "float32")
        self.bits = local(4, "uint32")
        store(self.best, 0, f32(LOWEST))
        store(self.best_id, 0, T.int32(-1))

    def run(self, hope4: Callable, value: Callable) -> None:
        """value(id); hope4(id) is not below the values of four ids, and cheap: most fours cannot win, whatever their noise."""
        with T.serial(0, self.vocab // 4) as i:
            self._four(i * 4, 4, hope4, value)
        if self.vocab % 4:
            self._four(T.int32(self.vocab // 4 * 4), self.vocab % 4, hope4, value)

    def _four(self, at, count: int, hope4: Callable, value: Callable) -> None:
        store(self.hopes, 0, hope4(at))
        if count < 4:
            inside = T.Ramp(T.int32(0), 1, 4) < splat(T.int32(count))
            store(self.hopes, 0, T.Select(inside, self.hopes[0], splat(f32(LOWEST))))
        store(self.top, 0, max_lanes(self.hopes[0]))
        with when(self.top[0] + f32(LARGEST_GUMBEL) > self.best[0]):
            ids = T.reinterpret("uint32x4", T.Ramp(at, 1, 4))
            bits = random_bits(self.ints, self.position, ids, self.stream, 4)
            store4(self.bits, 0, bits[0])
            store(self.top, 0, max_lanes(self.hopes[0] + gumbel_bound4(bits[0])[0]))
            with when(self.top[0] > self.best[0]), T.serial(0, count) as j:
                store(self.sum, 0, value(at + j))
                store(self.sum, 0, self.sum[0] + gumbel(self.bits[j]))
                with when(self.sum[0] > self.best[0]):
                    store(self.best, 0, self.sum[0])
                    store(self.best_id, 0, at + j)


class GpuSearch:
    """The same by one workgroup; the result is in `values[0]` and `ids[0]`. Only in uniform control flow."""

    def __init__(self, vocab: int, ints, position, stream: int, tx):
        self.vocab, self.ints, self.position, self.stream, self.tx = vocab, ints, position, stream, tx
        self.best, self.best_id, self.sum = local(1, "float32"), local(1, "int32"), local(1, "float32")
        self.values, self.ids = shared(THREADS, "float32"), shared(THREADS, "int32")
        store(self.best, 0, f32(LOWEST))
        store(self.best_id, 0, T.int32(-1))

    def run(self, wanted, value: Callable) -> None:
        """Where `wanted` is false nothing is tried."""
        with T.serial(0, ceil_div(self.vocab, THREADS)) as i:
            at = T.bind(i * THREADS + self.tx)
            with when(T.And(wanted, at < self.vocab)):
                store(self.sum, 0, value(at))
                with when(self.sum[0] > f32(LOWEST)):
                    bits = random_bits(self.ints, self.position, T.cast(at, "uint32"), self.stream)
                    store(self.sum, 0, self.sum[0] + gumbel(bits[0]))
                    consider(self.sum[0], at, self.best, self.best_id)

    def combine(self) -> None:
        store(self.values, self.tx, self.best[0])
        store(self.ids, self.tx, self.best_id[0])
        barrier()

        def merge(step: int) -> None:
            consider(self.values[self.tx + step], self.ids[self.tx + step], self.best, self.best_id)
            store(self.values, self.tx, self.best[0])
            store(self.ids, self.tx, self.best_id[0])

        tree(self.tx, THREADS, merge)


# --- the draft's row, and its draw ---------------------------------------------------------------------------------------


def slot(args, target_args):
    """Which draft of its cycle the step's last row gives: 0 for the first."""
    return T.max(T.min(args[0] + args[1] - target_args[0] - 1, MAX_ROWS - 2), 0)


def _keep_params(p: Params, named: bool):
    logits = ("logits", int(p["m"]) * int(p["padded"]), "float32")
    bias = ("bias", int(p["columns"]), "float32")
    first = [("args", ARGS, "int32"), ("target_args", ARGS, "int32"), logits, INTS, FLOATS, bias]
    return [*first, *names_buffer(p, named), q_buffer(p)]


def _keep_cpu(name: str, p: Params, named: bool = False):
    count, padded, columns, vocab = (int(p[key]) for key in ("n", "padded", "columns", "vocab"))

    def body(share, args, target_args, logits, ints, floats, bias, *rest):
        *names, q = rest
        with share.whole(), when(args[1] > 0):
            to, row = T.bind(slot(args, target_args) * columns), T.bind((args[1] - 1) * padded)
            if not names:
                with T.serial(0, vocab // 4) as i:
                    store4(q, to + i * 4, weigh4(logits, row + i * 4, ints, floats, bias, i * 4))
                for i in range(vocab // 4 * 4, vocab):
                    store(q, to + i, weigh(logits[row + i], ints, floats, bias, i))
                return
            with T.serial(0, vocab) as i:
                store(q, to + i, f32(LOWEST))
            with T.serial(0, count) as i:
                token_id = T.bind(names[0][i])
                store(q, to + token_id, weigh(logits[row + i], ints, floats, bias, token_id))

    return cpu_func(name, _keep_params(p, named), body)


def _keep_gpu(name: str, p: Params, named: bool = False):
    """A thread an id; a head of some ids is searched for it, since they ascend."""
    count, padded, columns, vocab = (int(p[key]) for key in ("n", "padded", "columns", "vocab"))

    def body(args, target_args, logits, ints, floats, bias, *rest):
        *names, q = rest
        with threads(ceil_div(vocab, THREADS), 1, 1, THREADS) as (block, _, _, tx):
            token_id = T.bind(block * THREADS + tx)
            with when(T.And(args[1] > 0, token_id < vocab)):
                to, row = T.bind(slot(args, target_args) * columns + token_id), T.bind((args[1] - 1) * padded)
                if not names:
                    store(q, to, weigh(logits[row + token_id], ints, floats, bias, token_id))
                    return
                at, step = local(1, "int32"), 1 << (count - 1).bit_length()
                store(at, 0, T.int32(0))  # the last place whose id is not above
                while step:
                    ahead = T.bind(T.min(at[0] + step, count - 1))
                    store(at, 0, T.Select(names[0][ahead] <= token_id, ahead, at[0]))
                    step //= 2
                z = weigh(logits[row + at[0]], ints, floats, bias, token_id)
                store(q, to, T.Select(names[0][at[0]] == token_id, z, f32(LOWEST)))

    return prim_func(name, _keep_params(p, named), body)


def _draw_params(p: Params):
    tokens, out = ("tokens", int(p["tokens"]), "int32"), ("out", OUT_ROWS * 2, "int32")
    first = [("args", ARGS, "int32"), ("target_args", ARGS, "int32"), q_buffer(p), INTS, tokens]
    return [*first, out, ("done", 1, "int32")]


def _draw_cpu(name: str, p: Params):
    vocab, columns = int(p["vocab"]), int(p["columns"])

    def body(share, args, target_args, q, ints, tokens, out, done):
        with share.whole():
            offset = T.bind(slot(args, target_args))
            row = T.bind(offset * columns)
            ok = local(1, I32X4)
            store(ok, 0, splat(T.int32(1)))
            search = CpuSearch(vocab, ints, cycle_place(args[0] + args[1], offset), DRAFT)

            def hope4(at):
                values = local(1, F32X4)
                store(values, 0, load4(q, row + at))
                return values[0]

            with when(args[1] > 0):
                search.run(hope4, lambda token_id: q[row + token_id])
                with T.serial(0, vocab // 4) as i:
                    fine = is_finite_bits(load4(q, row + i * 4), 4)
                    store(ok, 0, T.Select(fine, ok[0], splat(T.int32(0))))
                good = local(1, "int32")
                store(
                    good,
                    0,
                    T.min(T.min(lane(ok[0], 0), lane(ok[0], 1)), T.min(lane(ok[0], 2), lane(ok[0], 3))),
                )
                for i in range(vocab // 4 * 4, vocab):
                    store(good, 0, T.Select(is_finite_bits(q[row + i]), good[0], T.int32(0)))
                store(search.best_id, 0, T.Select(good[0] == 1, search.best_id[0], T.int32(-1)))
                _say(args, out, search.best_id[0])
            advance(args, tokens, T.max(search.best_id[0], 0), done)

    return cpu_func(name, _draw_params(p), body)


def _say(args, out, token_id) -> None:
    """The last row's id and flag: the row that draws. -1: there is none."""
    at = T.bind(out_row(args, args[1] - 1) * 2)
    store(out, at, T.max(token_id, 0))
    store(out, at + 1, T.Select(token_id >= 0, T.int32(1), T.int32(0)))


def _draw_gpu(name: str, p: Params):
    vocab, columns = int(p["vocab"]), int(p["columns"])

    def body(args, target_args, q, ints, tokens, out, done):
        with threads(1, 1, 1, THREADS) as (_, _, _, tx):
            numbers, fine = (
                local(3, "int32"),
                local(1, "int32"),
            )  # before the barriers: thread 0 moves args on
            goods = shared(THREADS, "int32")
            store(numbers, 0, slot(args, target_args))
            store(numbers, 1, args[0] + args[1])
            store(numbers, 2, args[1])
            store(fine, 0, T.int32(1))
            search = GpuSearch(vocab, ints, cycle_place(numbers[1], numbers[0]), DRAFT, tx)

            def value(token_id):
                z = T.bind(q[numbers[0] * columns + token_id])
                store(fine, 0, T.Select(is_finite_bits(z), fine[0], T.int32(0)))
                return z

            search.run(numbers[2] > 0, value)
            search.combine()
            store(goods, tx, fine[0])
            barrier()
            tree(tx, THREADS, lambda step: store(goods, tx, T.min(goods[tx], goods[tx + step])))
            with when(tx == 0):
                store(search.best_id, 0, T.Select(goods[0] == 1, search.ids[0], T.int32(-1)))
                with when(numbers[2] > 0):
                    _say(args, out, search.best_id[0])
                advance(args, tokens, T.max(search.best_id[0], 0), done)

    return prim_func(name, _draw_params(p), body)


_KEEP = (
    ("args", "read"),
    ("target_args", "read"),
    ("logits", "read"),
    ("ints", "read"),
    ("floats", "read"),
    ("bias", "read"),
)
_KEPT = (*_KEEP, ("q", "write"))
_KEPT_NAMED = (*_KEEP, ("ids", "read"), ("q", "write"))
_DRAW = (
    ("args", "read_write"),
    ("target_args", "read"),
    ("q", "read"),
    ("ints", "read"),
    ("tokens", "read_write"),
)
_DRAWN = (*_DRAW, ("out", "write"), ("done", "write"))
KEEP_Q = Op("keep_q", Form(_KEPT, _keep_cpu), Form(_KEPT, _keep_gpu))
KEEP_Q_NAMED = Op(
    "keep_q_named",
    Form(_KEPT_NAMED, partial(_keep_cpu, named=True)),
    Form(_KEPT_NAMED, partial(_keep_gpu, named=True)),
)
DRAW_Q = Op("draw_q", Form(_DRAWN, _draw_cpu), Form(_DRAWN, _draw_gpu))
