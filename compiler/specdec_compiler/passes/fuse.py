"""Fold a producer into its only consumer where one kernel does both.

needs: abstract ops. guarantees: no rms_norm, silu_mul or add is left (they exist only fused), a linear followed by a residual add
is one linear_add, and quantization of a norm's or an activation's result happens in that producer.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from specdec_runtime.faults import ContractError

from .calls import Call, Straight, straight_pass

# (producer, consumer) -> the op that does both
Fusions = dict[tuple[str, str], str]
FUSIONS: Fusions = {
    ("rms_norm", "quantize"): "norm_quantize",
    ("silu_mul", "quantize"): "silu_mul_quantize",
    ("linear", "add"): "linear_add",
}
MUST_VANISH = {producer for producer, _ in FUSIONS if producer != "linear"} | {"add"}


def fuse(program: Straight, fusions: Fusions) -> Straight:
    """Apply the fusions greedily, in program order."""
    uses = Counter(name for call in program.calls for name in call.inputs) + Counter(program.results)
    kept: list[Call] = []
    for call in program.calls:
        producer = _foldable(call, kept, uses, fusions)
        if producer is None:
            kept.append(call)
            continue
        kept.remove(producer)
        rest = tuple(name for name in call.inputs[1:] if name not in producer.outputs)
        op = fusions[producer.op, call.op]
        kept.append(replace(call, op=op, inputs=producer.inputs + rest, params=call.params | producer.params))
    return replace(program, calls=tuple(kept))


def _foldable(call: Call, kept: list[Call], uses: Counter, fusions: Fusions) -> Call | None:
    for producer in reversed(kept):
        if (
            (producer.op, call.op) in fusions
            and producer.outputs[0] in call.inputs
            and uses[producer.outputs[0]] == 1
        ):
            return producer
    return None


def fuse_all(program: Straight) -> Straight:
    """FUSIONS, all of which are needed: what must vanish has no kernel of its own."""
    fused = fuse(program, FUSIONS)
    left = {call.op for call in fused.calls} & MUST_VANISH
    if left:
        action = "write the model in fusable pairs"
        raise ContractError(f"no kernel for unfused {sorted(left)}", "passes/fuse.py", action)
    return fused


FuseProducers = straight_pass("FuseProducers")(fuse_all)
