"""Threads: a CPU kernel called once for each of its parts, in any number of parts, leaves the bits that one call leaves.

Also: the check reports kernels that drop a remainder, or that do unshared work in every part.
"""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import pytest
from specdec_compiler.kernels import OPS, ir

from .cases import CASES
from .conftest import DEVICES, LEVELS, Device, all_jobs, kernels
from .jobs import Arrays, Batch

PARTS = (2, 3, 7)
CPU = [name for name, device in DEVICES.items() if device.kind == "cpu"]


class _Greedy(ir.Share):
    """Drops what does not divide evenly; and every part does the work that is not split."""

    def of(self, count):
        each = ir.T.bind(ir.T.truncdiv(count, self.parts))
        return ir.T.serial(each * self.part, each * (self.part + 1))

    def whole(self):
        return ir.when(self.parts > 0)


def _differing(batch: Batch, before: list[Arrays], after: list[Arrays]) -> set[tuple[str, ...]]:
    """The kernels of jobs whose results differ in some bit: a job has one, or several that follow each other."""
    return {
        tuple(step[0] for step in job.steps)
        for job, old, new in zip(batch.jobs, before, after, strict=True)
        if any(old[name].tobytes() != new[name].tobytes() for name in old)
    }


def _run(device: Device, batch: Batch, code: bytes, folder: Path, parts: int) -> list[Arrays]:
    place = folder / str(parts)
    place.mkdir()
    return device.run(batch, code, place, parts=parts)  # type: ignore[call-arg]


@pytest.mark.parametrize("device", CPU)
def test_bits_do_not_depend_on_the_number_of_parts(device: str, tmp_path: Path) -> None:
    """Every case and every invariance run."""
    batch, code = all_jobs("cpu").batch, kernels("cpu", DEVICES[device].build)
    whole = _run(DEVICES[device], batch, code, tmp_path, 1)
    for parts in PARTS:
        assert _differing(batch, whole, _run(DEVICES[device], batch, code, tmp_path, parts)) == set(), parts


@pytest.mark.parametrize("device", CPU)
def test_a_kernel_that_shares_wrongly_is_reported(device: str, tmp_path: Path) -> None:
    batch = Batch("cpu")
    for case in CASES:
        if "cpu" in case.kinds:
            batch.add(case.work(LEVELS["cpu"]))
    with patch.object(ir, "Share", _Greedy):
        code = DEVICES[device].build(batch.instances)
    whole = _run(DEVICES[device], batch, code, tmp_path, 1)
    reported = _differing(batch, whole, _run(DEVICES[device], batch, code, tmp_path, 7))
    op_of = {name: op for name, (op, _) in batch.instances.items()}
    first, ops = ({op_of[name] for chain in reported for name in chain[:end]} for end in (1, None))
    splitting = {
        op
        for op, _ in batch.instances.values()
        if OPS[op].form("cpu").parts({"m": 8, "n": 64, "k": 64, "kv": 1}) > 1
    }
    # not split, but jobs of their own: the part that comes second finds what the first wrote
    twice = {"accept", "follow", "keep_q", "keep_q_named"}
    assert splitting | twice <= ops, "every op that is split was made wrong, and must be seen to be"
    assert first <= splitting | twice


def test_work_that_is_not_split_is_done_once(tmp_path: Path) -> None:
    """advance moves the position on: done by every part, it would move it twice."""
    batch = Batch("cpu")
    for case in CASES:
        if case.op == "choose":
            batch.add(case.work(LEVELS["cpu"]))
    code = DEVICES["native"].build(batch.instances)
    with patch.object(ir, "Share", _Greedy):
        wrong = DEVICES["native"].build(batch.instances)
    whole = _run(DEVICES["native"], batch, code, tmp_path, 1)
    args = [result["args"].tolist() for result in _run(DEVICES["native"], batch, wrong, tmp_path, 2)]
    assert args != [result["args"].tolist() for result in whole]


def _sections(module: bytes) -> set[int]:
    """The ids of a WASM module's sections."""
    found, at = set(), 8
    while at < len(module):
        found.add(module[at])
        size, shift, at = 0, 0, at + 1
        while True:
            byte = module[at]
            size, shift, at = size | (byte & 127) << shift, shift + 7, at + 1
            if byte < 128:
                break
        at += size
    return found


def test_instances_of_the_module_share_nothing_but_buffers() -> None:
    """No data section: a second instance over a memory in use writes nothing to it, and there are no variables to race on."""
    sections = _sections(kernels("cpu", DEVICES["wasm"].build))
    assert {1, 2, 3, 7, 10} <= sections and sections & {11, 12} == set()
