"""From logits to ids: argmax (largest value, then lowest id), advance (token feedback) and score (teacher forcing). Row-invariant.

Only ids below the true vocabulary size are looked at; a row with a NaN or Inf logit gets finite flag 0 and some valid id. Row i's id
and flag go to row args[3] + i of out; with feedback, args[3] moves on with the position, so that several passes of one submit leave
all their rows there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from tvm.script.ir_builder import tirx as T

from .base import ARGS, MAX_ROWS, OUT_ROWS, Form, Op, Params, by_row
from .ir import (
    F32X4,
    I32X4,
    add,
    barrier,
    cpu_func,
    exp4,
    f32,
    is_finite_bits,
    lane,
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

LOWEST = -3.4e38


def logits_buffer(p: Params) -> tuple[str, int, str]:
    return ("logits", int(p["m"]) * int(p["padded"]), "float32")


def _consider(value, index, best, best_id):
    """Keep (value, index) when larger, or equal with a lower index."""
    better = T.Or(value > best[0], T.And(value == best[0], index < best_id[0]))
    with when(better):
        store(best, 0, value)
        store(best_id, 0, index)


# --- argmax ------------------------------------------------------------------------------------------------------------
# The named forms are for a head that covers some ids only: logit i stands for id ids[i]. The ids ascend: the lowest of equals stays it.


def names_buffer(p: Params, named: bool) -> list[tuple[str, int, str]]:
    return [("ids", int(p["n"]), "int32")] if named else []


def _name(names: list, index):
    """The id of a logit's index; names: the buffer ids, or nothing."""
    return names[0][index] if names else index


def _argmax_cpu(name: str, p: Params, named: bool = False):
    vocab, padded = int(p["n"]), int(p["padded"])
    fours = vocab // 4

    def body(share, args, logits, *rest):
        *names, out = rest
        with share.of(args[1]) as row:
            top, ids, ok = local(1, F32X4), local(1, I32X4), local(1, I32X4)
            best, best_id, good = local(1, "float32"), local(1, "int32"), local(1, "int32")
            store(top, 0, splat(f32(LOWEST)))
            store(ids, 0, splat(T.int32(0)))
            store(ok, 0, splat(T.int32(1)))
            with T.serial(0, fours) as i:
                value = T.bind(load4(logits, row * padded + i * 4))
                larger = value > top[0]
                store(ids, 0, T.Select(larger, T.Ramp(i * 4, 1, 4), ids[0]))
                store(top, 0, T.Select(larger, value, top[0]))
                store(ok, 0, T.Select(is_finite_bits(value, 4), ok[0], splat(T.int32(0))))
            store(best, 0, lane(top[0], 0))
            store(best_id, 0, lane(ids[0], 0))
            store(
                good, 0, T.min(T.min(lane(ok[0], 0), lane(ok[0], 1)), T.min(lane(ok[0], 2), lane(ok[0], 3)))
            )
            for j in range(1, 4):
                _consider(lane(top[0], j), lane(ids[0], j), best, best_id)
            for i in range(fours * 4, vocab):
                value = T.bind(logits[row * padded + i])
                _consider(value, T.int32(i), best, best_id)
                store(good, 0, T.Select(is_finite_bits(value), good[0], T.int32(0)))
            at = T.bind(out_row(args, row) * 2)
            store(out, at, _name(names, best_id[0]))
            store(out, at + 1, good[0])

    inputs = [("args", ARGS, "int32"), logits_buffer(p), *names_buffer(p, named)]
    return cpu_func(name, [*inputs, ("out", OUT_ROWS * 2, "int32")], body)


THREADS = 256


CHUNK = 4096  # logits one workgroup of argmax_split looks at
NOISY_CHUNK = 1024  # of the forms that make noise, which are bound by arithmetic
PARTIAL = 3  # value bits, id, finite flag
STATS_FIELDS = 2  # of a row: log-probability of the argmax id, entropy (measure.py)
STATS = ("stats", OUT_ROWS * STATS_FIELDS, "float32")


def num_chunks(vocab: int, chunk: int = CHUNK) -> int:
    """Workgroups a row of argmax_split takes."""
    return -(-vocab // chunk)


def _partial(p: Params, words: int, chunk: int) -> tuple[str, int, str]:
    return ("partial", int(p["m"]) * num_chunks(int(p["n"]), chunk) * words, "int32")


def _argmax_tree(values, ids, goods, tx, lane_id, best, best_id, size: int) -> None:
    """Combine (value, id, flag) of `size` neighbouring threads into the first; best and best_id are this thread's own."""

    def combine(step: int) -> None:
        _consider(values[tx + step], ids[tx + step], best, best_id)
        store(values, tx, best[0])
        store(ids, tx, best_id[0])
        store(goods, tx, T.min(goods[tx], goods[tx + step]))

    tree(lane_id, size, combine)


def argmax_split_gpu(
    name: str,
    p: Params,
    words: int = PARTIAL,
    more: Callable | None = None,
    named: bool = False,
    weigh: tuple[list[tuple[str, int, str]], Callable] = ([], lambda logit, token_id, row, args: logit),
    results: Sequence[tuple[str, int, str]] = (),
    stride: int = 0,
):
    """What one workgroup finds in a chunk: PARTIAL words, and behind them what more(each, tx, the chunk's largest) gives thread 0;
    each(use) calls use(value, index) for the logits that fall to a thread. weigh: further inputs, and what is compared in place of
    a logit, from (logit, its id, row, args, these inputs, results); results: what that writes, behind `partial`. stride: elements of a
    row of logits, where they are not `padded`."""
    m, vocab, stride = int(p["m"]), int(p["n"]), stride or int(p["padded"])
    weights, weighed = weigh
    size = NOISY_CHUNK if weights else CHUNK
    chunks = num_chunks(vocab, size)

    def body(args, logits, *rest):
        end = len(rest) - len(results)
        *names, partial = rest[len(weights) : end]
        own = rest[: len(weights)] + rest[end:]
        with threads(chunks, m, 1, THREADS) as (chunk, row, _, tx):
            values, ids, goods = (
                shared(THREADS, "float32"),
                shared(THREADS, "int32"),
                shared(THREADS, "int32"),
            )
            best, best_id, good = local(1, "float32"), local(1, "int32"), local(1, "int32")

            def take(i, use: Callable) -> None:
                at = T.bind(chunk * size + i * THREADS + tx)
                with when(at < vocab):
                    use(T.bind(logits[row * stride + at]), at)

            def each(use: Callable) -> None:
                with when(row < args[1]), T.serial(0, size // THREADS) as i:
                    take(i, use)

            def consider(logit, at) -> None:
                _consider(weighed(logit, _name(names, at), row, args, *own), at, best, best_id)
                store(good, 0, T.Select(is_finite_bits(logit), good[0], T.int32(0)))

            store(best, 0, f32(LOWEST))
            store(best_id, 0, T.int32(vocab - 1))
            store(good, 0, T.int32(1))
            if weights:  # too much work to write out for each
                each(consider)
            else:
                with when(row < args[1]):
                    for i in range(size // THREADS):
                        take(i, consider)
            store(values, tx, best[0])
            store(ids, tx, best_id[0])
            store(goods, tx, good[0])
            barrier()
            _argmax_tree(values, ids, goods, tx, tx, best, best_id, THREADS)
            extra = more(each, tx, values[0]) if more else ()
            with when(T.And(tx == 0, row < args[1])):
                at = T.bind((row * chunks + chunk) * words)
                store(partial, at, T.reinterpret("int32", values[0]))
                store(partial, at + 1, _name(names, ids[0]))
                store(partial, at + 2, goods[0])
                for i, value in enumerate(extra):
                    store(partial, at + PARTIAL + i, T.reinterpret("int32", value))

    logits_of = ("logits", m * stride, "float32")
    inputs = [("args", ARGS, "int32"), logits_of, *weights, *names_buffer(p, named)]
    return prim_func(name, [*inputs, _partial(p, words, size), *results], body)


MERGE_LANES = 32  # threads that merge one row's chunks


def argmax_merge_gpu(
    name: str, p: Params, words: int = PARTIAL, more: Callable | None = None, chunk: int = CHUNK
):
    """One workgroup merges the chunks of every row, then advances: the last dispatch of a pass. more(each, partial, tx, lane, the row's
    largest) gives what each row's first thread writes to stats; each(use) calls use(first word) for a thread's chunks."""
    m, chunks = int(p["m"]), num_chunks(int(p["n"]), chunk)

    def body(args, partial, tokens, out, *rest):
        size, (*stats, done) = m * MERGE_LANES, rest
        with threads(1, 1, 1, size) as (_, _, _, tx):
            values, ids, goods = shared(size, "float32"), shared(size, "int32"), shared(size, "int32")
            best, best_id, good = local(1, "float32"), local(1, "int32"), local(1, "int32")
            row, lane_id = T.bind(T.truncdiv(tx, MERGE_LANES)), T.bind(T.truncmod(tx, MERGE_LANES))
            rows = local(1, "int32")
            first_row = local(1, "int32")

            def each(use: Callable) -> None:
                with T.serial(0, -(-chunks // MERGE_LANES)) as i:
                    number = T.bind(i * MERGE_LANES + lane_id)
                    with when(T.And(number < chunks, row < args[1])):
                        use(T.bind((row * chunks + number) * words))

            def consider(at) -> None:
                _consider(T.reinterpret("float32", partial[at]), partial[at + 1], best, best_id)
                store(good, 0, T.min(good[0], partial[at + 2]))

            # before the barriers: thread 0 overwrites them while other rows still write
            store(rows, 0, args[1])
            store(first_row, 0, out_row(args, 0))
            store(best, 0, f32(LOWEST))
            store(best_id, 0, T.int32(int(p["n"]) - 1))
            store(good, 0, T.int32(1))
            each(consider)
            store(values, tx, best[0])
            store(ids, tx, best_id[0])
            store(goods, tx, good[0])
            barrier()
            _argmax_tree(values, ids, goods, tx, lane_id, best, best_id, MERGE_LANES)
            found = more(each, partial, tx, lane_id, values[row * MERGE_LANES]) if more else ()
            with when(T.And(lane_id == 0, row < rows[0])):
                at = T.bind((first_row[0] + row) * 2)
                store(out, at, ids[tx])
                store(
                    out, at + 1, T.Select(values[tx] > f32(LOWEST), goods[tx], T.int32(0))
                )  # else all are banned
                for i, value in enumerate(found):
                    store(stats[0], at + i, value)
            with when(tx == 0):
                _advance(args, tokens, ids[(T.max(args[1], 1) - 1) * MERGE_LANES], done)

    params = [("args", ARGS, "int32"), _partial(p, words, chunk), ("tokens", int(p["tokens"]), "int32")]
    results = [("out", OUT_ROWS * 2, "int32"), *([STATS] if more else []), ("done", 1, "int32")]
    return prim_func(name, [*params, *results], body)


# --- advance -----------------------------------------------------------------------------------------------------------


def out_row(args, row):
    """Where a row's id and flag go; never past the end, whatever the host wrote."""
    return T.min(T.max(args[3], 0), OUT_ROWS - args[1]) + row


def _advance(args, tokens, token, done):
    """Feedback: the last row's token becomes the next position's input."""
    store(done, 0, T.int32(1))
    with when(args[2] == 1):
        rows = T.bind(args[1])
        start = T.bind(args[0])
        store(tokens, start + rows, token)
        store(args, 0, start + rows)
        store(args, 1, T.int32(1))
        store(args, 3, args[3] + rows)


def _advance_body(share, args, tokens, out, done):
    with share.whole():
        _advance(args, tokens, out[out_row(args, args[1] - 1) * 2], done)


def _advance_params(p: Params):
    out = ("out", OUT_ROWS * 2, "int32")
    return [("args", ARGS, "int32"), ("tokens", int(p["tokens"]), "int32"), out, ("done", 1, "int32")]


def _advance_cpu(name: str, p: Params):
    return cpu_func(name, _advance_params(p), _advance_body)


# --- score -------------------------------------------------------------------------------------------------------------

SCORE_FIELDS = 3  # margin (top-1 minus top-2 logit), logprob of the given id, top-1 logit


def _score_params(p: Params):
    ids = ("score_ids", MAX_ROWS, "int32")
    return [("args", ARGS, "int32"), logits_buffer(p), ids, ("score", MAX_ROWS * SCORE_FIELDS, "float32")]


def _push(value, first, second):
    """Keep the two largest values."""
    store(second, 0, T.max(second[0], T.min(first[0], value)))
    store(first, 0, T.max(first[0], value))


def _given(score_ids, row, vocab: int):
    return T.max(T.min(score_ids[row], T.int32(vocab - 1)), T.int32(0))


def _score_cpu(name: str, p: Params):
    vocab, padded = int(p["n"]), int(p["padded"])
    fours = vocab // 4

    def body(share, args, logits, score_ids, score):
        with share.of(args[1]) as row:
            tops, seconds, sums = local(1, F32X4), local(1, F32X4), local(1, F32X4)
            first, second, total = local(1, "float32"), local(1, "float32"), local(1, "float32")
            store(tops, 0, splat(f32(LOWEST)))
            store(seconds, 0, splat(f32(LOWEST)))
            with T.serial(0, fours) as i:
                _push(T.bind(load4(logits, row * padded + i * 4)), tops, seconds)
            store(first, 0, lane(tops[0], 0))
            store(second, 0, max_lanes(seconds[0]))
            for j in range(1, 4):
                _push(T.bind(lane(tops[0], j)), first, second)
            for i in range(fours * 4, vocab):
                _push(T.bind(logits[row * padded + i]), first, second)
            store(sums, 0, splat(f32(0)))
            with T.serial(0, fours) as i:
                store(sums, 0, sums[0] + exp4(load4(logits, row * padded + i * 4) - splat(first[0])))
            store(total, 0, sum_lanes(sums[0]))
            for i in range(fours * 4, vocab):
                store(total, 0, total[0] + lane(exp4(splat(logits[row * padded + i] - first[0])), 0))
            given = logits[row * padded + _given(score_ids, row, vocab)]
            store(score, row * SCORE_FIELDS, first[0] - second[0])
            store(score, row * SCORE_FIELDS + 1, given - first[0] - log1(total[0]))
            store(score, row * SCORE_FIELDS + 2, first[0])

    return cpu_func(name, _score_params(p), body)


def _score_gpu(name: str, p: Params):
    m, vocab, padded = int(p["m"]), int(p["n"]), int(p["padded"])

    def body(args, logits, score_ids, score):
        with threads(m, 1, 1, THREADS) as (row, _, _, tx):
            a, b = shared(THREADS, "float32"), shared(THREADS, "float32")
            first, second, total = local(1, "float32"), local(1, "float32"), local(1, "float32")
            store(first, 0, f32(LOWEST))
            store(second, 0, f32(LOWEST))
            with when(row < args[1]), T.serial(0, -(-vocab // THREADS)) as i:
                at = T.bind(i * THREADS + tx)
                with when(at < vocab):
                    _push(T.bind(logits[row * padded + at]), first, second)
            store(a, tx, first[0])
            store(b, tx, second[0])

            def two_largest(step: int) -> None:
                store(b, tx, T.max(T.max(b[tx], b[tx + step]), T.min(a[tx], a[tx + step])))
                store(a, tx, T.max(a[tx], a[tx + step]))

            barrier()
            tree(tx, THREADS, two_largest)
            store(first, 0, a[0])
            store(second, 0, b[0])
            barrier()
            store(total, 0, f32(0))
            with when(row < args[1]), T.serial(0, -(-vocab // THREADS)) as i:
                at = T.bind(i * THREADS + tx)
                with when(at < vocab):
                    store(total, 0, total[0] + T.exp(logits[row * padded + at] - first[0]))
            store(a, tx, total[0])
            barrier()
            tree_of(a, tx, THREADS, add)
            with when(T.And(tx == 0, row < args[1])):
                given = logits[row * padded + _given(score_ids, row, vocab)]
                store(score, row * SCORE_FIELDS, first[0] - second[0])
                store(score, row * SCORE_FIELDS + 1, given - first[0] - T.log(a[0]))
                store(score, row * SCORE_FIELDS + 2, first[0])

    return prim_func(name, _score_params(p), body)


_LOGITS = (("args", "read"), ("logits", "read"))
STATE = (("args", "read_write"), ("tokens", "read_write"))
ARGMAX = Op("argmax", cpu=Form((*_LOGITS, ("out", "write")), _argmax_cpu, by_row))
ARGMAX_NAMED = Op(
    "argmax_named",
    cpu=Form((*_LOGITS, ("ids", "read"), ("out", "write")), partial(_argmax_cpu, named=True), by_row),
)
ADVANCE = Op("advance", cpu=Form((*STATE, ("out", "read"), ("done", "write")), _advance_cpu))
ARGMAX_SPLIT = Op("argmax_split", gpu=Form((*_LOGITS, ("partial", "write")), argmax_split_gpu))
ARGMAX_SPLIT_NAMED = Op(
    "argmax_split_named",
    gpu=Form((*_LOGITS, ("ids", "read"), ("partial", "write")), partial(argmax_split_gpu, named=True)),
)
_MERGE = (STATE[0], ("partial", "read"), STATE[1], ("out", "write"), ("done", "write"))
ARGMAX_MERGE = Op("argmax_merge", gpu=Form(_MERGE, argmax_merge_gpu))
SAMPLE_MERGE = Op("sample_merge", gpu=Form(_MERGE, partial(argmax_merge_gpu, chunk=NOISY_CHUNK)))
_SCORE_ARGS = (*_LOGITS, ("score_ids", "read"), ("score", "write"))
SCORE = Op("score", Form(_SCORE_ARGS, _score_cpu, by_row), Form(_SCORE_ARGS, _score_gpu))
