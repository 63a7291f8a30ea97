"""Row invariance of every kernel that has rows, on every device; and that the check reports kernels that lack it."""

from __future__ import annotations

import pytest
from specdec_compiler.kernels import OPS

from .conftest import DEVICES
from .invariance import ROW_INPUTS, SPECS, WIDTHS, Spec, mismatches, runs
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


def test_every_kernel_with_rows_is_tried_in_every_slot(device: str) -> None:
    with_rows = {op.replace("_split", "").replace("_merge", "") for op in OPS if OPS[op].row_invariant}
    assert with_rows - {"advance"} == set(ROW_INPUTS) == {spec.op for spec in SPECS}
    slots = {(run.width, run.slot) for run in runs(Spec("linear", {}))}
    assert slots == {(width, slot) for width in WIDTHS for slot in range(width)}
