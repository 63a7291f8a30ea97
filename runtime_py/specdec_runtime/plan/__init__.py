"""The plan: the one contract between compiler and runtime. `load_plan` reads and checks it."""

from specdec_runtime.plan.check import check_plan
from specdec_runtime.plan.codec import dump_plan, read_plan
from specdec_runtime.plan.schema import (
    Buffer,
    Dispatch,
    Kernel,
    KernelArg,
    Model,
    Plan,
    PlanIds,
    PlanText,
    Program,
    Target,
    Tensor,
)

__all__ = [
    "Buffer",
    "Dispatch",
    "Kernel",
    "KernelArg",
    "Model",
    "Plan",
    "PlanIds",
    "PlanText",
    "Program",
    "Target",
    "Tensor",
    "check_plan",
    "dump_plan",
    "load_plan",
    "read_plan",
]


def load_plan(text: str | bytes) -> Plan:
    """A plan that is well formed and consistent, or an ArtifactError that names the place."""
    plan = read_plan(text)
    check_plan(plan)
    return plan
