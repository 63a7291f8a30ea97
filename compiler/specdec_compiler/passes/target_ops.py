"""What differs between the devices: how work is split over kernels, and how quantized activations are stored.

needs: fused ops. guarantees: every op has a kernel for the target. On the GPU quantized activations are one buffer, and a norm is a
product with its weight in the producer and a factor 1 / rms(x) in the linears that read it (kernels/quantize.py, linear_gpu.py).
"""

from __future__ import annotations

from dataclasses import replace

from ..kernels.attention_gpu import num_splits
from ..kernels.base import GROUP
from ..kernels.quantize import GROUP_WORDS
from ..kernels.select import PARTIAL, num_chunks
from .calls import Call, Straight, straight_pass


def split_attention(program: Straight) -> Straight:
    """GPU: attention becomes one workgroup per 128 positions and some query rows of one KV head, then a merge."""
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


def _is_codes(call: Call) -> bool:
    """Does this call give (codes, scales)?"""
    return call.op == "quantize" or call.op.endswith("_quantize")


def pack_codes(program: Straight) -> Straight:
    """GPU: the codes and scales of quantized activations become one buffer of 48 bytes a group."""
    gone: set[str] = set()
    calls: list[Call] = []
    for call in program.calls:
        inputs = tuple(name for name in call.inputs if name not in gone)
        call = replace(call, inputs=inputs)
        if _is_codes(call):
            codes, scales = call.outputs
            gone.add(scales)
            m, k = call.types[0][0]
            words = ((m, k // GROUP, GROUP_WORDS), "uint32")
            call = replace(call, outputs=(codes,), types=(words,))
        calls.append(call)
    return replace(program, calls=tuple(calls))


def defer_norms(program: Straight) -> Straight:
    """GPU: a norm's factor moves into the linears that read its codes; what stays is a product, group by group."""
    eps: dict[str, int | str] = {}
    calls: list[Call] = []
    for call in program.calls:
        if call.op == "norm_quantize":
            params = dict(call.params)
            eps[call.outputs[0]] = params.pop("eps")
            call = replace(call, op="scale_quantize", params=params)
        elif call.op in ("linear", "linear_add") and call.inputs[1] in eps:
            call = replace(call, params={**call.params, "eps": eps[call.inputs[1]]})
        calls.append(call)
    return replace(program, calls=tuple(calls))


def fuse_gpu(program: Straight) -> Straight:
    """GPU: what follows a linear moves into its end, where one kernel does both."""
    calls = list(program.calls)
    for first, second, merge in (
        ("linear_add", "scale_quantize", _add_quantize),
        ("linear", "silu_mul_quantize", _gate_up),
        ("attention_merge", "quantize", _merge_quantize),
        ("linear", "rope_append", _qkv_rope),
    ):
        for consumer in [call for call in calls if call.op == second]:
            producer = next((call for call in calls if consumer.inputs[1] in call.outputs), None)
            if producer is None or producer.op != first:
                continue
            calls[calls.index(producer)] = merge(producer, consumer)
            calls.remove(consumer)
    return replace(program, calls=tuple(calls))


def _add_quantize(producer: Call, consumer: Call) -> Call:
    return replace(
        producer,
        op="linear_add_quantize",
        inputs=(*producer.inputs, consumer.inputs[2]),
        outputs=(*producer.outputs, *consumer.outputs),
        types=(*producer.types, *consumer.types),
    )


def _gate_up(producer: Call, consumer: Call) -> Call:
    return replace(producer, op="gate_up_quantize", outputs=consumer.outputs, types=consumer.types)


def _merge_quantize(producer: Call, consumer: Call) -> Call:
    return replace(producer, outputs=consumer.outputs, types=consumer.types)


def _qkv_rope(producer: Call, consumer: Call) -> Call:
    appended = consumer.inputs[2:]
    params = {**consumer.params, **producer.params}
    return replace(consumer, op="qkv_rope", inputs=(*producer.inputs, *appended), params=params)


def merge_pages(program: Straight) -> Straight:
    """GPU: a layer's K and V pages are one buffer, that of K with V behind it (emit/plan.py): a kernel may bind eight."""
    calls = [
        replace(call, inputs=tuple(name for i, name in enumerate(call.inputs) if i != V_INPUT[call.op]))
        if call.op in V_INPUT
        else call
        for call in program.calls
    ]
    return replace(program, calls=tuple(calls))


V_INPUT = {"rope_append": 5, "attention_split": 4}
MergePages = straight_pass("MergePages")(merge_pages)
PackCodes = straight_pass("PackCodes")(pack_codes)
DeferNorms = straight_pass("DeferNorms")(defer_norms)
FuseGpu = straight_pass("FuseGpu")(fuse_gpu)
SplitArgmax = straight_pass("SplitArgmax")(split_argmax)
SplitAttention = straight_pass("SplitAttention")(split_attention)
WidenCodes = straight_pass("WidenCodes")(widen_codes)
