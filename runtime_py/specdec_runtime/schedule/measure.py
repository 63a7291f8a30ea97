"""Which submits show what passes cost on a device, and the costs from their times.

Knows no clock and no device: whoever loaded the bundle runs `probes` and a short plain answer (`warm_up`), and brings their times
to `costs_of`. Where times of single calls cannot be had, a pass costs the slope between one and several calls in a submit, so that S
cancels. S is what a cycle of the plain answer took beyond its pass; the part of it that Readback.ms does not contain (the host's work
between submits) is told apart. Invariants: what a probe leaves in tokens, tables and KV is never read: whoever
runs it forgets the sessions (decode/session.py); the least of several times counts, for nothing makes a pass faster
than it is; and fewer rows cost no more than more.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from specdec_runtime.decode.effects import Submit, Write
from specdec_runtime.faults import ContractError
from specdec_runtime.plan.schema import Model, Plan
from specdec_runtime.schedule.costs import Costs

START = 64  # positions before a probe's rows, where the context has room
FEW, MANY = 1, 4  # calls in a submit
LEAST_MS = 1e-3
WARM_TOKENS = 8
ACCEPT = "draft.accept"


class Probe(NamedTuple):
    """So many calls of one program in one submit."""

    program: str
    num_calls: int
    submit: Submit


def probes(plan: Plan, split: bool) -> list[Probe]:
    """split: the device times each call of a submit by itself, so one call is enough."""
    target, draft = plan.target_model, plan.draft_model
    asked = [(target, f"verify_{width}", width) for width in target.widths] + [
        (target, "prefill", target.prefill_width)
    ]
    if draft:
        asked += [(draft, "step_1", 1), (draft, "prefill", draft.prefill_width)]
    counts = (FEW,) if split else (FEW, MANY)
    found = [_probe(model, name, rows, count) for model, name, rows in asked for count in counts]
    return found + [_accept_probe(target, count) for count in counts if draft]


def _probe(model: Model, name: str, num_rows: int, num_calls: int) -> Probe:
    start = START if model.max_context >= START + num_rows else 0
    num_rows = min(num_rows, model.max_context)
    pages = -(-(start + num_rows) // model.page_size)
    writes: list[Write] = [
        ("tokens", 0, [0] * (start + num_rows)),
        (f"{model.role}.page_table", 0, list(range(pages))),
        (f"{model.role}.args", 0, [start, num_rows, 0, 0]),
    ]
    program = f"{model.role}.{name}"
    return Probe(
        program, num_calls, Submit("verify", writes, [program] * num_calls, [(f"{model.role}.out", 0, 2)])
    )


def _accept_probe(target: Model, num_calls: int) -> Probe:
    """Between two rounds: it judges one row, whatever lies there."""
    base = _probe(target, "verify_1", 1, num_calls).submit
    return Probe(ACCEPT, num_calls, base._replace(calls=[ACCEPT] * num_calls))


def warm_up() -> dict[str, Any]:
    """The plain answer whose cycles show S, as the worker takes requests."""
    asked = {"op": "generate", "prompt_ids": [0, 0], "max_tokens": WARM_TOKENS, "drafter": "off"}
    return {**asked, "k": 0, "plain_steps": 1, "rounds": 1, "schedule": "fixed"}


class Times(NamedTuple):
    """What the loader measured."""

    split: bool
    probe_ms: list[float]  # Readback.ms of each probe, summed; the least of several
    cycle_ms: float  # wall time of a cycle of the plain answer
    submit_ms: float  # and what Readback.ms says of it


def times_from_json(data: Any) -> Times:
    """The times as the page sends them; ContractError for anything else."""
    if not isinstance(data, dict) or set(data) != set(Times._fields):
        raise ContractError(f"{data!r} is no measurement", "measured", f"Send {', '.join(Times._fields)}")
    if type(data["split"]) is not bool or not isinstance(data["probe_ms"], list):
        raise ContractError("split is true or false, probe_ms a list", "measured")
    for ms in (*data["probe_ms"], data["cycle_ms"], data["submit_ms"]):
        if type(ms) not in (int, float) or not math.isfinite(ms) or ms < 0:
            raise ContractError(f"{ms!r} is no time in ms", "measured", "Measure again")
    return Times(**data)


def costs_of(plan: Plan, measured: Times) -> Costs:
    """Every cost is above 0, whatever the clock's grain."""
    split, probe_ms, cycle_ms, submit_ms = measured
    asked = probes(plan, split)
    if len(probe_ms) != len(asked):
        raise ContractError(f"{len(probe_ms)} times for {len(asked)} probes", "measured")
    times: dict[str, dict[int, float]] = {}
    for probe, ms in zip(asked, probe_ms, strict=True):
        times.setdefault(probe.program, {})[probe.num_calls] = ms
    passes = {program: _one_pass(by_count) for program, by_count in times.items()}
    one_row = passes["target.verify_1"]
    verify = {width: passes[f"target.verify_{width}"] for width in plan.target_model.widths}
    verify = {rows: min(ms for width, ms in verify.items() if width >= rows) for rows in verify}
    outside = max(LEAST_MS, cycle_ms - submit_ms)
    target, draft = plan.target_model, plan.draft_model
    return Costs(
        sync=outside if split else max(outside, cycle_ms - one_row),
        verify=verify,
        draft_step=passes.get("draft.step_1"),
        draft_read=passes.get("draft.prefill"),
        target_read=passes["target.prefill"],
        accept=passes.get(ACCEPT, 0.0),
        outside=outside,
        how="measured at load" + ("" if split else ", by slopes"),
        target_chunk=target.prefill_width,
        draft_chunk=(draft or target).prefill_width,
        chunks_in_ms=not split,
    )


def _one_pass(by_count: dict[int, float]) -> float:
    if MANY not in by_count:
        return max(LEAST_MS, by_count[FEW])
    slope = (by_count[MANY] - by_count[FEW]) / (MANY - FEW)
    return max(LEAST_MS, slope)
