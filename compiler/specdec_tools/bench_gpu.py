"""GPU measurements of a bundle or of a known shape: the page of web/bench in a browser here, or packed for a machine elsewhere.

`model`: runs in this machine's browser and reports. `pack`: writes a folder that any static server can serve; the page then posts its
result to POST /result. Weights are random in both cases: speed does not depend on their values.
"""

from __future__ import annotations

import asyncio
import functools
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from specdec_runtime.bundle import open_bundle
from specdec_runtime.faults import DeviceFault, RequestError

from .browser import BrowserOptions, browser_running, check_adapter
from .paths import WEB
from .plot import Bar, Chart
from .shapes import SHAPES, write_shape

PAGE = "bench/index.html"


def pack(names: list[str], folder: Path, context: int) -> list[str]:
    """Write page, executor and each plan into `folder`; returns the page's path and query for each name."""
    for part in ("bench", "executor"):
        shutil.copytree(WEB / part, folder / part, dirs_exist_ok=True)
    shutil.copytree(WEB.parent / "shaders", folder / "shaders", dirs_exist_ok=True)
    return [
        f"{PAGE}?plan=/{place}/plan.json&wgsl=/{place}/kernels.wgsl"
        for place in _plans(names, folder, context)
    ]


def _plans(names: list[str], folder: Path, context: int) -> Iterator[str]:
    for name in names:
        if name in SHAPES:
            write_shape(name, folder / name, context)
            yield name
            continue
        if not (Path(name) / "manifest.json").exists():
            known = ", ".join(SHAPES)
            raise RequestError(
                f"{name} is neither a bundle folder nor a shape", "NAME", f"the shapes are {known}"
            )
        bundle = open_bundle(name)
        place = folder / bundle.plan.name
        place.mkdir(parents=True, exist_ok=True)
        for path in ("plan.json", "kernels.wgsl"):
            (place / path).write_bytes(bundle.read(path))
        yield bundle.plan.name


@contextmanager
def _served(folder: Path) -> Iterator[str]:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()


async def page_result(url: str, options: BrowserOptions) -> dict[str, Any]:
    async with browser_running(options) as browser:
        page = await browser.new_page()
        await page.goto(url)
        await page.wait_for_function("window.benchResult", timeout=options.timeout_s * 1000)
        return await page.evaluate("window.benchResult")


def bench_model(name: str, context: int, options: BrowserOptions, query: str) -> dict[str, Any]:
    """Measure one bundle or shape in the browser of this machine. Raises DeviceFault when the page fails."""
    with tempfile.TemporaryDirectory() as folder:
        (path,) = pack([name], Path(folder), context)
        software = "&software=1" if options.adapter != "gpu" else ""
        with _served(Path(folder)) as url:
            result = asyncio.run(page_result(f"{url}{path}{software}{query}", options))
    if "error" in result:
        raise DeviceFault(
            result["error"].splitlines()[0], "the bench page", "try --adapter swiftshader with a tiny bundle"
        )
    check_adapter({"backend": "webgpu", "adapter": result["adapter"]}, options)
    return result


def table(result: dict[str, Any]) -> str:
    """The result as Markdown tables."""
    read = result["read"]["gb_per_s"]
    lines = [
        f"{result['name']} on {result['adapter']}: read {read:.0f} GB/s, "
        f"{result['floor_us']:.1f} us an empty dependent dispatch, {result['resident_bytes'] / 1e9:.2f} GB resident",
        "",
        "| pass | rows | dispatches | ms | GB/s of weights | share of read |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in result["passes"]:
        speed = row["weight_bytes"] / row["ms"] / 1e6
        cells = (
            row["program"],
            row["width"],
            row["dispatches"],
            f"{row['ms']:.3f}",
            f"{speed:.0f}",
            f"{speed / read:.0%}",
        )
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    lines += ["", "| submit with readback | ms |", "| --- | --- |"]
    lines += [f"| {row['name']} | {row['ms']:.3f} |" for row in result["rounds"]]
    if result["kernels"]:
        lines += ["", "| pass | kernel | count | us |", "| --- | --- | --- | --- |"]
    lines += [f"| {r['program']} | {r['kernel']} | {r['count']} | {r['us']:.2f} |" for r in result["kernels"]]
    return "\n".join(lines)


def charts(result: dict[str, Any]) -> list[Chart]:
    """ms of whole passes by model and rows, and of submits with their readback."""
    passes = [Bar(row["program"], row["ms"], group=row["program"].split(".")[0]) for row in result["passes"]]
    rounds = [Bar(row["name"], row["ms"], group="submit") for row in result["rounds"]]
    return [
        Chart(f"{result['name']}: a pass alone", "ms", passes),
        Chart("one submit with its readback", "ms", rounds),
    ]
