"""Processors made wrong on purpose, on a CPU and a GPU device: some case of the table must tell each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

import pytest
from specdec_compiler.kernels import filter as rules
from specdec_compiler.kernels import filter_cpu, filter_gpu
from specdec_compiler.kernels.ir import store
from specdec_compiler.kernels.twins import TWINS
from specdec_runtime.plan import sampling_layout as layout
from tvm.script.ir_builder import tirx as T

from .cases import CASES
from .compare import problems
from .conftest import DEVICES, LEVELS
from .jobs import Batch

HARD = ("hard, top 5", "hard, mass .5")
SMALL = [case for case in CASES if case.op == "filtered" and case.params["n"] == 301]
TRIED = [case for case in SMALL if "hard" not in case.name or case.name.endswith(HARD)]
FILES = {"native": filter_cpu, "lavapipe": filter_gpu}


def _failures(device: str, folder: Path) -> list[str]:
    """The cases that a device, built now, gets wrong."""
    kind = DEVICES[device].kind
    batch, works = Batch(kind), [case.work(LEVELS[kind]) for case in TRIED]
    for work in works:
        batch.add(work)
    results = DEVICES[device].run(batch, DEVICES[device].build(batch.instances), folder)
    return [
        case.name
        for case, work, got in zip(TRIED, works, results, strict=True)
        if problems(case.op, work.params, LEVELS[kind], TWINS[case.op](work.params, work.arrays, 0), got)
    ]


def _without_ties(file: ModuleType) -> dict[str, Callable]:
    """What equals a threshold goes."""
    name = "_thresholds_cpu" if file is filter_cpu else "_thresholds"
    real = getattr(file, name)

    def wrong(found, ints, floats, limit, *rest) -> None:
        real(found, ints, floats, limit, *rest)
        store(limit, 0, rules.value_of(rules.key_of(limit[0]) + 1))

    return {name: wrong}


def _half_a_mass(file: ModuleType) -> dict[str, Callable]:
    return {"mass_of": lambda high, low: T.cast(low, "float32")}


def _late_bans(file: ModuleType) -> dict[str, Callable]:
    """Banned sequences see the row before."""
    return {
        "banned_id": lambda args, tokens, banned, row, at: rules.banned_id(args, tokens, banned, row - 1, at)
    }


def _whole_history(file: ModuleType) -> dict[str, int]:
    """Every token is the answer's."""
    return {"PROMPT_LEN": layout.MIN_LEN}


def _hot(file: ModuleType) -> dict[str, int]:
    """No temperature: another number of the same array."""
    return {"INVERSE_T": layout.REPETITION}


def _never(file: ModuleType) -> dict[str, Callable]:
    return {"truncates": lambda ints, floats: T.And(ints[layout.FLAGS] > 0, ints[layout.FLAGS] < 0)}


def _seen_once(file: ModuleType) -> dict[str, int]:
    """Counts end at 1."""
    return {"SEEN": 2}


@pytest.mark.parametrize("device", FILES)
def test_the_real_ones_pass(device: str, tmp_path: Path) -> None:
    assert _failures(device, tmp_path) == []


@pytest.mark.parametrize("device", FILES)
@pytest.mark.parametrize(
    "mutant", [_without_ties, _half_a_mass, _late_bans, _whole_history, _hot, _never, _seen_once]
)
def test_wrong_processors_are_told(device: str, mutant: Callable, tmp_path: Path) -> None:
    file = FILES[device]
    with patch.multiple(file, **mutant(file)):
        assert _failures(device, tmp_path)


def test_peaks_of_dropped_ids_are_told(tmp_path: Path) -> None:
    """On the GPU, a largest value that stays behind where its id was dropped."""
    with patch.object(filter_gpu, "_mend", lambda found, block: None):
        failed = _failures("lavapipe", tmp_path)
    assert failed and all("the best are dropped" in name for name in failed)


def test_drafts_are_history(tmp_path: Path) -> None:
    """Counts that end with the committed tokens are told, on the CPU by the number that the counting gets."""
    real = filter_cpu._count_cpu

    def committed(tokens, ints, position, *rest) -> None:
        real(tokens, ints, T.min(position, 10), *rest)

    with patch.object(filter_cpu, "_count_cpu", committed):
        assert _failures("native", tmp_path)
