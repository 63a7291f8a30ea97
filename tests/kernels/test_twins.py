"""Every case on every device against its NumPy twin; the CPU devices against each other, bit for bit."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from specdec_compiler.kernels import OPS
from specdec_compiler.kernels.twins import TWINS

from .cases import CASES, Case
from .compare import problems
from .conftest import DEVICES
from .inputs import UNTOUCHED
from .invariance import PAGES, POSITIONAL, SPECS, runs

BY_NAME = {case.name: case for case in CASES}
VISIBLE = {"argmax": ("out",), "score": ("score",), "rope_append": PAGES, "advance": ("tokens", "args")}


@cache
def _expected(name: str, levels: int) -> dict[str, np.ndarray]:
    work = BY_NAME[name].work(levels)
    return TWINS[work.op](work.params, work.arrays, levels)


def _ids(case: Case) -> str:
    return case.name


def test_every_op_has_a_twin_and_cases() -> None:
    """attention_split and attention_merge are attention's GPU form."""
    ops = {op.replace("_split", "").replace("_merge", "") for op in OPS}
    assert ops == set(TWINS) == {case.op for case in CASES}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", CASES, ids=_ids)
def test_twin(device_run, device: str, case: Case) -> None:
    run = device_run(device)
    work, got = run.cases[case.name]
    assert problems(case.op, work.params, run.levels, _expected(case.name, run.levels), got) == []


def test_wasm_gives_the_bits_of_native(device_run) -> None:
    """Both are compiled from the same functions without fused multiply-adds: every output byte is the same."""
    native, wasm = device_run("native"), device_run("wasm")
    differing = [
        f"{name}: {arg}"
        for name, (_, got) in native.cases.items()
        for arg in got
        if got[arg].tobytes() != wasm.cases[name][1][arg].tobytes()
    ]
    differing += [
        f"{name} {i}: {arg}"
        for name, (_, results) in native.specs.items()
        for i, got in enumerate(results)
        for arg in got
        if got[arg].tobytes() != wasm.specs[name][1][i][arg].tobytes()
    ]
    assert differing == []


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", [case for case in CASES if case.op in VISIBLE], ids=_ids)
def test_nothing_else_is_written(device_run, device: str, case: Case) -> None:
    """Shared state keeps its bits wherever the twin leaves it alone: other positions' pages, other rows' results."""
    run = device_run(device)
    work, got = run.cases[case.name]
    for name in VISIBLE[case.op]:
        before, expected = work.arrays[name], _expected(case.name, run.levels)[name].ravel()
        same = expected == before
        if case.op in ("argmax", "score"):
            rows = int(work.arrays["args"][1])
            same.reshape(8, -1)[:rows] = False
            assert same[rows * (before.size // 8) :].all(), "the twin itself must leave these rows"
        assert got[name][same].tobytes() == before[same].tobytes()


@pytest.mark.parametrize("device", DEVICES)
def test_rows_past_the_valid_ones_write_nothing(device_run, device: str) -> None:
    """In the invariance runs with fewer valid rows than the width: ids, scores and pages of the others stay."""
    run = device_run(device)
    checked = 0
    for spec in SPECS:
        visible = [name for name in VISIBLE.get(spec.like, ()) if name not in ("tokens", "args")]
        for each, work, got in zip(runs(spec), *run.specs[spec.name], strict=True):
            for name in visible:
                checked += 1
                if name in PAGES:
                    written = work.params["kv"] * work.params["d"] * each.rows  # type: ignore[operator]
                    assert np.count_nonzero(got[name] != work.arrays[name]) <= written
                else:
                    assert (got[name].reshape(8, -1)[each.rows :] == UNTOUCHED).all()
    assert checked > 100


@pytest.mark.parametrize("case", [case for case in CASES if "tiny" not in case.name], ids=_ids)
def test_the_comparison_can_fail(device_run, case: Case) -> None:
    """One wrong element in any argument of a right result is a problem."""
    run = device_run("native")
    work, got = run.cases[case.name]
    expected = _expected(case.name, run.levels)
    for name, value in expected.items():
        wrong = dict(got) | {name: _spoilt(case.op, got[name], value)}
        assert problems(case.op, work.params, run.levels, expected, wrong) != [], name


def _spoilt(op: str, got: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """The largest element a thousandth larger, a code two off, or a flag turned."""
    wrong = got.copy()
    at = int(np.argmax(np.where(np.isfinite(expected), np.abs(expected), 0)))
    if op == "argmax":
        wrong[1] ^= 1
    elif wrong.dtype.kind == "i":
        wrong[at] -= 2 if wrong[at] > 0 else -2
    else:
        wrong[at] *= np.float32(1.001)
    return wrong


def test_positional_specs_cross_the_split() -> None:
    """The positions asked for: both sides of 256 and of 512, by an op that splits there."""
    positions = {spec.position for spec in SPECS if spec.op == "attention"}
    assert {255, 256, 257, 511, 512} <= positions and "attention" in POSITIONAL
