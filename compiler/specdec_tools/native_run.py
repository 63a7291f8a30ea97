"""Requests on this CPU: the decode core driven by `drive.run` against the native backend.

Does not know kernels. Invariant: the objects it returns have the fields that the page's worker gives, made by the same
core; only the clock and the device differ. Every byte of the bundle that is used was compared with its manifest.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from specdec_runtime import drive
from specdec_runtime.backends.base import Backend
from specdec_runtime.bundle import Bundle, open_bundle
from specdec_runtime.decode.choice import Schedule
from specdec_runtime.decode.effects import Effect, Emit
from specdec_runtime.decode.interfaces import Drafter
from specdec_runtime.decode.options import MAX_SEED, OPTIONS, read_request
from specdec_runtime.decode.programs import ANY
from specdec_runtime.decode.request import Request
from specdec_runtime.decode.round import decode
from specdec_runtime.decode.score import score
from specdec_runtime.decode.session import Memory
from specdec_runtime.drafters.registry import make_drafter
from specdec_runtime.faults import ContractError, RequestError
from specdec_runtime.plan import Plan
from specdec_runtime.schedule.costs import Costs
from specdec_runtime.schedule.measure import WARM_TOKENS, Times, costs_of, probes
from specdec_runtime.schedule.policy import FILE as POLICY_FILE
from specdec_runtime.schedule.registry import open_schedules

from specdec_tools.grammar import Matchers
from specdec_tools.text import BundleText

OnText = Callable[[str], None]
OnEmit = Callable[[Emit], None]
PROMPT = ("prompt", "prompt_ids", "messages", "raw", "system")
# as the page has them; a submit costs nothing here, so several steps or rounds in one gain nothing
DEFAULTS = {
    "max_tokens": 256,
    "drafter": "ngram",
    "k": 4,
    "schedule": "fixed",
    "plain_steps": 1,
    "rounds": 1,
}
FIELDS = OPTIONS.union(PROMPT, DEFAULTS)
REPEATS = 3
# one function a kernel, no fused multiply-adds: the bits that WASM has by its specification
SELF_TEST = {"verdict": "by specification", "passes": 0, "ms": 0, "mismatches": []}


def open_native(bundle: Bundle) -> Backend:
    """The native backend; it needs the compiler's side of the project."""
    try:
        from specdec_compiler.native import open_backend
    except ImportError as error:
        raise ContractError(f"the native backend cannot be imported: {error}", "specdec_compiler") from None
    return open_backend(bundle)


def measure(plan: Plan, backend: Backend) -> Costs:
    """What passes cost here now: the least of a few times of each (the twin of web/worker/costs.js)."""
    times = [[sum(backend.submit(probe.submit).ms) for probe in probes(plan, True)] for _ in range(REPEATS)]
    effects = decode(plan, Request([0, 0], WARM_TOKENS, 0), make_drafter("off", plan))
    with closing(effects):
        result = drive.run(effects, backend)
    spent, cycles = result["timing_ms"], max(1, result["speculation"]["num_cycles"])
    least = [min(ms) for ms in zip(*times, strict=True)]
    return costs_of(plan, Times(True, least, spent["decode"] / cycles, spent["verify"] / cycles))


def given_fields(request: Mapping[str, Any]) -> dict[str, Any]:
    """Of `generate`, with defaults; None is as if left out. RequestError names one that is not known (twin: web/request.js)."""
    given = {name: value for name, value in request.items() if value is not None}
    for name in given:
        if name not in FIELDS:
            raise RequestError(f"{name} is not supported", str(name), "Leave it out")
    return DEFAULTS | given


class NativeRun:
    """One loaded bundle; one request at a time."""

    def __init__(
        self, plan: Plan, text: BundleText, backend: Backend, load_ms: float, policy: bytes | None = None
    ) -> None:
        self.plan, self.text, self.backend, self.load_ms = plan, text, backend, load_ms
        self.schedules = open_schedules(plan, policy_json=policy)
        self.memory = Memory(plan)  # what requests left on the device
        self._measured = False
        self._matchers = Matchers(text.byte_map)

    @classmethod
    def open(cls, folder: Path, opener: Callable[[Bundle], Backend] | None = None) -> NativeRun:
        start = time.perf_counter()
        bundle = open_bundle(folder)
        plan = bundle.plan
        text = BundleText.open(bundle, plan.text, plan.ids.chat_template is not None)
        backend = (opener or open_native)(bundle)
        policy = bundle.read(POLICY_FILE) if POLICY_FILE in bundle.files else None
        return cls(plan, text, backend, (time.perf_counter() - start) * 1000, policy)

    def __enter__(self) -> NativeRun:
        return self

    def __exit__(self, *_) -> None:
        self.backend.close()

    def prompt_ids(self, request: dict[str, Any]) -> list[int]:
        prompt, ids, messages, raw, system = (request.get(name) for name in PROMPT)
        if ids is not None:
            if not isinstance(ids, (list, tuple)):
                action = "Give at least one token id"
                raise RequestError("prompt_ids is empty or not a list", "prompt_ids", action)
            return list(ids)
        if messages is not None and not raw:
            return self.text.chat_ids(messages, system)
        return self.text.prompt_ids(prompt, raw=bool(raw), system=system)

    def _schedule(self, name: str, drafter: Drafter, asked: Request) -> Schedule:
        """The costs of this machine are measured before the first request that asks for them."""
        if name != "fixed" and not drafter.idle and not self._measured:
            self.memory.forget()  # the measurement writes where it likes
            self.schedules = self.schedules.with_costs(measure(self.plan, self.backend), ANY)
            self._measured = True
        return self.schedules.make(name, asked.k, asked.sampling.draws)

    def _finished(self, result: dict[str, Any]) -> dict[str, Any]:
        timing = {"load": self.load_ms, **result["timing_ms"]}
        device = {**self.backend.info, "self_test": SELF_TEST}
        return {**result, "timing_ms": timing, "device": device}

    def _asked(self, request: dict[str, Any]) -> Request:
        """The request with ids for texts, and a seed where none was given."""
        fields = {name: value for name, value in request.items() if name in OPTIONS}
        fields.setdefault("seed", secrets.randbelow(MAX_SEED + 1))
        if "bad_words" in fields:
            fields["bad_words"] = self.text.banned_ids(fields["bad_words"])
        fields |= {
            "prompt_ids": self.prompt_ids(request),
            "max_tokens": request["max_tokens"],
            "k": request["k"],
        }
        return read_request(fields, request["plain_steps"], request["rounds"])

    def generate(
        self,
        request: dict[str, Any],
        on_text: OnText = lambda text: None,
        should_cancel: Callable[[], bool] = lambda: False,
        on_emit: OnEmit = lambda emit: None,
    ) -> dict[str, Any]:
        given = given_fields(request)
        asked = self._asked(given)
        drafter = make_drafter(given["drafter"], self.plan)
        schedule = self._schedule(given["schedule"], drafter, asked)
        effects = decode(
            self.plan, asked, drafter, schedule=schedule, tokens=self.text.byte_map, memory=self.memory
        )
        stream, pieces = self.text.stream(), []

        def show(text: str) -> None:
            pieces.append(text)
            if text:
                on_text(text)

        def heard(effect: Effect) -> None:
            if isinstance(effect, Emit):
                on_emit(effect)
                made = (
                    [stream.push(token_id) for token_id in effect.ids]
                    if effect.pieces is None
                    else effect.pieces
                )
                show("".join(made))

        with closing(effects):
            result = drive.run(effects, self.backend, heard, should_cancel, self._matchers)
        streamed = "".join(pieces)
        whole = result["text"] if asked.stop else streamed + stream.finish()
        show(whole[len(streamed) :])
        return self._finished({**result, "text": whole})

    def score(
        self, request: dict[str, Any], should_cancel: Callable[[], bool] = lambda: False
    ) -> dict[str, Any]:
        prompt_ids = self.prompt_ids(request)
        effects = score(self.plan, prompt_ids, request["score_ids"], request["width"], ANY, self.memory)
        with closing(effects):
            result = drive.run(effects, self.backend, should_cancel=should_cancel)
        return self._finished({"prompt_ids": prompt_ids, **result})
