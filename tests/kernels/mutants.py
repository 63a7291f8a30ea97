"""Kernels made wrong on purpose: their float order depends on the number of rows. The invariance check must report them.

Each is the real kernel built with one constant or loop changed when it has more than one row.
"""

from __future__ import annotations

from contextlib import contextmanager
from unittest.mock import patch

from specdec_compiler.kernels import OPS, Op, Params
from specdec_compiler.kernels import attention as attention_file
from specdec_compiler.kernels import linear as linear_file

from .invariance import Spec, heads

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
    def build(form: str, change):
        def build_changed(name: str, p: Params):
            if int(p["m"]) == 1:
                return getattr(OPS[op], form)(name, p)
            with patch.object(*change):
                return getattr(OPS[op], form)(name, p)

        return build_changed

    return Op(f"mutant_{op}", OPS[op].args, build("cpu", cpu), build("gpu", gpu))


# op -> (change on the CPU, change on the GPU), each (file, name, value)
_CHANGES = {
    "linear": ((linear_file, "T", _Descending()), (linear_file, "LANES", 64)),
    "attention": ((attention_file, "SPLIT", 128), None),
    "attention_split": (None, (attention_file, "_lanes", lambda d: 32)),
}
MUTANTS = {f"mutant_{op}": _mutant(op, *changes) for op, changes in _CHANGES.items()}
MUTANT_SPECS = [
    Spec("mutant_linear", {"n": 20, "k": K, "fmt": "q4"}, widths=(1, 2)),
    Spec("mutant_attention", heads(16, 4, 16, 16), 256, widths=(1, 2)),
]
