"""TIR to target code: the pass lists for the CPU (WASM, native) and for WebGPU.

needs: PrimFuncs of flat buffers (kernels/). guarantees: the CPU functions take one raw pointer per buffer, then (part, parts), and need
no TVM runtime; the GPU text is one WGSL module per kernel whose bindings are storage buffers only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import tvm
from specdec_runtime.faults import ContractError
from tvm import s_tir, tirx

from . import intrinsics  # noqa: F401  registers the lowering rule of dot_i16x8


@tirx.transform.prim_func_pass(opt_level=0, name="specdec.RawPointers")
def raw_pointers(func, _mod, _ctx):
    """Turn buffer parameters into plain data pointers: a C signature instead of TVM's packed calling convention.

    The scalars that follow them (kernels/ir.py: cpu_func) stay as they are.
    """
    buffers = [p for p in func.params if hasattr(p, "data")]
    pointers = [tvm.ir.Var(p.name + "_ptr", p.data.ty) for p in buffers]
    declared = [tirx.DeclBuffer(p, data=pointer) for p, pointer in zip(buffers, pointers, strict=True)]
    params = [*pointers, *func.params[len(buffers) :]]
    return tirx.PrimFunc(params, tirx.SeqStmt([*declared, func.body]), func.ret_type, func.attrs)


def cpu_passes(target: tvm.target.Target) -> list:
    """Every pass a CPU kernel goes through, in order."""
    return [
        tirx.transform.BindTarget(target),
        tirx.transform.FlattenBuffer(),
        tirx.transform.NarrowDataType(32),
        tirx.transform.VectorizeLoop(True),
        tirx.transform.StorageRewrite(),
        tirx.transform.UnrollLoop(),
        tirx.transform.StmtSimplify(),
        tirx.transform.RemoveNoOp(),
        raw_pointers,
        tirx.transform.LowerIntrin(),
    ]


def build_cpu(functions: dict[str, tirx.PrimFunc], target: tvm.target.Target) -> tvm.runtime.Module:
    """Lower and generate code; the module exports one C function per kernel."""
    with target:
        module = tvm.transform.Sequential(cpu_passes(target))(tvm.IRModule(functions))
    build = tvm.get_global_func("target.build.llvm")
    assert build is not None
    return build(module, target)


@dataclass(frozen=True)
class Wgsl:
    """One kernel's WGSL: `bindings[i]` is the argument name of @binding(i)."""

    text: str
    entry: str
    bindings: tuple[str, ...]
    workgroup: tuple[int, int, int]
    grid: tuple[int, int, int]


def gpu_target() -> tvm.target.Target:
    """WebGPU at its guaranteed limits (256 threads); the host half is thrown away."""
    return tvm.target.Target({"kind": "webgpu", "max_num_threads": 256}, host="llvm")


def gpu_passes() -> list:
    """Every pass a GPU kernel goes through, in order.

    No automatic barriers: the kernels place their own. No StorageRewrite: it lets workgroup arrays with disjoint lives share
    memory, and without a barrier between them one thread would write the second over what another has yet to read of the first.
    """
    return [
        tirx.transform.BindTarget(gpu_target()),
        tirx.transform.FlattenBuffer(),
        tirx.transform.NarrowDataType(32),
        tirx.transform.VectorizeLoop(True),
        tirx.transform.UnrollLoop(),
        tirx.transform.StmtSimplify(),
        tirx.transform.RemoveNoOp(),
        tirx.transform.AnnotateEntryFunc(),
        tirx.transform.SplitHostDevice(),
        tirx.transform.MakePackedAPI(),
        tirx.transform.Filter(lambda f: f.attrs["target"].kind.name == "webgpu"),
        s_tir.transform.RenormalizeSplitPattern(),
        tirx.transform.LowerIntrin(),
    ]


def build_gpu(name: str, function: tirx.PrimFunc) -> Wgsl:
    """Generate one kernel's WGSL and make its launch explicit."""
    module = tvm.transform.Sequential(gpu_passes())(tvm.IRModule({name: function}))
    build = tvm.get_global_func("target.build.webgpu")
    assert build is not None
    return _finish_wgsl(build(module, gpu_target()).inspect_source(), _grid(function))


def _grid(function: tirx.PrimFunc) -> tuple[int, int, int]:
    """The launch extents, read from the kernel's text form (this TVM has no Python visitor over TIR)."""
    extents = dict(re.findall(r'"(blockIdx\.[xyz])", (\d+)', function.script()))
    return tuple(int(extents.get(f"blockIdx.{axis}", 1)) for axis in "xyz")  # type: ignore[return-value]


_POINTER = re.compile(r"\(\(i32\*\)(\w+)\)(?=\[)")


def _with_atomics(text: str) -> str:
    """TVM has no atomics: `atomicAdd((&(((i32*)v)[i])), 1)` becomes WGSL by a type of v that admits it, and no cast (kernels/ir.py)."""
    for name in set(_POINTER.findall(text)):
        text = re.sub(rf"(var<workgroup> {name} : array<)i32,", r"\1atomic<i32>,", text)
    return _POINTER.sub(r"\1", text)


def _finish_wgsl(text: str, grid: tuple[int, int, int]) -> Wgsl:
    """Drop TVM's uniform with the launch bound: our grids are exact, so a block index never passes it.

    TVM reads the block index as `blockIdx.z * gridDim.x + blockIdx.x`; our grids have no z, so that is x.
    """
    text = re.sub(r"struct PODArgs \{[^}]*\}\n", "", text)
    text = re.sub(r"@group\(0\) @binding\(\d+\) var<uniform> podArgs : PODArgs;\n", "", text)
    text = re.sub(
        r"  if \(blockIdx\.z \* gridDim\.x \+ blockIdx\.x > podArgs\.packGridDimX\) \{ return; \}\n", "", text
    )
    text = _with_atomics(re.sub(r"^//.*\n", "", text, flags=re.M).strip() + "\n")
    bindings = re.findall(r"@binding\((\d+)\) var<storage, \w+> (\w+)_ptr\b", text)
    if [int(index) for index, _ in bindings] != list(range(len(bindings))) or "podArgs" in text:
        raise ContractError(
            "TVM printed unexpected bindings:\n" + text, "passes/lower.py", "pin the TVM it was written for"
        )
    size = re.search(r"@workgroup_size\((\d+), (\d+), (\d+)\)", text)
    entry = re.search(r"^fn (\w+)\(", text, flags=re.M)
    assert size and entry
    workgroup = tuple(int(x) for x in size.groups())
    return Wgsl(text, entry[1], tuple(name for _, name in bindings), workgroup, grid)  # type: ignore[arg-type]
