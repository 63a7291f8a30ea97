"""The CPU devices: the native library through ctypes, and the WASM module in Node. Both lay buffers out with a canary behind each.

A kernel is called once for each of its `parts`, the last part first: parts must not need each other.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np

from .jobs import ALIGN, Arrays, Batch, Job, serialize

RUNNER = Path(__file__).with_name("run_wasm.mjs")
CANARY = 64  # bytes behind each buffer that must keep their value
CANARY_BYTE = 0xA5


def run_native(batch: Batch, code: bytes, folder: Path, parts: int = 1) -> list[Arrays]:
    """Every job on this CPU, in this process; `code` is the shared library."""
    path = folder / "kernels.so"
    path.write_bytes(code)
    library = ctypes.CDLL(str(path))
    return [_run_job(library, job, parts) for job in batch.jobs]


def _run_job(library: ctypes.CDLL, job: Job, parts: int) -> Arrays:
    memory = {name: _Memory(array) for name, array in job.buffers.items()}
    for kernel, args in job.steps:
        pointers = [ctypes.c_void_p(memory[name].address) for name in args]
        for part in reversed(range(parts)):
            getattr(library, kernel)(*pointers, part, parts)
    for name, place in memory.items():
        assert place.canary_lives(), f"{job.steps[0][0]} wrote past the end of {name}"
    return {name: memory[name].content(job.buffers[name].dtype) for name in job.reads}


class _Memory:
    """One aligned buffer with its canary."""

    def __init__(self, array: np.ndarray):
        raw = np.full(array.nbytes + CANARY + ALIGN, CANARY_BYTE, np.uint8)
        offset = -raw.ctypes.data % ALIGN
        self.raw, self.size = raw[offset : offset + array.nbytes + CANARY], array.nbytes
        self.raw[: self.size] = array.view(np.uint8)
        self.address = self.raw.ctypes.data

    def canary_lives(self) -> bool:
        return bool((self.raw[self.size :] == CANARY_BYTE).all())

    def content(self, dtype) -> np.ndarray:
        return self.raw[: self.size].copy().view(dtype)


def run_wasm(batch: Batch, code: bytes, folder: Path, parts: int = 1) -> list[Arrays]:
    """Every job in one Node process; `code` is the WASM module."""
    node = shutil.which("node")
    assert node, "there is no node on PATH: install nodejs (18 or later)"
    module, jobs, results = folder / "kernels.wasm", folder / "wasm.jobs", folder / "wasm.results"
    module.write_bytes(code)
    jobs.write_bytes(serialize(batch, {"canary": [CANARY, CANARY_BYTE], "parts": parts}))
    command = [node, str(RUNNER), str(module), str(jobs), str(results)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"run_wasm.mjs failed: {done.stderr.strip()[-2000:]}"
    return batch.outputs(results.read_bytes())
