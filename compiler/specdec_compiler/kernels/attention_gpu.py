"""Attention on the GPU: attention_split, then attention_merge, which quantizes for the output projection. Row-invariant.

K and V are f16 pairs in 32-bit words (rope.py). A workgroup takes one split of 128 absolute positions and up to 8 query rows that share
its K and V head: heads of the group, then rows of the pass. Each K and V word is loaded once for all of them. Splits are shorter than
the CPU's: a decode step has few workgroups, and the time of one is what it takes (docs/performance.md). The order of sums is over lanes
and parts, fixed by the shape; slots past a row are selected away before they meet anything: stale pages cannot leak in.
"""

from __future__ import annotations

from math import gcd

from tvm.script.ir_builder import tirx as T

from .attention import NEGATIVE, attention_shapes
from .base import ARGS, GROUP, Form, Op, Params, ceil_div
from .ir import barrier, f32, fma, local, prim_func, shared, store, threads, when
from .quantize import ORDER, WordQuantizer, codes_gpu, first_of_word
from .rope import kv_elements

THREADS = 256
GPU_SPLIT = 128  # absolute positions of one workgroup
QUERIES = 8  # most query rows of a workgroup
KEY_WORDS, VALUE_WORDS = 32, 32  # words of K, and of V, whose loads are in flight together
PEAK_LANES = 16  # threads that share a query row's maximum and sum
MEMORY = 4096  # most words of workgroup memory


def num_splits(context: int) -> int:
    """GPU: splits of a full context."""
    return ceil_div(context, GPU_SPLIT)


def _partial(p: Params) -> tuple[str, int, str]:
    m, h, _, d, _, ctx = attention_shapes(p)
    return ("partial", m * h * num_splits(ctx) * (d + 2), "float32")


def _unpack(word):
    """Two f32 from a word of two f16."""
    return T.call_pure_extern("float32x2", "unpack2x16float", word)


class _Split:
    """One workgroup of attention_split. Query q of its `queries` is head q % heads of its heads and row q // heads of its rows.

    Workgroup memory: scores (or weights) by query, of each part of D; weights by position; a word a query and lane. Summing the parts
    of V reuses all of it.
    """

    def __init__(self, p: Params):
        self.m, self.h, self.kv, self.d, self.s, ctx = attention_shapes(p)
        group = self.h // self.kv
        self.heads = next(n for n in range(min(group, QUERIES), 0, -1) if group % n == 0)
        self.chunks = group // self.heads  # workgroups that share a kv head
        self.rows = 1
        while 2 * self.rows * self.heads <= QUERIES and self.m % (2 * self.rows) == 0:
            self.rows *= 2
        self.queries, self.splits = self.heads * self.rows, num_splits(ctx)
        self.dim_parts = THREADS // GPU_SPLIT  # threads that share a position while scoring
        self.weights_at = THREADS * self.queries
        self.lanes_at = self.weights_at + GPU_SPLIT * self.queries
        # while summing V: `lanes` threads across D, each `words` words of two dimensions; the positions in `parts`
        self.words = self.d // 64 if self.d % 64 == 0 else 1
        self.lanes = 1 << (self.d // 2 // self.words - 1).bit_length()
        self.parts = THREADS // self.lanes
        self.chunk = GPU_SPLIT // self.parts  # positions of a thread, `batch` of them loaded at once
        most = min(self.chunk, VALUE_WORDS // self.words)
        self.batch = next(n for n in range(most, 0, -1) if self.chunk % n == 0)
        self.v_at = kv_elements(p) // 2  # V lies behind K
        need = max(self.lanes_at + PEAK_LANES * self.queries, self.parts * self.d)
        self.memory_size = max(need, min(MEMORY, self.parts * self.d * self.queries))

    def place(self, split, head_chunk, row_chunk, args, page_table, pages) -> None:
        """Where this workgroup works."""
        self.split, self.page_table, self.pages = split, page_table, pages
        self.kv_head = T.bind(T.truncdiv(head_chunk, self.chunks))
        self.head0, self.row0 = T.bind(head_chunk * self.heads), T.bind(row_chunk * self.rows)
        self.base = T.bind(split * GPU_SPLIT)
        self.counts = [
            T.bind(T.max(T.min(self._length(args, self.row0 + row) - self.base, GPU_SPLIT), 0))
            for row in range(self.rows)
        ]
        self.count = self.counts[0]
        for count in self.counts[1:]:
            self.count = T.bind(T.max(self.count, count))

    @staticmethod
    def _length(args, row):
        return T.Select(row < args[1], args[0] + row + 1, 0)

    def _slot(self, at):
        """(number of the page's block of this head, slot in it) of position `at` of the split."""
        page = T.bind(self.page_table[T.truncdiv(self.base + at, self.s)])
        return T.bind(page * self.kv + self.kv_head), T.bind(T.truncmod(self.base + at, self.s))

    def load_values(self, tx, batch: int) -> list:
        """The V words of one batch of this thread's positions, [position][word]. Slots past a row's count are read (their page is
        mapped somewhere) and selected away when used."""
        if batch == 0:
            self.lane_id, self.part = T.bind(T.truncmod(tx, self.lanes)), T.bind(T.truncdiv(tx, self.lanes))
            self.first = T.bind(self.part * self.chunk)
            self.column = T.bind(T.min(self.lane_id * self.words, self.d // 2 - self.words))
        loaded = []
        run = next(n for n in (self.batch, 16, 8, 4, 2, 1) if self.batch % n == 0 and self.s % n == 0)
        for j in range(self.batch):
            if j % run == 0:
                block, slot = self._slot(self.first + batch * self.batch + j)
                at = T.bind(self.v_at + (block * self.s + slot) * (self.d // 2) + self.column)
            offset = j % run * (self.d // 2)
            loaded.append([T.bind(self.pages[at + offset + word]) for word in range(self.words)])
        return loaded

    def scores(self, q, acc, memory, tx) -> list:
        """q . k of a position and a part of D, dimensions ascending, to memory. Gives the first batch of V, whose loads run beside."""
        at, part = T.bind(T.truncmod(tx, GPU_SPLIT)), T.bind(T.truncdiv(tx, GPU_SPLIT))
        words = self.d // 2 // self.dim_parts
        step = next(n for n in range(min(KEY_WORDS, words), 0, -2) if words % n == 0)
        pair = local(2, "float32x2")
        block, slot = self._slot(at)
        key = T.bind((block * (self.d // 2) + part * words) * self.s + slot)
        early = self.load_values(tx, 0)
        for query in range(self.queries):
            store(acc, query, f32(0))
        with T.serial(0, words // step) as done:
            keys = [T.bind(self.pages[key + (done * step + j) * self.s]) for j in range(step)]
            for four in range(step // 2):
                store(pair, 0, _unpack(keys[2 * four]))
                store(pair, 1, _unpack(keys[2 * four + 1]))
                for query in range(self.queries):
                    row, head = divmod(query, self.heads)
                    at_q = ((self.row0 + row) * self.h + self.head0 + head) * (self.d // 4)
                    vector = T.bind(q[at_q + part * (words // 2) + done * (step // 2) + four])
                    for j in range(4):
                        value = T.Shuffle([pair[j // 2]], [j % 2])
                        store(acc, query, fma(T.Shuffle([vector], [j]), value, acc[query]))
        for query in range(self.queries):
            store(memory, (part * self.queries + query) * GPU_SPLIT + at, acc[query])
        barrier()
        return early

    def softmax(self, memory, tx, partial) -> None:
        """Weights to memory[weights_at + position * queries + query]; each query's maximum and sum to its place in `partial`."""
        at, part = T.bind(T.truncmod(tx, GPU_SPLIT)), T.bind(T.truncdiv(tx, GPU_SPLIT))
        mine = range(ceil_div(self.queries, self.dim_parts))  # a thread's queries, of its position
        score, best = local(len(mine), "float32"), local(1, "float32")
        queries = [T.bind(part + i * self.dim_parts) for i in mine]
        exists = [T.bind(query < self.queries) for query in queries]
        lane_query, lane_id = T.bind(T.truncdiv(tx, PEAK_LANES)), T.bind(T.truncmod(tx, PEAK_LANES))
        lane_at = T.bind(lane_query * GPU_SPLIT + lane_id)
        in_lanes = tx < self.queries * PEAK_LANES
        for i, query in enumerate(queries):
            with when(exists[i]):
                store(score, i, memory[query * GPU_SPLIT + at])
                for other in range(1, self.dim_parts):
                    more = memory[(other * self.queries + query) * GPU_SPLIT + at]
                    store(score, i, score[i] + more)
                scaled = score[i] * f32(self.d**-0.5)
                store(score, i, T.Select(at < self._count(query), scaled, f32(NEGATIVE)))
                store(memory, query * GPU_SPLIT + at, score[i])
        barrier()
        with when(in_lanes):
            store(best, 0, f32(NEGATIVE))
            for i in range(0, GPU_SPLIT, PEAK_LANES):
                store(best, 0, T.max(best[0], memory[lane_at + i]))
            store(memory, self.lanes_at + tx, best[0])
        barrier()
        for i, query in enumerate(queries):
            with when(exists[i]):
                store(best, 0, f32(NEGATIVE))
                for j in range(PEAK_LANES):
                    store(best, 0, T.max(best[0], memory[self.lanes_at + query * PEAK_LANES + j]))
                inside = at < self._count(query)
                # read again: a product still in a register might be fused with the difference, in one width and not in another
                stored = memory[query * GPU_SPLIT + at]
                store(score, i, T.Select(inside, T.exp(stored - best[0]), f32(0)))
                store(memory, query * GPU_SPLIT + at, score[i])
                store(memory, self.weights_at + at * self.queries + query, score[i])
                with when(at == 0):
                    self.write(partial, self.d, best[0], query)
        barrier()
        with when(in_lanes):
            store(best, 0, f32(0))
            for i in range(0, GPU_SPLIT, PEAK_LANES):
                store(best, 0, best[0] + memory[lane_at + i])
            store(memory, self.lanes_at + tx, best[0])
        barrier()
        with when(tx < self.queries):
            store(best, 0, f32(0))
            for j in range(PEAK_LANES):
                store(best, 0, best[0] + memory[self.lanes_at + tx * PEAK_LANES + j])
            self.write(partial, self.d + 1, best[0], tx)

    def _count(self, query):
        """Positions of the split that a query's row reaches."""
        row = T.bind(T.truncdiv(query, self.heads))
        count = self.counts[0]
        for i in range(1, self.rows):
            count = T.Select(row == i, self.counts[i], count)
        return T.bind(count)

    def write(self, partial, offset, value, query) -> None:
        """Store into the query's part of `partial`, where the query's row reaches this split."""
        row, head = T.truncdiv(query, self.heads), T.truncmod(query, self.heads)
        at = T.bind((self.row0 + row) * self.h + self.head0 + head)
        with when(self._count(query) > 0):
            store(partial, (at * self.splits + self.split) * (self.d + 2) + offset, value)

    def values(self, early: list, memory, acc, tx, partial) -> None:
        """Sum of weight * V, positions ascending in each part, then parts ascending. A position past a row's count is selected away: a
        stale NaN, or another row's, must not meet a zero weight."""
        words, queries = self.words, self.queries
        for i in range(2 * words * queries):
            store(acc, i, f32(0))
        pair = local(1, "float32x2")
        for batch in range(self.chunk // self.batch):
            at0 = T.bind(self.first + batch * self.batch)
            with when(at0 < self.count):
                loaded = self.load_values(tx, batch) if batch else early
                for j in range(self.batch):
                    at = T.bind(self.weights_at + (at0 + j) * queries)
                    weights = [T.bind(memory[at + query]) for query in range(queries)]
                    inside = [T.bind(at0 + j < count) for count in self.counts]
                    for word in range(words):
                        store(pair, 0, _unpack(loaded[j][word]))
                        for row, half in ((row, half) for row in range(self.rows) for half in range(2)):
                            value = T.bind(T.Select(inside[row], T.Shuffle([pair[0]], [half]), f32(0)))
                            for query in range(row * self.heads, (row + 1) * self.heads):
                                i = (query * words + word) * 2 + half
                                store(acc, i, fma(weights[query], value, acc[i]))
        self._parts(memory, acc, tx, self.lane_id, self.part, partial)

    def _parts(self, memory, acc, tx, lane_id, part, partial) -> None:
        """Add the parts through workgroup memory, as many queries at a time as fit."""
        d, words = self.d, self.words
        at_once = max(1, min(self.queries, self.memory_size // (self.parts * d)))
        total = local(1, "float32")
        for start in range(0, self.queries, at_once):
            some = min(at_once, self.queries - start)
            barrier()
            with when(lane_id * words < d // 2):
                for query in range(some):
                    for i in range(2 * words):
                        at = (query * self.parts + part) * d + lane_id * 2 * words + i
                        store(memory, at, acc[(start + query) * 2 * words + i])
            barrier()
            for block in range(ceil_div(some * d, THREADS)):
                at = T.bind(block * THREADS + tx)
                with when(at < some * d):
                    query, i = T.bind(T.truncdiv(at, d)), T.bind(T.truncmod(at, d))
                    store(total, 0, memory[query * self.parts * d + i])
                    for other in range(1, self.parts):
                        store(total, 0, total[0] + memory[(query * self.parts + other) * d + i])
                    self.write(partial, i, total[0], start + query)


def _split_gpu(name: str, p: Params):
    work = _Split(p)

    def body(args, q, page_table, pages, partial):
        grid = (work.splits, work.kv * work.chunks, work.m // work.rows)
        with threads(*grid, THREADS) as (split, head_chunk, row_chunk, tx):
            memory = shared(work.memory_size, "float32")
            acc = local(2 * work.words * work.queries, "float32")
            work.place(split, head_chunk, row_chunk, args, page_table, pages)
            # uniform: the count comes from args (read-only) and the workgroup; empty splits end here, barriers and all
            with when(work.count > 0):
                early = work.scores(q, acc, memory, tx)
                work.softmax(memory, tx, partial)
                work.values(early, memory, acc, tx, partial)

    m, h, _, d, _, _ = attention_shapes(p)
    params = [
        ("args", ARGS, "int32"),
        ("q", m * h * d // 4, "float32x4"),
        ("page_table", int(p["pages"]), "int32"),
        ("pages", kv_elements(p), "uint32"),
        _partial(p),
    ]
    return prim_func(name, params, body)


def _merge_gpu(name: str, p: Params):
    """The attention output, quantized at once for the output projection. A workgroup makes one head of one row (or so many that groups
    are whole): a thread for each word of the result, and as many lanes of them as fit. A lane takes splits in turn; the lanes' sums,
    scaled to the largest maximum, are added in their order."""
    m, h, _, d, _, ctx = attention_shapes(p)
    heads = GROUP // gcd(d, GROUP)  # of a workgroup
    splits, words = num_splits(ctx), heads * d // 4
    lanes = min(1 << (THREADS // words).bit_length() - 1, 1 << (splits - 1).bit_length())
    stride = d + 1  # of a head's part of a lane: its sums, and its sum of weights

    def body(args, partial, codes):
        with threads(h // heads, m, 1, words * lanes) as (head0, row, _, tx):
            tops, sums = shared(lanes * heads, "float32"), shared(lanes * heads * stride, "float32")
            top, total, scale = local(1, "float32"), local(1, "float32"), local(1, "float32")
            values = local(4, "float32")
            word, lane_id = T.bind(T.truncmod(tx, words)), T.bind(T.truncdiv(tx, words))
            head, in_head = T.bind(T.truncdiv(word, d // 4)), T.bind(T.truncmod(word, d // 4))
            column = T.bind(first_of_word(in_head))
            start = T.bind((row * h + head0 * heads + head) * splits * (d + 2))
            count = T.bind(T.min(T.truncdiv(args[0] + row, GPU_SPLIT) + 1, splits))
            rounds = T.truncdiv(count + (lanes - 1), lanes)
            store(top, 0, f32(NEGATIVE))
            with T.serial(0, rounds) as i:
                split = T.bind(i * lanes + lane_id)
                peak = partial[start + T.min(split, count - 1) * (d + 2) + d]
                store(top, 0, T.Select(split < count, T.max(top[0], peak), top[0]))
            with when(in_head == 0):
                store(tops, lane_id * heads + head, top[0])
            barrier()
            for other in range(lanes):
                store(top, 0, T.max(top[0], tops[other * heads + head]))
            store(total, 0, f32(0))
            for j in range(4):
                store(values, j, f32(0))
            with T.serial(0, rounds) as i:
                split = T.bind(i * lanes + lane_id)
                at = T.bind(start + T.min(split, count - 1) * (d + 2))
                store(scale, 0, T.Select(split < count, T.exp(partial[at + d] - top[0]), f32(0)))
                store(total, 0, fma(partial[at + d + 1], scale[0], total[0]))
                for j, offset in enumerate(ORDER):
                    value = T.Select(split < count, partial[at + column + offset], f32(0))
                    store(values, j, fma(value, scale[0], values[j]))
            mine = T.bind((lane_id * heads + head) * stride)
            for j, offset in enumerate(ORDER):
                store(sums, mine + column + offset, values[j])
            with when(in_head == 0):
                store(sums, mine + d, total[0])
            barrier()

            def of_lanes(result, at: int, offset) -> None:
                store(result, at, sums[head * stride + offset])
                for other in range(1, lanes):
                    store(result, at, result[at] + sums[(other * heads + head) * stride + offset])

            def fill(_, filled):
                of_lanes(total, 0, d)
                for j, offset in enumerate(ORDER):
                    of_lanes(filled, j, column + offset)
                    store(filled, j, filled[j] / total[0])

            valid = T.And(lane_id == 0, row < args[1])
            quantizer = WordQuantizer(words * lanes, tx)
            quantizer.emit(fill, valid, head0 * words + word, codes, row, h * d // GROUP)

    return prim_func(name, [("args", ARGS, "int32"), _partial(p), codes_gpu(m, h * d)], body)


_IN = (("args", "read"), ("q", "read"), ("page_table", "read"), ("pages", "read"))
ATTENTION_SPLIT = Op("attention_split", gpu=Form((*_IN, ("partial", "write")), _split_gpu))
ATTENTION_MERGE = Op(
    "attention_merge", gpu=Form((("args", "read"), ("partial", "read"), ("codes", "write")), _merge_gpu)
)
