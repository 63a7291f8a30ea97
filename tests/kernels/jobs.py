"""Jobs: kernel calls over given buffers, gathered into one batch for each device, and the batch as bytes for other processes.

A Work names an op and its arguments; a batch turns it into the kernels it is on the CPU or the GPU (forms.py). Knows nothing of what
is checked. Invariant: equal arrays are stored once, so that many jobs over the same weights stay small.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from specdec_compiler.kernels import OPS, Params, kernel_name

from .forms import Arrays, arguments, scratch, steps

ALIGN = 256  # a multiple of the plan's alignment of tensors


@dataclass(frozen=True, repr=False)
class Work:
    """One call of an op: `arrays` holds every argument's content before the call, outputs included."""

    op: str
    params: Params
    arrays: Arrays


@dataclass(frozen=True, repr=False)
class Job:
    """steps: (kernel, slot of each argument); slots are buffers by name; reads: the slots whose content comes back."""

    steps: tuple[tuple[str, tuple[str, ...]], ...]
    buffers: Arrays
    reads: tuple[str, ...]


@dataclass(repr=False)
class Batch:
    """All jobs of a device, and the kernel instances they need with their arguments' names."""

    kind: str  # "cpu" | "gpu"
    jobs: list[Job] = field(default_factory=list)
    instances: dict[str, tuple[str, Params]] = field(default_factory=dict)
    arguments: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def add(self, work: Work) -> int:
        """Append a job; gives its index."""
        listed = []
        for step in steps(work.op, self.kind):
            name = kernel_name(step.op, work.params)
            self.instances[name] = (step.op, work.params)
            self.arguments[name] = tuple(arg for arg, _ in OPS[step.op].form(self.kind).args)
            listed.append((name, step.slots))
        extra = scratch(work.op, self.kind, work.params)
        written = [name for name, access in arguments(work.op, self.kind).items() if access != "read"]
        self.jobs.append(Job(tuple(listed), work.arrays | extra, (*written, *extra)))
        return len(self.jobs) - 1

    def outputs(self, data: bytes) -> list[Arrays]:
        """The concatenated reads of all jobs, cut up again."""
        results, at = [], 0
        for job in self.jobs:
            result = {}
            for name in job.reads:
                before = job.buffers[name]
                result[name] = np.frombuffer(data, before.dtype, before.size, at)
                at += before.nbytes
            results.append(result)
        assert at == len(data), f"{len(data)} bytes came back, {at} were due"
        return results


def serialize(batch: Batch, extra: Mapping[str, object]) -> bytes:
    """[header length u32][header JSON][padding][pool]: the form that run_wasm.mjs and run_webgpu.js read."""
    pool, places = bytearray(), {}
    jobs = []
    for job in batch.jobs:
        slots = list(job.buffers)
        buffers = []
        for array in job.buffers.values():
            data = array.tobytes()
            key = hashlib.sha256(data).digest()
            if key not in places:
                places[key] = [len(pool), len(data)]
                pool += data + bytes(-len(data) % 16)
            buffers.append(places[key])
        steps = [[kernel, [slots.index(arg) for arg in args]] for kernel, args in job.steps]
        jobs.append({"buffers": buffers, "steps": steps, "reads": [slots.index(name) for name in job.reads]})
    header = json.dumps({"jobs": jobs, **extra}).encode()
    header += b" " * (-(4 + len(header)) % 16)
    return len(header).to_bytes(4, "little") + header + bytes(pool)
