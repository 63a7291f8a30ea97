"""THE ordered list of passes, in named phases: from abstract ops to planned memory.

import   the model definition as it was written                        (specdec_models)
fuse     producers folded into consumers                                (passes/fuse.py)
target   how work is split, how activations are stored, GPU fusions      (passes/target_ops.py)
memory   destination-passing calls over statically planned storages     (TVM)

After `memory`, emit/programs.py reads the calls off and kernels/ supplies a PrimFunc for each distinct (op, params).
"""

from __future__ import annotations

import tvm
from tvm import relax

from .passes.fuse import FuseProducers
from .passes.target_ops import (
    DeferNorms,
    FuseGpu,
    LimitRows,
    MergePages,
    PackCodes,
    SplitArgmax,
    SplitAttention,
    SplitLogprobs,
    WidenCodes,
)

GPU_PASSES = [
    SplitAttention,
    LimitRows,
    SplitArgmax,
    SplitLogprobs,
    MergePages,
    PackCodes,
    DeferNorms,
    FuseGpu,
]
PHASES = ("import", "fuse", "target", "memory")


def phases(target: str) -> list[tuple[str, list]]:
    """(phase, passes) in order for "cpu" or "gpu"."""
    return [
        ("import", []),
        ("fuse", [FuseProducers]),
        ("target", GPU_PASSES if target == "gpu" else [WidenCodes]),
        (
            "memory",
            [
                relax.transform.ToNonDataflow(),
                relax.transform.CallTIRRewrite(),
                relax.transform.StaticPlanBlockMemory(),
            ],
        ),
    ]


def run_phases(module: tvm.IRModule, target: str, last: str = "memory") -> tvm.IRModule:
    """Run every phase up to and including `last`."""
    for name, passes in phases(target):
        for each in passes:
            module = each(module)
        if name == last:
            break
    return module
