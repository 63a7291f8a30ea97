"""Drafters by name: the one file that knows them all.

Invariant: a name is either made here for this plan or refused with the names that would do.
"""

from __future__ import annotations

from collections.abc import Callable

from specdec_runtime.decode.interfaces import Drafter
from specdec_runtime.drafters.chain import ChainDrafter
from specdec_runtime.drafters.draft_model import ModelDrafter
from specdec_runtime.drafters.ngram import NgramDrafter
from specdec_runtime.faults import RequestError
from specdec_runtime.plan.schema import Plan


class _Off(ChainDrafter):
    """An empty chain: every round is a plain step."""

    name = "off"
    idle = True

    def __init__(self) -> None:
        super().__init__(())


def _model(plan: Plan) -> ModelDrafter:
    if plan.draft_model is None:
        raise RequestError(
            "this bundle has no draft model", "drafter", f"Use one of {', '.join(drafter_names(plan))}"
        )
    return ModelDrafter(plan.draft_model)


def _chain(plan: Plan) -> ChainDrafter:
    """N-gram lookup costs nothing, so it goes first; the model is asked where the bundle has one."""
    rest = [_model(plan)] if plan.draft_model else []
    return ChainDrafter([NgramDrafter(), *rest])


_MAKERS: dict[str, Callable[[Plan], Drafter]] = {
    "off": lambda plan: _Off(),
    "model": _model,
    "ngram": lambda plan: NgramDrafter(),
    "chain": _chain,
}


def drafter_names(plan: Plan) -> list[str]:
    """The names `make_drafter` accepts for this plan."""
    return [name for name in _MAKERS if name != "model" or plan.draft_model]


def make_drafter(name: str, plan: Plan) -> Drafter:
    """A fresh drafter; RequestError for a name this plan cannot serve."""
    maker = _MAKERS.get(name) if isinstance(name, str) else None
    if maker is None:
        raise RequestError(
            f"there is no drafter {name!r}", "drafter", f"Use one of {', '.join(drafter_names(plan))}"
        )
    return maker(plan)
