"""Schedules by name: the one file that knows them all.

Invariant: a name is made here or refused with the names that would do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from specdec_runtime.decode.choice import Fixed, Schedule
from specdec_runtime.decode.programs import ANY as ALL
from specdec_runtime.decode.programs import Programs
from specdec_runtime.decode.request import MAX_K, check_count
from specdec_runtime.faults import RequestError
from specdec_runtime.plan.schema import Plan
from specdec_runtime.schedule.break_even import BreakEven
from specdec_runtime.schedule.confidence import Confidence
from specdec_runtime.schedule.costs import Costs, assumed
from specdec_runtime.schedule.heuristic import Heuristic
from specdec_runtime.schedule.policy import AUTO, DEFAULT, SCHEDULES, Policy, read_policy

_MAKERS: dict[str, Callable[[Costs, Policy, int], Schedule]] = {
    "fixed": lambda costs, policy, k: Fixed(),
    "heuristic": lambda costs, policy, k: Heuristic(k),
    "confidence": lambda costs, policy, k: Confidence(policy, k),
    "break_even": lambda costs, policy, k: BreakEven(costs, policy, k),
}
assert tuple(_MAKERS) == SCHEDULES


def make_schedule(name: str, costs: Costs, policy: Policy, k: int) -> Schedule:
    """A fresh schedule for one request of at most k drafts a pass; RequestError for a name there is not."""
    maker = _MAKERS.get(name) if isinstance(name, str) else None
    if maker is None:
        raise RequestError(f"there is no schedule {name!r}", "schedule", f"Use one of {', '.join(_MAKERS)}")
    return maker(costs, policy, k)


@dataclass(frozen=True, slots=True)
class Schedules:
    """What one loaded bundle on one device can be scheduled by."""

    plan: Plan
    costs: Costs
    policy: Policy

    def with_costs(self, costs: Costs, programs: Programs) -> Schedules:
        """As they were measured, for the programs that a self-test leaves."""
        return replace(self, costs=costs.through(programs, self.plan.target_model))

    @property
    def names(self) -> list[str]:
        """Those that this bundle can have: `confidence` is the draft model's."""
        return [name for name in _MAKERS if name != "confidence" or self.plan.draft_model]

    @property
    def default(self) -> str:
        return self.policy.default

    def make(self, name: str, k: int, sampled: bool = False) -> Schedule:
        """A fresh schedule; AUTO: the policy's. sampled: for a request above temperature 0.

        RequestError for one that this bundle cannot have. A bad k is decode's to refuse."""
        name = self.default if name == AUTO else name
        if name == "confidence" and not self.plan.draft_model:
            action = f"Use one of {', '.join(self.names)}"
            raise RequestError("this bundle has no draft model to be confident", "schedule", action)
        check_count(k, "k", MAX_K)
        return make_schedule(name, self.costs, self.policy.sampled() if sampled else self.policy, k)


def open_schedules(plan: Plan, programs: Programs = ALL, policy_json: str | bytes | None = None) -> Schedules:
    """With assumed costs, and the bundle's policy (None: the default)."""
    policy = read_policy(policy_json) if policy_json else DEFAULT
    costs = assumed(plan)
    return Schedules(plan, costs, policy).with_costs(costs, programs)
