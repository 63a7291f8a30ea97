"""A bundle's WebGPU programs on wgpu-py with Mesa's software Vulkan: whole passes without a browser, on a device of the plan's limits.

Knows the plan, not what kernels compute. A pipeline is made when a program first needs it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import wgpu
from specdec_runtime.bundle import open_bundle
from specdec_runtime.plan.schema import Kernel, Tensor

DTYPES = {"int32": np.int32, "uint32": np.uint32, "float32": np.float32}


class Lavapipe:
    """The device, its buffers and weights; state begins as zeros."""

    def __init__(self, folder: Path):
        bundle = open_bundle(folder)
        self.plan = bundle.plan
        (self.target,) = (target for target in self.plan.targets if target.name == "gpu")
        self.device = _device({_snake(name): value for name, value in self.target.limits.items()})
        self.code = bundle.read(self.target.module)
        self.tensors = {tensor.name: tensor for tensor in self.target.tensors}
        usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_DST | wgpu.BufferUsage.COPY_SRC
        self.buffers = [self.device.create_buffer(size=b.bytes, usage=usage) for b in self.target.buffers]
        for buffer, about in zip(self.buffers, self.target.buffers, strict=True):
            at = 0
            for path in about.files:
                data = bundle.read(path)
                self.device.queue.write_buffer(buffer, at, data)
                at += len(data)
        self.pipelines: dict[int, Any] = {}

    def write(self, name: str, values: Any) -> None:
        """All of a tensor, or its beginning."""
        tensor = self.tensors[name]
        data = np.asarray(values, DTYPES[tensor.dtype])
        self.device.queue.write_buffer(self.buffers[tensor.buffer], tensor.offset, data.tobytes())

    def read(self, name: str) -> np.ndarray:
        """A whole tensor."""
        tensor = self.tensors[name]
        data = self.device.queue.read_buffer(self.buffers[tensor.buffer], tensor.offset, tensor.num_bytes)
        return np.frombuffer(data, DTYPES[tensor.dtype]).reshape(tensor.shape)

    def run(self, name: str) -> None:
        """One pass of a program."""
        (program,) = (program for program in self.target.programs if program.name == name)
        encoder = self.device.create_command_encoder()
        for dispatch in program.dispatches:
            kernel = self.target.kernels[dispatch.kernel]
            tensors = [self.target.tensors[dispatch.tensors[i]] for i in kernel.bindings]
            pipeline = self._pipeline(dispatch.kernel, kernel)
            entries = [{"binding": i, "resource": self._window(each)} for i, each in enumerate(tensors)]
            group = self.device.create_bind_group(layout=pipeline.get_bind_group_layout(0), entries=entries)
            compute = encoder.begin_compute_pass()
            compute.set_pipeline(pipeline)
            compute.set_bind_group(0, group)
            compute.dispatch_workgroups(*dispatch.grid)
            compute.end()
        self.device.queue.submit([encoder.finish()])

    def rows(self, program: str, start: int, rows: int) -> np.ndarray:
        """The logits of a pass of the target, as bits."""
        self.write("target.args", [start, rows, 0, 0])
        self.run(program)
        return self.read("target.logits")[:rows].view(np.uint32)

    def _window(self, tensor: Tensor) -> dict[str, Any]:
        return {"buffer": self.buffers[tensor.buffer], "offset": tensor.offset, "size": tensor.num_bytes}

    def _pipeline(self, index: int, kernel: Kernel):
        if index not in self.pipelines:
            first, size = kernel.source
            module = self.device.create_shader_module(code=self.code[first : first + size].decode())
            compute = {"module": module, "entry_point": kernel.entry}
            self.pipelines[index] = self.device.create_compute_pipeline(layout="auto", compute=compute)
        return self.pipelines[index]


def _device(limits: dict[str, int]):
    adapters = wgpu.gpu.enumerate_adapters_sync()
    found = [a for a in adapters if "llvmpipe" in a.info["device"] and a.info["backend_type"] == "Vulkan"]
    names = [a.info["device"] for a in adapters]
    assert found, f"no lavapipe among the adapters {names}: install mesa-vulkan-drivers"
    return found[0].request_device_sync(required_limits=limits)


def _snake(name: str) -> str:
    return "".join("-" + c.lower() if c.isupper() else c for c in name)
