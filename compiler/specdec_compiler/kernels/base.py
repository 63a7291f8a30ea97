"""What a kernel is to the rest of the compiler: an op with named arguments, a CPU and a GPU form, and a NumPy twin."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from specdec_runtime.faults import ContractError
from specdec_runtime.plan.schema import MAX_ROWS as MAX_ROWS
from specdec_runtime.plan.schema import OUT_ROWS as OUT_ROWS
from tvm import tirx

from ..quantize import (
    GROUP as GROUP,
)  # weights and activations share one scale per this many elements along K

Params = Mapping[str, int | str]


@dataclass(frozen=True)
class Form:
    """An op on one kind of device: each buffer's name and access in order, and the builder of a PrimFunc from (name, params).

    `parts`, on the CPU: into how many parts of some microseconds it may be cut (ir.Share); 1 for work too small to share.
    """

    args: tuple[tuple[str, str], ...]
    build: Callable[[str, Params], tirx.PrimFunc]
    parts: Callable[[Params], int] = lambda p: 1


@dataclass(frozen=True)
class Op:
    """One op. Where the two devices split the work differently, one form is None: passes/target_ops.py makes the other's ops."""

    name: str
    cpu: Form | None = None
    gpu: Form | None = None
    row_invariant: bool = True

    def form(self, target: str) -> Form:
        """The form for "cpu" or "gpu"."""
        form = self.cpu if target == "cpu" else self.gpu
        if form is None:
            action = "choose ops for the target in passes/target_ops.py"
            raise ContractError(f"{self.name} has no {target} form", "kernels", action)
        return form


def kernel_name(op: str, params: Params) -> str:
    """The unique, readable name of one instance: op, then each parameter and its value."""
    text = "_".join([op, *(f"{key}{params[key]}" for key in sorted(params))])
    return re.sub(r"[^A-Za-z0-9_]", "_", text)


def by_row(p: Params) -> int:
    """parts of an op whose rows are worth a part each."""
    return int(p["m"])


def ceil_div(a: int, b: int) -> int:
    """a / b rounded up."""
    return -(-a // b)


SPLIT = 256  # the CPU's attention merges partial results every this many absolute positions
ARGS = 4  # start, num_rows, feedback, first row of out


def weight_chunks(fmt: str) -> int:
    """16-byte vectors of one group of 4 rows."""
    return 4 if fmt == "q4" else 8


def weight_rows(p: Params) -> int:
    """Rows of the weights that a kernel is given: all n, or the `rows` of a shard (emit/rows.py)."""
    return int(p.get("rows", p["n"]))
