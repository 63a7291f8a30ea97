"""Log-probabilities of a pass: of each row's id in `out`, and of the five likeliest ids, lowest first of equals. Row-invariant.

Of the raw logits: what a processor or the temperature does to them plays no part. Runs right after a target pass, before anything
moves args but the pass itself: after one that feeds back, whose args have moved on by then, it is about the one row before. Row i goes
to the row of `top` beside its row of `out`: the id's log-probability, a zero, then five times an id (as a float) and its
log-probability; where there are fewer ids, -1 and LOWEST. A row whose finite flag is 0 has no meaning here.
"""

from __future__ import annotations

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
        found = T.Select(ids[j] >= 0, values[j] - values[0] - log_total, f32(LOWEST))
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


def _gpu(name: str, p: Params):
    vocab, padded = int(p["n"]), int(p["padded"])

    def body(args, logits, out, top):
        with threads(int(p["m"]), 1, 1, THREADS) as (row, _, _, tx):
            firsts, indices = shared(THREADS, "float32"), shared(THREADS, "int32")
            best, best_id = local(1, "float32"), local(1, "int32")
            values, ids = local(LIKELIEST, "float32"), local(LIKELIEST, "int32")
            base = T.bind(row * padded)

            def each(use) -> None:
                with when(row < args[1]), T.serial(0, ceil_div(vocab, THREADS)) as i:
                    at = T.bind(i * THREADS + tx)
                    with when(at < vocab):
                        use(T.bind(logits[base + at]), at)

            def keep(value, at) -> None:
                better = T.Or(value > best[0], T.And(value == best[0], T.And(at >= 0, at < best_id[0])))
                with when(better):
                    store(best, 0, value)
                    store(best_id, 0, at)

            def combine(step: int) -> None:
                keep(firsts[tx + step], indices[tx + step])
                store(firsts, tx, best[0])
                store(indices, tx, best_id[0])

            for j in range(LIKELIEST):
                store(best, 0, f32(LOWEST))
                store(best_id, 0, T.int32(-1))

                def after_last(value, at, j=j) -> None:
                    if j:
                        last, last_id = values[j - 1], ids[j - 1]
                        with when(T.Or(value < last, T.And(value == last, at > last_id))):
                            keep(value, at)
                    else:
                        keep(value, at)

                each(after_last)
                store(firsts, tx, best[0])
                store(indices, tx, best_id[0])
                barrier()
                tree(tx, THREADS, combine)
                store(values, j, firsts[0])
                store(ids, j, indices[0])
                barrier()
            sums, total = shared(THREADS, "float32"), local(1, "float32")
            store(total, 0, f32(0))
            each(lambda value, _: store(total, 0, total[0] + T.exp(value - values[0])))
            store(sums, tx, total[0])
            barrier()
            tree_of(sums, tx, THREADS, add)
            with when(T.And(tx == 0, row < args[1])):
                place = T.bind(_place(args, row))
                given = logits[base + _logit_of(out, place, vocab)]
                _write(top, place * TOP_FIELDS, given, values, ids, T.log(sums[0]))

    return prim_func(name, _params(p), body)


_ARGS = (("args", "read"), ("logits", "read"), ("out", "read"), ("top", "write"))
LOGPROBS = Op("logprobs", Form(_ARGS, _cpu, by_row), Form(_ARGS, _gpu))
