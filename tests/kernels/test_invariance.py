"""Row invariance of every kernel that has rows, on every device; and that the check reports kernels that lack it."""

from __future__ import annotations

import pytest
from specdec_compiler.kernels import OPS

from .conftest import DEVICES, LEVELS
from .forms import TWO_KERNELS
from .invariance import SPECS, WIDTHS, Spec, mismatches, runs, works
from .jobs import Batch
from .mutants import MUTANT_SPECS

pytestmark = pytest.mark.parametrize("device", DEVICES)


def _ids(spec: Spec) -> str:
    return spec.name


@pytest.mark.parametrize("spec", SPECS, ids=_ids)
def test_row_bits_do_not_depend_on_width_slot_or_neighbours(device_run, device: str, spec: Spec) -> None:
    assert mismatches(spec, *device_run(device).specs[spec.name]) == []


@pytest.mark.parametrize("spec", MUTANT_SPECS, ids=_ids)
def test_a_kernel_whose_order_depends_on_the_width_is_reported(device_run, device: str, spec: Spec) -> None:
    found = mismatches(spec, *device_run(device).specs[spec.name])
    assert any("width=2" in line for line in found)


def test_every_kernel_is_tried_in_every_slot(device: str) -> None:
    """All ops the device uses, each width's every slot, and attention on both sides of its splits."""
    kind = DEVICES[device].kind
    batch = Batch(kind)
    for spec in SPECS:
        for work in works(spec, LEVELS[kind]):
            batch.add(work)
    used = {op for op, _ in batch.instances.values()}
    elsewhere = {op for (_, where), ops in TWO_KERNELS.items() if where != kind for op in ops}
    assert used >= set(OPS) - elsewhere
    slots = {(run.width, run.slot) for run in runs(Spec("linear", {}))}
    assert slots == {(width, slot) for width in WIDTHS for slot in range(width)}
    positions = {spec.position for spec in SPECS if spec.op == "attention"}
    assert {255, 256, 257, 511, 512} <= positions
