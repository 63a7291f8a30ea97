"""The GPU devices: WGSL on wgpu-py (Naga) with lavapipe, and in Chromium with SwiftShader. Both software, asked for by name.

A missing adapter or browser is a failure that says what to install: a skipped device would be an untested one.
"""

from __future__ import annotations

import asyncio
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
from specdec_compiler.passes.lower import Wgsl
from specdec_tools.browser import BrowserOptions, browser_running

from .jobs import Arrays, Batch, Job, serialize

SCRIPT = Path(__file__).with_name("run_webgpu.js")
SUBMIT_JOBS = 50  # large submits cost wgpu more than they save
PAGE_S = 900.0  # most of it is compiling: SwiftShader takes seconds for an unrolled attention


def run_lavapipe(batch: Batch, code: dict[str, Wgsl], folder: Path) -> list[Arrays]:
    """Every job through wgpu-native on Mesa's software Vulkan."""
    return _Lavapipe(code).run(batch)


class _Lavapipe:
    def __init__(self, kernels: dict[str, Wgsl]):
        import wgpu

        self.wgpu = wgpu
        adapters = wgpu.gpu.enumerate_adapters_sync()
        found = [a for a in adapters if "llvmpipe" in a.info["device"] and a.info["backend_type"] == "Vulkan"]
        names = [a.info["device"] for a in adapters]
        assert found, f"no lavapipe among the Vulkan adapters {names}: install mesa-vulkan-drivers"
        self.device = found[0].request_device_sync()
        self.kernels = kernels
        self.pipelines = {name: self._pipeline(kernel) for name, kernel in kernels.items()}
        self.uploaded: dict[bytes, object] = {}
        self.arguments: dict[str, tuple[str, ...]] = {}

    def _pipeline(self, kernel: Wgsl):
        module = self.device.create_shader_module(code=kernel.text)
        compute = {"module": module, "entry_point": kernel.entry}
        return self.device.create_compute_pipeline(layout="auto", compute=compute)

    def run(self, batch: Batch) -> list[Arrays]:
        jobs, self.arguments = batch.jobs, batch.arguments
        groups = [jobs[i : i + SUBMIT_JOBS] for i in range(0, len(jobs), SUBMIT_JOBS)]
        return batch.outputs(b"".join(self._submit(group) for group in groups))

    def _submit(self, jobs: list[Job]) -> bytes:
        usage = self.wgpu.BufferUsage
        size = sum(job.buffers[name].nbytes for job in jobs for name in job.reads)
        staging = self.device.create_buffer(size=size, usage=usage.MAP_READ | usage.COPY_DST)
        encoder, at = self.device.create_command_encoder(), 0
        for job in jobs:
            buffers = {name: self._buffer(array, name in job.reads) for name, array in job.buffers.items()}
            for name, slots in job.steps:
                named = zip(self.arguments[name], slots, strict=True)
                self._dispatch(encoder, name, {arg: buffers[slot] for arg, slot in named})
            for name in job.reads:
                encoder.copy_buffer_to_buffer(buffers[name], 0, staging, at, job.buffers[name].nbytes)
                at += job.buffers[name].nbytes
        self.device.queue.submit([encoder.finish()])
        staging.map_sync("READ")
        data = bytes(staging.read_mapped())
        staging.destroy()
        return data

    def _buffer(self, array: np.ndarray, written: bool):
        key = array.tobytes()
        if not written and key in self.uploaded:
            return self.uploaded[key]
        usage = self.wgpu.BufferUsage
        buffer = self.device.create_buffer_with_data(data=key, usage=usage.STORAGE | usage.COPY_SRC)
        if not written:
            self.uploaded[key] = buffer
        return buffer

    def _dispatch(self, encoder, name: str, buffers) -> None:
        kernel, pipeline = self.kernels[name], self.pipelines[name]
        entries = [
            {"binding": i, "resource": {"buffer": buffers[arg], "offset": 0, "size": buffers[arg].size}}
            for i, arg in enumerate(kernel.bindings)
        ]
        group = self.device.create_bind_group(layout=pipeline.get_bind_group_layout(0), entries=entries)
        compute = encoder.begin_compute_pass()
        compute.set_pipeline(pipeline)
        compute.set_bind_group(0, group)
        compute.dispatch_workgroups(*kernel.grid)
        compute.end()


def run_chromium(batch: Batch, code: dict[str, Wgsl], folder: Path) -> list[Arrays]:
    """Every job in one page of a headless Chromium."""
    kernels = {}
    for name, kernel in code.items():
        order = [batch.arguments[name].index(arg) for arg in kernel.bindings]
        kernels[name] = {"text": kernel.text, "entry": kernel.entry, "bindings": order, "grid": kernel.grid}
    data = serialize(batch, {"kernels": kernels})
    with _Exchange(data) as exchange:
        adapter = asyncio.run(_drive(exchange.url))
        assert adapter == "google swiftshader", f"the adapter is {adapter}, not google swiftshader"
        return batch.outputs(exchange.result)


async def _drive(url: str) -> str:
    """Open the page, run its script, give the adapter's name."""
    async with browser_running(BrowserOptions(backend="webgpu", adapter="swiftshader")) as browser:
        page = await browser.new_page()
        await page.goto(url)
        return await asyncio.wait_for(page.evaluate("import('/run_webgpu.js').then((m) => m.main())"), PAGE_S)


class _Exchange:
    """A server on localhost (WebGPU wants a secure context) that gives the page its jobs and takes the results."""

    def __init__(self, data: bytes):
        self.result = b""
        exchange = self
        files = {
            "/": (b"<!doctype html>", "text/html"),
            "/run_webgpu.js": (SCRIPT.read_bytes(), "text/javascript"),
            "/jobs": (data, "application/octet-stream"),
        }

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                body, kind = files.get(self.path, (b"", "text/plain"))
                self.send_response(200 if body else 404)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_POST(self):
                exchange.result = self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *args):
                pass

        self.server = ThreadingHTTPServer(("localhost", 0), Handler)
        self.url = f"http://localhost:{self.server.server_port}/"

    def __enter__(self) -> _Exchange:
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()
