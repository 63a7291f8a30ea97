"""Every case on every device against its NumPy twin; the CPU devices against each other, bit for bit."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from specdec_compiler.emit.code import build_wgsl
from specdec_compiler.kernels import OPS
from specdec_compiler.kernels.base import MAX_ROWS, OUT_ROWS
from specdec_compiler.kernels.twins import TWINS, readable

from .cases import CASES, Case
from .compare import problems
from .conftest import DEVICES, LEVELS, all_jobs, kernels
from .forms import CHOOSING, MUTANT
from .inputs import UNTOUCHED
from .invariance import PAGES, STATE, runs, specs

BY_NAME = {case.name: case for case in CASES}
VISIBLE = {
    "choose": ("out", "tokens", "args"),
    "choose_measured": ("out", "stats", "tokens", "args"),
    "choose_named": ("out", "tokens", "args"),
    "choose_measured_named": ("out", "stats", "tokens", "args"),
    "choose_sampled": ("out", "tokens", "args"),
    "choose_sampled_named": ("out", "tokens", "args"),
    "score": ("score",),
    "accept": ("args", "tokens", "draft_args"),
    "follow": ("args", "tokens", "draft_args"),
    "draw": ("q", "tokens", "args"),
    "draw_named": ("q", "tokens", "args"),
    "judge": ("verdict", "out"),
    "rope_append": ("k_pages", "v_pages"),
    "qkv_rope": ("k_pages", "v_pages"),
}
BY_ROW = {"out": OUT_ROWS, "stats": OUT_ROWS, "score": MAX_ROWS}
PACKED = ("codes", "next_codes", "pages")  # the GPU's layouts, which would hide a wrong part


@cache
def _expected(name: str, levels: int) -> dict[str, np.ndarray]:
    work = BY_NAME[name].work(levels)
    return TWINS[work.op](work.params, work.arrays, levels)


def _pairs(cases: list[Case]) -> pytest.MarkDecorator:
    """Every device with the cases of ops it has."""
    pairs = [
        pytest.param(name, case, id=f"{case.name}-{name}")
        for name, device in DEVICES.items()
        for case in cases
        if device.kind in case.kinds
    ]
    return pytest.mark.parametrize(("device", "case"), pairs)


def test_every_kernel_is_in_some_case() -> None:
    used = {op for kind in LEVELS for op, _ in all_jobs(kind).batch.instances.values() if MUTANT not in op}
    assert used == set(OPS)
    assert {case.op for case in CASES} == set(TWINS)


@_pairs(CASES)
def test_twin(device_run, device: str, case: Case) -> None:
    run = device_run(device)
    work, got = run.cases[case.name]
    got = {"args": work.arrays["args"], **got}
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


@_pairs([case for case in CASES if case.op in VISIBLE])
def test_nothing_else_is_written(device_run, device: str, case: Case) -> None:
    """Shared state keeps its bits wherever the twin leaves it alone: other positions' pages, other rows' results."""
    run = device_run(device)
    work, got = run.cases[case.name]
    arrays, got = readable(work.params, work.arrays), readable(work.params, got)
    for name in VISIBLE[case.op]:
        before, expected = arrays[name], _expected(case.name, run.levels)[name].ravel()
        same = expected == before
        if name in BY_ROW:
            first = int(work.arrays["args"][3]) if name in ("out", "stats") else 0
            others = np.ones(BY_ROW[name], bool)
            others[first : first + int(work.arrays["args"][1])] = False
            by_row = same.reshape(BY_ROW[name], -1)
            assert by_row[others].all(), "the twin itself must leave these rows"
            by_row[~others] = False
        assert got[name][same].tobytes() == before[same].tobytes()


@pytest.mark.parametrize("device", DEVICES)
def test_rows_past_the_valid_ones_write_nothing(device_run, device: str) -> None:
    """In the invariance runs with fewer valid rows than the width: ids, scores and pages of the others stay."""
    run = device_run(device)
    checked = 0
    for spec in specs(DEVICES[device].kind):
        visible = [name for name in (*VISIBLE.get(spec.like, ()), "pages") if name not in STATE]
        for each, work, got in zip(runs(spec), *run.specs[spec.name], strict=True):
            for name in (name for name in visible if name in got):
                checked += 1
                if name in PAGES:
                    written = work.params["kv"] * work.params["d"] * each.rows  # type: ignore[operator]
                    assert np.count_nonzero(got[name] != work.arrays[name]) <= written
                else:
                    assert (got[name].reshape(BY_ROW[name], -1)[each.rows :] == UNTOUCHED).all()
    assert checked > 100


@pytest.mark.parametrize(
    "case", [case for case in CASES if "tiny" not in case.name], ids=lambda case: case.name
)
def test_the_comparison_can_fail(device_run, case: Case) -> None:
    """One wrong element in any argument of a right result is a problem."""
    run = device_run("native" if "cpu" in case.kinds else "lavapipe")
    work, got = run.cases[case.name]
    got = readable(work.params, got)
    expected = _expected(case.name, run.levels)
    for name, value in expected.items():
        assert name in got
        wrong = {key: value for key, value in got.items() if key not in PACKED} | {
            name: _spoilt(case.op, got[name], value)
        }
        assert problems(case.op, work.params, run.levels, expected, wrong) != [], name


def _spoilt(op: str, got: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """The largest element a five-hundredth larger, a code two off, or a flag turned."""
    wrong = got.copy()
    at = int(np.argmax(np.where(np.isfinite(expected), np.abs(expected), 0)))
    if op in CHOOSING and expected.dtype.kind == "i" and expected.ndim == 2:
        wrong[1] ^= 1
    elif wrong.dtype.kind == "i":
        if wrong.size < expected.size:  # four codes to a word
            wrong = wrong.view(np.int8)
        wrong[at] -= 2 if wrong[at] > 0 else -2
    elif np.isfinite(expected).any():
        with np.errstate(over="ignore"):  # what nobody writes may hold the largest number there is
            wrong[at] *= np.float32(1.002)
    else:  # rows that must not be finite
        wrong[:] = 1
    return wrong.view(got.dtype)


def test_workgroup_arrays_share_no_memory() -> None:
    """TVM may give two workgroup arrays one place when their uses do not overlap, but no barrier then parts the last read of the
    one from the first write of the other: a race that only some devices show. Kernels must be written so that it does not."""
    sharing = []
    for name, (op, params) in all_jobs("gpu").batch.instances.items():
        if op in OPS:
            declared = OPS[op].form("gpu").build(name, params).script().count("T.alloc_shared(")
            kept = kernels("gpu", build_wgsl)[name].text.count("var<workgroup>")
            sharing += [name] if declared != kept else []
    assert sharing == []
