"""A sampled pass is the greedy one but for its end: so KV and logits have the same bits."""

from __future__ import annotations

import pytest
from specdec_runtime.bundle import open_bundle
from specdec_runtime.plan.schema import Dispatch, Target

ENDS = {  # the kernels of the greedy and of the sampled end
    "cpu": (("argmax", "advance"), ("sample", "advance")),
    "gpu": (("argmax_split", "argmax_merge"), ("sample_split", "sample_merge")),
}
SAMPLING = {"sampling.ints", "sampling.floats", "sampling.bias"}


def arguments(target: Target, dispatch: Dispatch) -> dict[str, str]:
    """Argument -> the tensor it is given."""
    names = [arg.name for arg in target.kernels[dispatch.kernel].args]
    tensors = [target.tensors[index].name for index in dispatch.tensors]
    return dict(zip(names, tensors, strict=True))


@pytest.mark.parametrize("device", ENDS)
def test_the_same_dispatches_but_the_one_that_chooses(tiny_bundle, device: str) -> None:
    plan = open_bundle(tiny_bundle(1, 384)).plan
    target = plan.target(device)
    for model in plan.models:
        for width in model.widths:
            greedy = target.program(f"{model.role}.{'verify' if model.role == 'target' else 'step'}_{width}")
            sampled = target.program(f"{model.role}.sample_{width}")
            *same, choice, end = sampled.dispatches
            *before, argmax, advance = greedy.dispatches
            assert same == before and end.tensors == advance.tensors
            ends = ((argmax, advance), (choice, end))
            ops = [tuple(target.kernels[each.kernel].op for each in pair) for pair in ends]
            assert tuple(ops) == ENDS[device]
            given, known = arguments(target, choice), arguments(target, argmax)
            assert {given.pop(name) for name in ("ints", "floats", "bias")} == SAMPLING
            assert given == known
