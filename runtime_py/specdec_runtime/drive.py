"""The pump for callers that wait: runs a decode generator against a backend and keeps the time.

Knows effects and the backend protocol, no drafter and no plan. This file holds the clock that the core must
not. The JavaScript pump (web/) keeps the same times by the same rules:

  prefill      wall time from the start to the first submit that is not of kind "prefill"; the device has done
               all before it then
  decode       wall time from there to the end
  draft        time of the calls "draft.*"; verify: of the calls "target.*"; both within decode
  other        decode - draft - verify: Python, queueing, transfers
  first_token  wall time from the start to the first Emit; null where nothing was emitted

Invariant: a DeviceFault of the backend goes into the generator, which decides; any other error ends the
run.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

from specdec_runtime.backends.base import Backend
from specdec_runtime.decode.effects import (
    Cancelled,
    Constrain,
    Effect,
    Effects,
    Emit,
    Finish,
    Readback,
    Submit,
    Walk,
)
from specdec_runtime.faults import ContractError, DeviceFault, SpecdecError
from specdec_runtime.masks import Masks, OpenMatcher, no_matchers

OnEffect = Callable[[Effect], None]


def run(
    effects: Effects,
    backend: Backend,
    on_effect: OnEffect | None = None,
    should_cancel: Callable[[], bool] | None = None,
    matchers: OpenMatcher = no_matchers,
) -> dict[str, Any]:
    """Drive `effects` to its end; the result, with "timing_ms". on_effect sees everything that is not answered."""
    timer, masks = Timer(), Masks(matchers)
    with closing(effects):
        effect = next(effects)
        while not isinstance(effect, Finish):
            if isinstance(effect, Submit):
                effect = _answer(effects, masks.into(effect), backend, timer, should_cancel)
                continue
            if isinstance(effect, (Constrain, Walk)):
                effect = _match(effects, effect, masks)
                continue
            timer.saw(effect)
            if on_effect:
                on_effect(effect)
            effect = effects.send(None)
    if on_effect:
        on_effect(effect)
    return {**effect.result, "timing_ms": timer.totals()}


def _match(effects: Effects, asked: Constrain | Walk, masks: Masks) -> Effect:
    """What the grammar says; its errors go into the generator, as a backend's do."""
    try:
        answer = masks.walk(asked) if isinstance(asked, Walk) else masks.constrain(asked)
    except SpecdecError as error:
        return effects.throw(error)
    return effects.send(answer)


def _answer(
    effects: Effects,
    batch: Submit,
    backend: Backend,
    timer: Timer,
    should_cancel: Callable[[], bool] | None,
) -> Effect:
    """Run one submit (or cancel in its place) and resume the generator."""
    if should_cancel and should_cancel():
        return effects.throw(Cancelled())
    timer.submits(batch)
    try:
        readback = backend.submit(batch)
    except DeviceFault as fault:
        return effects.throw(fault)
    timer.ran(batch, readback)
    return effects.send(readback)


class Timer:
    """Times of one run, in milliseconds."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._first_token: float | None = None
        self._prefill: float | None = None
        self._draft = 0.0
        self._verify = 0.0

    def _elapsed(self) -> float:
        return (time.perf_counter() - self._start) * 1000.0

    def submits(self, batch: Submit) -> None:
        if self._prefill is None and batch.kind != "prefill":
            self._prefill = self._elapsed()

    def ran(self, batch: Submit, readback: Readback) -> None:
        if len(readback.ms) != len(batch.calls):
            raise ContractError(f"{len(readback.ms)} times for {len(batch.calls)} calls", "Readback.ms")
        if batch.kind == "prefill":
            return
        for name, spent in zip(batch.calls, readback.ms, strict=True):
            if name.startswith("draft."):
                self._draft += spent
            else:
                self._verify += spent

    def saw(self, effect: Effect) -> None:
        if self._first_token is None and isinstance(effect, Emit):
            self._first_token = self._elapsed()

    def totals(self) -> dict[str, float | None]:
        total = self._elapsed()
        prefill = total if self._prefill is None else self._prefill
        decode = total - prefill
        return {
            "first_token": self._first_token,
            "prefill": prefill,
            "decode": decode,
            "draft": self._draft,
            "verify": self._verify,
            "other": decode - self._draft - self._verify,
        }
