"""One run a device: every case, every invariance run and every mutant in one batch, on first use.

Kernels are generated once for each form (library, module, WGSL). Chromium, the slowest, starts in a thread as soon as the first device
is asked for, when any collected test wants it.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from specdec_compiler.emit.code import build_native, build_wasm, build_wgsl
from specdec_compiler.kernels import OPS

from .cases import CASES
from .device_cpu import run_native, run_wasm
from .device_gpu import run_chromium, run_lavapipe
from .invariance import specs, works
from .jobs import Arrays, Batch, Work
from .mutants import MUTANTS, mutant_specs

LEVELS = {"cpu": 32767, "gpu": 127}


@dataclass(frozen=True)
class Device:
    """kind of kernels, how they are generated, and how a batch is run with them."""

    kind: str
    build: Callable[..., Any]
    run: Callable[[Batch, Any, Path], list[Arrays]]


DEVICES = {
    "native": Device("cpu", build_native, run_native),
    "wasm": Device("cpu", build_wasm, run_wasm),
    "lavapipe": Device("gpu", build_wgsl, run_lavapipe),
    "chromium": Device("gpu", build_wgsl, run_chromium),
}


@dataclass(frozen=True, repr=False)
class DeviceRun:
    """What a device gave: per case name, and per spec all its runs in order."""

    levels: int
    cases: dict[str, tuple[Work, Arrays]]
    specs: dict[str, tuple[list[Work], list[Arrays]]]


@dataclass(frozen=True, repr=False)
class Jobs:
    """A batch, and where in it each case and spec lies."""

    levels: int
    batch: Batch
    cases: dict[str, tuple[int, Work]]
    specs: dict[str, tuple[int, list[Work]]]

    def sorted_out(self, results: list[Arrays]) -> DeviceRun:
        """The results by name."""
        cases = {name: (work, results[at]) for name, (at, work) in self.cases.items()}
        specs = {name: (many, results[at : at + len(many)]) for name, (at, many) in self.specs.items()}
        return DeviceRun(self.levels, cases, specs)


@cache
def all_jobs(kind: str) -> Jobs:
    """Everything to run on a kind of device."""
    levels, batch = LEVELS[kind], Batch(kind)
    cases = {case.name: case.work(levels) for case in CASES if kind in case.kinds}
    tried = {spec.name: works(spec, levels) for spec in (*specs(kind), *mutant_specs(kind))}
    with patch.dict(OPS, MUTANTS):
        placed = {name: (batch.add(work), work) for name, work in cases.items()}
        ranges = {name: (min([batch.add(work) for work in many]), many) for name, many in tried.items()}
    return Jobs(levels, batch, placed, ranges)


@cache
def kernels(kind: str, build: Callable[..., Any]) -> Any:
    """The kernels of all jobs in one form."""
    with patch.dict(OPS, MUTANTS):
        return build(all_jobs(kind).batch.instances)


def run_device(device: Device, folder: Path) -> DeviceRun:
    """Build and run; the slow part."""
    jobs = all_jobs(device.kind)
    return jobs.sorted_out(device.run(jobs.batch, kernels(device.kind, device.build), folder))


@pytest.fixture(scope="session")
def device_run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """device_run(name): the device's run; every test fails, in one line, when it cannot run."""
    started: dict[str, Future[DeviceRun]] = {}
    wanted = {
        item.callspec.params.get("device") for item in request.session.items if hasattr(item, "callspec")
    }
    pool = ThreadPoolExecutor(1)

    def start(name: str) -> None:
        device, folder = DEVICES[name], tmp_path_factory.mktemp(name)
        if name == "chromium":
            kernels(device.kind, device.build)  # here: TVM is not asked from two threads
            started[name] = pool.submit(run_device, device, folder)
            return
        started[name] = Future()
        try:
            started[name].set_result(run_device(device, folder))
        except Exception as error:
            started[name].set_exception(error)

    def get(name: str) -> DeviceRun:
        for each in ("chromium" if "chromium" in wanted else name, name):
            if each not in started:
                start(each)
        if error := started[name].exception():
            pytest.fail(f"{name} did not run: {type(error).__name__}: {error}", pytrace=False)
        return started[name].result()

    yield get
    pool.shutdown()
