"""What a portable name of the kernels becomes on a CPU target.

`dot_i16x8` is a TIR op of our own; TVM's LowerIntrin asks the rule below for each call. The integer result is the same
everywhere: i32x4.dot_i16x8_s on WASM, pmaddwd on x86, widened products and an even/odd add elsewhere.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm.tirx.op import register_intrin_lowering

OP_NAME = "tirx.specdec_dot_i16x8"
_INTRINSIC = {"wasm32": "llvm.wasm.dot", "x86_64": "llvm.x86.sse2.pmadd.wd"}


def arch_of(target: Any) -> str:
    """The first word of the target triple."""
    return str(target.attrs["mtriple"]).split("-")[0]


def _lanes(vector: Any, *indices: int) -> Any:
    return tirx.Shuffle([vector], list(indices))  # type: ignore[arg-type]


def _portable_dot(a, b):
    product = tirx.Cast("int32x8", a) * tirx.Cast("int32x8", b)
    return _lanes(product, 0, 2, 4, 6) + _lanes(product, 1, 3, 5, 7)


def _rule(call):
    target = tvm.target.Target.current()
    a, b = call.args
    name = _INTRINSIC.get(arch_of(target)) if target else None
    if name is None:
        return _portable_dot(a, b)
    return tirx.call_llvm_pure_intrin("int32x4", name, a, b)


def register() -> None:
    """Make the op and its rule known to TVM; safe to call again."""
    tvm.ir.register_op_attr(OP_NAME, "TCallEffectKind", int(tirx.CallEffectKind.Pure.value))
    register_intrin_lowering(OP_NAME, target="llvm", f=_rule, level=99)


register()
