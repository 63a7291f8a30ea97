"""Kernels made wrong on purpose: their float order or noise depends on the number of rows. The invariance check must report them.

Each is the real kernel built with one constant or loop changed when it has more than one row.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

from specdec_compiler.kernels import OPS, Op, Params
from specdec_compiler.kernels import attention as attention_file
from specdec_compiler.kernels import attention_gpu as attention_gpu_file
from specdec_compiler.kernels import filter_cpu as filter_cpu_file
from specdec_compiler.kernels import filter_gpu as filter_gpu_file
from specdec_compiler.kernels import linear as linear_file
from specdec_compiler.kernels import linear_gpu as linear_gpu_file
from specdec_compiler.kernels import sample as sample_file
from specdec_compiler.kernels.base import Form
from specdec_compiler.kernels.filter import MIN_LEN

from .cases import EPS
from .forms import kinds
from .invariance import FILTER_EDITS, FILTER_SHAPE, Spec, heads

K = 1536
GROUPS = K // 32


class _Descending:
    """TVM's builder, but the loop over the groups of K runs downwards."""

    def __getattr__(self, name: str):
        return getattr(_REAL, name)

    @contextmanager
    def serial(self, start, stop):
        with _REAL.serial(start, stop) as i:
            yield stop - 1 - i if isinstance(stop, int) and stop == GROUPS else i


_REAL = linear_file.T


def _mutant(op: str, cpu, gpu) -> Op:
    def mutate(form: Form | None, change) -> Form | None:
        if form is None or change is None:
            return None

        def build(name: str, p: Params):
            if int(p["m"]) == 1:
                return form.build(name, p)
            with patch.object(*change):
                return form.build(name, p)

        return replace(form, build=build)

    return Op(f"mutant_{op}", mutate(OPS[op].cpu, cpu), mutate(OPS[op].gpu, gpu))


# op -> (change on the CPU, change on the GPU), each (file, name, value)
_CHANGES = {
    "linear": ((linear_file, "T", _Descending()), (linear_gpu_file, "LANES", 16)),
    "linear_add_quantize": (None, (linear_gpu_file, "LANES", 16)),
    "gate_up_quantize": (None, (linear_gpu_file, "LANES", 16)),
    "qkv_rope": (None, (linear_gpu_file, "LANES", 16)),
    "attention": ((attention_file, "SPLIT", 128), None),
    "attention_split": (None, (attention_gpu_file, "PEAK_LANES", 8)),
    "process": ((filter_cpu_file, "PROMPT_LEN", MIN_LEN), (filter_gpu_file, "PROMPT_LEN", MIN_LEN)),
    "sample": ((sample_file, "NOISE", 1), None),
    "sample_split": (None, (sample_file, "NOISE", 1)),
}
MUTANTS = {f"mutant_{op}": _mutant(op, *changes) for op, changes in _CHANGES.items()}
_NORMED = {"k": K, "fmt": "q4", "eps": EPS}
_HEADS = heads(16, 4, 16, 16)
# position 43: there the other stream's noise gives another id, which is all that a CPU's row shows
MUTANT_SPECS = [
    Spec("mutant_linear", {"n": 20, "k": K, "fmt": "q4"}, widths=(1, 2)),
    Spec("mutant_linear_add_quantize", {"n": 64, "k": K, "fmt": "q4"}, widths=(1, 2)),
    Spec("mutant_gate_up_quantize", {"n": 64, **_NORMED}, widths=(1, 2)),
    Spec("mutant_qkv_rope", {"n": 384, **_NORMED, **_HEADS}, 256, widths=(1, 2)),
    Spec("mutant_choose_sampled", {"n": 301, "padded": 320, "tokens": 600, "bias": 320}, 43, widths=(1, 2)),
    Spec("mutant_filtered", FILTER_SHAPE, 40, (1, 2), edit=FILTER_EDITS["penalties"]),
    Spec("mutant_attend", _HEADS | {"k": 256}, 256, widths=(1, 2)),
]


def mutant_specs(kind: str) -> list[Spec]:
    """Those of ops that a kind of device has."""
    return [spec for spec in MUTANT_SPECS if kind in kinds(spec.op)]
