"""What differs between the devices: how attention is split over kernels, and how wide quantized codes are stored.

needs: fused ops. guarantees: every op has a kernel for the target.
"""

from __future__ import annotations

from dataclasses import replace

from ..kernels.attention import num_splits
from .calls import Call, Straight, straight_pass


def split_attention(program: Straight) -> Straight:
    """GPU: attention becomes one workgroup per (row, head, 256 positions), then a merge."""
    calls: list[Call] = []
    for call in program.calls:
        if call.op != "attention":
            calls.append(call)
            continue
        p, partial = call.params, call.outputs[0] + "_partial"
        rows = int(p["m"]) * int(p["h"])
        shape = (rows, num_splits(int(p["ctx"])), int(p["d"]) + 2)
        calls.append(replace(call, op="attention_split", outputs=(partial,), types=((shape, "float32"),)))
        calls.append(replace(call, op="attention_merge", inputs=(call.inputs[0], partial)))
    return replace(program, calls=tuple(calls))


def widen_codes(program: Straight) -> Straight:
    """CPU: activation codes are stored as int16, the operand of the pairwise dot."""

    def widen(call: Call) -> Call:
        types = tuple((shape, "int16" if dtype == "int8" else dtype) for shape, dtype in call.types)
        return replace(call, types=types)

    return replace(program, calls=tuple(widen(call) for call in program.calls))


SplitAttention = straight_pass("SplitAttention")(split_attention)
WidenCodes = straight_pass("WidenCodes")(widen_codes)
