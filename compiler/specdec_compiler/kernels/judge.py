"""The accept rules of `reject` and `block` on the device, as decode/rules.py has them: after a verify pass, what stands, what follows.

weigh   z = (logit + bias) / T of the pass's rows; a pass that filters leaves its z itself
stats   of each row of z, and of each draft's row of q: the largest, 1 / sum of exp, the draft's probability, 1 where all is finite
mass    `block` only: s_i, the sum of [w_i p - q]+ of each row that has a draft before and after it
verdict the number of accepted drafts and the draw after them: to row (round of the submit) of `target.verdict`: accepted, id, flags, 0
ids     the rows of `out` up to there: accepted drafts and the id after them, where log-probabilities look for what is committed

p and q are computed by the same operations from z and q, the row that the draft was drawn from. A draft whose q is not finite ends the
drafts: the row before it gives the bonus. A target row that is not finite is not judged by: where the accepted drafts end there, the
verdict is undecided. Float order depends on the number of ids only.
"""

from __future__ import annotations

from specdec_runtime.decode.rng import ACCEPT, RESIDUAL
from specdec_runtime.plan.sampling_layout import BLOCK_RULE, FLAGS, LEAST
from specdec_runtime.plan.schema import VERDICT_FIELDS
from tvm.script.ir_builder import tirx as T

from .accept import DECIDED, VERDICT, verdict_row
from .base import ARGS, MAX_ROWS, OUT_ROWS, Form, Op, Params, ceil_div
from .draw import MARGIN, THREADS, CpuSearch, GpuSearch, cycle_place, q_buffer, weigh, weigh4
from .ir import (
    F32X4,
    I32X4,
    add,
    barrier,
    cpu_func,
    exp1,
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
    store4,
    sum_lanes,
    threads,
    tree_of,
    when,
)
from .noise import FLOATS, INTS, random_bits, uniform
from .select import LOWEST, out_row

FELL_BACK = 2  # bit of a verdict's flags, beside DECIDED
STATS_WORDS = 4  # largest, 1 / sum, the draft's probability, finite
TOP, SCALE, CHANCE, FINE = range(STATS_WORDS)
DRAFTS = MAX_ROWS - 1
FAR = -87.0  # exp of less is 0
BELOW_1 = 1 - 2.0**-24  # the largest uniform
ADDED = 256  # fours added at a time on the CPU: f32 loses a thousandth over a vocabulary added one by one
STATS = ("stats", 2 * MAX_ROWS * STATS_WORDS, "float32")
MASS = ("mass", MAX_ROWS, "float32")
ARGS_BUFFER = ("args", ARGS, "int32")


def _z(p: Params) -> tuple[str, int, str]:
    return ("z", MAX_ROWS * int(p["columns"]), "float32")


# --- weigh ---------------------------------------------------------------------------------------------------------------


def _weigh_params(p: Params):
    logits, bias = ("logits", MAX_ROWS * int(p["columns"]), "float32"), ("bias", int(p["columns"]), "float32")
    return [ARGS_BUFFER, logits, INTS, FLOATS, bias, _z(p)]


def _weigh_cpu(name: str, p: Params):
    columns = int(p["columns"])

    def body(share, args, logits, ints, floats, bias, z):
        with share.of(args[1]) as row, T.serial(0, columns // 4) as i:
            at = T.bind(row * columns + i * 4)
            store4(z, at, weigh4(logits, at, ints, floats, bias, i * 4))

    return cpu_func(name, _weigh_params(p), body)


def _weigh_gpu(name: str, p: Params):
    columns, vocab = int(p["columns"]), int(p["vocab"])

    def body(args, logits, ints, floats, bias, z):
        with threads(ceil_div(vocab, THREADS), MAX_ROWS, 1, THREADS) as (block, row, _, tx):
            token_id = T.bind(block * THREADS + tx)
            with when(T.And(row < args[1], token_id < vocab)):
                at = T.bind(row * columns + token_id)
                store(z, at, weigh(logits[at], ints, floats, bias, token_id))

    return prim_func(name, _weigh_params(p), body)


# --- stats ---------------------------------------------------------------------------------------------------------------


def _part(z, top, exp):
    """exp(z - top), 0 of what is banned or far below."""
    t = T.bind(z - top)
    return T.Select(T.And(z > f32(LEAST), t > f32(FAR)), exp(T.max(t, f32(FAR))), f32(0))


def _part4(z, top):
    """The same of four; z and top are read more than once."""
    t = local(1, F32X4)
    store(t, 0, z - splat(top))
    zero = splat(f32(0))
    kept = T.Select(t[0] > splat(f32(FAR)), exp4(T.max(t[0], splat(f32(FAR)))), zero)
    return T.Select(z > splat(f32(LEAST)), kept, zero)


def _drafted(tokens, args, row, vocab: int):
    """The draft that a row of p or q judges; any id where there is none."""
    return T.max(T.min(tokens[args[0] + 1 + row], vocab - 1), 0)


def _stats_params(p: Params):
    return [ARGS_BUFFER, ("tokens", int(p["tokens"]), "int32"), _z(p), q_buffer(p), STATS]


def _row_stats_cpu(rows, base, to, drafted, vocab: int, stats):
    """One row, of z or of q, from its element `base` on."""
    ok, tops, sums, z = local(1, I32X4), local(1, F32X4), local(1, F32X4), local(1, F32X4)
    top, total, fine = local(1, "float32"), local(1, "float32"), local(1, "int32")
    store(ok, 0, splat(T.int32(1)))
    store(tops, 0, splat(f32(LOWEST)))
    store(total, 0, f32(0))
    fours = vocab // 4
    with T.serial(0, fours) as i:
        store(z, 0, load4(rows, base + i * 4))
        store(tops, 0, T.max(tops[0], z[0]))
        store(ok, 0, T.Select(is_finite_bits(z[0], 4), ok[0], splat(T.int32(0))))
    store(top, 0, max_lanes(tops[0]))
    store(fine, 0, T.min(T.min(lane(ok[0], 0), lane(ok[0], 1)), T.min(lane(ok[0], 2), lane(ok[0], 3))))
    for i in range(fours * 4, vocab):
        store(top, 0, T.max(top[0], rows[base + i]))
        store(fine, 0, T.Select(is_finite_bits(rows[base + i]), fine[0], T.int32(0)))
    with T.serial(0, ceil_div(fours, ADDED)) as block:
        store(sums, 0, splat(f32(0)))
        with T.serial(block * ADDED, T.min(block * ADDED + ADDED, fours)) as i:
            store(z, 0, load4(rows, base + i * 4))
            store(sums, 0, sums[0] + _part4(z[0], top[0]))
        store(total, 0, total[0] + sum_lanes(sums[0]))
    for i in range(fours * 4, vocab):
        store(total, 0, total[0] + _part(rows[base + i], top[0], exp1))
    chance = T.bind(_part(rows[base + drafted], top[0], exp1))
    _store_stats(stats, to, top[0], total[0], chance, fine[0])


def _store_stats(stats, to, top, total, part, fine) -> None:
    alive = T.And(fine == 1, top > f32(LEAST))  # else all ids are banned
    scale = local(1, "float32")
    store(scale, 0, f32(0))
    with when(alive):
        store(scale, 0, f32(1) / total)
    store(stats, to + TOP, top)
    store(stats, to + SCALE, scale[0])
    store(stats, to + CHANCE, part * scale[0])
    store(stats, to + FINE, T.Select(alive, f32(1), f32(0)))


def _stats_cpu(name: str, p: Params):
    columns, vocab = int(p["columns"]), int(p["vocab"])

    def body(share, args, tokens, z, q, stats):
        with share.of(T.max(2 * args[1] - 1, 0)) as index:
            with when(index < args[1]):
                drafted = _drafted(tokens, args, index, vocab)
                _row_stats_cpu(z, index * columns, index * STATS_WORDS, drafted, vocab, stats)
            with when(index >= args[1]):
                row = T.bind(index - args[1])
                drafted = _drafted(tokens, args, row, vocab)
                to = T.bind((MAX_ROWS + row) * STATS_WORDS)
                _row_stats_cpu(q, row * columns, to, drafted, vocab, stats)

    return cpu_func(name, _stats_params(p), body)


def _stats_gpu(name: str, p: Params):
    """A workgroup a row: those of z, then those of q."""
    columns, vocab = int(p["columns"]), int(p["vocab"])

    def body(args, tokens, z, q, stats):
        with threads(MAX_ROWS, 2, 1, THREADS) as (row, which, _, tx):
            tops, totals, goods = (
                shared(THREADS, "float32"),
                shared(THREADS, "float32"),
                shared(THREADS, "int32"),
            )
            number, top, total, fine = (
                local(1, "float32"),
                local(1, "float32"),
                local(1, "float32"),
                local(1, "int32"),
            )
            wanted = T.bind(row < args[1] - which)

            def load(token_id):
                at = T.bind(row * columns + token_id)
                with when(which == 0):
                    store(number, 0, z[at])
                with when(which == 1):
                    store(number, 0, q[at])

            def each(use) -> None:
                with T.serial(0, ceil_div(vocab, THREADS)) as i:
                    at = T.bind(i * THREADS + tx)
                    with when(T.And(wanted, at < vocab)):
                        load(at)
                        use()

            def first() -> None:
                store(top, 0, T.max(top[0], number[0]))
                store(fine, 0, T.Select(is_finite_bits(number[0]), fine[0], T.int32(0)))

            def second() -> None:
                store(total, 0, total[0] + _part(number[0], tops[0], T.exp))

            store(top, 0, f32(LOWEST))
            store(total, 0, f32(0))
            store(fine, 0, T.int32(1))
            each(first)
            store(tops, tx, top[0])
            store(goods, tx, fine[0])
            barrier()
            tree_of(tops, tx, THREADS, T.max)
            tree_of(goods, tx, THREADS, T.min)
            each(second)
            store(totals, tx, total[0])
            barrier()
            tree_of(totals, tx, THREADS, add)
            with when(T.And(tx == 0, wanted)):
                load(_drafted(tokens, args, row, vocab))
                part = T.bind(_part(number[0], tops[0], T.exp))
                to = T.bind((which * MAX_ROWS + row) * STATS_WORDS)
                _store_stats(stats, to, tops[0], totals[0], part, goods[0])

    return prim_func(name, _stats_params(p), body)


# --- mass ----------------------------------------------------------------------------------------------------------------


def _q_at(index: int):
    return (MAX_ROWS + index) * STATS_WORDS


def _next_weight(weight, p_x, q_x):
    """w_i from w_{i-1}: min(1, w p / q), by a product where it is 1; 0 where p is."""
    reached = T.bind(weight * p_x)
    divided = local(1, "float32")
    store(divided, 0, f32(0))
    with when(reached > f32(0)):
        store(divided, 0, f32(1))
        with when(reached < q_x):
            store(divided, 0, reached / q_x)
    return divided[0]


def _weight_before(stats, row):
    """w of the drafts before a row."""
    weight = local(1, "float32")
    store(weight, 0, f32(1))
    for i in range(DRAFTS):
        with when(row > i):
            p_x, q_x = stats[i * STATS_WORDS + CHANCE], stats[_q_at(i) + CHANCE]
            store(weight, 0, _next_weight(weight[0], p_x, q_x))
    return weight[0]


def _uses_block(ints):
    return T.bitwise_and(ints[FLAGS], BLOCK_RULE) != 0


def _mass_params(p: Params):
    return [ARGS_BUFFER, _z(p), q_buffer(p), STATS, INTS, MASS]


class _Rows:
    """p and q of one row, as both devices compute them: from z, q and their stats."""

    def __init__(self, p: Params, z, q, stats, row, exp):
        self.z, self.q, self.exp = z, q, exp
        self.base = T.bind(row * int(p["columns"]))
        at, q_at = T.bind(row * STATS_WORDS), T.bind((MAX_ROWS + T.min(row, DRAFTS - 1)) * STATS_WORDS)
        self.q_base = T.bind(T.min(row, DRAFTS - 1) * int(p["columns"]))
        self.p_top, self.p_scale = T.bind(stats[at + TOP]), T.bind(stats[at + SCALE])
        self.q_top, self.q_scale = T.bind(stats[q_at + TOP]), T.bind(stats[q_at + SCALE])

    def residual(self, token_id, weight):
        """[weight * p - q]+ of one id."""
        p = T.bind(_part(self.z[self.base + token_id], self.p_top, self.exp) * self.p_scale)
        q = T.bind(_part(self.q[self.q_base + token_id], self.q_top, self.exp) * self.q_scale)
        return T.max(weight * p - q, f32(0))

    def residual4(self, token_id, weight):
        numbers = local(2, F32X4)
        store(numbers, 0, load4(self.z, self.base + token_id))
        store(numbers, 1, load4(self.q, self.q_base + token_id))
        p = _part4(numbers[0], self.p_top) * splat(self.p_scale)
        q = _part4(numbers[1], self.q_top) * splat(self.q_scale)
        return T.max(splat(weight) * p - q, splat(f32(0)))


def _mass_cpu(name: str, p: Params):
    vocab = int(p["vocab"])
    fours = vocab // 4

    def body(share, args, z, q, stats, ints, mass):
        with share.of(T.Select(_uses_block(ints), T.max(args[1] - 1, 0), T.int32(0))) as row:
            weight, rows = T.bind(_weight_before(stats, row)), _Rows(p, z, q, stats, row, exp1)
            total, sums = local(1, "float32"), local(1, F32X4)
            store(total, 0, f32(0))
            with T.serial(0, ceil_div(fours, ADDED)) as block:
                store(sums, 0, splat(f32(0)))
                with T.serial(block * ADDED, T.min(block * ADDED + ADDED, fours)) as i:
                    store(sums, 0, sums[0] + rows.residual4(i * 4, weight))
                store(total, 0, total[0] + sum_lanes(sums[0]))
            for i in range(fours * 4, vocab):
                store(total, 0, total[0] + rows.residual(T.int32(i), weight))
            store(mass, row, total[0])

    return cpu_func(name, _mass_params(p), body)


def _mass_gpu(name: str, p: Params):
    vocab = int(p["vocab"])

    def body(args, z, q, stats, ints, mass):
        with threads(DRAFTS, 1, 1, THREADS) as (row, _, _, tx):
            totals, total = shared(THREADS, "float32"), local(1, "float32")
            wanted = T.bind(T.And(_uses_block(ints), row < args[1] - 1))
            store(total, 0, f32(0))
            with when(wanted):
                weight, rows = T.bind(_weight_before(stats, row)), _Rows(p, z, q, stats, row, T.exp)
                with T.serial(0, ceil_div(vocab, THREADS)) as i:
                    at = T.bind(i * THREADS + tx)
                    with when(at < vocab):
                        store(total, 0, total[0] + rows.residual(at, weight))
            store(totals, tx, total[0])
            barrier()
            tree_of(totals, tx, THREADS, add)
            with when(T.And(tx == 0, wanted)):
                store(mass, row, totals[0])

    return prim_func(name, _mass_params(p), body)


# --- verdict -------------------------------------------------------------------------------------------------------------


def _verdict_params(p: Params):
    out = ("out", OUT_ROWS * 2, "int32")
    return [ARGS_BUFFER, _z(p), q_buffer(p), STATS, MASS, INTS, out, VERDICT]


class _Count:
    """How many drafts stand: `accepted` of `judged`, w there, and whether the row after them can be drawn from."""

    def __init__(self, args, stats, mass, ints, out):
        self.args, self.stats, self.ints, self.out = args, stats, ints, out
        self.judged, self.accepted, self.decided = local(1, "int32"), local(1, "int32"), local(1, "int32")
        self.weight = local(1, "float32")  # of the residual after the accepted ones
        self._find_judged()
        store(self.accepted, 0, T.int32(0))
        store(self.weight, 0, f32(1))
        with when(_uses_block(ints)):
            self._count_block(mass)
        with when(T.bitwise_and(ints[FLAGS], BLOCK_RULE) == 0):
            self._count_reject()
        row_is_fine = self._row_is_fine(self.accepted[0])
        store(self.decided, 0, T.Select(row_is_fine, T.int32(1), T.int32(0)))

    def _row_is_fine(self, row):
        said = self.out[(out_row(self.args, 0) + row) * 2 + 1] == 1
        return T.And(said, self.stats[row * STATS_WORDS + FINE] == f32(1))

    def _find_judged(self) -> None:
        """Drafts before the first whose row of p or q is of no use."""
        going = local(1, "int32")
        store(going, 0, T.int32(1))
        store(self.judged, 0, T.int32(0))
        for i in range(DRAFTS):
            with when(i >= self.args[1] - 1):
                store(going, 0, T.int32(0))
            with when(going[0] == 1):
                fine = T.And(self._row_is_fine(T.int32(i)), self.stats[_q_at(i) + FINE] == f32(1))
                store(going, 0, T.Select(fine, T.int32(1), T.int32(0)))
            store(self.judged, 0, self.judged[0] + going[0])

    def _uniform(self, i: int):
        position = self.args[0] + (1 + i)
        bits = random_bits(self.ints, cycle_place(position, T.int32(i)), T.uint32(0), ACCEPT)
        return T.min(uniform(bits[0]), f32(BELOW_1))

    def _count_reject(self) -> None:
        going = local(1, "int32")
        store(going, 0, T.int32(1))
        for i in range(DRAFTS):
            with when(T.And(going[0] == 1, i < self.judged[0])):
                p_x, q_x = self.stats[i * STATS_WORDS + CHANCE], self.stats[_q_at(i) + CHANCE]
                stands = self._uniform(i) * q_x < p_x
                store(going, 0, T.Select(stands, T.int32(1), T.int32(0)))
                store(self.accepted, 0, self.accepted[0] + going[0])

    def _count_block(self, mass) -> None:
        weight, bound = local(1, "float32"), local(2, "float32")
        store(weight, 0, f32(1))
        for i in range(DRAFTS):
            with when(i < self.judged[0]):
                p_x, q_x = self.stats[i * STATS_WORDS + CHANCE], self.stats[_q_at(i) + CHANCE]
                store(weight, 0, _next_weight(weight[0], p_x, q_x))
                store(bound, 0, weight[0])  # under, over: of the last draft
                store(bound, 1, f32(1))
                with when(T.And(i + 1 < self.judged[0], weight[0] < f32(1))):
                    s = T.bind(mass[min(i + 1, DRAFTS)])
                    store(bound, 0, s)
                    store(bound, 1, s + (f32(1) - weight[0]))
                with when(self._uniform(i) * bound[1] < bound[0]):
                    store(self.accepted, 0, T.int32(i + 1))
                    store(self.weight, 0, weight[0])


def _place(count: _Count):
    """Counter position of the draw after the accepted drafts."""
    return cycle_place(count.args[0] + 1 + count.accepted[0], count.accepted[0])


def _write_verdict(args, verdict, count: _Count, token_id, fell_back) -> None:
    to = T.bind(verdict_row(args) * VERDICT_FIELDS)
    decided = T.And(count.decided[0] == 1, token_id >= 0)
    flags = T.Select(
        decided, T.int32(DECIDED) + T.Select(fell_back, T.int32(FELL_BACK), T.int32(0)), T.int32(0)
    )
    store(verdict, to, count.accepted[0])
    store(verdict, to + 1, T.max(token_id, 0))
    store(verdict, to + 2, flags)
    store(verdict, to + 3, T.int32(0))


def _verdict_cpu(name: str, p: Params):
    vocab = int(p["vocab"])

    def body(share, args, z, q, stats, mass, ints, out, verdict):
        with share.whole(), when(args[1] > 0):
            count = _Count(args, stats, mass, ints, out)
            rows = _Rows(p, z, q, stats, T.bind(count.accepted[0]), exp1)
            search = CpuSearch(vocab, ints, _place(count), RESIDUAL)
            from_p, number = local(1, "int32"), local(1, "float32")
            has_draft = count.accepted[0] < count.judged[0]
            store(from_p, 0, T.Select(has_draft, T.int32(0), T.int32(1)))

            def hope4(at):
                numbers = local(1, F32X4)
                store(numbers, 0, load4(z, rows.base + at))
                far = splat(f32(MARGIN) - rows.p_top)
                return T.Select(numbers[0] > splat(f32(LEAST)), numbers[0] + far, splat(f32(LOWEST)))

            def value(token_id):
                store(number, 0, z[rows.base + token_id] - rows.p_top)
                with when(from_p[0] == 0):
                    weight = T.bind(rows.residual(token_id, count.weight[0]))
                    store(number, 0, f32(LOWEST))
                    with when(weight > f32(1.2e-38)):
                        store(number, 0, log1(weight))
                return number[0]

            with when(count.decided[0] == 1):
                search.run(hope4, value)
                with when(search.best_id[0] < 0):  # an empty residual: p itself
                    store(from_p, 0, T.int32(2))
                    search.run(hope4, value)
            fell_back = T.And(from_p[0] == 2, has_draft)
            _write_verdict(args, verdict, count, search.best_id[0], fell_back)

    return cpu_func(name, _verdict_params(p), body)


def _verdict_gpu(name: str, p: Params):
    """One workgroup; each thread counts the drafts for itself. The second search has nothing to do but after an empty residual."""
    vocab = int(p["vocab"])

    def body(args, z, q, stats, mass, ints, out, verdict):
        with threads(1, 1, 1, THREADS) as (_, _, _, tx):
            count = _Count(args, stats, mass, ints, out)
            rows = _Rows(p, z, q, stats, T.bind(count.accepted[0]), T.exp)
            search, number = GpuSearch(vocab, ints, _place(count), RESIDUAL, tx), local(1, "float32")
            has_draft = T.bind(T.And(args[1] > 0, count.accepted[0] < count.judged[0]))
            wanted = T.bind(T.And(args[1] > 0, count.decided[0] == 1))

            def from_p(token_id):
                at = T.bind(z[rows.base + token_id])
                return T.Select(at > f32(LEAST), at - rows.p_top, f32(LOWEST))

            def from_residual(token_id):
                store(number, 0, f32(LOWEST))
                weight = T.bind(rows.residual(token_id, count.weight[0]))
                with when(weight > f32(1.2e-38)):
                    store(number, 0, log1(weight))
                return number[0]

            search.run(T.And(wanted, has_draft), from_residual)
            search.combine()
            barrier()
            residual_id = local(1, "int32")
            store(residual_id, 0, search.ids[0])
            barrier()
            search.run(T.And(wanted, residual_id[0] < 0), from_p)
            search.combine()
            with when(T.And(tx == 0, args[1] > 0)):
                _write_verdict(args, verdict, count, search.ids[0], T.And(has_draft, residual_id[0] < 0))

    return prim_func(name, _verdict_params(p), body)


# --- ids -----------------------------------------------------------------------------------------------------------------


def _ids_params(p: Params):
    tokens, out = ("tokens", int(p["tokens"]), "int32"), ("out", OUT_ROWS * 2, "int32")
    return [ARGS_BUFFER, tokens, VERDICT, out, ("done", 1, "int32")]


def _ids(p: Params, args, tokens, verdict, out, done) -> None:
    store(done, 0, T.int32(1))
    with when(args[1] > 0):
        at, first = T.bind(verdict_row(args) * VERDICT_FIELDS), T.bind(out_row(args, 0))
        for i in range(MAX_ROWS):
            with when(T.And(i < args[1], i < verdict[at])):
                store(out, (first + i) * 2, tokens[args[0] + (1 + i)])
            with when(T.And(i < args[1], T.And(i == verdict[at], verdict[at + 2] != 0))):
                store(out, (first + i) * 2, verdict[at + 1])


def _ids_cpu(name: str, p: Params):
    def body(share, *buffers):
        with share.whole():
            _ids(p, *buffers)

    return cpu_func(name, _ids_params(p), body)


def _ids_gpu(name: str, p: Params):
    def body(*buffers):
        with threads(1, 1, 1, 1):
            _ids(p, *buffers)

    return prim_func(name, _ids_params(p), body)


_ARGS, _ROWS = ("args", "read"), (("z", "read"), ("q", "read"))
_WEIGH = (_ARGS, ("logits", "read"), ("ints", "read"), ("floats", "read"), ("bias", "read"), ("z", "write"))
_STATS = (_ARGS, ("tokens", "read"), *_ROWS, ("stats", "write"))
_MASS = (_ARGS, *_ROWS, ("stats", "read"), ("ints", "read"), ("mass", "write"))
_VERDICT = (
    _ARGS, *_ROWS, ("stats", "read"), ("mass", "read"), ("ints", "read"), ("out", "read"), ("verdict", "write"),
)  # fmt: skip
_IDS = (_ARGS, ("tokens", "read"), ("verdict", "read"), ("out", "read_write"), ("done", "write"))
JUDGE_IDS = Op("judge_ids", Form(_IDS, _ids_cpu), Form(_IDS, _ids_gpu))
JUDGE_WEIGH = Op("judge_weigh", Form(_WEIGH, _weigh_cpu, lambda p: MAX_ROWS), Form(_WEIGH, _weigh_gpu))
JUDGE_STATS = Op("judge_stats", Form(_STATS, _stats_cpu, lambda p: 2 * MAX_ROWS), Form(_STATS, _stats_gpu))
JUDGE_MASS = Op("judge_mass", Form(_MASS, _mass_cpu, lambda p: MAX_ROWS), Form(_MASS, _mass_gpu))
JUDGE_VERDICT = Op("judge_verdict", Form(_VERDICT, _verdict_cpu), Form(_VERDICT, _verdict_gpu))
