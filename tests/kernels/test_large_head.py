"""A head of 262,144 x 640 in 8 bits, 168 MB, on lavapipe with WebGPU's guaranteed limits: two windows, sampled rows as the twin's."""

from __future__ import annotations

import numpy as np
from specdec_compiler.emit.code import build_wgsl
from specdec_compiler.emit.programs import Place, ReadProgram, Step
from specdec_compiler.emit.rows import MAX_BINDING, num_bytes, shard_rows
from specdec_compiler.kernels import kernel_name
from specdec_compiler.kernels.base import GROUP
from specdec_compiler.kernels.twins import TWINS
from specdec_compiler.passes.lower import Wgsl

from .cases import EPS
from .compare import problems
from .inputs import activations, blank

N, K, LEVELS = 262144, 640, 127
LIMITS = {"max-storage-buffer-binding-size": 128 << 20, "max-buffer-size": 256 << 20}
PARAMS: dict[str, int | str] = {"m": 1, "n": N, "k": K, "fmt": "q8", "eps": EPS}
ARGS = ("args", "codes", "w", "ws", "out")


def _matrix(rng: np.random.Generator) -> dict[str, np.ndarray]:
    blocks, groups = N // 4, K // GROUP
    codes = rng.integers(-127, 128, blocks * 8 * groups * 16, np.int8)
    return {
        "w": codes.view(np.uint32).reshape(blocks, 8, groups, 4),
        "ws": rng.uniform(0.5, 2, (blocks, 1, groups, 4)).astype(np.float32),
    }


def _steps(arrays: dict[str, np.ndarray]) -> tuple[Step, ...]:
    places = [Place(name, -1, arrays[name].shape, str(arrays[name].dtype)) for name in ARGS]
    return shard_rows(ReadProgram((Step("linear", PARAMS, tuple(places)),), ()), MAX_BINDING).steps


class _Device:
    def __init__(self) -> None:
        import wgpu

        self.usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC
        adapters = wgpu.gpu.enumerate_adapters_sync()
        found = [a for a in adapters if "llvmpipe" in a.info["device"] and a.info["backend_type"] == "Vulkan"]
        assert found, "no lavapipe: install mesa-vulkan-drivers"
        self.device = found[0].request_device_sync(required_limits=LIMITS)

    def window(self, place: Place, arrays: dict[str, np.ndarray], shared: dict[str, object]) -> dict:
        """The bytes of a weight's window as a buffer of their own, as emit/weights.py stores them; a window of the one out."""
        shape = place.window or place.shape
        first, size = 4 * place.first, num_bytes(place.dtype, shape)
        if place.name == "out":
            return {"buffer": shared["out"], "offset": first, "size": size}
        assert size <= MAX_BINDING
        data = arrays[place.name].reshape(-1).view(np.uint8)[first : first + size]
        buffer = self.device.create_buffer_with_data(data=data, usage=self.usage)
        return {"buffer": buffer, "offset": 0, "size": size}

    def run(self, steps: tuple[Step, ...], arrays: dict[str, np.ndarray], code: dict[str, Wgsl]):
        shared = {"out": self.device.create_buffer_with_data(data=arrays["out"], usage=self.usage)}
        encoder = self.device.create_command_encoder()
        for step in steps:
            kernel = code[kernel_name(step.op, step.params)]
            module = self.device.create_shader_module(code=kernel.text)
            compute = {"module": module, "entry_point": kernel.entry}
            pipeline = self.device.create_compute_pipeline(layout="auto", compute=compute)
            windows = [self.window(step.places[ARGS.index(arg)], arrays, shared) for arg in kernel.bindings]
            entries = [{"binding": i, "resource": window} for i, window in enumerate(windows)]
            layout = pipeline.get_bind_group_layout(0)
            group = self.device.create_bind_group(layout=layout, entries=entries)
            compute_pass = encoder.begin_compute_pass()
            compute_pass.set_pipeline(pipeline)
            compute_pass.set_bind_group(0, group)
            compute_pass.dispatch_workgroups(*kernel.grid)
            compute_pass.end()
        self.device.queue.submit([encoder.finish()])
        return np.frombuffer(self.device.queue.read_buffer(shared["out"]), np.float32)


def test_a_head_of_168_mb_within_the_guaranteed_limits() -> None:
    rng = np.random.default_rng(262144)
    arrays = {"args": np.array([0, 1, 0, 0], np.int32), **activations(rng, 1, K, LEVELS)}
    arrays |= {**_matrix(rng), "out": blank(N)}
    assert arrays["w"].nbytes > MAX_BINDING
    steps = _steps(arrays)
    assert [step.places[-1].first for step in steps] == [0, N // 2]
    code = build_wgsl({kernel_name(step.op, step.params): (step.op, step.params) for step in steps})
    assert len(code) == 1, "equal shards share a kernel"
    out = _Device().run(steps, arrays, code)

    ends = [0, N // 8 - 1, N // 8, N // 4 - 1]  # blocks of 4 rows: the ends of both shards
    blocks = np.concatenate([ends, rng.choice(N // 4, 500, replace=False)])
    sample = arrays | {"w": arrays["w"][blocks].ravel(), "ws": arrays["ws"][blocks].ravel()}
    params = PARAMS | {"n": 4 * len(blocks)}
    expected = TWINS["normed_linear"](params, sample, LEVELS)
    got = {"args": arrays["args"], "out": out.reshape(-1, 4)[blocks].ravel()}
    assert problems("normed_linear", params, LEVELS, expected, got) == []
    moved = got | {"out": out.reshape(-1, 4)[(blocks + 1) % (N // 4)].ravel()}
    assert problems("normed_linear", params, LEVELS, expected, moved) != []
