"""A backend of tables: the executor protocol over plain lists, with functions in place of models.

A model is a function from the tokens before a position to the id that follows. Everything around it is
emulated as a device would do it: tokens are read by absolute position, each one is appended to a KV cell
found through the page table, and a row sees only what those cells hold. So a wrong rollback, a lost page
table entry, a shifted row or a stale token changes the answer, as it would on a GPU. Knows the programs'
names and host tensors, no kernel. Invariants: cells are never cleared; a cell written for another position,
or never written, reads as a negative id; anything out of range is a ContractError, where hardware would
corrupt memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import nan
from typing import Any

from specdec_runtime.backends.scripted_sampling import (
    draw,
    filtered_id,
    filtered_shares,
    judged,
    logits_of,
    sampled_id,
    seed_of,
    shares_of,
)
from specdec_runtime.decode.effects import KINDS, Readback, Submit
from specdec_runtime.decode.rng import DRAFT
from specdec_runtime.faults import ContractError
from specdec_runtime.plan.schema import (
    OUT_ROWS,
    TOP_FIELDS,
    VERDICT_FIELDS,
    Model,
    Plan,
    host_tensors,
    program_widths,
)

NextId = Callable[[tuple[int, ...]], int]  # tokens of positions 0..p -> id for position p + 1
# tokens so far and a given id -> margin, logprob, top logit
Scores = Callable[[tuple[int, ...], int], tuple[float, float, float]]
# tokens so far -> logprob of the draft's id, entropy
Stats = Callable[[tuple[int, ...]], tuple[float, float]]
# tokens so far and the id after them -> its logprob, 0, then the likeliest ids, each with its own
Tops = Callable[[tuple[int, ...], int], list[float]]

POISON = -1  # what nobody wrote


def table(entries: Mapping[tuple[int, ...], int], default: int = 0) -> NextId:
    """A model from a table of prefixes."""
    return lambda prefix: entries.get(prefix, default)


def flat_scores(prefix: tuple[int, ...], token_id: int) -> tuple[float, float, float]:
    """Scores that depend on both arguments and on nothing else."""
    mix = hash((prefix, token_id)) % 1000
    return mix / 1000.0, -mix / 100.0, mix / 10.0


def flat_stats(prefix: tuple[int, ...]) -> tuple[float, float]:
    """How sure a draft is: depends on the tokens and on nothing else."""
    mix = hash(prefix) % 16
    return -mix / 8.0, mix / 4.0


def flat_tops(prefix: tuple[int, ...], token_id: int) -> list[float]:
    """Log-probabilities that depend on both arguments and on nothing else."""
    mix = hash(prefix) % 1000
    likeliest = [number for i in range(5) for number in (float((token_id + i) % 7), -(mix + i) / 100.0)]
    return [-hash((prefix, token_id)) % 1000 / -100.0, 0.0, *likeliest]


@dataclass
class Script:
    """What goes wrong, and when; submits count from 0 over the life of the backend."""

    not_finite: set[tuple[int, str, int]] = field(default_factory=set)  # (submit, program, row)
    not_finite_calls: set[tuple[int, int]] = field(default_factory=set)  # (submit, number of the call in it)
    fail_before: dict[int, Exception] = field(default_factory=dict)  # nothing of the submit happens
    fail_after: dict[int, Exception] = field(default_factory=dict)  # all of it happens but the readback


class _Lane:
    """One model's programs and KV cells."""

    def __init__(self, model: Model, next_id: NextId, tensors: dict[str, list[Any]]) -> None:
        self.model = model
        self.next_id = next_id
        self.prefixes: list[tuple[int, ...]] = []  # of the rows of the last pass
        self.first = 0  # the row of `out` where that pass began
        self._tensors = tensors
        self._cells: list[list[tuple[int, int]]] = [
            [(POISON, POISON)] * model.page_size for _ in range(model.num_pages)
        ]

    def tensor(self, name: str) -> list[Any]:
        return self._tensors[f"{self.model.role}.{name}"]

    def rows(self, width: int) -> tuple[int, int]:
        """Start and number of valid rows of the pass that args describe."""
        start, num_rows, _, _ = self.tensor("args")
        inside = start >= 0 and start + num_rows <= self.model.max_context
        if not inside or not 1 <= num_rows <= width:
            raise ContractError(f"{num_rows} rows at {start} in a pass of {width}", f"{self.model.role}.args")
        return start, num_rows

    def out_row(self, num_rows: int) -> int:
        """Where the rows of this pass begin in `out`; a kernel would clamp it, over rows of passes before."""
        first = self.tensor("args")[3]
        if not 0 <= first <= OUT_ROWS - num_rows:
            raise ContractError(f"{num_rows} rows from row {first} of out", f"{self.model.role}.args")
        return first

    def append(self, position: int) -> None:
        """Token at this position -> its KV cell."""
        page, slot = self._place(position)
        self._cells[page][slot] = (position, self._tensors["tokens"][position])

    def prefix(self, position: int) -> tuple[int, ...]:
        """Tokens 0..position as the KV has them."""
        return tuple([self._read(place) for place in range(position + 1)])

    def _read(self, position: int) -> int:
        page, slot = self._place(position)
        written_for, token_id = self._cells[page][slot]
        return token_id if written_for == position else POISON - abs(token_id)

    def _place(self, position: int) -> tuple[int, int]:
        logical, slot = divmod(position, self.model.page_size)
        page = self.tensor("page_table")[logical]
        if not 0 <= page < self.model.num_pages:
            raise ContractError(f"logical page {logical} is at {page}", f"{self.model.role}.page_table")
        return page, slot


class ScriptedBackend:
    """Runs a plan's programs on functions; `submits` and `readbacks` record all of it."""

    def __init__(
        self,
        plan: Plan,
        target: NextId,
        draft: NextId | None = None,
        script: Script | None = None,
        scores: Scores = flat_scores,
        stats: Stats = flat_stats,
        tops: Tops = flat_tops,
    ) -> None:
        self.info: dict[str, Any] = {"backend": "scripted", "adapter": "tables"}
        self.submits: list[Submit] = []
        self.readbacks: list[Readback | None] = []  # None where the submit failed
        self.tensors: dict[str, list[Any]] = {}
        for name, (_, shape) in host_tensors(plan.models).items():
            self.tensors[name] = [POISON] * (shape[0] * (shape[1] if len(shape) > 1 else 1))
        functions = {"target": target, "draft": draft or target}
        self._lanes = {m.role: _Lane(m, functions[m.role], self.tensors) for m in plan.models}
        self._widths = {name: width for model in plan.models for name, width in program_widths(model).items()}
        self._script = script or Script()
        self._scores = scores
        self._stats = stats
        self._tops = tops
        self._stopped = False
        self._q: dict[int, list[float] | None] = {}  # by place in the cycle

    def submit(self, batch: Submit) -> Readback:
        number = len(self.submits)
        self.submits.append(batch)
        self.readbacks.append(None)
        if batch.kind not in KINDS:
            raise ContractError(f"there is no submit of kind {batch.kind!r}", "Submit.kind")
        if number in self._script.fail_before:
            raise self._script.fail_before[number]
        for name, first, numbers in batch.writes:
            self._write(name, first, list(numbers))
        self._stopped = False  # by a row that is no token: the rest of the submit does nothing
        for step, program in enumerate(batch.calls):
            self._call(program, number, step)
        if number in self._script.fail_after:
            raise self._script.fail_after[number]
        values = [self._read(*read) for read in batch.reads]
        self.readbacks[number] = readback = Readback(values, [0.0] * len(batch.calls))
        return readback

    def close(self) -> None:
        self._lanes = {}

    def _span(self, name: str, first: int, count: int) -> list[Any]:
        tensor = self.tensors.get(name)
        if tensor is None or count < 1 or not 0 <= first <= len(tensor) - count:
            raise ContractError(f"elements {first} to {first + count} are not in the tensor", name)
        return tensor

    def _write(self, name: str, first: int, values: list[int]) -> None:
        self._span(name, first, len(values))[first : first + len(values)] = values

    def _read(self, name: str, first: int, count: int) -> list[Any]:
        return self._span(name, first, count)[first : first + count]

    def _call(self, program: str, number: int, step: int) -> None:
        if program not in self._widths:
            raise ContractError("there is no such program", program)
        role, operation = program.split(".")
        lane, width = self._lanes[role], self._widths[program]
        if operation in ("accept", "follow"):
            self._accept() if operation == "accept" else self._follow()
            return
        if operation.startswith("judge"):
            self._judge(operation == "judge_filter")
            return
        if not lane.tensor("args")[1] and self._stopped:
            return
        if operation.startswith("logprobs"):
            self._top(lane, width)
            return
        if operation.startswith("score"):
            self._score(lane, width)
            return
        start, num_rows = lane.rows(width)
        for row in range(num_rows):
            lane.append(start + row)
        if operation == "prefill":
            return
        first = lane.first = lane.out_row(num_rows)
        lane.prefixes = [lane.prefix(start + row) for row in range(num_rows)]
        for row, prefix in enumerate(lane.prefixes):
            script = self._script
            finite = (number, program, row) not in script.not_finite
            finite &= (number, step) not in script.not_finite_calls
            at = 2 * (first + row)
            if operation.startswith("draw") and row == num_rows - 1:
                self._keep(lane, finite)
            chosen = self._choose(lane, operation, prefix, first + row) if finite else None
            lane.tensor("out")[at : at + 2] = [chosen or 0, int(chosen is not None)]
            if operation.startswith("measure"):
                lane.tensor("stats")[at : at + 2] = self._stats(prefix) if finite else (nan, nan)
        if lane.tensor("args")[2]:
            self._feed_back(lane, start + num_rows, first + num_rows)

    def _choose(self, lane: _Lane, operation: str, prefix: tuple[int, ...], out_row: int) -> int | None:
        """The id after this prefix; None where there is none to choose."""
        if not operation.startswith(("sample", "filter", "draw")):
            return lane.next_id(prefix)
        logits = logits_of(lane.next_id, prefix, lane.model.vocab_size)
        if operation.startswith("filter"):  # the history is that of `tokens`, not that of the KV
            return filtered_id(logits, self.tensors["tokens"][: len(prefix)], out_row, self.tensors)
        if operation.startswith("sample"):
            return sampled_id(logits, len(prefix), self.tensors)
        shares, offset = shares_of(logits, self.tensors), len(prefix) - self.tensors["target.args"][0] - 1
        return draw(shares, seed_of(self.tensors), len(prefix), offset, DRAFT) if shares else None

    def _feed_back(self, lane: _Lane, position: int, next_row: int) -> None:
        """The last row's id becomes the next token; the next pass starts there, and in the next row of out."""
        self._write("tokens", position, [lane.tensor("out")[2 * (next_row - 1)]])
        lane.tensor("args")[:] = [position, 1, 1, next_row]

    def _keep(self, lane: _Lane, finite: bool) -> None:
        """What the last row was drawn from, in its draft's place of the cycle."""
        prefix = lane.prefixes[-1]
        logits = logits_of(lane.next_id, prefix, lane.model.vocab_size)
        place = len(prefix) - self.tensors["target.args"][0] - 1
        self._q[place] = shares_of(logits, self.tensors) if finite else None

    def _judge(self, filtered: bool) -> None:
        """The verdict on the drafts of the verify pass before, from what both models say of the prefixes that their cells hold."""
        start, num_rows, _, first = self.tensors["target.args"]
        if self._stopped or not num_rows:
            return
        lane = self._lanes["target"]
        if len(lane.prefixes) != num_rows:
            raise ContractError("no verify pass of these rows came before", "draft.judge")
        p = []
        for row, prefix in enumerate(lane.prefixes):
            logits = logits_of(lane.next_id, prefix, lane.model.vocab_size)
            fine = self.tensors["target.out"][2 * (first + row) + 1]
            history = self.tensors["tokens"][: len(prefix)]
            shares = (
                filtered_shares(logits, history, first + row, self.tensors)
                if filtered
                else shares_of(logits, self.tensors)
            )
            p.append(shares if fine else None)
        row = judged(self.tensors, start, p, [self._q[i] for i in range(num_rows - 1)])
        self._write("target.verdict", VERDICT_FIELDS * (first // num_rows), row)
        count, token_id, flags, _ = row
        for i, said in enumerate([*self.tensors["tokens"][start + 1 : start + 1 + count], token_id]):
            if i < count or flags:  # what is committed stands in `out` too
                self._write("target.out", 2 * (first + i), [said])

    def _follow(self) -> None:
        """Where both models go on after a verdict."""
        start, num_rows, _, first = self.tensors["target.args"]
        if self._stopped:
            return
        at = VERDICT_FIELDS * (first // num_rows)
        count, token_id, flags, _ = self.tensors["target.verdict"][at : at + VERDICT_FIELDS]
        self._go_on(start, num_rows, first, count, token_id, bool(flags & 1))

    def _accept(self) -> None:
        """The rule once more, in the way of a device: nothing but its own tensors."""
        (start, num_rows, feedback, first), tokens = self.tensors["target.args"], self.tensors["tokens"]
        if self._stopped:
            return
        if feedback or not num_rows:
            raise ContractError("no verify pass came before", "draft.accept")
        out = self.tensors["target.out"][2 * first : 2 * (first + num_rows)]
        row = 0
        while row < num_rows - 1 and out[2 * row + 1] and out[2 * row] == tokens[start + row + 1]:
            row += 1
        token_id, is_finite = out[2 * row : 2 * row + 2]
        self._go_on(start, num_rows, first, row, token_id, bool(is_finite))

    def _go_on(self, start: int, num_rows: int, first: int, row: int, token_id: int, is_finite: bool) -> None:
        """`row` drafts stand, and token_id follows: both models go on behind it, or the submit stops."""
        self._stopped = not is_finite or not 0 <= token_id < self._lanes["target"].model.vocab_size
        if self._stopped:
            self.tensors["target.args"][1] = 0
            self.tensors["draft.args"][1:3] = [0, 0]
            return
        self._write("tokens", start + row + 1, [token_id])
        self.tensors["target.args"][:] = [start + row + 1, num_rows, 0, first + num_rows]
        self.tensors["draft.args"][:3] = [start + row, 2, 1]

    def _top(self, lane: _Lane, width: int) -> None:
        """Of the pass just before, for the ids that it wrote to `out`; what that pass fed back is no matter."""
        if not 1 <= len(lane.prefixes) <= width:
            raise ContractError("no pass of so many rows came before", "target.logprobs")
        for row, prefix in enumerate(lane.prefixes, lane.first):
            token_id, is_finite = lane.tensor("out")[2 * row : 2 * row + 2]
            numbers = self._tops(prefix, token_id) if is_finite else [nan] * TOP_FIELDS
            self.tensors["target.top"][TOP_FIELDS * row : TOP_FIELDS * (row + 1)] = numbers

    def _score(self, lane: _Lane, width: int) -> None:
        _, num_rows = lane.rows(width)
        if len(lane.prefixes) != num_rows:
            raise ContractError("no verify pass of these rows came before", "target.score")
        for row, prefix in enumerate(lane.prefixes):
            given = self.tensors["target.score_ids"][row]
            self.tensors["target.score"][3 * row : 3 * row + 3] = self._scores(prefix, given)
