"""Milliseconds of the champion's passes by rows and threads, on WASM (web/bench/rows.html) and native: what a verify of k drafts costs.

Rounds are interleaved over widths and thread counts; the table has medians and the least. Does not know kernels.
"""

from __future__ import annotations

import asyncio
import statistics
from pathlib import Path
from typing import Any

from specdec_runtime.bundle import open_bundle
from specdec_runtime.decode.effects import Submit
from specdec_runtime.faults import DeviceFault

from .browser import BrowserOptions, browser_running
from .serve import BUNDLE_PREFIX, running_site

WARM_UP = 1


def bench_rows(
    bundle: Path, backends: list[str], threads: list[int], rounds: int, start: int
) -> dict[str, Any]:
    """The report: one row for each backend, thread count and program."""
    rows: list[dict[str, Any]] = []
    if "native" in backends:
        rows += _native(bundle, rounds, start)
    if "wasm" in backends:
        found = asyncio.run(_wasm(bundle, threads, rounds, start))
        if "error" in found:
            raise DeviceFault(found["error"], "the bench page", "Load the bundle in the page to see more")
        for wanted, device in zip(threads, found["devices"], strict=True):
            if device["threads"] != wanted:
                raise DeviceFault(
                    f"{wanted} threads: {device['threads_reason']}", "WASM threads", "Ask for fewer"
                )
        rows += [{"backend": "wasm", **row} for row in found["rows"]]
    return {"rounds": rounds, "start": start, "rows": [_summed(row) for row in rows]}


def _summed(row: dict[str, Any]) -> dict[str, Any]:
    times = row.pop("times")
    return row | {"median_ms": round(statistics.median(times), 3), "least_ms": round(min(times), 3)}


async def _wasm(bundle: Path, threads: list[int], rounds: int, start: int) -> dict[str, Any]:
    options = BrowserOptions("wasm")
    counts = ",".join(map(str, threads))
    query = f"bundle={BUNDLE_PREFIX}&threads={counts}&rounds={rounds}&start={start}"
    with running_site(bundle) as site:
        async with browser_running(options) as browser:
            page = await browser.new_page()
            await page.goto(f"{site.url}bench/rows.html?{query}")
            await page.wait_for_function("window.benchResult", timeout=options.timeout_s * 1000)
            return await page.evaluate("window.benchResult")


def _native(bundle: Path, rounds: int, start: int) -> list[dict[str, Any]]:
    from specdec_compiler.native import open_backend

    opened = open_bundle(bundle)
    backend, model = open_backend(opened), opened.plan.target_model
    passes = [(f"target.verify_{width}", width) for width in model.widths]
    passes.append(("target.prefill", model.prefill_width))
    times: dict[str, list[float]] = {program: [] for program, _ in passes}
    for _ in range(WARM_UP + rounds):
        for program, rows in passes:
            writes = [
                ("tokens", start, [(17 * i + 3) % model.vocab_size for i in range(rows)]),
                ("target.page_table", 0, list(range(model.num_pages))),
                ("target.args", 0, [start, rows, 0, 0]),
            ]
            times[program] += backend.submit(Submit("verify", writes, [program], [])).ms
    backend.close()
    return [
        {
            "backend": "native",
            "threads": 1,
            "program": program,
            "rows": rows,
            "times": times[program][WARM_UP:],
        }
        for program, rows in passes
    ]


def table(report: dict[str, Any]) -> str:
    """Medians (and the least) in ms as Markdown, one line for each backend and thread count, one column for each pass."""
    passes = list(dict.fromkeys((row["program"], row["rows"]) for row in report["rows"]))
    titles = [
        "backend",
        "threads",
        *(f"{name.removeprefix('target.')}, {rows} rows" for name, rows in passes),
    ]
    lines = ["| " + " | ".join(titles) + " |", "| " + " | ".join("---" for _ in titles) + " |"]
    for backend, threads in dict.fromkeys((row["backend"], row["threads"]) for row in report["rows"]):
        mine = {r["program"]: r for r in report["rows"] if (r["backend"], r["threads"]) == (backend, threads)}
        cells = [f"{mine[name]['median_ms']:.2f} ({mine[name]['least_ms']:.2f})" for name, _ in passes]
        lines.append("| " + " | ".join([backend, str(threads), *cells]) + " |")
    return "\n".join(lines)
