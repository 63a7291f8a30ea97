"""Row invariance of every kernel that has rows, on every device; and that the check reports kernels that lack it."""

from __future__ import annotations

import pytest
from specdec_compiler.kernels import OPS

from .conftest import DEVICES, LEVELS
from .forms import JUDGING
from .invariance import WIDTHS, Spec, mismatches, runs, specs, works
from .jobs import Batch
from .mutants import mutant_specs


def _pairs(specs) -> list:
    """Every device with the specs of ops it has."""
    kinds = {name: device.kind for name, device in DEVICES.items()}
    return [
        pytest.param(device, spec, id=f"{spec.name}-{device}")
        for device in DEVICES
        for spec in specs(kinds[device])
    ]


@pytest.mark.parametrize(("device", "spec"), _pairs(specs))
def test_row_bits_do_not_depend_on_width_slot_or_neighbours(device_run, device: str, spec: Spec) -> None:
    assert mismatches(spec, *device_run(device).specs[spec.name]) == []


@pytest.mark.parametrize(("device", "spec"), _pairs(mutant_specs))
def test_a_kernel_whose_order_depends_on_the_width_is_reported(device_run, device: str, spec: Spec) -> None:
    found = mismatches(spec, *device_run(device).specs[spec.name])
    assert any("width=2" in line for line in found)


@pytest.mark.parametrize("device", DEVICES)
def test_every_kernel_is_tried_in_every_slot(device: str) -> None:
    """All ops the device uses, each width's every slot, and attention on both sides of its splits."""
    kind = DEVICES[device].kind
    batch = Batch(kind)
    for spec in specs(kind):
        for work in works(spec, LEVELS[kind]):
            batch.add(work)
    used = {op for op, _ in batch.instances.values()}
    # one verdict, one draw: no bits of rows that another pass computes again
    without_rows = {
        "accept",
        "follow",
        "keep_q",
        "keep_q_named",
        "draw_q",
        *(f"judge_{step}" for step in JUDGING),
    }
    assert used == {op for op in OPS if getattr(OPS[op], kind) is not None} - without_rows
    slots = {(run.width, run.slot) for run in runs(Spec("linear", {}))}
    assert slots == {(width, slot) for width in WIDTHS for slot in range(width)}
    positions = {spec.position for spec in specs(kind) if spec.op == "attend"}
    assert {255, 256, 257, 511, 512} <= positions
