"""What differs between the devices: how attention is split over kernels, and how wide quantized codes are stored.

needs: fused ops. guarantees: every op has a kernel for the target.
"""

from __future__ import annotations

from dataclasses import replace

from ..kernels.attention import num_splits
from ..kernels.select import PARTIAL, num_chunks
from .calls import Call, Straight, straight_pass


def split_attention(program: Straight) -> Straight:
    """GPU: attention becomes one workgroup per (row, head, 256 positions), then a merge."""
    calls: list[Call] = []
    for call in program.calls:
        if call.op != "attention":
            calls.append(call)
            continue
        p, partial = call.params, call.outputs[0] + "_partial"
        shape = (int(p["m"]) * int(p["h"]), num_splits(int(p["ctx"])), int(p["d"]) + 2)
        calls.append(replace(call, op="attention_split", outputs=(partial,), types=((shape, "float32"),)))
        calls.append(replace(call, op="attention_merge", inputs=(call.inputs[0], partial)))
    return replace(program, calls=tuple(calls))


def _producer(program: Straight, name: str) -> Call:
    return next(call for call in program.calls if name in call.outputs)


def split_argmax(program: Straight) -> Straight:
    """GPU: argmax and advance become one workgroup per (row, 4,096 logits), then one that merges, decides and advances."""
    calls: list[Call] = []
    for call in program.calls:
        if call.op == "argmax":
            p, partial = call.params, call.outputs[0] + "_partial"
            shape = (int(p["m"]), num_chunks(int(p["n"])), PARTIAL)
            calls.append(replace(call, op="argmax_split", outputs=(partial,), types=((shape, "int32"),)))
        elif call.op == "advance":
            argmax = _producer(program, call.inputs[2])
            args, tokens, _ = call.inputs
            merge = replace(
                argmax,
                op="argmax_merge",
                inputs=(args, argmax.outputs[0] + "_partial", tokens),
                params={"m": argmax.params["m"], "n": argmax.params["n"], **call.params},
                outputs=(*argmax.outputs, *call.outputs),
                types=(*argmax.types, *call.types),
            )
            calls.append(merge)
        else:
            calls.append(call)
    return replace(program, calls=tuple(calls))


def widen_codes(program: Straight) -> Straight:
    """CPU: activation codes are stored as int16, the operand of the pairwise dot."""

    def widen(call: Call) -> Call:
        types = tuple((shape, "int16" if dtype == "int8" else dtype) for shape, dtype in call.types)
        return replace(call, types=types)

    return replace(program, calls=tuple(widen(call) for call in program.calls))


SplitArgmax = straight_pass("SplitArgmax")(split_argmax)
SplitAttention = straight_pass("SplitAttention")(split_attention)
WidenCodes = straight_pass("WidenCodes")(widen_codes)
