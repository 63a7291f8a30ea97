"""What differs between the devices: how work is split over kernels, and how quantized activations are stored.

needs: fused ops. guarantees: every op has a kernel for the target. On the GPU quantized activations are one buffer, and a norm is a
product with its weight in the producer and a factor 1 / rms(x) in the linears that read it (kernels/quantize.py, linear_gpu.py).
"""

from __future__ import annotations

from dataclasses import replace

from ..kernels.attention_gpu import num_splits
from ..kernels.base import GROUP
from ..kernels.filter import gpu_stride
from ..kernels.logprobs import WORDS as LOGPROBS_WORDS
from ..kernels.logprobs import num_chunks as logprobs_chunks
from ..kernels.measure import MEASURED
from ..kernels.quantize import GROUP_WORDS
from ..kernels.select import CHUNK, NOISY_CHUNK, PARTIAL, num_chunks
from .calls import Call, Straight, straight_pass
from .fuse import Fusions, fuse


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


def split_logprobs(program: Straight) -> Straight:
    """GPU: log-probabilities become one workgroup per (row, 2,048 logits), then one per row that merges."""
    calls: list[Call] = []
    for call in program.calls:
        if call.op != "logprobs":
            calls.append(call)
            continue
        p, partial = call.params, call.outputs[0] + "_partial"
        args, logits, _ = call.inputs
        shape = (int(p["m"]), logprobs_chunks(int(p["n"])), LOGPROBS_WORDS)
        types = ((shape, "int32"),)
        calls.append(
            replace(call, op="logprobs_split", inputs=(args, logits), outputs=(partial,), types=types)
        )
        calls.append(replace(call, op="logprobs_merge", inputs=(*call.inputs, partial)))
    return replace(program, calls=tuple(calls))


def limit_rows(program: Straight) -> Straight:
    """GPU: a processed row has its peaks behind it, `truncate` gives a limit of each row, and `pick` writes what is kept."""
    calls: list[Call] = []
    for call in program.calls:
        if call.op == "process":
            m, padded = call.types[0][0]
            call = replace(call, types=(((m, gpu_stride(padded)), "float32"),))
        elif call.op == "truncate":
            kept = call
            limits = ((call.types[0][0][0],), "float32")
            call = replace(call, outputs=(call.outputs[0] + "_limits",), types=(limits,))
        elif call.op == "pick":
            args, _, ints = call.inputs
            call = replace(
                call,
                inputs=(args, kept.inputs[-1], ints, calls[-1].outputs[0]),
                outputs=(*call.outputs, *kept.outputs),
                types=(*call.types, *kept.types),
            )
        calls.append(call)
    return replace(program, calls=tuple(calls))


CHOOSING = ("argmax", "argmax_named", "sample", "sample_named", "pick")
NOISY = ("sample", "pick")


def split_argmax(program: Straight) -> Straight:
    """GPU: argmax (or the sampled one) and advance become one workgroup per (row, 4,096 logits, or 1,024 with noise), then one that
    merges, decides and advances. Where the row is measured, the same two do that too."""
    measures = {call.inputs[1]: call for call in program.calls if call.op == "measure"}  # by logits
    calls: list[Call] = []
    for call in program.calls:
        if call.op in CHOOSING:
            choice, _, named = call.op.partition("_")
            kind, words = ("measure", MEASURED) if call.inputs[1] in measures else (choice, PARTIAL)
            op = f"{kind}_split" + (f"_{named}" if named else "")
            p, partial = call.params, call.outputs[0] + "_partial"
            chunk = NOISY_CHUNK if choice in NOISY else CHUNK
            shape = (int(p["m"]), num_chunks(int(p["n"]), chunk), words)
            outputs, types = (partial, *call.outputs[1:]), ((shape, "int32"), *call.types[1:])
            calls.append(replace(call, op=op, outputs=outputs, types=types))
        elif call.op == "measure":
            continue
        elif call.op == "advance":
            argmax = _producer(program, call.inputs[2])
            measure = measures.get(argmax.inputs[1])
            argmax = replace(argmax, outputs=argmax.outputs[:1], types=argmax.types[:1])
            made = (argmax, *([measure] if measure else []), call)
            args, tokens, _ = call.inputs
            noisy = argmax.op.partition("_")[0] in NOISY
            merge = replace(
                argmax,
                op="measure_merge" if measure else "sample_merge" if noisy else "argmax_merge",
                inputs=(args, argmax.outputs[0] + "_partial", tokens),
                params={"m": argmax.params["m"], "n": argmax.params["n"], **call.params},
                outputs=tuple(name for each in made for name in each.outputs),
                types=tuple(each_type for each in made for each_type in each.types),
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


# what follows a kernel and moves into its end on the GPU
GPU_FUSIONS: Fusions = {
    ("linear", "silu_mul_quantize"): "gate_up_quantize",
    ("linear", "rope_append"): "qkv_rope",
    ("attention_merge", "quantize"): "attention_merge",
}


def add_quantize(program: Straight) -> Straight:
    """GPU: the product with a norm's weight, and its quantization, move into the residual sum before them, which stays a result too."""
    calls: list[Call] = []
    for call in program.calls:
        producer = next((each for each in calls if call.inputs[1] in each.outputs), None)
        if call.op != "scale_quantize" or producer is None or producer.op != "linear_add":
            calls.append(call)
            continue
        calls[calls.index(producer)] = replace(
            producer,
            op="linear_add_quantize",
            inputs=(*producer.inputs, call.inputs[2]),
            outputs=(*producer.outputs, *call.outputs),
            types=(*producer.types, *call.types),
        )
    return replace(program, calls=tuple(calls))


def fuse_gpu(program: Straight) -> Straight:
    """GPU: everything that one kernel does with what is before it."""
    return fuse(add_quantize(program), GPU_FUSIONS)


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
LimitRows = straight_pass("LimitRows")(limit_rows)
SplitLogprobs = straight_pass("SplitLogprobs")(split_logprobs)
SplitAttention = straight_pass("SplitAttention")(split_attention)
WidenCodes = straight_pass("WidenCodes")(widen_codes)
