"""The Pyodide entry: a decode generator behind an object that takes and gives strings.

Knows no device, no clock and no JavaScript: a pump in JavaScript calls `start` and `send` synchronously.
What they return is a JSON list of effects, up to and including the next submit, finish or error.
Invariants: no exception crosses the border, every failure is an {"type": "error"} effect; no proxy crosses
it either; a run that has ended answers with an error, never with silence.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from typing import Any

from specdec_runtime.decode.effects import (
    Cancelled,
    Constrain,
    Effect,
    Effects,
    Finish,
    Readback,
    Submit,
    Walk,
    Walked,
    effect_json,
)
from specdec_runtime.decode.options import OPTIONS, read_request
from specdec_runtime.decode.programs import ANY, Programs, programs_from_json
from specdec_runtime.decode.round import decode
from specdec_runtime.decode.score import score
from specdec_runtime.decode.session import Memory
from specdec_runtime.decode.text import ByteTable
from specdec_runtime.drafters.registry import drafter_names, make_drafter
from specdec_runtime.faults import ContractError, RequestError, SpecdecError, error_from_json, error_json
from specdec_runtime.plan import Plan, load_plan
from specdec_runtime.schedule.measure import costs_of, probes, times_from_json, warm_up
from specdec_runtime.schedule.registry import Schedules, open_schedules


class Engine:
    """One plan on one device, one request at a time.

    programs_json: what the device's self-test left; policy_json: the bundle's own policy. None: all programs, the default policy.
    Costs are assumed until `measured` brings them; stop strings can be asked for once `tokens` brought what each token shows.
    """

    def __init__(
        self,
        plan_json: str,
        programs_json: str | None = None,
        policy_json: str | None = None,
    ) -> None:
        self._plan: Plan | None = None
        self._programs = ANY
        self._schedules: Schedules | None = None
        self._plan_error: SpecdecError | None = None
        self._memory: Memory | None = None
        self._tokens: ByteTable | None = None
        self._effects: Effects | None = None
        self._cancelled = False
        try:
            self._programs = programs_from_json(json.loads(programs_json)) if programs_json else ANY
            plan = load_plan(plan_json)
            self._schedules = open_schedules(plan, self._programs, policy_json or None)
            self._memory = Memory(plan, self._programs)
            self._plan = plan
        except SpecdecError as error:
            self._plan_error = error

    def ready(self) -> str:
        """One effect: {"type": "ready", "name", "drafters", "schedules", "schedule", "costs"}, or the error that the plan has."""
        schedules = self._schedules
        if self._plan is None or schedules is None:
            return json.dumps(_error_effect(self._plan_fault()))
        names = {
            "drafters": drafter_names(self._plan),
            "schedules": schedules.names,
            "schedule": schedules.default,
            "costs": schedules.costs.json(),
        }
        return json.dumps({"type": "ready", "name": self._plan.name, **names})

    def probes(self, split: bool) -> str:
        """What to run so that this device's costs are known: {"submits", "request"}, or the error that the plan has."""
        try:
            plan, _ = self._opened()
            self.forget()  # they write where they like
        except SpecdecError as error:
            return json.dumps(_error_effect(error))
        submits = [effect_json(probe.submit) for probe in probes(plan, split)]
        return json.dumps({"submits": submits, "request": warm_up()})

    def measured(self, times_json: str) -> str:
        """The times of those, {"split", "probe_ms", "cycle_ms", "submit_ms"}; from now on schedules know them. `ready`, or an error."""
        try:
            plan, schedules = self._opened()
            costs = costs_of(plan, times_from_json(json.loads(times_json)))
            self._schedules = schedules.with_costs(costs, self._programs)
        except SpecdecError as error:
            return json.dumps(_error_effect(error))
        return self.ready()

    def tokens(self, table_json: str) -> str:
        """What each token shows, of need for stop strings only: once a plan, so that no token is a call across. "", or an error."""
        try:
            self._tokens = ByteTable(table_json)
        except SpecdecError as error:
            return json.dumps(_error_effect(error))
        return ""

    def start(self, request_json: str) -> str:
        """Begin a request; a run that was still going is dropped."""
        self._drop()
        self._cancelled = False
        return self._collect(lambda: self._begin(_request(request_json)))

    def send(self, answer_json: str) -> str:
        """Answer what was asked last: a readback {"values", "ms"}, a walk's {"ids", "forced"}, or null for a grammar that was read."""

        def resume() -> Effect:
            running, data = self._running(), json.loads(answer_json)
            if data is None:
                return running.send(None)
            if "ids" in data:
                return running.send(Walked(data["ids"], data["forced"]))
            return running.send(Readback(data["values"], data["ms"]))

        return self._collect(resume)

    def fail(self, error_json_text: str) -> str:
        """The last submit failed: {"error": {...}} or the inner object."""
        return self._collect(lambda: self._running().throw(error_from_json(json.loads(error_json_text))))

    def cancel(self) -> None:
        """The next submit is not asked for; the run finishes with what is committed."""
        self._cancelled = True

    def num_objects(self) -> int:
        """How many objects Python keeps, garbage collected before: for those who look for what is never let go."""
        gc.collect()
        return len(gc.get_objects())

    def drop_session(self, name_json: str) -> str:
        """Give back what a session holds: {"type": "dropped", "found"}, or an error."""
        return self._of_memory(
            lambda memory: {"type": "dropped", "found": memory.drop(json.loads(name_json))}
        )

    def sessions(self) -> str:
        """{"type": "sessions", "sessions", "pages", "num_evicted"}, or the error that the plan has."""
        return self._of_memory(lambda memory: {"type": "sessions", **memory.report()})

    def forget(self) -> None:
        """Work of a request that is over failed, or something else wrote to the device: no KV counts any more."""
        self._drop()
        if self._memory:
            self._memory.forget()

    def _of_memory(self, ask: Callable[[Memory], dict[str, Any]]) -> str:
        try:
            if self._memory is None:
                raise self._plan_fault()
            return json.dumps(ask(self._memory))
        except SpecdecError as error:
            return json.dumps(_error_effect(error))

    def _begin(self, request: dict[str, Any]) -> Effect:
        plan, schedules = self._opened()
        self._effects = _open(plan, request, self._programs, schedules, self._tokens, self._memory)
        return next(self._effects)

    def _opened(self) -> tuple[Plan, Schedules]:
        if self._plan is None or self._schedules is None:
            raise self._plan_fault()
        return self._plan, self._schedules

    def _plan_fault(self) -> SpecdecError:
        return self._plan_error or ContractError("the engine has no plan", "worker.py")

    def _running(self) -> Effects:
        if self._effects is None:
            raise ContractError("no request is running", "worker.py", "Call start first")
        return self._effects

    def _drop(self) -> None:
        if self._effects is not None:
            self._effects.close()
            self._effects = None

    def _collect(self, resume: Callable[[], Effect]) -> str:
        """Resume the run and gather effects until it waits or ends."""
        gathered: list[dict[str, Any]] = []
        try:
            effect = resume()
            while not self._waits_or_ends(effect):
                if not isinstance(effect, (Submit, Constrain, Walk)):
                    gathered.append(effect_json(effect))
                effect = self._next(effect)
            gathered.append(effect_json(effect))
        except SpecdecError as error:
            gathered.append(_error_effect(error))
            self._drop()
        except Exception as error:  # the border: whatever went wrong inside must reach the page as an error
            fault = ContractError(f"{type(error).__name__}: {error}", "worker.py", "Please report this")
            gathered.append(_error_effect(fault))
            self._drop()
        return json.dumps(gathered, separators=(",", ":"))

    def _waits_or_ends(self, effect: Effect) -> bool:
        if isinstance(effect, Finish):
            self._drop()
            return True
        return isinstance(effect, (Submit, Constrain, Walk)) and not self._cancelled

    def _next(self, effect: Effect) -> Effect:
        """Past an effect that needs no answer; one that does gets here only to be cancelled."""
        if isinstance(effect, (Submit, Constrain, Walk)):
            return self._running().throw(Cancelled())
        return self._running().send(None)


def _request(text: str) -> dict[str, Any]:
    try:
        return json.loads(text)
    except RecursionError:  # a caller's schema, say
        action = "Give one that is less deep"
        raise RequestError("the request is nested too deep", "request", action) from None


def _error_effect(error: SpecdecError) -> dict[str, Any]:
    return {"type": "error", **error_json(error)}


_GENERATE = {"op", "prompt_ids", "max_tokens", "drafter", "k", "plain_steps", "rounds", "schedule"}
_SCORE = {"op", "prompt_ids", "score_ids", "width"}


def _open(
    plan: Plan,
    request: dict[str, Any],
    programs: Programs,
    schedules: Schedules,
    tokens: ByteTable | None,
    memory: Memory | None,
) -> Effects:
    """The generator a request asks for."""
    op = request.get("op")
    keys = {"generate": _GENERATE, "score": _SCORE}.get(str(op))
    if keys is None or not keys <= set(request) <= keys | (OPTIONS if op == "generate" else set()):
        raise ContractError(f"a request of op {op!r} has keys {sorted(request)}", "worker.py")
    if op == "score":
        return score(plan, request["prompt_ids"], request["score_ids"], request["width"], programs, memory)
    drafter = make_drafter(request["drafter"], plan)
    asked = read_request(request, request["plain_steps"], request["rounds"])
    schedule = schedules.make(request["schedule"], asked.k, asked.sampling.draws)
    return decode(plan, asked, drafter, programs, schedule, tokens=tokens, memory=memory)
