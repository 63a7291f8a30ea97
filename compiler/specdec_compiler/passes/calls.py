"""Reading and rebuilding the abstract program: a straight line of "specdec.<op>" calls in one Relax function.

Passes get the program as a list of `Call`s over variables and give back such a list; this file turns Relax into that and back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tvm
from specdec_runtime.faults import ContractError
from tvm import relax

PREFIX = "specdec."


@dataclass(frozen=True)
class Call:
    """One op: its inputs are variables of the program, its outputs new ones."""

    op: str
    inputs: tuple[str, ...]
    params: dict[str, int | str]
    outputs: tuple[str, ...]
    types: tuple[tuple[tuple[int, ...], str], ...]  # (shape, dtype) of each output


@dataclass(frozen=True)
class Straight:
    """A whole program: the parameters' variables, the calls in order, and the returned variables."""

    params: tuple[str, ...]
    calls: tuple[Call, ...]
    results: tuple[str, ...]


def parse_params(text: str) -> dict[str, int | str]:
    """The trailing "key=value,..." argument; whole numbers become ints."""
    pairs = (item.split("=", 1) for item in text.split(",") if item)
    return {key: int(value) if value.lstrip("-").isdecimal() else value for key, value in pairs}


def tensor_type(ty) -> tuple[tuple[int, ...], str]:
    """(shape, dtype) of a static Relax tensor type."""
    return tuple(int(size) for size in ty.shape.values), str(ty.dtype)


def read_straight(function: Any) -> Straight:
    """Relax -> Straight. Raises ContractError for anything but a straight line of specdec ops."""
    names: dict[Any, tuple[str, ...]] = {p: (p.name,) for p in function.params}
    calls: list[Call] = []
    for block in function.body.blocks:
        for binding in block.bindings:
            value: Any = binding.value
            if isinstance(value, relax.Var):
                names[binding.var] = names[value]
            elif isinstance(value, relax.TupleGetItem):
                names[binding.var] = (names[value.tuple_value][value.index],)
            elif isinstance(value, relax.Tuple):
                names[binding.var] = tuple(names[field][0] for field in value.fields)
            else:
                call = _read_call(value, names, f"v{len(calls)}")
                calls.append(call)
                names[binding.var] = call.outputs
    body = function.body.body
    results = names[body] if isinstance(body, relax.Var) else tuple(names[field][0] for field in body.fields)
    return Straight(tuple(p.name for p in function.params), tuple(calls), results)


def _read_call(value: Any, names: dict, result: str) -> Call:
    if not isinstance(value, relax.Call) or not isinstance(value.args[0], relax.ExternFunc):
        raise ContractError(
            f"not a specdec op: {value}", "compiler passes", "write models with specdec_models.layers"
        )
    arguments: Any = value.args[1]
    *inputs, text = arguments.fields
    declared: Any = value.ty_args[0]
    types = getattr(declared, "fields", [declared])  # a tuple type, or the one tensor type
    shapes = tuple(tensor_type(each) for each in types)
    outputs = (result,) if len(shapes) == 1 else tuple(f"{result}_{i}" for i in range(len(shapes)))
    op = str(value.args[0].global_symbol).removeprefix(PREFIX)
    return Call(op, tuple(names[var][0] for var in inputs), parse_params(text.value), outputs, shapes)


def write_straight(function: relax.Function, program: Straight) -> relax.Function:
    """Straight -> Relax, with the parameters of `function`."""
    builder = relax.BlockBuilder()
    env: dict[str, relax.Expr] = {p.name: p for p in function.params}
    with builder.function("forward", list(function.params), attrs=dict(function.attrs.items())):
        with builder.dataflow():
            for call in program.calls:
                _emit(builder, env, call)
            outputs = [env[name] for name in program.results]
            result = builder.emit_output(outputs[0] if len(outputs) == 1 else relax.Tuple(outputs))
        builder.emit_func_output(result)
    return builder.get()["forward"]


def _emit(builder, env, call: Call) -> None:
    text = ",".join(f"{key}={call.params[key]}" for key in sorted(call.params))
    inputs = relax.Tuple([*(env[name] for name in call.inputs), tvm.ir.StringImm(text)])
    types = [relax.TensorType(list(shape), dtype) for shape, dtype in call.types]  # type: ignore[arg-type]
    value = relax.call_dps_packed(PREFIX + call.op, inputs, out_ty=types if len(types) > 1 else types[0])
    result = builder.emit(value, name_hint=call.op)
    for i, name in enumerate(call.outputs):
        env[name] = result if len(types) == 1 else builder.emit(relax.TupleGetItem(result, i))


def straight_pass(name: str):
    """Decorator: Callable[Straight] -> Straight becomes a TVM module pass."""

    def wrap(transform: Callable[[Straight], Straight]):
        @tvm.transform.module_pass(opt_level=0, name=f"specdec.{name}")
        def run(mod, _ctx):
            function = mod["forward"]
            updated = tvm.IRModule(mod.functions, attrs=mod.attrs)
            updated["forward"] = write_straight(function, transform(read_straight(function)))
            return updated

        return run

    return wrap
