"""The GPU's forms of `process` and `truncate` (filter.py has the rules).

process: a workgroup has 2,048 columns of a row, whose counts lie in its memory as atomics; all its threads go through the tokens. One
storage buffer more and it would have nine: so `truncate` drops the banned ids. truncate: a workgroup has a row; a thread has every
256th column, and only it writes there. The candidates are compared with each other, all pairs: no barrier in between. Every barrier
is passed by all threads: what a row does not need is skipped between them.
"""

from __future__ import annotations

from collections.abc import Callable

from specdec_runtime.plan.schema import MAX_BANNED
from tvm.script.ir_builder import tirx as T

from .base import Params, ceil_div
from .filter import (
    BANNED,
    BIAS,
    CANDIDATES,
    DROPPED,
    FIRST_STOP,
    FLAGS,
    FREQUENCY,
    HALF_BITS,
    INV_T,
    LARGEST,
    LEAST,
    MASK,
    MAX_STOPS,
    MIN_LEN,
    MIN_P,
    NUM_BANNED,
    NUM_STOPS,
    PENALTIES,
    PRESENCE,
    PROMPT_LEN,
    REPETITION,
    SEEN,
    TOP_K,
    TOP_P,
    UNIT,
    WEIGHTLESS,
    banned_id,
    bans,
    has,
    key_of,
    mass_of,
    num_mask_words,
    process_params,
    truncate_params,
    truncates,
    upper_middle,
    value_of,
    wanted_rank,
)
from .ir import (
    atomic_add,
    atomic_load,
    atomic_or,
    atomic_store,
    barrier,
    f32,
    is_finite_bits,
    local,
    prim_func,
    shared,
    store,
    threads,
    when,
)
from .select import THREADS, out_row

COLUMNS = 2048  # of a row, for one workgroup of process
PIVOTS = 3  # a search over the whole row tries so many values at once
ROUNDS = 16  # each leaves a quarter of the interval
TEAM = 16  # threads whose sums one thread adds
INFINITE = 3.4e38


def process_gpu(name: str, p: Params):
    """z from the logits."""
    m, vocab, padded = int(p["m"]), int(p["n"]), int(p["padded"])

    def body(args, tokens, logits, ints, floats, bias, mask, z):
        with threads(ceil_div(padded, COLUMNS), m, 1, THREADS) as (block, row, _, tx):
            words = shared(COLUMNS, "int32")
            first = T.bind(block * COLUMNS)
            flags = T.bind(ints[FLAGS])
            penalized = T.bind(T.And(row < args[1], has(flags, PENALTIES)))
            with when(penalized):
                for i in range(COLUMNS // THREADS):
                    atomic_store(words, i * THREADS + tx, T.int32(0))
            barrier()
            with when(penalized):
                position = T.bind(args[0] + row + 1)
                with T.serial(0, T.truncdiv(position + THREADS - 1, T.int32(THREADS))) as i:
                    at = T.bind(i * THREADS + tx)
                    with when(at < position):
                        column = T.bind(T.max(T.min(tokens[at], T.int32(vocab - 1)), T.int32(0)) - first)
                        with when(T.And(column >= 0, column < COLUMNS)):
                            with when(at < ints[PROMPT_LEN]):
                                atomic_or(words, column, T.int32(SEEN))
                            with when(at >= ints[PROMPT_LEN]):
                                atomic_add(words, column, T.int32(1))
            barrier()
            with when(row < args[1]):
                value, word = local(1, "float32"), local(1, "int32")
                for i in range(COLUMNS // THREADS):
                    at = T.bind(first + i * THREADS + tx)
                    with when(at < padded):
                        logit = T.bind(logits[row * padded + at])
                        store(value, 0, logit)
                        with when(has(flags, PENALTIES)):
                            store(word, 0, atomic_load(words, i * THREADS + tx))
                            store(value, 0, _penalized(floats, value[0], word[0]))
                        with when(has(flags, BIAS)):
                            store(value, 0, value[0] + bias[at])
                        with when(has(flags, MASK)):
                            bits = mask[
                                out_row(args, row) * num_mask_words(padded) + T.shift_right(at, T.int32(5))
                            ]
                            bit = T.shift_right(bits, T.cast(T.bitwise_and(at, 31), "uint32"))
                            allowed = T.bitwise_and(bit, T.uint32(1)) != T.uint32(0)
                            store(value, 0, T.Select(allowed, value[0], f32(DROPPED)))
                        scaled = T.max(T.min(value[0] * floats[INV_T], f32(LARGEST)), f32(-LARGEST))
                        kept = T.Select(value[0] > f32(LEAST), scaled, f32(DROPPED))
                        done = T.Select(is_finite_bits(logit), kept, logit)
                        store(z, row * padded + at, T.Select(at < vocab, done, f32(DROPPED)))

    return prim_func(name, process_params(p), body)


def _penalized(floats, value, word):
    """The penalties of a logit, from its word of counts."""
    count = T.bind(T.cast(T.bitwise_and(word, T.int32(SEEN - 1)), "float32"))
    r = floats[REPETITION]
    repeated = T.Select(value > f32(0), value / r, value * r)
    present = T.Select(count > f32(0), floats[PRESENCE], f32(0))
    return T.Select(word != 0, repeated, value) - (floats[FREQUENCY] * count + present)


class _Team:
    """A workgroup's sums and maxima of one number a thread: two barriers, integers or exact, so that no order matters."""

    def __init__(self, tx):
        self.tx = tx
        self.parts, self.sums = shared(2 * PIVOTS * THREADS, "int32"), shared(2 * PIVOTS * TEAM, "int32")
        self.ones, self.most = shared(THREADS, "float32"), shared(TEAM, "float32")
        self.total = local(2 * PIVOTS, "int32")
        self.largest = local(1, "float32")

    def put(self, number: int, value) -> None:
        store(self.parts, number * THREADS + self.tx, value)

    def add(self, count: int) -> None:
        """total[j] = the sum of what all threads put as number j. Only in uniform control flow."""
        tx, total = self.tx, self.total
        barrier()
        with when(tx < TEAM):
            for j in range(count):
                store(total, j, T.int32(0))
                with T.serial(0, TEAM) as i:
                    store(total, j, total[j] + self.parts[j * THREADS + tx * TEAM + i])
                store(self.sums, j * TEAM + tx, total[j])
        barrier()
        for j in range(count):
            store(total, j, T.int32(0))
            with T.serial(0, TEAM) as i:
                store(total, j, total[j] + self.sums[j * TEAM + i])

    def maximum(self, value) -> None:
        """largest = the greatest of all threads' values. Only in uniform control flow."""
        tx = self.tx
        store(self.ones, tx, value)
        barrier()
        with when(tx < TEAM):
            store(self.largest, 0, f32(DROPPED))
            with T.serial(0, TEAM) as i:
                store(self.largest, 0, T.max(self.largest[0], self.ones[tx * TEAM + i]))
            store(self.most, tx, self.largest[0])
        barrier()
        store(self.largest, 0, f32(DROPPED))
        with T.serial(0, TEAM) as i:
            store(self.largest, 0, T.max(self.largest[0], self.most[i]))


class _Row:
    """One row, by its workgroup: its values, then the candidates among them, and searches over either."""

    def __init__(self, p: Params, z, row, tx, valid):
        self.vocab, self.z, self.row, self.tx, self.valid = int(p["n"]), z, row, tx, valid
        self.base = T.bind(row * int(p["padded"]))
        self.team = _Team(tx)
        self.listed, self.weights = shared(CANDIDATES, "float32"), shared(CANDIDATES, "int32")
        self.edge = shared(1, "float32")
        self.top, self.lower, self.num = local(1, "float32"), local(1, "float32"), local(1, "int32")
        self.sums = local(2 * PIVOTS, "int32")
        self.best, self.found = local(1, "float32"), local(1, "float32")
        self.num_fit, self.weight = local(1, "int32"), local(1, "int32")
        self.low, self.high, self.limit = local(1, "int32"), local(1, "int32"), local(1, "float32")
        self.above = local(2, "int32")

    def each(self, use: Callable) -> None:
        """use(value, index in z) for the columns of this thread."""
        with T.serial(0, ceil_div(self.vocab, THREADS)) as i:
            at = T.bind(i * THREADS + self.tx)
            with when(at < self.vocab):
                use(T.bind(self.z[self.base + at]), self.base + at)

    def find_maxima(self) -> None:
        """The largest of each thread's columns, and of all."""
        store(self.best, 0, f32(DROPPED))
        with when(self.valid):
            self.each(lambda value, _: store(self.best, 0, T.max(self.best[0], value)))
        self.team.maximum(self.best[0])
        store(self.top, 0, self.team.largest[0])

    def gather(self, rank, wanted) -> None:
        """lower: the value that `rank` of the threads' maxima reach; the candidates from there on, while there is room, and how
        many there are. The maxima are still in team.ones."""
        ones, tx = self.team.ones, self.tx
        with when(wanted):
            mine, place = T.bind(ones[tx]), local(1, "int32")
            store(place, 0, T.int32(0))
            with T.serial(0, THREADS) as i:
                other = T.bind(ones[i])
                before = T.Or(other > mine, T.And(other == mine, i < tx))
                store(place, 0, place[0] + T.Select(before, T.int32(1), T.int32(0)))
            with when(place[0] == rank - 1):
                store(self.edge, 0, mine)
        barrier()
        store(self.lower, 0, T.max(self.edge[0], f32(-LARGEST)))  # no dropped ids
        mine = local(1, "int32")
        store(mine, 0, T.int32(0))

        def count(value, _) -> None:
            store(mine, 0, mine[0] + T.Select(value >= self.lower[0], T.int32(1), T.int32(0)))

        with when(wanted):
            self.each(count)
        self.team.put(0, mine[0])
        self.team.add(1)
        store(self.num, 0, self.team.total[0])
        with when(T.And(wanted, self.num[0] <= CANDIDATES)):
            self._copy_candidates()
        barrier()

    def _copy_candidates(self) -> None:
        """Each thread's behind those of the threads before it."""
        place = local(1, "int32")
        store(place, 0, T.int32(0))
        with T.serial(0, self.tx) as i:
            store(place, 0, place[0] + self.team.parts[i])

        def copy(value, _) -> None:
            with when(T.And(value >= self.lower[0], place[0] < CANDIDATES)):
                store(self.listed, place[0], value)
                store(self.weights, place[0], self.weigh(value))
                store(place, 0, place[0] + 1)

        self.each(copy)

    def weigh(self, value):
        """The integer weight of a value."""
        t = T.max(value - self.top[0], f32(-WEIGHTLESS))
        rounded = T.cast(T.exp(t) * f32(UNIT) + f32(0.5), "int32")
        return T.min(rounded, T.int32(int(UNIT) - 1))

    def candidates(self, use: Callable) -> None:
        """use(number) for the candidates of this thread."""
        for i in range(CANDIDATES // THREADS):
            at = T.bind(self.tx + i * THREADS)
            with when(at < self.num[0]):
                use(at)

    def _put_halves(self, number: int, weight) -> None:
        """Add a weight to sums 2 * number and the next."""
        store(self.sums, 2 * number, self.sums[2 * number] + T.shift_right(weight, T.int32(HALF_BITS)))
        low = T.bitwise_and(weight, T.int32((1 << HALF_BITS) - 1))
        store(self.sums, 2 * number + 1, self.sums[2 * number + 1] + low)

    def search_listed(self, goal, lowest, weighted: bool, wanted) -> None:
        """found becomes the largest candidate, not below `lowest`, that the goal is reached at; DROPPED where there is none."""
        store(self.best, 0, f32(DROPPED))

        def try_one(at) -> None:
            mine = T.bind(self.listed[at])
            store(self.sums, 0, T.int32(0))
            store(self.sums, 1, T.int32(0))
            with T.serial(0, self.num[0]) as i:
                weight = self.weights[i] if weighted else T.int32(1)
                store(self.weight, 0, T.Select(self.listed[i] >= mine, weight, T.int32(0)))
                self._put_halves(0, self.weight[0])
            reached = T.And(mass_of(self.sums[0], self.sums[1]) >= goal, mine >= lowest)
            store(self.best, 0, T.Select(reached, T.max(self.best[0], mine), self.best[0]))

        with when(wanted):
            self.candidates(try_one)
        self.team.maximum(self.best[0])
        store(self.found, 0, self.team.largest[0])

    def add_all(self, lowest, listed, over_row) -> None:
        """team.total: the two sums of all weights from `lowest` on: of the candidates where `listed`, else of the row."""
        store(self.sums, 0, T.int32(0))
        store(self.sums, 1, T.int32(0))

        def add(value, weight) -> None:
            with when(value >= lowest):
                self._put_halves(0, weight())

        with when(listed):
            self.candidates(lambda at: add(T.bind(self.listed[at]), lambda: T.bind(self.weights[at])))
        with when(over_row):
            self.each(lambda value, _: add(value, lambda: T.bind(self.weigh(value))))
        self.team.put(0, self.sums[0])
        self.team.put(1, self.sums[1])
        self.team.add(2)

    def search_row(self, goal, lowest, weighted: bool, wanted) -> None:
        """found becomes the largest value from `lowest` on whose measure over the whole row reaches the goal, where `wanted`."""
        store(self.low, 0, key_of(lowest))
        store(self.high, 0, key_of(self.top[0]))
        store(self.limit, 0, f32(INFINITE))
        store(self.above, 0, T.int32(0))
        store(self.above, 1, T.int32(0))
        pivots, total = local(PIVOTS, "int32"), self.team.total
        with T.serial(0, ROUNDS) as _:
            store(pivots, 1, upper_middle(self.low[0], self.high[0]))
            store(pivots, 0, upper_middle(self.low[0], T.max(pivots[1] - 1, self.low[0])))
            store(pivots, 2, upper_middle(pivots[1], self.high[0]))
            for j in range(2 * PIVOTS):
                store(self.sums, j, T.int32(0))

            def measure(value, _) -> None:
                with when(T.And(value >= value_of(pivots[0]), value < self.limit[0])):
                    store(self.weight, 0, self.weigh(value) if weighted else T.int32(1))
                    self._put_halves(0, self.weight[0])
                    for j in range(1, PIVOTS):
                        with when(value >= value_of(pivots[j])):
                            self._put_halves(j, self.weight[0])

            with when(T.And(wanted, self.low[0] < self.high[0])):
                self.each(measure)
            for j in range(2 * PIVOTS):
                self.team.put(j, self.sums[j])
            self.team.add(2 * PIVOTS)
            with when(self.low[0] < self.high[0]):
                self._narrow(goal, pivots, total)
        with when(wanted):
            store(self.found, 0, value_of(self.low[0]))

    def _narrow(self, goal, pivots, total) -> None:
        """The pivots are ascending, and so many of them reach the goal."""
        store(self.num_fit, 0, T.int32(0))
        for j in range(PIVOTS):
            mass = mass_of(self.above[0] + total[2 * j], self.above[1] + total[2 * j + 1])
            store(self.num_fit, 0, self.num_fit[0] + T.Select(mass >= goal, T.int32(1), T.int32(0)))
        for j in range(PIVOTS):
            with when(self.num_fit[0] == j + 1):
                store(self.low, 0, pivots[j])
        for j in range(PIVOTS):
            with when(self.num_fit[0] == j):
                store(self.high, 0, T.max(pivots[j] - 1, self.low[0]))
                store(self.limit, 0, value_of(pivots[j]))
                store(self.above, 0, self.above[0] + total[2 * j])
                store(self.above, 1, self.above[1] + total[2 * j + 1])


def _drop(found: _Row, args, tokens, ints, banned) -> None:
    """Banned sequences, and stop ids before min_len; each by the thread that has its column."""
    row, tx, z = found.row, found.tx, found.z
    ids = shared(MAX_BANNED + MAX_STOPS, "int32")
    wanted = T.And(found.valid, bans(args, ints, row))
    with when(T.And(wanted, tx < MAX_BANNED + MAX_STOPS)):
        store(ids, tx, T.int32(-1))
        with when(T.And(has(ints[FLAGS], BANNED), tx < T.min(ints[NUM_BANNED], MAX_BANNED))):
            store(ids, tx, banned_id(args, tokens, banned, row, tx))
        number = T.bind(tx - MAX_BANNED)
        early = args[0] + row + 1 < ints[MIN_LEN]
        with when(T.And(T.And(number >= 0, number < T.min(ints[NUM_STOPS], MAX_STOPS)), early)):
            store(ids, tx, ints[FIRST_STOP + number])
    barrier()
    with when(wanted), T.serial(0, MAX_BANNED + MAX_STOPS) as i:
        token = T.bind(ids[i])
        mine = T.And(T.And(token >= 0, token < found.vocab), T.bitwise_and(token, THREADS - 1) == tx)
        with when(mine):
            at = T.bind(found.base + token)
            with when(is_finite_bits(z[at])):
                store(z, at, f32(DROPPED))


def _thresholds(found: _Row, ints, floats, limit, wanted) -> None:
    """limit becomes the least value that stays."""
    k, goal = local(1, "int32"), local(1, "float32")
    store(k, 0, ints[TOP_K])
    found.gather(wanted_rank(ints), wanted)
    with when(found.lower[0] <= f32(-LARGEST)):  # nobody else is left
        store(k, 0, T.min(k[0], found.num[0]))
    whole = T.bind(found.num[0] <= CANDIDATES)
    by_rank = T.bind(T.And(wanted, k[0] > 0))
    fast = T.bind(T.And(whole, found.num[0] >= k[0]))
    by_row = T.bind(T.And(by_rank, T.Not(fast)))
    found.search_listed(T.cast(k[0], "float32"), f32(DROPPED), False, T.And(by_rank, fast))
    found.search_row(T.cast(k[0], "float32"), f32(DROPPED), False, by_row)
    with when(by_rank):
        store(limit, 0, found.found[0])

    by_mass = T.bind(T.And(wanted, floats[TOP_P] < f32(1)))
    lowest = local(1, "float32")
    store(lowest, 0, T.max(limit[0], found.top[0] - f32(WEIGHTLESS)))
    listed = T.bind(T.And(by_mass, T.And(k[0] > 0, fast)))
    found.add_all(lowest[0], listed, T.And(by_mass, T.Not(T.And(k[0] > 0, fast))))
    store(goal, 0, mass_of(found.team.total[0], found.team.total[1]) * floats[TOP_P])
    found.search_listed(goal[0], lowest[0], True, T.And(by_mass, whole))
    store(lowest, 0, T.max(lowest[0], found.found[0]))
    missed = T.bind(T.And(by_mass, found.found[0] <= f32(-LARGEST)))
    found.search_row(goal[0], lowest[0], True, missed)
    with when(by_mass):
        store(limit, 0, T.max(limit[0], found.found[0]))
    with when(T.And(wanted, floats[MIN_P] > f32(0))):
        store(limit, 0, T.max(limit[0], found.top[0] + T.log(T.max(floats[MIN_P], f32(1e-37)))))


def truncate_gpu(name: str, p: Params):
    """kept from z."""
    padded, vocab = int(p["padded"]), int(p["n"])

    def body(args, tokens, ints, floats, banned, z, kept):
        with threads(int(p["m"]), 1, 1, THREADS) as (row, _, _, tx):
            valid = T.bind(row < args[1])
            limit, none = local(1, "float32"), local(1, "int32")
            found = _Row(p, z, row, tx, valid)
            _drop(found, args, tokens, ints, banned)
            found.find_maxima()
            store(limit, 0, f32(DROPPED))
            _thresholds(found, ints, floats, limit, T.bind(T.And(valid, truncates(ints, floats))))
            # where nothing survives, every value's exponent is made all ones: not finite
            alive = found.top[0] >= f32(-LARGEST)
            store(none, 0, T.Select(alive, T.int32(0), T.int32(0x7F800000)))

            def write(value, at) -> None:
                stays = T.Or(value >= limit[0], T.Not(is_finite_bits(value)))
                bits = T.reinterpret("int32", T.Select(stays, value, f32(DROPPED)))
                store(kept, at, T.reinterpret("float32", T.bitwise_or(bits, none[0])))

            with when(valid):
                found.each(write)
                with T.serial(0, ceil_div(padded - vocab, THREADS)) as i:
                    at = T.bind(vocab + i * THREADS + tx)
                    with when(at < padded):
                        store(kept, found.base + at, f32(DROPPED))

    return prim_func(name, truncate_params(p), body)
