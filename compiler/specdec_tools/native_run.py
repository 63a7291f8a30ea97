"""Requests on this CPU: the decode core driven by `drive.run` against the native backend.

Does not know kernels. Invariant: the objects it returns have the fields that the page's worker gives, made by the same
core; only the clock and the device differ. Every byte of the bundle that is used was compared with its manifest.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from specdec_runtime import drive
from specdec_runtime.backends.base import Backend
from specdec_runtime.bundle import Bundle, open_bundle
from specdec_runtime.decode.effects import Effect, Emit
from specdec_runtime.decode.request import Request
from specdec_runtime.decode.round import decode
from specdec_runtime.decode.score import score
from specdec_runtime.drafters.registry import make_drafter
from specdec_runtime.faults import ContractError
from specdec_runtime.plan import Plan

from specdec_tools.text import BundleText

OnText = Callable[[str], None]
OnEmit = Callable[[Emit], None]
PLAIN_STEPS = ROUNDS = 1  # a submit costs nothing here
# one function a kernel, no fused multiply-adds: the bits that WASM has by its specification
SELF_TEST = {"verdict": "by specification", "passes": 0, "ms": 0, "mismatches": []}


def open_native(bundle: Bundle) -> Backend:
    """The native backend; it needs the compiler's side of the project."""
    try:
        from specdec_compiler.native import open_backend
    except ImportError as error:
        raise ContractError(f"the native backend cannot be imported: {error}", "specdec_compiler") from None
    return open_backend(bundle)


class NativeRun:
    """One loaded bundle; one request at a time."""

    def __init__(self, plan: Plan, text: BundleText, backend: Backend, load_ms: float) -> None:
        self.plan, self.text, self.backend, self.load_ms = plan, text, backend, load_ms

    @classmethod
    def open(cls, folder: Path, opener: Callable[[Bundle], Backend] | None = None) -> NativeRun:
        start = time.perf_counter()
        bundle = open_bundle(folder)
        plan = bundle.plan
        text = BundleText.open(bundle, plan.text, plan.ids.chat_template is not None)
        backend = (opener or open_native)(bundle)
        return cls(plan, text, backend, (time.perf_counter() - start) * 1000)

    def __enter__(self) -> NativeRun:
        return self

    def __exit__(self, *_) -> None:
        self.backend.close()

    def prompt_ids(self, request: dict[str, Any]) -> list[int]:
        if "prompt_ids" in request:
            return list(request["prompt_ids"])
        raw, system = bool(request.get("raw")), request.get("system")
        return self.text.prompt_ids(request["prompt"], raw=raw, system=system)

    def _finished(self, result: dict[str, Any]) -> dict[str, Any]:
        timing = {"load": self.load_ms, **result["timing_ms"]}
        device = {**self.backend.info, "self_test": SELF_TEST}
        return {**result, "timing_ms": timing, "device": device}

    def generate(
        self,
        request: dict[str, Any],
        on_text: OnText = lambda text: None,
        should_cancel: Callable[[], bool] = lambda: False,
        on_emit: OnEmit = lambda emit: None,
    ) -> dict[str, Any]:
        prompt_ids = self.prompt_ids(request)
        drafter = make_drafter(request["drafter"], self.plan)
        steps = request.get("plain_steps", PLAIN_STEPS)
        rounds = request.get("rounds", ROUNDS)
        asked = Request(prompt_ids, request["max_tokens"], request["k"], steps=steps, rounds=rounds)
        effects = decode(self.plan, asked, drafter)
        stream, pieces = self.text.stream(), []

        def show(text: str) -> None:
            pieces.append(text)
            if text:
                on_text(text)

        def heard(effect: Effect) -> None:
            if isinstance(effect, Emit):
                on_emit(effect)
                show("".join([stream.push(token_id) for token_id in effect.ids]))

        with closing(effects):
            result = drive.run(effects, self.backend, heard, should_cancel)
        show(stream.finish())
        return self._finished({**result, "text": "".join(pieces)})

    def score(
        self, request: dict[str, Any], should_cancel: Callable[[], bool] = lambda: False
    ) -> dict[str, Any]:
        prompt_ids = self.prompt_ids(request)
        effects = score(self.plan, prompt_ids, request["score_ids"], request["width"])
        with closing(effects):
            result = drive.run(effects, self.backend, should_cancel=should_cancel)
        return self._finished({"prompt_ids": prompt_ids, **result})
