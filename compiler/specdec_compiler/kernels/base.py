"""What a kernel is to the rest of the compiler: an op with named arguments, a CPU and a GPU form, and a NumPy twin."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from specdec_runtime.faults import ContractError
from specdec_runtime.plan.schema import MAX_ROWS
from tvm import tirx

from ..quantize import (
    GROUP as GROUP,
)  # weights and activations share one scale per this many elements along K

Params = Mapping[str, int | str]


@dataclass(frozen=True)
class Op:
    """One op: `cpu` and `gpu` build a PrimFunc from (name, params); `args` gives each buffer's name and access in order.

    `cpu_parts`: into how many parts of some microseconds the CPU form may be cut (ir.Share); 1 for work too small to share.
    """

    name: str
    args: tuple[tuple[str, str], ...]
    cpu: Callable[[str, Params], tirx.PrimFunc]
    gpu: Callable[[str, Params], tirx.PrimFunc]
    row_invariant: bool = True
    cpu_parts: Callable[[Params], int] = lambda p: 1


def kernel_name(op: str, params: Params) -> str:
    """The unique, readable name of one instance: op, then each parameter and its value."""
    text = "_".join([op, *(f"{key}{params[key]}" for key in sorted(params))])
    return re.sub(r"[^A-Za-z0-9_]", "_", text)


def by_row(p: Params) -> int:
    """cpu_parts of an op whose rows are worth a part each."""
    return int(p["m"])


def ceil_div(a: int, b: int) -> int:
    """a / b rounded up."""
    return -(-a // b)


def gpu_only(name: str, p: Params) -> tirx.PrimFunc:
    """The CPU form of an op that only the GPU pipeline makes."""
    raise ContractError(
        f"{name} has no CPU form", "kernels", "choose ops for the target in passes/target_ops.py"
    )


def cpu_only(name: str, p: Params) -> tirx.PrimFunc:
    """The GPU form of an op that only the CPU pipeline keeps."""
    raise ContractError(
        f"{name} has no GPU form", "kernels", "choose ops for the target in passes/target_ops.py"
    )


SPLIT = 256  # attention merges partial results every this many absolute positions
OUT_ROWS = MAX_ROWS  # rows of the out, logits and score tensors: the widest verify program
ARGS = 4  # start, num_rows, feedback, reserved
