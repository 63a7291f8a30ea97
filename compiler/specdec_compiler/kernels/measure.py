"""How sure a row is: the log-probability of its argmax id, and its entropy in nats. What a drafter may stop by; row-invariant.

With t = logit - largest, S = sum of exp(t) and W = sum of exp(t) * t over the ids that have logits: log-probability = -log S, entropy =
log S - W / S. On the CPU this is a kernel beside argmax. On the GPU the two kernels of argmax find the sums as well, chunk by chunk, so
that a measured pass has as many dispatches as another. Row i goes to row args[3] + i of stats, as in out; a row whose finite flag in
out is 0 has no meaning here. Float order depends on the number of logits only.
"""

from __future__ import annotations

from functools import partial

from tvm.script.ir_builder import tirx as T

from .base import ARGS, Form, Op, Params, by_row, ceil_div
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
    shared,
    splat,
    store,
    sum_lanes,
    tree,
)
from .select import (
    LOWEST,
    MERGE_LANES,
    PARTIAL,
    STATE,
    STATS,
    STATS_FIELDS,
    THREADS,
    argmax_merge_gpu,
    argmax_split_gpu,
    logits_buffer,
    out_row,
)

MEASURED = PARTIAL + 2  # words of a chunk: S and W as well
BLOCK = 256  # fours of logits whose sums are added at a time, on the CPU: f32 loses a thousandth over a vocabulary added one by one
LEAST_T = -87.0  # exp of less is 0 to f32's range, but times a t of -1e38 it would not be


def _measure_cpu(name: str, p: Params):
    vocab, padded = int(p["n"]), int(p["padded"])
    fours = vocab // 4

    def body(share, args, logits, stats):
        with share.of(args[1]) as row:
            tops, sums, weighted = local(1, F32X4), local(1, F32X4), local(1, F32X4)
            t4, e4 = local(1, F32X4), local(1, F32X4)
            top, t1, e1 = local(1, "float32"), local(1, "float32"), local(1, "float32")
            total, moment = local(1, "float32"), local(1, "float32")
            store(tops, 0, splat(f32(LOWEST)))
            with T.serial(0, fours) as i:
                store(tops, 0, T.max(tops[0], load4(logits, row * padded + i * 4)))
            store(top, 0, max_lanes(tops[0]))
            for i in range(fours * 4, vocab):
                store(top, 0, T.max(top[0], logits[row * padded + i]))
            store(total, 0, f32(0))
            store(moment, 0, f32(0))
            with T.serial(0, ceil_div(fours, BLOCK)) as block:
                store(sums, 0, splat(f32(0)))
                store(weighted, 0, splat(f32(0)))
                with T.serial(block * BLOCK, T.min(block * BLOCK + BLOCK, fours)) as i:
                    t = load4(logits, row * padded + i * 4) - splat(top[0])
                    store(t4, 0, T.max(t, splat(f32(LEAST_T))))
                    store(e4, 0, exp4(t4[0]))
                    store(sums, 0, sums[0] + e4[0])
                    store(weighted, 0, weighted[0] + e4[0] * t4[0])
                store(total, 0, total[0] + sum_lanes(sums[0]))
                store(moment, 0, moment[0] + sum_lanes(weighted[0]))
            for i in range(fours * 4, vocab):
                store(t1, 0, T.max(logits[row * padded + i] - top[0], f32(LEAST_T)))
                store(e1, 0, exp1(t1[0]))
                store(total, 0, total[0] + e1[0])
                store(moment, 0, moment[0] + e1[0] * t1[0])
            log_total = T.bind(log1(total[0]))
            at = T.bind(out_row(args, row) * STATS_FIELDS)
            store(stats, at, f32(0) - log_total)
            store(stats, at + 1, log_total - moment[0] / total[0])

    return cpu_func(name, [("args", ARGS, "int32"), logits_buffer(p), STATS], body)


class _Sums:
    """GPU: S and W of each thread, then of `size` neighbouring threads in the first."""

    def __init__(self, num_threads: int):
        self.totals, self.moments = shared(num_threads, "float32"), shared(num_threads, "float32")
        self.total, self.moment = local(1, "float32"), local(1, "float32")
        store(self.total, 0, f32(0))
        store(self.moment, 0, f32(0))

    def put(self, total, moment) -> None:
        """Add to this thread's own."""
        store(self.total, 0, self.total[0] + total)
        store(self.moment, 0, self.moment[0] + moment)

    def combined(self, tx, lane_id, size: int) -> tuple:
        """The sums; whole for the first of each `size` threads. Only in uniform control flow."""
        store(self.totals, tx, self.total[0])
        store(self.moments, tx, self.moment[0])
        barrier()

        def combine(step: int) -> None:
            for sums in (self.totals, self.moments):
                store(sums, tx, add(sums[tx], sums[tx + step]))

        tree(lane_id, size, combine)
        return self.totals[tx], self.moments[tx]


def _measure_split_gpu(name: str, p: Params, named: bool = False):
    """argmax_split, and the chunk's S and W with t from the chunk's largest."""

    def more(each, tx, top):
        sums = _Sums(THREADS)

        def use(value, _) -> None:
            t = T.bind(T.max(value - top, f32(LEAST_T)))
            e = T.bind(T.exp(t))
            sums.put(e, e * t)

        each(use)
        return sums.combined(tx, tx, THREADS)

    return argmax_split_gpu(name, p, MEASURED, more, named)


def _measure_merge_gpu(name: str, p: Params):
    """argmax_merge, and the row's statistics: a chunk's t becomes t + d, d its largest minus the row's."""

    def more(each, partial, tx, lane_id, top):
        sums = _Sums(int(p["m"]) * MERGE_LANES)

        def use(at) -> None:
            def word(i: int):
                return T.bind(T.reinterpret("float32", partial[at + i]))

            d = T.bind(T.max(word(0) - top, f32(LEAST_T)))
            e, total, moment = T.bind(T.exp(d)), word(PARTIAL), word(PARTIAL + 1)
            sums.put(e * total, e * (moment + d * total))

        each(use)
        total, moment = sums.combined(tx, lane_id, MERGE_LANES)
        log_total = T.bind(T.log(total))
        return f32(0) - log_total, log_total - moment / total

    return argmax_merge_gpu(name, p, MEASURED, more)


_LOGITS = (("args", "read"), ("logits", "read"))
_RESULTS = (("out", "write"), ("stats", "write"), ("done", "write"))
MEASURE = Op("measure", cpu=Form((*_LOGITS, ("stats", "write")), _measure_cpu, by_row))
MEASURE_SPLIT = Op("measure_split", gpu=Form((*_LOGITS, ("partial", "write")), _measure_split_gpu))
MEASURE_SPLIT_NAMED = Op(
    "measure_split_named",
    gpu=Form((*_LOGITS, ("ids", "read"), ("partial", "write")), partial(_measure_split_gpu, named=True)),
)
MEASURE_MERGE = Op(
    "measure_merge", gpu=Form((STATE[0], ("partial", "read"), STATE[1], *_RESULTS), _measure_merge_gpu)
)
