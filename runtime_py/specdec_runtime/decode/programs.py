"""Which programs compute the target's rows: what the self-test of a device leaves to the decode core.

Knows program names and widths, no device and no test. Exactness needs every row of the target to come from programs whose
rows are equal bit for bit. "any": all verify programs are. "widest": only the slots of the widest one are, so that every
row comes from it. "plain": no program of several rows can be trusted, so that every row comes from the one of width 1 and
nothing is drafted. `prefill` says whether the prefill program's KV agrees with those rows; else the prompt goes through
them too. Invariant: a policy changes speed, never which tokens one of these choices stands for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from specdec_runtime.faults import ContractError
from specdec_runtime.plan.schema import Model

VERIFY = ("any", "widest", "plain")


@dataclass(frozen=True, slots=True)
class Programs:
    """The policy of one device."""

    verify: str = "any"  # one of VERIFY
    prefill: bool = True

    def __post_init__(self) -> None:
        if self.verify not in VERIFY or type(self.prefill) is not bool:
            raise ContractError(f"{self} is no policy", "decode/programs.py", f"verify is one of {VERIFY}")

    def width(self, model: Model, num_rows: int) -> int:
        """Rows of the verify program for a pass of num_rows; in "plain" no pass may have two."""
        if self.verify == "any":
            return next(width for width in model.widths if width >= num_rows)
        return model.widths[-1] if self.verify == "widest" else model.widths[0]

    def max_rows(self, model: Model) -> int:
        """The most rows a pass may have."""
        return model.widths[0] if self.verify == "plain" else model.widths[-1]

    def feeding(self, model: Model) -> tuple[str, int]:
        """Program and width that put known tokens into the target's KV."""
        if self.prefill:
            return prefill_program(model)
        width = self.max_rows(model)
        return f"{model.role}.verify_{width}", width


ANY = Programs()


def is_pass(call: str) -> bool:
    """A pass of the target, and not what is only read off one."""
    return call.startswith("target.") and not call.startswith("target.logprobs_")


def prefill_program(model: Model) -> tuple[str, int]:
    """Name and width of a model's own prefill program."""
    return f"{model.role}.prefill", model.prefill_width


def programs_from_json(data: Any) -> Programs:
    """The policy as the page sends it: {"verify": ..., "prefill": ...}, nothing else."""
    if not isinstance(data, dict) or set(data) != {"verify", "prefill"}:
        raise ContractError(f"{data!r} is no policy", "programs")
    return Programs(**data)
