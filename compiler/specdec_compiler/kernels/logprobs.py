"""Log-probabilities of a pass: of each row's id in `out`, and of the five likeliest ids, lowest first of equals. Row-invariant.

Of the raw logits: what a processor or the temperature does to them plays no part. Runs right after a target pass, before anything
moves args but the pass itself: after one that feeds back, whose args have moved on by then, it is about the one row before. Row i goes
to the row of `top` beside its row of `out`: the id's log-probability, a zero, then five times an id (as a float) and its
log-probability; where there are fewer ids, -1 and 0. A row whose finite flag is 0 has no meaning here. On the GPU a workgroup has a
chunk of a row, then one merges a row's chunks, always in one order.
"""

from __future__ import annotations

from collections.abc import Callable

from specdec_runtime.plan.schema import TOP_FIELDS
from tvm.script.ir_builder import tirx as T

from .base import ARGS, OUT_ROWS, Form, Op, Params, by_row, ceil_div
from .ir import (
    F32X4,
    add,
    barrier,
    cpu_func,
    exp1,
    exp4,
    f32,
    load4,
    local,
    log1,
    max_lanes,
    prim_func,
    shared,
    splat,
    store,
    sum_lanes,
    threads,
    tree,
    tree_of,
    when,
)
from .measure import BLOCK
from .select import LOWEST, THREADS, logits_buffer, out_row

LIKELIEST = 5
FIRST = 2  # element of a row where the pairs begin


def _params(p: Params) -> list[tuple[str, int, str]]:
    out, top = ("out", OUT_ROWS * 2, "int32"), ("top", OUT_ROWS * TOP_FIELDS, "float32")
    return [("args", ARGS, "int32"), logits_buffer(p), out, top]


def _place(args, row):
    """The row of out and top that row `row` of the logits went to."""
    back = T.Select(args[2] == 1, T.int32(1), T.int32(0))
    return T.max(out_row(args, row) - back, 0)


def _write(top, at, given, values, ids, log_total) -> None:
    """`given`, and the likeliest, all as logits; values[0] is the largest."""
    store(top, at, given - values[0] - log_total)
    store(top, at + 1, f32(0))
    for j in range(LIKELIEST):
        store(top, at + FIRST + 2 * j, T.cast(ids[j], "float32"))
        found = T.Select(ids[j] >= 0, values[j] - values[0] - log_total, f32(0))
        store(top, at + FIRST + 2 * j + 1, found)


def _logit_of(out, place, vocab: int):
    return T.max(T.min(out[place * 2], T.int32(vocab - 1)), T.int32(0))


def _insert(value, token_id, values, ids) -> None:
    """Among the likeliest so far, which descend; of equals the earlier stays before."""
    for j in range(LIKELIEST - 1, -1, -1):
        moved = value > values[j - 1] if j else T.bool(False)
        here = value > values[j]
        before = max(j - 1, 0)
        store(ids, j, T.Select(moved, ids[before], T.Select(here, token_id, ids[j])))
        store(values, j, T.Select(moved, values[before], T.Select(here, value, values[j])))


def _cpu(name: str, p: Params):
    vocab, padded = int(p["n"]), int(p["padded"])
    fours = vocab // 4

    def body(share, args, logits, out, top):
        with share.of(args[1]) as row:
            base = T.bind(row * padded)
            values, ids = local(LIKELIEST, "float32"), local(LIKELIEST, "int32")
            sums, total, one = local(1, F32X4), local(1, "float32"), local(1, "float32")
            for j in range(LIKELIEST):
                store(values, j, f32(LOWEST))
                store(ids, j, T.int32(-1))

            def consider(at) -> None:
                store(one, 0, logits[base + at])
                with when(one[0] > values[LIKELIEST - 1]):
                    _insert(one[0], at, values, ids)

            with (
                T.serial(0, fours) as i,
                when(max_lanes(load4(logits, base + i * 4)) > values[LIKELIEST - 1]),
            ):
                for j in range(4):
                    consider(i * 4 + j)
            for i in range(fours * 4, vocab):
                consider(T.int32(i))
            store(total, 0, f32(0))
            with T.serial(0, ceil_div(fours, BLOCK)) as block:
                store(sums, 0, splat(f32(0)))
                with T.serial(block * BLOCK, T.min(block * BLOCK + BLOCK, fours)) as i:
                    store(sums, 0, sums[0] + exp4(load4(logits, base + i * 4) - splat(values[0])))
                store(total, 0, total[0] + sum_lanes(sums[0]))
            for i in range(fours * 4, vocab):
                store(total, 0, total[0] + exp1(logits[base + i] - values[0]))
            place = T.bind(_place(args, row))
            given = logits[base + _logit_of(out, place, vocab)]
            _write(top, place * TOP_FIELDS, given, values, ids, log1(total[0]))

    return cpu_func(name, _params(p), body)


CHUNK = 2048  # GPU: logits of one workgroup
WORDS = 1 + 2 * LIKELIEST  # of a chunk: the sum of exp(logit - its largest); its likeliest, value bits and id


def num_chunks(vocab: int) -> int:
    """GPU: workgroups of a row."""
    return ceil_div(vocab, CHUNK)


def _partial(p: Params) -> tuple[str, int, str]:
    return ("partial", int(p["m"]) * num_chunks(int(p["n"])) * WORDS, "int32")


class _Likeliest:
    """The five largest of what all threads of a workgroup hold, lowest ids first of equals. Only in uniform control flow."""

    def __init__(self, tx):
        self.tx = tx
        self.firsts, self.indices = shared(THREADS, "float32"), shared(THREADS, "int32")
        self.best, self.best_id = local(1, "float32"), local(1, "int32")
        self.last, self.last_id = local(1, "float32"), local(1, "int32")
        self.values, self.ids = local(LIKELIEST, "float32"), local(LIKELIEST, "int32")

    def find(self, each: Callable) -> None:
        """each(use) calls use(value, id) for what a thread holds; where there are fewer than five, the rest is LOWEST and -1."""
        store(self.last, 0, f32(-LOWEST))
        store(self.last_id, 0, T.int32(-1))
        with T.serial(0, LIKELIEST) as j:
            store(self.best, 0, f32(LOWEST))
            store(self.best_id, 0, T.int32(-1))
            each(self._after)
            store(self.firsts, self.tx, self.best[0])
            store(self.indices, self.tx, self.best_id[0])
            barrier()
            tree(self.tx, THREADS, self._combine)
            store(self.last, 0, self.firsts[0])
            store(self.last_id, 0, self.indices[0])
            store(self.values, j, self.last[0])
            store(self.ids, j, self.last_id[0])
            barrier()

    def _after(self, value, at) -> None:
        """Only what comes after the last one found."""
        later = T.Or(value < self.last[0], T.And(value == self.last[0], at > self.last_id[0]))
        with when(later):
            self._keep(value, at)

    def _keep(self, value, at) -> None:
        better = T.Or(
            value > self.best[0], T.And(value == self.best[0], T.And(at >= 0, at < self.best_id[0]))
        )
        with when(better):
            store(self.best, 0, value)
            store(self.best_id, 0, at)

    def _combine(self, step: int) -> None:
        self._keep(self.firsts[self.tx + step], self.indices[self.tx + step])
        store(self.firsts, self.tx, self.best[0])
        store(self.indices, self.tx, self.best_id[0])


def _split_gpu(name: str, p: Params):
    """The sum and the likeliest of a chunk, about its own largest."""
    m, vocab, padded = int(p["m"]), int(p["n"]), int(p["padded"])
    chunks, owns = num_chunks(vocab), CHUNK // THREADS

    def body(args, logits, partial):
        with threads(chunks, m, 1, THREADS) as (chunk, row, _, tx):
            mine, ids = local(owns, "float32"), local(owns, "int32")
            for i in range(owns):
                at = T.bind(chunk * CHUNK + (i * THREADS + tx))
                store(mine, i, f32(LOWEST))
                store(ids, i, at)
                with when(T.And(row < args[1], at < vocab)):
                    store(mine, i, logits[row * padded + at])

            def each(use) -> None:
                for i in range(owns):
                    with when(ids[i] < vocab):
                        use(mine[i], ids[i])

            found, sums, total = _Likeliest(tx), shared(THREADS, "float32"), local(1, "float32")
            found.find(each)
            store(total, 0, f32(0))
            each(lambda value, _: store(total, 0, total[0] + T.exp(value - found.values[0])))
            store(sums, tx, total[0])
            barrier()
            tree_of(sums, tx, THREADS, add)
            with when(T.And(tx == 0, row < args[1])):
                to = T.bind((row * chunks + chunk) * WORDS)
                store(partial, to, T.reinterpret("int32", sums[0]))
                for j in range(LIKELIEST):
                    store(partial, to + 1 + 2 * j, T.reinterpret("int32", found.values[j]))
                    store(partial, to + 2 + 2 * j, found.ids[j])

    return prim_func(name, [("args", ARGS, "int32"), logits_buffer(p), _partial(p)], body)


def _merge_gpu(name: str, p: Params):
    """A workgroup a row, from its chunks."""
    m, vocab, padded = int(p["m"]), int(p["n"]), int(p["padded"])
    chunks = num_chunks(vocab)

    def body(args, logits, out, partial, top):
        with threads(m, 1, 1, THREADS) as (row, _, _, tx):
            first = T.bind(row * (chunks * WORDS))

            def each(use) -> None:
                with when(row < args[1]), T.serial(0, ceil_div(chunks * LIKELIEST, THREADS)) as i:
                    pair = T.bind(i * THREADS + tx)
                    with when(pair < chunks * LIKELIEST):
                        chunk, number = (
                            T.truncdiv(pair, T.int32(LIKELIEST)),
                            T.truncmod(pair, T.int32(LIKELIEST)),
                        )
                        at = T.bind(first + chunk * WORDS + 1 + 2 * number)
                        with when(partial[at + 1] >= 0):
                            use(T.bind(T.reinterpret("float32", partial[at])), T.bind(partial[at + 1]))

            found, sums, total = _Likeliest(tx), shared(THREADS, "float32"), local(1, "float32")
            found.find(each)
            store(total, 0, f32(0))
            with when(row < args[1]), T.serial(0, ceil_div(chunks, THREADS)) as i:
                chunk = T.bind(i * THREADS + tx)
                with when(chunk < chunks):
                    at = T.bind(first + chunk * WORDS)
                    largest = T.reinterpret("float32", partial[at + 1])
                    mass = T.reinterpret("float32", partial[at]) * T.exp(largest - found.values[0])
                    store(total, 0, total[0] + mass)
            store(sums, tx, total[0])
            barrier()
            tree_of(sums, tx, THREADS, add)
            with when(T.And(tx == 0, row < args[1])):
                place = T.bind(_place(args, row))
                given = logits[row * padded + _logit_of(out, place, vocab)]
                _write(top, place * TOP_FIELDS, given, found.values, found.ids, T.log(sums[0]))

    args, logits, out, top = _params(p)
    return prim_func(name, [args, logits, out, _partial(p), top], body)


_ARGS = (("args", "read"), ("logits", "read"), ("out", "read"), ("top", "write"))
_SPLIT = (("args", "read"), ("logits", "read"), ("partial", "write"))
LOGPROBS = Op("logprobs", Form(_ARGS, _cpu, by_row))
LOGPROBS_SPLIT = Op("logprobs_split", gpu=Form(_SPLIT, _split_gpu))
LOGPROBS_MERGE = Op("logprobs_merge", gpu=Form((*_ARGS[:3], ("partial", "read"), _ARGS[3]), _merge_gpu))
