"""The processors of one row's logits, in two ops: `process` (what changes a logit) and `truncate` (what drops the unlikely ones).

process: repetition, frequency and presence penalties by the counts of the ids in `tokens` before the row's position, bias, grammar
mask, then 1 / temperature. truncate: banned sequences and stop ids before min_len, then top-k, top-p and min-p. The order and the
formulas are those of decode/pipeline.py (docs/sampling.md). The logits themselves stay as they are.

Values: a dropped id has DROPPED; any other finite logit's value lies within +-LARGEST; where the logit is not finite its value is not
either, so that what chooses the row's id sees it. A row in which nothing survives gets values that are not finite, on the GPU only
DROPPED ones: neither can be chosen from. Columns past the vocabulary are DROPPED. Knows no noise and no choice. Row-invariant: a row's
bits depend on its own logits, position and tokens only.

The thresholds need no sort and no order of additions. `search` halves an interval of float bits, taken in the order of their values,
until it holds the largest threshold whose measure reaches the goal: a count for top-k; for top-p, the sum of weights exp(z - largest)
rounded to 1 / 2^26, as integers, whose two halves of 13 bits are summed apart: no 32-bit sum overflows up to 262,144 ids. First the
candidates are gathered: those from LOWER on, a value that at least as many ids reach as there are subsets (of the vocabulary, 256)
whose largest reaches it. Where they do not suffice, the search runs over the whole row.
"""

from __future__ import annotations

from specdec_runtime.plan.sampling_layout import BAN, BANNED, FLAGS, MIN_LEN, MIN_P, NOISE, TOP_K, TOP_P
from specdec_runtime.plan.schema import BANNED_FIELDS, MAX_BANNED, SAMPLING_FLOATS, SAMPLING_INTS
from tvm.script.ir_builder import tirx as T

from .base import ARGS, OUT_ROWS, Params, ceil_div
from .ir import f32, local, store
from .select import logits_buffer

DROPPED = BAN  # the value of an id that cannot be chosen: finite, and stays the least with any noise added
COLUMNS = 2048  # GPU: of a row, for one workgroup of process
GPU_THREADS = 256
PEAK_OF = (
    COLUMNS // GPU_THREADS
)  # columns a thread has there, every 256th; their largest is kept with the row
LARGEST = 1.0e37  # other values lie within plus and minus this
SEEN = 1 << 20  # in a word of counts: the prompt has the id; below it, how often the answer has it
SUBSETS = 256  # of the vocabulary, whose largest values give a lower bound of what is worth looking at
CANDIDATES = 768  # at most so many are gathered
USUAL = 192  # about how many to gather for top-p
HALF_BITS = 13  # of a weight's two halves
UNIT = float(1 << 2 * HALF_BITS)  # weight of the most likely id, less one
WEIGHTLESS = 20.0  # an id so far below the largest has weight 0
TOP_KEY, SIGN = 0x7FFFFFFF, 31

assert UNIT * 2.718**-(WEIGHTLESS) < 0.5 and MAX_BANNED <= 32


def has(flags, flag: int):
    """Is the flag set?"""
    return T.bitwise_and(flags, flag) != 0


def key_of(value):
    """An int32 in the order of finite floats, and back: the same change of bits both ways."""
    bits = T.reinterpret("int32", value)
    return T.bitwise_xor(bits, T.bitwise_and(T.shift_right(bits, T.int32(SIGN)), T.int32(TOP_KEY)))


def value_of(key):
    bits = T.bitwise_xor(key, T.bitwise_and(T.shift_right(key, T.int32(SIGN)), T.int32(TOP_KEY)))
    return T.reinterpret("float32", bits)


def upper_middle(low, high):
    """(low + high + 1) / 2 rounded down, without overflow."""
    return T.bitwise_or(low, high) - T.shift_right(T.bitwise_xor(low, high), T.int32(1))


def mass_of(high, low):
    """The float that stands for a sum of weights or a count: its halves' sums, put together."""
    return T.cast(high, "float32") * f32(1 << HALF_BITS) + T.cast(low, "float32")


def truncates(ints, floats):
    """Is there anything to drop by rank or probability? At temperature 0 that changes nothing."""
    some = T.Or(T.Or(ints[TOP_K] > 0, floats[TOP_P] < f32(1)), floats[MIN_P] > f32(0))
    return T.And(has(ints[FLAGS], NOISE), some)


def wanted_rank(ints):
    """The rank among the subsets' largest from which on candidates are gathered."""
    return T.Select(ints[TOP_K] > 0, T.min(ints[TOP_K], SUBSETS), T.int32(USUAL))


def banned_id(args, tokens, banned, row, number):
    """The last id of banned sequence `number`, where the row's prefix ends with the others; else -1."""
    position = args[0] + row + 1
    size = banned[number * BANNED_FIELDS]
    first = T.bind(position - (size - 1))
    same = local(1, "int32")
    store(same, 0, T.Select(T.And(first >= 0, size >= 2), T.int32(1), T.int32(0)))
    for i in range(BANNED_FIELDS - 2):
        at = T.max(first + i, 0)
        differs = tokens[at] != banned[number * BANNED_FIELDS + 1 + i]
        store(same, 0, T.Select(T.And(i < size - 1, differs), T.int32(0), same[0]))
    last = banned[number * BANNED_FIELDS + T.min(T.max(size, 1), BANNED_FIELDS - 1)]
    return T.Select(same[0] == 1, last, T.int32(-1))


def bans(args, ints, row):
    """Are there banned sequences, or stop ids that are too early?"""
    return T.Or(has(ints[FLAGS], BANNED), args[0] + row + 1 < ints[MIN_LEN])


def num_peaks(padded: int) -> int:
    """GPU: the largest values of a row that are kept with it."""
    return ceil_div(padded, COLUMNS) * GPU_THREADS


def gpu_stride(padded: int) -> int:
    """GPU: elements of a row of z: its columns, then the peaks. Peak 256 b + t is of columns 2048 b + 256 j + t, j from 0 to 7."""
    return padded + num_peaks(padded)


def num_mask_words(padded: int) -> int:
    return ceil_div(padded, 32)


def process_params(p: Params, stride: int) -> list[tuple[str, int, str]]:
    """stride: elements of a row of z."""
    padded = int(p["padded"])
    return [
        ("args", ARGS, "int32"),
        ("tokens", int(p["tokens"]), "int32"),
        logits_buffer(p),
        ("ints", SAMPLING_INTS, "int32"),
        ("floats", SAMPLING_FLOATS, "float32"),
        ("bias", padded, "float32"),
        ("mask", OUT_ROWS * num_mask_words(padded), "uint32"),
        ("z", int(p["m"]) * stride, "float32"),
    ]


def truncate_params(p: Params, stride: int, result: tuple[str, int, str]) -> list[tuple[str, int, str]]:
    return [
        ("args", ARGS, "int32"),
        ("tokens", int(p["tokens"]), "int32"),
        ("ints", SAMPLING_INTS, "int32"),
        ("floats", SAMPLING_FLOATS, "float32"),
        ("banned", MAX_BANNED * BANNED_FIELDS, "int32"),
        ("z", int(p["m"]) * stride, "float32"),
        result,
    ]
