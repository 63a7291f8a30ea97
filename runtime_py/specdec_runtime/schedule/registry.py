"""Schedules by name: the one file that knows them all.

Invariant: a name is made here or refused with the names that would do.
"""

from __future__ import annotations

from collections.abc import Callable

from specdec_runtime.decode.choice import Fixed, Schedule
from specdec_runtime.faults import RequestError
from specdec_runtime.plan.schema import Plan
from specdec_runtime.schedule.break_even import BreakEven
from specdec_runtime.schedule.confidence import Confidence
from specdec_runtime.schedule.costs import Costs
from specdec_runtime.schedule.heuristic import Heuristic
from specdec_runtime.schedule.policy import SCHEDULES, Policy

MEASURE = "draft.measure_1"  # the program that confidence needs: (log-probability, entropy) of the row of a draft step

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


def check_schedule(name: str, plan: Plan) -> None:
    """Refuse a schedule whose programs this bundle lacks."""
    names = {program.name for target in plan.targets for program in target.programs}
    if name == "confidence" and MEASURE not in names:
        action = f"Use one of {', '.join(other for other in _MAKERS if other != name)}"
        raise RequestError("this bundle's draft does not measure its confidence", "schedule", action)
