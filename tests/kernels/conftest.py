"""One run a device: every case, every invariance run and every mutant in one batch, on first use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from unittest.mock import patch

import pytest
from specdec_compiler.kernels import OPS

from .cases import CASES
from .device_cpu import run_native, run_wasm
from .device_gpu import run_chromium, run_lavapipe
from .invariance import SPECS, Spec, works
from .jobs import Arrays, Batch, Work
from .mutants import MUTANT_SPECS, MUTANTS

LEVELS = {"cpu": 32767, "gpu": 127}
DEVICES: dict[str, tuple[str, Callable[[Batch, Path], list[Arrays]]]] = {
    "native": ("cpu", run_native),
    "wasm": ("cpu", run_wasm),
    "lavapipe": ("gpu", run_lavapipe),
    "chromium": ("gpu", run_chromium),
}


@dataclass(frozen=True)
class DeviceRun:
    """What a device gave: per case name, and per spec all its runs in order."""

    levels: int
    cases: dict[str, tuple[Work, Arrays]]
    specs: dict[str, tuple[list[Work], list[Arrays]]]


@cache
def _works(kind: str) -> tuple[dict[str, Work], dict[str, list[Work]]]:
    levels = LEVELS[kind]
    specs: list[Spec] = [*SPECS, *MUTANT_SPECS]
    return {case.name: case.work(levels) for case in CASES}, {spec.name: works(spec, levels) for spec in specs}


@pytest.fixture(scope="session")
def device_run(tmp_path_factory) -> Callable[[str], DeviceRun]:
    """device_run(name): the device's run; the same failure again for every test when it cannot run."""
    done: dict[str, DeviceRun | BaseException] = {}

    def get(name: str) -> DeviceRun:
        if name not in done:
            try:
                done[name] = _run(name, tmp_path_factory.mktemp(name))
            except Exception as error:
                done[name] = error
        found = done[name]
        if isinstance(found, BaseException):
            raise found
        return found

    return get


def _run(name: str, folder: Path) -> DeviceRun:
    kind, run = DEVICES[name]
    cases, specs = _works(kind)
    batch = Batch(kind == "gpu")
    with patch.dict(OPS, MUTANTS):
        case_at = {case: batch.add(work) for case, work in cases.items()}
        spec_at = {spec: [batch.add(work) for work in called] for spec, called in specs.items()}
        results = run(batch, folder)
    return DeviceRun(
        LEVELS[kind],
        {case: (cases[case], results[at]) for case, at in case_at.items()},
        {spec: (specs[spec], [results[at] for at in many]) for spec, many in spec_at.items()},
    )
