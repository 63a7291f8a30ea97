"""What the tests call an op, as kernels: most are one kernel; some are two, and other two on the GPU than on the CPU.

attend         the attention of a layer and the quantizing of its result, which the GPU fuses with the merge of its splits
choose         what follows the logits: argmax, then advance; choose_measured also says how sure each row is
choose_sampled the noisy argmax, then advance
filtered       every processor of the logits; choose_filtered then picks an id, and advances
choose_named, choose_measured_named, choose_sampled_named  the same where the logits are of some ids only
draw, draw_named  a draft's z, kept, and the draw from it
judge          the accept rules of `reject` and `block`: z, its sums, the verdict
normed_linear  a linear that takes a norm's factor, on the GPU
embed_rows, linear_rows  over some rows of the table or matrix, on the GPU (emit/rows.py)
Some ops exist on one kind of device only (kinds). Scratch is what the first kernel hands to the second; it comes back too, so that row
invariance sees its bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from specdec_compiler.kernels import OPS, Params
from specdec_compiler.kernels.attention_gpu import num_splits
from specdec_compiler.kernels.filter import gpu_stride
from specdec_compiler.kernels.logprobs import WORDS as LOGPROBS_WORDS
from specdec_compiler.kernels.logprobs import num_chunks as logprobs_chunks
from specdec_compiler.kernels.measure import MEASURED
from specdec_compiler.kernels.select import CHUNK, NOISY_CHUNK, PARTIAL, num_chunks

Arrays = dict[str, np.ndarray]
MUTANT = "mutant_"  # begins the name of an op whose first kernel was made wrong on purpose (mutants.py)
JUDGING = ("weigh", "stats", "mass", "verdict", "ids")
KERNELS = {
    ("attend", "cpu"): ("attention", "quantize"),
    ("attend", "gpu"): ("attention_split", "attention_merge"),
    ("choose", "cpu"): ("argmax", "advance"),
    ("choose", "gpu"): ("argmax_split", "argmax_merge"),
    ("choose_measured", "cpu"): ("measure", "argmax", "advance"),
    ("choose_measured", "gpu"): ("measure_split", "measure_merge"),
    ("choose_named", "cpu"): ("argmax_named", "advance"),
    ("choose_named", "gpu"): ("argmax_split_named", "argmax_merge"),
    ("choose_measured_named", "cpu"): ("measure", "argmax_named", "advance"),
    ("choose_measured_named", "gpu"): ("measure_split_named", "measure_merge"),
    ("choose_sampled", "cpu"): ("sample", "advance"),
    ("choose_sampled", "gpu"): ("sample_split", "sample_merge"),
    ("choose_sampled_named", "cpu"): ("sample_named", "advance"),
    ("choose_sampled_named", "gpu"): ("sample_split_named", "sample_merge"),
    **{("draw", kind): ("keep_q", "draw_q") for kind in ("cpu", "gpu")},
    **{("draw_named", kind): ("keep_q_named", "draw_q") for kind in ("cpu", "gpu")},
    **{("judge", kind): tuple(f"judge_{step}" for step in JUDGING) for kind in ("cpu", "gpu")},
    ("filtered", "cpu"): ("process", "truncate"),
    ("filtered", "gpu"): ("process", "truncate", "pick_split"),
    ("choose_filtered", "cpu"): ("process", "truncate", "pick", "advance"),
    ("choose_filtered", "gpu"): ("process", "truncate", "pick_split", "sample_merge"),
    ("logprobs", "cpu"): ("logprobs",),
    ("logprobs", "gpu"): ("logprobs_split", "logprobs_merge"),
    ("normed_linear", "gpu"): ("linear",),
    ("embed_rows", "gpu"): ("embed",),
    ("linear_rows", "gpu"): ("linear",),
}
_COMPOSED = {op for op, _ in KERNELS}
CHOOSING = (
    "choose",
    "choose_measured",
    "choose_named",
    "choose_measured_named",
    "choose_sampled",
    "choose_sampled_named",
    "choose_filtered",
)
NOISY = ("choose_sampled", "choose_sampled_named", "choose_filtered", "filtered")
CHUNKED = (*CHOOSING, "filtered", "logprobs")  # on the GPU, chunk by chunk of logits
_RENAMED = {  # a kernel's name of what one before it wrote
    ("attend", "quantize", "x"): "out",
    ("choose_filtered", "pick", "logits"): "kept",
    ("choose_filtered", "pick_split", "logits"): "z",
    ("filtered", "pick_split", "logits"): "z",
}
FILTERED = {  # and what they leave in scratch memory
    ("filtered", "cpu"): ("z",),
    ("filtered", "gpu"): ("z", "limits"),
    ("choose_filtered", "cpu"): ("z", "kept"),
    ("choose_filtered", "gpu"): ("z", "limits", "kept"),
}


@dataclass(frozen=True)
class Step:
    """One kernel of an op: `slots` names the buffer of each of its arguments."""

    op: str
    slots: tuple[str, ...]


def real(op: str) -> str:
    """The op that a mutant imitates; any other op itself."""
    return op.removeprefix(MUTANT)


def kinds(op: str) -> tuple[str, ...]:
    """The kinds of device that have the op."""
    name = real(op)
    if name in _COMPOSED:
        return tuple(kind for kind in ("cpu", "gpu") if (name, kind) in KERNELS)
    return tuple(kind for kind in ("cpu", "gpu") if getattr(OPS[name], kind) is not None)


def steps(op: str, kind: str) -> list[Step]:
    """The kernels of an op on a kind of device."""
    kernels = KERNELS.get((real(op), kind), (real(op),))
    listed = []
    for kernel in kernels:
        args = OPS[kernel].form(kind).args
        listed.append(Step(kernel, tuple(_RENAMED.get((real(op), kernel, arg), arg) for arg, _ in args)))
    if op != real(op):
        listed[0] = Step(MUTANT + listed[0].op, listed[0].slots)
    return listed


def arguments(op: str, kind: str) -> dict[str, str]:
    """name -> access of what goes into and comes out of an op on a kind of device, scratch excluded."""
    access: dict[str, str] = {}
    for step in steps(real(op), kind):
        for slot, (_, how) in zip(step.slots, OPS[step.op].form(kind).args, strict=True):
            read_before = how == "read" and slot in access
            access[slot] = access[slot] if read_before else how
    if real(op) == "attend":
        del access["out" if kind == "cpu" else "partial"]
    if real(op) in CHUNKED and kind == "gpu":
        del access["partial"]
    for name in FILTERED.get((real(op), kind), ()):
        del access[name]
    return access


def _chunk_words(op: str, n: int) -> int:
    """What the chunks of a row leave."""
    if op == "logprobs":
        return logprobs_chunks(n) * LOGPROBS_WORDS
    return num_chunks(n, NOISY_CHUNK if op in NOISY else CHUNK) * (MEASURED if "measured" in op else PARTIAL)


def scratch(op: str, kind: str, p: Params) -> Arrays:
    """The scratch buffers of an op, as they are before the call."""
    m = int(p.get("m", 0))
    if real(op) == "attend":
        heads, d = m * int(p["h"]), int(p["d"])
        if kind == "cpu":
            return {"out": np.full(heads * d, np.nan, np.float32)}
        return {"partial": np.full(heads * num_splits(int(p["ctx"])) * (d + 2), np.nan, np.float32)}
    found = {}
    for name in FILTERED.get((real(op), kind), ()):
        columns = int(p["padded"])
        columns = {"z": gpu_stride(columns) if kind == "gpu" else columns, "limits": 1}.get(name, columns)
        found[name] = np.full(m * columns, np.nan, np.float32)
    if real(op) in CHUNKED and kind == "gpu":
        found["partial"] = np.full(m * _chunk_words(real(op), int(p["n"])), -1, np.int32)
    return found
