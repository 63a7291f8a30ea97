"""What the decode core asks of the outside, and what it is sent back.

A decode generator yields effects. `Submit` is answered with a `Readback`, `Walk` with a `Walked`; `Constrain` is answered by
nothing, or by a RequestError thrown in; the others are told. A pump may throw `Cancelled` in place of a readback (the submit
was then not run), or the `DeviceFault` its backend raised. Knows no backend. Invariant: only ids, counts, flags and scores
cross; weights, activations and KV never do, nor do a grammar's masks: the pump makes them and writes them (masks.py).
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, NamedTuple

from specdec_runtime.faults import ContractError

Write = tuple[str, int, list[Any]]  # tensor name, first element, values
Read = tuple[str, int, int]  # tensor name, first element, number of elements

KINDS = ("prefill", "draft", "verify", "round", "score")


class Submit(NamedTuple):
    """One unit of device work: all writes land, then the calls run in order, then the reads are taken."""

    kind: str  # one of KINDS
    writes: list[Write]
    calls: list[str]  # program names
    reads: list[Read]
    masks: int = 0  # rows of the last walk's masks that the pump writes to `sampling.mask` as well


class Readback(NamedTuple):
    """The answer to a Submit: one list of numbers a read, one time a call."""

    values: list[list[Any]]
    ms: list[float]  # a backend that cannot split puts the total last and 0 elsewhere


class Constrain(NamedTuple):
    """The answer must match this grammar: the pump makes a matcher of it, before any device work."""

    form: str  # "ebnf"
    text: str
    stop_ids: list[int]  # allowed where the grammar may end, and nowhere else
    vocab_size: int
    row_words: int  # of a row of `sampling.mask`


class Walk(NamedTuple):
    """One call a round: commit ids to the matcher, walk the drafts, keep the masks of all rows (decode/grammar.py has the rule)."""

    accepted: list[int]  # committed since the walk before
    drafted: list[int]
    budget: int  # drafts that the pass may verify


class Walked(NamedTuple):
    """The drafts to verify. forced: the places in `ids` where the mask leaves one id only."""

    ids: list[int]
    forced: list[int]


@dataclass(frozen=True, slots=True)
class Progress:
    """`done` of `total` prompt tokens are in the target's KV."""

    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Emit:
    """Tokens committed by one cycle, with that cycle's draft counts."""

    ids: list[int]
    num_drafted: int
    num_accepted: int
    # the text that each id allows to show; None: the pump makes it from the ids
    pieces: list[str] | None = None
    logprobs: list[dict[str, Any]] | None = None


@dataclass(frozen=True, slots=True)
class Finish:
    """The last effect of a run; `result` is the object that `--json` prints, less what the pump adds."""

    result: dict[str, Any]


Effect = Submit | Constrain | Walk | Progress | Emit | Finish
# sent a Readback for a Submit, a Walked for a Walk, None for anything else
Effects = Generator[Effect, Any, None]


def check_readback(batch: Submit, readback: Readback) -> None:
    """A readback of another shape than was asked for is a bug of the pump or the backend."""
    found = [len(values) for values in readback.values]
    wanted = [count for _, _, count in batch.reads]
    if found != wanted:
        raise ContractError(f"reads of {wanted} numbers were answered with {found}", "Readback.values")


class Cancelled(Exception):
    """Thrown into a decode generator in place of a readback: stop, keep what is committed."""


def effect_json(effect: Effect) -> dict[str, Any]:
    """The effect as the JSON object that crosses to JavaScript."""
    if isinstance(effect, Submit):
        return {"type": "submit", **effect._asdict()}
    if isinstance(effect, (Constrain, Walk)):
        return {"type": type(effect).__name__.lower(), **effect._asdict()}
    if isinstance(effect, Progress):
        return {"type": "progress", "done": effect.done, "total": effect.total}
    if isinstance(effect, Emit):
        said = {"ids": effect.ids, "num_drafted": effect.num_drafted, "num_accepted": effect.num_accepted}
        asked = {"pieces": effect.pieces, "logprobs": effect.logprobs}
        return {"type": "emit", **said, **{name: value for name, value in asked.items() if value is not None}}
    return {"type": "finish", "result": effect.result}
