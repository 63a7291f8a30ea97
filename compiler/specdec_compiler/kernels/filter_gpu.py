"""The GPU's forms of `process` and `truncate` (filter.py has the rules).

process: a workgroup has 2,048 columns of a row, whose counts lie in its memory as atomics; all its threads go through the tokens. A
thread has eight columns and leaves the largest of their values behind the row: a peak. One storage buffer more and it would have
nine: so `truncate` drops the banned ids. truncate: a workgroup has a row, and mostly looks at its peaks only: a thread at those of its
number, whose columns no other thread writes. Of the row itself it reads the columns of peaks that reach an edge, and all of it for a
top-p without a top-k, or where the candidates do not suffice. It writes the least value that stays; `pick` drops the others. The
candidates are compared with each other, all pairs: no barrier in between. Their order is any, and decides nothing. Every barrier is
passed by all threads: what depends on the sampling alone is skipped whole, what depends on the values is skipped between barriers.
"""

from __future__ import annotations

from collections.abc import Callable

from specdec_runtime.plan.sampling_layout import (
    BANNED,
    BIAS,
    FIRST_STOP,
    FLAGS,
    FREQUENCY,
    INVERSE_T,
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
    TOP_K,
    TOP_P,
)
from specdec_runtime.plan.schema import MAX_BANNED
from tvm.script.ir_builder import tirx as T

from .base import Params, ceil_div
from .filter import (
    CANDIDATES,
    COLUMNS,
    DROPPED,
    HALF_BITS,
    LARGEST,
    PEAK_OF,
    SEEN,
    UNIT,
    WEIGHTLESS,
    banned_id,
    bans,
    gpu_stride,
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
    atomic_next,
    atomic_or,
    atomic_store,
    barrier,
    f32,
    is_finite_bits,
    local,
    prim_func,
    shared,
    storage_barrier,
    store,
    threads,
    when,
)
from .select import THREADS, out_row

PIVOTS = 3  # a search over the whole row tries so many values at once
ROUNDS = 16  # each leaves a quarter of the interval
TEAM = 16  # threads whose sums one thread adds
LIST_STEP = 4  # candidates, and tokens of a thread, at a time
STEP = LIST_STEP * THREADS  # tokens
AHEAD = 8  # loads that a thread has under way at a time
INFINITE = 3.4e38


def process_gpu(name: str, p: Params):
    """z and its peaks from the logits."""
    m, vocab, padded = int(p["m"]), int(p["n"]), int(p["padded"])
    stride = gpu_stride(padded)

    def body(args, tokens, logits, ints, floats, bias, mask, z):
        with threads(ceil_div(padded, COLUMNS), m, 1, THREADS) as (block, row, _, tx):
            words = shared(COLUMNS, "int32")
            first = T.bind(block * COLUMNS)
            flags = T.bind(ints[FLAGS])
            penalized = T.bind(T.And(row < args[1], has(flags, PENALTIES)))
            with when(penalized):
                for i in range(PEAK_OF):
                    atomic_store(words, i * THREADS + tx, T.int32(0))
            barrier()
            with when(penalized):
                position = T.bind(args[0] + row + 1)
                ids = local(LIST_STEP, "int32")
                with T.serial(0, T.truncdiv(position + (STEP - 1), T.int32(STEP))) as i:
                    for j in range(LIST_STEP):
                        at = T.bind(i * STEP + (j * THREADS + tx))
                        store(ids, j, tokens[T.min(at, position - 1)])
                    for j in range(LIST_STEP):
                        at = T.bind(i * STEP + (j * THREADS + tx))
                        column = T.bind(T.max(T.min(ids[j], T.int32(vocab - 1)), T.int32(0)) - first)
                        with when(T.And(at < position, T.And(column >= 0, column < COLUMNS))):
                            with when(at < ints[PROMPT_LEN]):
                                atomic_or(words, column, T.int32(SEEN))
                            with when(at >= ints[PROMPT_LEN]):
                                atomic_add(words, column, T.int32(1))
            barrier()
            with when(row < args[1]):
                logit, value, peak = local(PEAK_OF, "float32"), local(PEAK_OF, "float32"), local(1, "float32")

                def each(use: Callable) -> None:
                    """use(number, column), one step of all columns after the other: their loads do not wait for each other."""
                    for i in range(PEAK_OF):
                        use(i, T.bind(T.min(first + (i * THREADS + tx), T.int32(padded - 1))))

                def load(i: int, at) -> None:
                    store(logit, i, logits[row * padded + at])
                    store(value, i, logit[i])

                def penalize(i: int, _) -> None:
                    store(value, i, _penalized(floats, value[i], atomic_load(words, i * THREADS + tx)))

                def forbid(i: int, at) -> None:
                    masks = T.bind(out_row(args, row) * num_mask_words(padded))
                    bits = mask[masks + T.shift_right(at, T.int32(5))]
                    bit = T.shift_right(bits, T.cast(T.bitwise_and(at, 31), "uint32"))
                    allowed = T.bitwise_and(bit, T.uint32(1)) != T.uint32(0)
                    store(value, i, T.Select(allowed, value[i], f32(DROPPED)))

                def finish(i: int, at) -> None:
                    scaled = T.max(T.min(value[i] * floats[INVERSE_T], f32(LARGEST)), f32(-LARGEST))
                    kept = T.Select(value[i] > f32(LEAST), scaled, f32(DROPPED))
                    done = T.Select(is_finite_bits(logit[i]), kept, logit[i])
                    store(value, i, T.Select(at < vocab, done, f32(DROPPED)))
                    with when(first + (i * THREADS + tx) < padded):
                        store(z, row * stride + at, value[i])
                        store(peak, 0, T.max(peak[0], value[i]))

                store(peak, 0, f32(DROPPED))
                each(load)
                with when(has(flags, PENALTIES)):
                    each(penalize)
                with when(has(flags, BIAS)):
                    each(lambda i, at: store(value, i, value[i] + bias[at]))
                with when(has(flags, MASK)):
                    each(forbid)
                each(finish)
                store(z, row * stride + padded + block * THREADS + tx, peak[0])

    return prim_func(name, process_params(p, stride), body)


def _penalized(floats, value, word):
    """The penalties of a logit, from its word of counts."""
    word = T.bind(word)
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

    def add(self, count: int, wanted) -> None:
        """total[j] = the sum of what all threads put as number j, where `wanted`. Only in uniform control flow."""
        tx, total = self.tx, self.total

        def add_up(values, first: Callable) -> None:
            for j in range(count):
                store(total, j, T.int32(0))
            with T.serial(0, TEAM // 4) as i:
                for j in range(count):
                    for each in range(4):
                        store(total, j, total[j] + values[first(j) + (i * 4 + each)])

        barrier()
        with when(T.And(wanted, tx < TEAM)):
            add_up(self.parts, lambda j: j * THREADS + tx * TEAM)
            for j in range(count):
                store(self.sums, j * TEAM + tx, total[j])
        barrier()
        with when(wanted):
            add_up(self.sums, lambda j: j * TEAM)

    def maximum(self, value) -> None:
        """largest = the greatest of all threads' values. Only in uniform control flow."""
        tx = self.tx

        def find(values, first) -> None:
            store(self.largest, 0, f32(DROPPED))
            for i in range(TEAM):
                store(self.largest, 0, T.max(self.largest[0], values[first + i]))

        store(self.ones, tx, value)
        barrier()
        with when(tx < TEAM):
            find(self.ones, tx * TEAM)
            store(self.most, tx, self.largest[0])
        barrier()
        find(self.most, T.int32(0))


def _repeat(count: int, use: Callable) -> None:
    """use(0) to use(count - 1), AHEAD of them written out at a time."""
    with T.serial(0, count // AHEAD) as i:
        for j in range(AHEAD):
            use(i * AHEAD + j)
    for j in range(count // AHEAD * AHEAD, count):
        use(T.int32(j))


class _Row:
    """One row, by its workgroup: its values, then the candidates among them, and searches over either."""

    def __init__(self, p: Params, z, row, tx):
        self.vocab, self.padded, self.z, self.row, self.tx = int(p["n"]), int(p["padded"]), z, row, tx
        self.base = T.bind(row * gpu_stride(self.padded))
        self.peaks = T.bind(self.base + self.padded)
        self.team = _Team(tx)
        self.listed, self.weights = (
            shared(CANDIDATES + LIST_STEP, "float32"),
            shared(CANDIDATES + LIST_STEP, "int32"),
        )
        self.counters = shared(2, "int32")
        self.top, self.lower, self.num = local(1, "float32"), local(1, "float32"), local(1, "int32")
        self.eight = local(PEAK_OF, "float32")
        self.sums = local(2 * PIVOTS, "int32")
        self.best, self.found = local(1, "float32"), local(1, "float32")
        self.num_fit, self.weight, self.place = local(1, "int32"), local(1, "int32"), local(1, "int32")
        self.low, self.high, self.limit = local(1, "int32"), local(1, "int32"), local(1, "float32")
        self.above = local(2, "int32")

    def each(self, use: Callable, at_least=None) -> None:
        """use(value) for the columns of this thread and, as dropped ones, some behind the vocabulary; where `at_least` is given, only
        for those of peaks from there on."""

        def group(block) -> None:
            for j in range(PEAK_OF):
                at = T.bind(block * COLUMNS + (j * THREADS + self.tx))
                value = self.z[self.base + (at if self.padded % COLUMNS == 0 else T.min(at, self.padded - 1))]
                store(
                    self.eight,
                    j,
                    value if self.padded % COLUMNS == 0 else T.Select(at < self.padded, value, f32(DROPPED)),
                )
            for j in range(PEAK_OF):
                use(self.eight[j])

        with T.serial(0, ceil_div(self.padded, COLUMNS)) as block:
            if at_least is None:
                group(block)
            else:
                with when(self.peak(block) >= at_least):
                    group(block)

    def peak(self, block):
        return self.z[self.peaks + (block * THREADS + self.tx)]

    def find_maxima(self) -> None:
        """The largest of each thread's columns, and of all."""
        store(self.best, 0, f32(DROPPED))
        with when(self.tx < 2):
            atomic_store(self.counters, self.tx, T.int32(0))
        _repeat(
            ceil_div(self.padded, COLUMNS), lambda i: store(self.best, 0, T.max(self.best[0], self.peak(i)))
        )
        self.team.maximum(self.best[0])
        store(self.top, 0, self.team.largest[0])

    def gather(self, rank) -> None:
        """lower: the value that `rank` of the threads' maxima reach; the candidates from there on, while there is room, and how
        many there are. The maxima are still in team.ones."""
        ones, tx = self.team.ones, self.tx
        mine = T.bind(ones[tx])
        store(self.place, 0, T.int32(0))

        def compare(i) -> None:
            other = T.bind(ones[i])
            before = T.Or(other > mine, T.And(other == mine, i < tx))
            store(self.place, 0, self.place[0] + T.Select(before, T.int32(1), T.int32(0)))

        _repeat(THREADS, compare)
        with when(self.place[0] == rank - 1):
            store(self.listed, 0, mine)  # for a while
        barrier()
        store(self.lower, 0, T.max(self.listed[0], f32(-LARGEST)))  # no dropped ids
        _repeat(ceil_div(self.padded, COLUMNS), self._list_group)
        barrier()
        num_groups = T.bind(atomic_load(self.counters, T.int32(0)))
        items = T.bind(T.min(num_groups, CANDIDATES) * PEAK_OF)
        with T.serial(0, T.truncdiv(items + (THREADS - 1), T.int32(THREADS))) as i:
            item = T.bind(i * THREADS + tx)
            with when(item < items):
                self._list_column(item)
        barrier()
        num_listed = T.bind(atomic_load(self.counters, T.int32(1)))
        store(self.num, 0, T.Select(num_groups > CANDIDATES, num_groups, num_listed))
        with when(T.And(tx < LIST_STEP, self.num[0] <= CANDIDATES)):  # the last step's rest weighs nothing
            store(self.listed, self.num[0] + tx, f32(DROPPED))
            store(self.weights, self.num[0] + tx, T.int32(0))
        barrier()

    def _list_group(self, block) -> None:
        """A peak that reaches the edge, into team.parts."""
        with when(self.peak(block) >= self.lower[0]):
            store(self.place, 0, atomic_next(self.counters, T.int32(0)))
            with when(self.place[0] < CANDIDATES):
                store(self.team.parts, self.place[0], block * THREADS + self.tx)

    def _list_column(self, item) -> None:
        """One of the columns of a listed peak: whoever may have written it, it is there."""
        group = T.bind(self.team.parts[T.shift_right(item, T.int32(PEAK_OF.bit_length() - 1))])
        block = T.bind(T.truncdiv(group, T.int32(THREADS)))
        number = T.bitwise_and(item, T.int32(PEAK_OF - 1))
        at = T.bind(block * COLUMNS + number * THREADS + T.bitwise_and(group, T.int32(THREADS - 1)))
        with when(at < self.padded):
            value = T.bind(self.z[self.base + at])
            with when(value >= self.lower[0]):
                store(self.place, 0, atomic_next(self.counters, T.int32(1)))
                with when(self.place[0] < CANDIDATES):
                    store(self.listed, self.place[0], value)
                    store(self.weights, self.place[0], self.weigh(value))

    def weigh(self, value):
        """The integer weight of a value."""
        t = T.max(value - self.top[0], f32(-WEIGHTLESS))
        rounded = T.cast(T.exp(t) * f32(UNIT) + f32(0.5), "int32")
        return T.min(rounded, T.int32(int(UNIT) - 1))

    def _put_halves(self, number: int, weight) -> None:
        """Add a weight to sums 2 * number and the next."""
        store(self.sums, 2 * number, self.sums[2 * number] + T.shift_right(weight, T.int32(HALF_BITS)))
        low = T.bitwise_and(weight, T.int32((1 << HALF_BITS) - 1))
        store(self.sums, 2 * number + 1, self.sums[2 * number + 1] + low)

    def _clear(self) -> None:
        for j in range(2 * PIVOTS):
            store(self.sums, j, T.int32(0))

    def search_listed(self, goal, lowest, weighted: bool, wanted) -> None:
        """found becomes the largest candidate, not below `lowest`, that the goal is reached at; DROPPED where there is none."""
        store(self.best, 0, f32(DROPPED))
        owns = CANDIDATES // THREADS
        mine, values, weights = local(owns, "float32"), local(LIST_STEP, "float32"), local(LIST_STEP, "int32")

        def step(i) -> None:
            for j in range(LIST_STEP):
                store(values, j, self.listed[i * LIST_STEP + j])
                store(weights, j, self.weights[i * LIST_STEP + j] if weighted else T.int32(1))
            for c in range(owns):
                with when(self.num[0] > c * THREADS):
                    for j in range(LIST_STEP):
                        store(self.weight, 0, T.Select(values[j] >= mine[c], weights[j], T.int32(0)))
                        self._put_halves(c, self.weight[0])

        with when(wanted):
            self._clear()
            for c in range(owns):
                at = T.bind(c * THREADS + self.tx)
                store(mine, c, f32(INFINITE))
                with when(at < self.num[0]):
                    store(mine, c, self.listed[at])
            with T.serial(0, T.truncdiv(self.num[0] + (LIST_STEP - 1), T.int32(LIST_STEP))) as i:
                step(i)
            for c in range(owns):
                own = T.And(mine[c] >= lowest, mine[c] < f32(INFINITE))
                mass = mass_of(self.sums[2 * c], self.sums[2 * c + 1])
                with when(T.And(own, mass >= goal)):
                    store(self.best, 0, T.max(self.best[0], mine[c]))
        self.team.maximum(self.best[0])
        store(self.found, 0, self.team.largest[0])

    def add_all(self, lowest, listed, over_row) -> None:
        """team.total: the two sums of all weights from `lowest` on: of the candidates where `listed`, else of the row."""
        self._clear()

        def add(value, weight) -> None:
            with when(value >= lowest):
                self._put_halves(0, weight())

        with when(listed):
            for c in range(CANDIDATES // THREADS):
                at = T.bind(c * THREADS + self.tx)
                with when(at < self.num[0]):
                    add(T.bind(self.listed[at]), lambda at=at: T.bind(self.weights[at]))
        with when(over_row):
            self.each(lambda value: add(value, lambda: T.bind(self.weigh(value))))
        self.team.put(0, self.sums[0])
        self.team.put(1, self.sums[1])
        self.team.add(2, T.bool(True))

    def search_row(self, goal, lowest, weighted: bool, wanted) -> None:
        """found becomes the largest value from `lowest` on whose measure over the whole row reaches the goal, where `wanted`."""
        store(self.low, 0, key_of(lowest))
        store(self.high, 0, key_of(self.top[0]))
        store(self.limit, 0, f32(INFINITE))
        store(self.above, 0, T.int32(0))
        store(self.above, 1, T.int32(0))
        pivots, total, going = local(PIVOTS, "int32"), self.team.total, local(1, "int32")

        def measure(value) -> None:
            with when(T.And(value >= value_of(pivots[0]), value < self.limit[0])):
                store(self.weight, 0, self.weigh(value) if weighted else T.int32(1))
                self._put_halves(0, self.weight[0])
                for j in range(1, PIVOTS):
                    with when(value >= value_of(pivots[j])):
                        self._put_halves(j, self.weight[0])

        with T.serial(0, ROUNDS) as _:
            store(going, 0, T.Select(T.And(wanted, self.low[0] < self.high[0]), T.int32(1), T.int32(0)))
            with when(going[0] == 1):
                store(pivots, 1, upper_middle(self.low[0], self.high[0]))
                store(pivots, 0, upper_middle(self.low[0], T.max(pivots[1] - 1, self.low[0])))
                store(pivots, 2, upper_middle(pivots[1], self.high[0]))
                self._clear()
                self.each(measure, value_of(pivots[0]))
                for j in range(2 * PIVOTS):
                    self.team.put(j, self.sums[j])
            self.team.add(2 * PIVOTS, going[0] == 1)
            with when(going[0] == 1):
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
    """Banned sequences, and stop ids before min_len; each by the thread that has its column. Only in uniform control flow."""
    row, tx, z = found.row, found.tx, found.z
    ids = shared(MAX_BANNED + MAX_STOPS, "int32")
    with when(tx < MAX_BANNED + MAX_STOPS):
        store(ids, tx, T.int32(-1))
        with when(T.And(has(ints[FLAGS], BANNED), tx < T.min(ints[NUM_BANNED], MAX_BANNED))):
            store(ids, tx, banned_id(args, tokens, banned, row, tx))
        number = T.bind(tx - MAX_BANNED)
        early = args[0] + row + 1 < ints[MIN_LEN]
        with when(T.And(T.And(number >= 0, number < T.min(ints[NUM_STOPS], MAX_STOPS)), early)):
            store(ids, tx, ints[FIRST_STOP + number])
    barrier()
    with T.serial(0, MAX_BANNED + MAX_STOPS) as i:
        token = T.bind(ids[i])
        mine = T.And(T.And(token >= 0, token < found.vocab), T.bitwise_and(token, THREADS - 1) == tx)
        with when(mine):
            at = T.bind(found.base + token)
            with when(is_finite_bits(z[at])):
                store(z, at, f32(DROPPED))
                _mend(found, T.bind(T.truncdiv(token, T.int32(COLUMNS))))
    storage_barrier()


def _mend(found: _Row, block) -> None:
    """The peak of this thread's columns there, one of which was dropped."""
    store(found.best, 0, f32(DROPPED))
    for j in range(PEAK_OF):
        at = T.bind(block * COLUMNS + (j * THREADS + found.tx))
        with when(at < found.padded):
            store(found.best, 0, T.max(found.best[0], found.z[found.base + at]))
    store(found.z, found.peaks + (block * THREADS + found.tx), found.best[0])


def _thresholds(found: _Row, ints, floats, limit) -> None:
    """limit becomes the least value that stays. Only in uniform control flow, as are the settings that it asks about."""
    found.find_maxima()
    by_mass = T.bind(floats[TOP_P] < f32(1))
    with when(T.Or(ints[TOP_K] > 0, by_mass)):
        k, goal, lowest = local(1, "int32"), local(1, "float32"), local(1, "float32")
        store(k, 0, ints[TOP_K])
        found.gather(wanted_rank(ints))
        whole = T.bind(found.num[0] <= CANDIDATES)
        with when(T.And(whole, found.lower[0] <= f32(-LARGEST))):  # nobody else is left
            store(k, 0, T.min(k[0], found.num[0]))
        fast = T.bind(T.And(T.And(whole, k[0] > 0), found.num[0] >= k[0]))
        with when(ints[TOP_K] > 0):
            rank = T.bind(T.cast(k[0], "float32"))
            by_row = T.bind(T.And(k[0] > 0, T.Not(fast)))
            found.search_listed(rank, f32(DROPPED), False, fast)
            found.search_row(rank, f32(DROPPED), False, by_row)
            with when(k[0] > 0):
                store(limit, 0, found.found[0])
        with when(by_mass):
            store(lowest, 0, T.max(limit[0], found.top[0] - f32(WEIGHTLESS)))
            found.add_all(lowest[0], fast, T.Not(fast))
            store(goal, 0, mass_of(found.team.total[0], found.team.total[1]) * floats[TOP_P])
            found.search_listed(goal[0], lowest[0], True, whole)
            store(lowest, 0, T.max(lowest[0], found.found[0]))
            missed = T.bind(found.found[0] <= f32(-LARGEST))
            found.search_row(goal[0], lowest[0], True, missed)
            store(limit, 0, T.max(limit[0], found.found[0]))
    with when(floats[MIN_P] > f32(0)):
        store(limit, 0, T.max(limit[0], found.top[0] + T.log(T.max(floats[MIN_P], f32(1e-37)))))


def truncate_gpu(name: str, p: Params):
    """The least value that stays, of each row of z."""
    m, stride = int(p["m"]), gpu_stride(int(p["padded"]))

    def body(args, tokens, ints, floats, banned, z, limits):
        with threads(m, 1, 1, THREADS) as (row, _, _, tx):
            limit, found = local(1, "float32"), _Row(p, z, row, tx)
            with when(T.And(row < args[1], bans(args, ints, row))):
                _drop(found, args, tokens, ints, banned)
            store(limit, 0, f32(DROPPED))
            with when(T.And(row < args[1], truncates(ints, floats))):
                _thresholds(found, ints, floats, limit)
            with when(T.And(tx == 0, row < args[1])):
                store(limits, row, limit[0])

    return prim_func(name, truncate_params(p, stride, ("limits", m, "float32")), body)
