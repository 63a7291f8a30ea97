"""Read one program's planned Relax module off as dispatches over named tensors and numbered storages.

Knows Relax, not the plan's indices. Every call of the planned function becomes one `Step`; memory comes as `Place`s: a plan tensor
by name (weights, state, KV, results) or a window of a scratch storage.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tvm
from specdec_runtime.faults import ContractError
from tvm import relax

from ..kernels import OPS
from ..passes.calls import PREFIX, parse_params, tensor_type


@dataclass(frozen=True)
class Place:
    """Where a kernel argument lives: `name` of a plan tensor, or storage number `storage` (then `name` is empty). Of a shard of rows
    (rows.py): the `window` of it that begins at element `first`."""

    name: str
    storage: int
    shape: tuple[int, ...]
    dtype: str
    first: int = 0
    window: tuple[int, ...] | None = None

    def plain(self) -> str | list | dict:
        """As data: the plan tensor's name, or [storage, dtype, shape]; or the window of one of these."""
        whole = self.name or [self.storage, self.dtype, list(self.shape)]
        if self.window is None:
            return whole
        return {"of": whole, "first": self.first, "shape": list(self.window)}


@dataclass(frozen=True)
class Step:
    """One kernel call."""

    op: str
    params: dict[str, int | str]
    places: tuple[Place, ...]


@dataclass(frozen=True)
class ReadProgram:
    """The steps in order, and the bytes of each scratch storage."""

    steps: tuple[Step, ...]
    storage_bytes: tuple[int, ...]


SHARED = ("target_args", "target_out", "target_logits", "target_z", "target_verdict", "draft_args", "draft_q")
Owner = Callable[[str], str]  # a weight's name -> the role it is stored under


def plan_name(parameter: str, target: str, role: str, owner: Owner) -> str:
    """Relax parameter -> plan tensor: state and pages belong to the model's role, weights to whoever owns them."""
    if parameter in ("state.tokens", "tokens"):
        return "tokens"
    if parameter in SHARED:  # of the programs that see both models
        return parameter.replace("_", ".", 1)
    if parameter.startswith("sampling."):  # one for both models
        return parameter
    if parameter.startswith("state.") and parameter != "state.rope":
        return f"{role}.{parameter.removeprefix('state.')}"
    pages = re.fullmatch(r"layers\.(\d+)\.pages\.([kv])", parameter)
    if pages:
        kind = pages[2] if target == "cpu" else "kv"  # one buffer on the GPU: passes/target_ops.py
        return f"{role}.{kind}.{pages[1]}"
    if parameter in ("args", "logits", "score_ids", "out"):
        return f"{role}.{parameter}"
    weight = weight_name(parameter)
    return f"{owner(weight)}.{weight}"


def weight_name(parameter: str) -> str:
    """Drop the container of fused projections: layers.0.qkv.q.w -> layers.0.q.w; the rope table is a weight of its model."""
    return re.sub(r"\.(?:qkv|gate_up)\.(\w+)\.", r".\1.", parameter).removeprefix("state.")


def read_program(
    module: tvm.IRModule, target: str, role: str, owner: Owner, results: tuple[str, ...]
) -> ReadProgram:
    """`results` names the plan tensors of the function's outputs; "" leaves an output in scratch memory."""
    return _Reader(module["forward"], target, role, owner, results).read()


class _Reader:
    def __init__(self, function: Any, target: str, role: str, owner: Owner, results: tuple[str, ...]):
        self.function, self.target, self.results = function, target, results
        names = str(function.attrs["specdec.params"]).split(",")
        self.places: dict[Any, Any] = {}
        for var, name in zip(function.params, names, strict=True):
            self.places[var] = Place(plan_name(name, target, role, owner), -1, *tensor_type(var.ty))
        self.storages: dict[Any, int] = {}
        self.storage_bytes: list[int] = []
        self.steps: list[Step] = []
        self.outputs = 0

    def read(self) -> ReadProgram:
        for block in self.function.body.blocks:
            for binding in block.bindings:
                self.bind(binding.var, binding.value)
        return ReadProgram(tuple(self.steps), tuple(self.storage_bytes))

    def bind(self, var: Any, value: Any) -> None:
        if isinstance(value, relax.Var):
            self.places[var] = self.places[value]
        elif isinstance(value, relax.Tuple):
            self.places[var] = tuple(self.places[field] for field in value.fields)
        elif isinstance(value, relax.TupleGetItem):
            self.places[var] = self.places[value.tuple_value][value.index]
        elif isinstance(value, relax.Call):
            self.call(var, value)
        else:
            raise ContractError(f"unexpected binding {value}", "emit/programs.py", "extend the reader")

    def call(self, var: Any, call: Any) -> None:
        name = "" if isinstance(call.op, relax.ExternFunc) else call.op.name
        if isinstance(call.op, relax.ExternFunc):
            self.step(call)
        elif name == "relax.memory.alloc_storage":
            self.storages[var] = self.new_storage(int(call.args[0].values[0]))
        elif name == "relax.memory.alloc_tensor":
            self.places[var] = Place("", self.storages[call.args[0]], *tensor_type(var.ty))
        elif name == "relax.builtin.alloc_tensor":
            self.places[var] = self.output(var)
        elif name not in ("relax.memory.kill_tensor", "relax.memory.kill_storage"):
            raise ContractError(f"unexpected call {name}", "emit/programs.py", "extend the reader")

    def new_storage(self, size: int) -> int:
        self.storage_bytes.append(size)
        return len(self.storage_bytes) - 1

    def output(self, var) -> Place:
        """A tensor that leaves the function: named, or scratch when nobody reads it."""
        shape, dtype = tensor_type(var.ty)
        name = self.results[self.outputs]
        self.outputs += 1
        if name:
            return Place(name, -1, shape, dtype)
        size = tvm.DataType(dtype).itemsize
        for length in shape:
            size *= length
        return Place("", self.new_storage(size), shape, dtype)

    def step(self, call: Any) -> None:
        op = str(call.op.global_symbol).removeprefix(PREFIX)
        tensors = [arg for arg in call.args if isinstance(arg, relax.Var)]
        text = next(arg for arg in call.args if not isinstance(arg, relax.Var))
        if op not in OPS or len(tensors) != len(OPS[op].form(self.target).args):
            raise ContractError(
                f"no kernel takes {op} with {len(tensors)} buffers", "emit/programs.py", "add the kernel"
            )
        self.steps.append(Step(op, parse_params(str(text.value)), tuple(self.places[t] for t in tensors)))
