"""The CPU's forms of `process` and `truncate` (filter.py has the rules): four logits at a time, a row after the other."""

from __future__ import annotations

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

from .base import Params
from .filter import (
    CANDIDATES,
    DROPPED,
    HALF_BITS,
    LARGEST,
    SEEN,
    SUBSETS,
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
    F32X4,
    I32X4,
    cpu_func,
    exp4,
    f32,
    is_finite_bits,
    lane,
    load4,
    local,
    log1,
    max_lanes,
    splat,
    store,
    store4,
    when,
)
from .select import out_row

# --- process -----------------------------------------------------------------------------------------------------------


def _count_cpu(tokens, ints, position, vocab: int, z, base, fours: int) -> None:
    """z becomes words of counts for a while: their bits, never their values, are used."""
    with T.serial(0, fours) as i:
        store4(z, base + i * 4, splat(f32(0)))
    with T.serial(0, position) as i:
        at = T.bind(base + T.max(T.min(tokens[i], T.int32(vocab - 1)), T.int32(0)))
        word = T.bind(T.reinterpret("int32", z[at]))
        counted = T.Select(i < ints[PROMPT_LEN], T.bitwise_or(word, T.int32(SEEN)), word + 1)
        store(z, at, T.reinterpret("float32", counted))


def _penalize_cpu(floats, value, word):
    """The penalties of four logits, from their words of counts."""
    count = T.cast(T.bitwise_and(word, splat(T.int32(SEEN - 1))), F32X4)
    r = splat(floats[REPETITION])
    repeated = T.Select(value > splat(f32(0)), value / r, value * r)
    present = T.Select(count > splat(f32(0)), splat(floats[PRESENCE]), splat(f32(0)))
    penalized = T.Select(word != splat(T.int32(0)), repeated, value)
    return penalized - (splat(floats[FREQUENCY]) * count + present)


def process_cpu(name: str, p: Params):
    vocab, padded = int(p["n"]), int(p["padded"])
    fours = padded // 4

    def body(share, args, tokens, logits, ints, floats, bias, mask, z):
        with share.of(args[1]) as row:
            base = T.bind(row * padded)
            flags = T.bind(ints[FLAGS])

            def each(change) -> None:
                """z = change(first column, z) for four columns at a time."""
                with T.serial(0, fours) as i:
                    store4(z, base + i * 4, change(i * 4, load4(z, base + i * 4)))

            with when(has(flags, PENALTIES)):
                _count_cpu(tokens, ints, args[0] + row + 1, vocab, z, base, fours)

                def penalize(at, words):
                    return _penalize_cpu(floats, load4(logits, base + at), T.reinterpret(I32X4, words))

                each(penalize)
            with when(T.Not(has(flags, PENALTIES))), T.serial(0, fours) as i:
                store4(z, base + i * 4, load4(logits, base + i * 4))
            with when(has(flags, BIAS)):
                each(lambda at, value: value + load4(bias, at))
            with when(has(flags, MASK)):
                words = T.bind(out_row(args, row) * num_mask_words(padded))

                def masked(at, value):
                    word = mask[words + T.shift_right(at, T.int32(5))]
                    nibble = T.shift_right(word, T.cast(T.bitwise_and(at, 31), "uint32"))
                    bits = T.bitwise_and(splat(T.reinterpret("int32", nibble)), _powers())
                    return T.Select(bits != splat(T.int32(0)), value, splat(f32(DROPPED)))

                each(masked)

            def finish(at, value):
                scaled = value * splat(floats[INVERSE_T])
                bound = T.max(T.min(scaled, splat(f32(LARGEST))), splat(f32(-LARGEST)))
                kept = T.Select(value > splat(f32(LEAST)), bound, splat(f32(DROPPED)))
                logit = load4(logits, base + at)
                return T.Select(is_finite_bits(logit, 4), kept, logit)

            each(finish)
            with T.serial(vocab, padded) as i:
                store(z, base + i, f32(DROPPED))

    return cpu_func(name, process_params(p, padded), body)


def _powers():
    """1, 2, 4, 8 in the lanes."""
    return T.shift_left(splat(T.int32(1)), T.Ramp(T.int32(0), 1, 4))


# --- truncate ----------------------------------------------------------------------------------------------------------


def _weights4(value, top):
    """Integer weights of four values."""
    t = T.max(value - splat(top), splat(f32(-WEIGHTLESS)))
    rounded = T.cast(exp4(t) * splat(f32(UNIT)) + splat(f32(0.5)), I32X4)
    return T.min(rounded, splat(T.int32(int(UNIT) - 1)))


BINS = (
    1024  # of the values that weigh something, in which masses are summed where the candidates do not suffice
)


class _Row:
    """One row on the CPU: its values, then the candidates among them, and searches over either."""

    def __init__(self, z, base, fours: int):
        self.z, self.base, self.fours = z, base, fours
        self.top, self.lower = local(1, "float32"), local(1, "float32")
        self.maxima = local(SUBSETS, "float32")
        self.listed, self.weights = local(CANDIDATES + 4, "float32"), local(CANDIDATES + 4, "int32")
        self.num = local(1, "int32")
        self.low, self.high, self.limit = local(1, "int32"), local(1, "int32"), local(1, "float32")
        self.above, self.sums = local(2, "int32"), local(2, "int32")
        self.sums4, self.w4 = local(2, I32X4), local(1, I32X4)
        self.fits, self.chosen = local(1, "int32"), local(1, "int32")
        self.bins, self.bin4 = local(2 * BINS, "int32"), local(1, I32X4)

    def values(self, i):
        return load4(self.z, self.base + i * 4)

    def find_maxima(self) -> None:
        """The largest of each subset, and of all."""
        most, all_of = local(1, F32X4), local(1, F32X4)
        store(all_of, 0, splat(f32(DROPPED)))
        blocks = SUBSETS // 4
        with T.serial(0, blocks) as block:
            store(most, 0, splat(f32(DROPPED)))
            first = T.truncdiv(block * self.fours, blocks)
            with T.serial(first, T.truncdiv((block + 1) * self.fours, blocks)) as i:
                store(most, 0, T.max(most[0], self.values(i)))
            store4(self.maxima, block * 4, most[0])
            store(all_of, 0, T.max(all_of[0], most[0]))
        store(self.top, 0, max_lanes(all_of[0]))

    def gather(self, rank) -> None:
        """lower: the value that `rank` of the subsets reach; num candidates from there on, in `listed` while there is room."""

        def reached(at_least, limit):
            self._clear()
            with T.serial(0, SUBSETS // 4) as i:
                self._add(load4(self.maxima, i * 4), at_least, limit, lambda v: splat(T.int32(1)))
            self._fold()

        self.search(T.cast(rank, "float32"), f32(DROPPED), reached)
        store(self.lower, 0, T.max(value_of(self.low[0]), f32(-LARGEST)))  # no dropped ids
        store(self.num, 0, T.int32(0))
        with T.serial(0, self.fours) as i:
            value = self.values(i)
            with when(max_lanes(value) >= self.lower[0]):
                for j in range(4):
                    one = self.z[self.base + i * 4 + j]
                    self._list(one, one >= self.lower[0])
        self._end_list()

    def _list(self, value, condition) -> None:
        with when(condition):
            with when(self.num[0] < CANDIDATES):
                store(self.listed, self.num[0], value)
            store(self.num, 0, self.num[0] + 1)

    def _end_list(self) -> None:
        end = T.bind(T.min(self.num[0], CANDIDATES))
        for j in range(4):  # the last vector's rest weighs nothing
            store(self.listed, end + j, f32(DROPPED))

    def weigh(self) -> None:
        """The candidates' weights; that of DROPPED is 0."""
        with T.serial(0, self.num_vectors()) as i:
            store(self.w4, 0, _weights4(load4(self.listed, i * 4), self.top[0]))
            store4(self.weights, i * 4, self.w4[0])

    def num_vectors(self):
        return T.shift_right(T.min(self.num[0], CANDIDATES) + 3, T.int32(2))

    def _clear(self) -> None:
        for half in range(2):
            store(self.sums4, half, splat(T.int32(0)))

    def _add(self, value, at_least, limit, weight) -> None:
        """Add the weights of the lanes within [at_least, limit)."""
        inside = T.And(value >= splat(at_least), value < splat(limit))
        store(self.w4, 0, T.Select(inside, weight(value), splat(T.int32(0))))
        store(self.sums4, 0, self.sums4[0] + T.shift_right(self.w4[0], splat(T.int32(HALF_BITS))))
        low = T.bitwise_and(self.w4[0], splat(T.int32((1 << HALF_BITS) - 1)))
        store(self.sums4, 1, self.sums4[1] + low)

    def _fold(self) -> None:
        for half in range(2):
            v = self.sums4[half]
            store(self.sums, half, (lane(v, 0) + lane(v, 1)) + (lane(v, 2) + lane(v, 3)))

    def count_listed(self, at_least, limit) -> None:
        self._clear()
        with T.serial(0, self.num_vectors()) as i:
            self._add(load4(self.listed, i * 4), at_least, limit, lambda v: splat(T.int32(1)))
        self._fold()

    def weigh_listed(self, at_least, limit) -> None:
        self._clear()
        with T.serial(0, self.num_vectors()) as i:
            self._add(load4(self.listed, i * 4), at_least, limit, lambda v: load4(self.weights, i * 4))
        self._fold()

    def _over_row(self, at_least, limit, weight) -> None:
        self._clear()
        with T.serial(0, self.fours) as i:
            value = self.values(i)
            with when(max_lanes(value) >= at_least):
                self._add(value, at_least, limit, weight)
        self._fold()

    def count_row(self, at_least, limit) -> None:
        self._over_row(at_least, limit, lambda v: splat(T.int32(1)))

    def weigh_row(self, at_least, limit) -> None:
        self._over_row(at_least, limit, lambda v: _weights4(v, self.top[0]))

    def _bins_of(self, value) -> None:
        """bin4: the bins of four values, the largest values' first. They ascend as the values fall, whatever the rounding."""
        far = (splat(self.top[0]) - value) * splat(f32(BINS / WEIGHTLESS))
        near = T.max(T.min(far, splat(f32(BINS - 1))), splat(f32(0)))
        store(self.bin4, 0, T.cast(near, I32X4))
        # of a value that is not finite the cast may give anything
        bounded = T.max(T.min(self.bin4[0], splat(T.int32(BINS - 1))), splat(T.int32(0)))
        store(self.bin4, 0, bounded)

    def search_bins(self, goal, lowest) -> None:
        """As search over the row by weights: the bin in which the goal is reached first, then its ids as the candidates."""
        with T.serial(0, 2 * BINS // 4) as i:
            store4(self.bins, i * 4, splat(T.int32(0)))
        with T.serial(0, self.fours) as i:
            value = self.values(i)
            with when(max_lanes(value) >= lowest):
                self._bins_of(value)
                store(self.w4, 0, _weights4(value, self.top[0]))
                for j in range(4):
                    with when(self.z[self.base + i * 4 + j] >= lowest):
                        self._into_bin(lane(self.bin4[0], j), lane(self.w4[0], j))
        store(self.chosen, 0, T.int32(0))
        for half in range(2):
            store(self.sums, half, T.int32(0))
        with T.serial(0, BINS) as number:
            high, low = self.bins[2 * number], self.bins[2 * number + 1]
            before = mass_of(self.sums[0], self.sums[1]) < goal
            store(self.fits, 0, T.Select(before, T.int32(1), T.int32(0)))
            reached = mass_of(self.sums[0] + high, self.sums[1] + low) >= goal
            with when(T.And(self.fits[0] == 1, reached)):
                store(self.chosen, 0, number)
                for half in range(2):
                    store(self.above, half, self.sums[half])
            store(self.sums, 0, self.sums[0] + high)
            store(self.sums, 1, self.sums[1] + low)
        self._gather_bin(lowest)
        with when(self.num[0] <= CANDIDATES):
            self.weigh()
            self._halve(goal, lowest, self.weigh_listed)
        with when(self.num[0] > CANDIDATES):
            self.search(goal, lowest, self.weigh_row)

    def _into_bin(self, number, weight) -> None:
        store(self.bins, 2 * number, self.bins[2 * number] + T.shift_right(weight, T.int32(HALF_BITS)))
        low = T.bitwise_and(weight, T.int32((1 << HALF_BITS) - 1))
        store(self.bins, 2 * number + 1, self.bins[2 * number + 1] + low)

    def _gather_bin(self, lowest) -> None:
        """The candidates become the values of the chosen bin."""
        store(self.num, 0, T.int32(0))
        with T.serial(0, self.fours) as i:
            self._bins_of(self.values(i))
            inside = T.Select(self.bin4[0] == splat(self.chosen[0]), self.values(i), splat(f32(DROPPED)))
            with when(max_lanes(inside) >= lowest):
                for j in range(4):
                    one = self.z[self.base + i * 4 + j]
                    self._list(one, T.And(lane(self.bin4[0], j) == self.chosen[0], one >= lowest))
        self._end_list()

    def search(self, goal, lowest, measure) -> None:
        """low becomes the key of the largest value from `lowest` on, whose measure reaches the goal; that of `lowest` must."""
        for half in range(2):
            store(self.above, half, T.int32(0))
        self._halve(goal, lowest, measure)

    def _halve(self, goal, lowest, measure) -> None:
        """`above` is the measure of what `measure` does not see."""
        store(self.low, 0, key_of(lowest))
        store(self.high, 0, key_of(self.top[0]))
        store(self.limit, 0, f32(3.4e38))
        with T.serial(0, 32) as _, when(self.low[0] < self.high[0]):
            middle = T.bind(upper_middle(self.low[0], self.high[0]))
            measure(value_of(middle), self.limit[0])
            mass = mass_of(self.above[0] + self.sums[0], self.above[1] + self.sums[1])
            store(self.fits, 0, T.Select(mass >= goal, T.int32(1), T.int32(0)))
            with when(self.fits[0] == 1):
                store(self.low, 0, middle)
            with when(self.fits[0] == 0):
                store(self.high, 0, middle - 1)
                store(self.limit, 0, value_of(middle))
                for half in range(2):
                    store(self.above, half, self.above[half] + self.sums[half])


def _drop_cpu(args, tokens, ints, banned, z, base, row, vocab: int) -> None:
    """Banned sequences, and stop ids before min_len."""

    def drop(token) -> None:
        with when(T.And(token >= 0, token < vocab)):
            at = T.bind(base + token)
            with when(is_finite_bits(z[at])):
                store(z, at, f32(DROPPED))

    with when(has(ints[FLAGS], BANNED)), T.serial(0, T.min(ints[NUM_BANNED], MAX_BANNED)) as i:
        drop(T.bind(banned_id(args, tokens, banned, row, i)))
    with when(args[0] + row + 1 < ints[MIN_LEN]), T.serial(0, T.min(ints[NUM_STOPS], MAX_STOPS)) as i:
        drop(T.bind(ints[FIRST_STOP + i]))


def _thresholds_cpu(found: _Row, ints, floats, limit) -> None:
    """limit becomes the least value that stays."""
    k, fast, goal = local(1, "int32"), local(1, "int32"), local(1, "float32")
    infinite = f32(3.4e38)
    store(k, 0, ints[TOP_K])
    found.gather(wanted_rank(ints))
    with when(found.lower[0] <= f32(-LARGEST)):  # nobody else is left
        store(k, 0, T.min(k[0], found.num[0]))
    store(fast, 0, T.Select(T.And(found.num[0] <= CANDIDATES, found.num[0] >= k[0]), T.int32(1), T.int32(0)))
    with when(k[0] > 0):
        with when(fast[0] == 1):
            found.search(T.cast(k[0], "float32"), found.lower[0], found.count_listed)
        with when(fast[0] == 0):
            found.search(T.cast(k[0], "float32"), f32(DROPPED), found.count_row)
        store(limit, 0, value_of(found.low[0]))
    with when(floats[TOP_P] < f32(1)):
        lowest = local(1, "float32")
        store(lowest, 0, T.max(limit[0], found.top[0] - f32(WEIGHTLESS)))
        with when(found.num[0] <= CANDIDATES):
            found.weigh()
        with when(T.And(k[0] > 0, fast[0] == 1)):
            found.weigh_listed(lowest[0], infinite)
        with when(T.Or(k[0] <= 0, fast[0] == 0)):
            found.weigh_row(lowest[0], infinite)
        store(goal, 0, mass_of(found.sums[0], found.sums[1]) * floats[TOP_P])
        store(fast, 0, T.int32(0))
        with when(found.num[0] <= CANDIDATES):
            found.weigh_listed(T.max(lowest[0], found.lower[0]), infinite)
            reached = mass_of(found.sums[0], found.sums[1]) >= goal[0]
            store(fast, 0, T.Select(reached, T.int32(1), T.int32(0)))
        with when(fast[0] == 1):
            found.search(goal[0], T.max(lowest[0], found.lower[0]), found.weigh_listed)
        with when(fast[0] == 0):
            found.search_bins(goal[0], lowest[0])
        store(limit, 0, T.max(limit[0], value_of(found.low[0])))
    with when(floats[MIN_P] > f32(0)):
        least = log1(T.max(floats[MIN_P], f32(1e-37)))
        store(limit, 0, T.max(limit[0], found.top[0] + least))


def truncate_cpu(name: str, p: Params):
    vocab, padded = int(p["n"]), int(p["padded"])
    fours = padded // 4

    def body(share, args, tokens, ints, floats, banned, z, kept):
        with share.of(args[1]) as row:
            base = T.bind(row * padded)
            limit, none = local(1, "float32"), local(1, "int32")
            found = _Row(z, base, fours)
            with when(bans(args, ints, row)):
                _drop_cpu(args, tokens, ints, banned, z, base, row, vocab)
            found.find_maxima()
            store(limit, 0, f32(DROPPED))
            with when(truncates(ints, floats)):
                _thresholds_cpu(found, ints, floats, limit)
            # where nothing survives, every value's exponent is made all ones: not finite
            alive = found.top[0] >= f32(-LARGEST)
            store(none, 0, T.Select(alive, T.int32(0), T.int32(0x7F800000)))
            with T.serial(0, fours) as i:
                value = found.values(i)
                stays = T.Or(value >= splat(limit[0]), T.Not(is_finite_bits(value, 4)))
                bits = T.reinterpret(I32X4, T.Select(stays, value, splat(f32(DROPPED))))
                store4(kept, base + i * 4, T.reinterpret(F32X4, T.bitwise_or(bits, splat(none[0]))))

    kept = ("kept", int(p["m"]) * padded, "float32")
    return cpu_func(name, truncate_params(p, padded, kept), body)
