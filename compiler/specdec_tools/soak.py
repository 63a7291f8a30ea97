"""specdec-bench soak: thousands of short requests in one browser worker; what memory they leave behind, counted.

Does not know how requests are served. Counted after garbage collection, at equal distances: the JavaScript heaps of page and worker,
Python's objects and its WASM memory, the kernels' WASM memory, and KV pages that are held though every session was dropped.
Invariant: the first count is taken after a warm-up, so that what is made once (caches, a first stop string, costs) is in it; what
grew more than the noise from there to the last is a failure.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from specdec_runtime.faults import ContractError, RequestError

from .browser import BrowserOptions, PageSession, page_session
from .serve import running_site

FLAGS = ("--enable-blink-features=ForceEagerMeasureMemory",)  # count now, after a collection
MIB = 2**20
# how much the last count may be above the first: heaps are not counted to the byte, memory comes in large steps
NOISE = {
    "page_bytes": MIB,
    "worker_bytes": MIB,
    "python_objects": 300,
    "python_bytes": 0,
    "wasm_bytes": 0,
    "pages_held": 0,
}
SAMPLES = 10
MIN_REQUESTS = 40
COUNT_JS = """async () => {
  const { bytes, breakdown } = await performance.measureUserAgentSpecificMemory();
  const inWorker = ({ attribution }) => attribution.some(({ scope }) => scope.includes("Worker"));
  const worker_bytes = breakdown.filter(inWorker).reduce((sum, part) => sum + part.bytes, 0);
  const { pages } = await window.specdec.sessions();
  const pages_held = Object.values(pages).reduce((sum, { held }) => sum + held, 0);
  return { page_bytes: bytes - worker_bytes, worker_bytes, pages_held, ...(await window.specdec.memory()) };
}"""
SOAK_JS = "async (what) => (await import('/bench/soak.js')).soak(window.specdec, what)"


async def _soaked(session: PageSession, requests: int, drafter: str, tokens: int) -> list[dict[str, Any]]:
    """Counts, the first after the warm-up of a tenth of the requests."""
    step = max(1, requests // SAMPLES)
    samples: list[dict[str, Any]] = []
    start = time.monotonic()
    for done in range(0, requests, step):
        count = min(step, requests - done)
        what = {"from": done, "count": count, "drafter": drafter, "tokens": tokens}
        await session.wait(session.page.evaluate(SOAK_JS, what), "soak")
        counted = await session.wait(session.page.evaluate(COUNT_JS), "count memory")
        renderer = await session.renderer_memory()
        seconds = round(time.monotonic() - start, 1)
        samples.append({"requests": done + count, "seconds": seconds, **counted, **renderer})
        print(f"{done + count} of {requests} requests", file=sys.stderr)
    return samples


async def _run(
    bundle: Path, requests: int, options: BrowserOptions, drafter: str, tokens: int
) -> dict[str, Any]:
    with running_site(bundle) as site:
        async with page_session(site.url, options) as session:
            loaded = await session.load("bundle/", costs=True)
            samples = await _soaked(session, requests, drafter, tokens)
    return judged({"soak": requests, "device": loaded["device"], "tokens": tokens, "samples": samples})


def judged(report: dict[str, Any]) -> dict[str, Any]:
    """The report with what grew: {name: growth} of all that is counted, and the names of what grew too much."""
    first, last = report["samples"][0], report["samples"][-1]
    growth = {name: last[name] - first[name] for name in NOISE}
    failed = [
        name for name, grown in growth.items() if grown > NOISE[name] or (name == "pages_held" and last[name])
    ]
    return report | {"growth": growth, "grew": failed}


def bench_soak(args: argparse.Namespace) -> dict[str, Any]:
    """The report of a soak that held."""
    if args.requests < MIN_REQUESTS:
        raise RequestError(
            f"{args.requests} requests say nothing", "requests", f"Give {MIN_REQUESTS} or more"
        )
    # one thread: helpers sleep in WASM and do not answer those who count; they hold nothing of a request
    options = BrowserOptions("wasm", timeout_s=args.timeout, threads=1, extra_flags=FLAGS)
    report = asyncio.run(_run(args.bundle, args.requests, options, args.drafter, args.tokens))
    if report["grew"]:
        print(table(report) if not args.json else json.dumps(report, indent=2))
        raise ContractError(f"memory grew: {', '.join(report['grew'])}", "soak", "Look for what is kept")
    return report


COLUMNS = {
    "requests": ("requests", 1),
    "seconds": ("s", 1),
    "page_bytes": ("page's heap, MiB", MIB),
    "worker_bytes": ("worker's heap, MiB", MIB),
    "python_objects": ("Python objects", 1),
    "python_bytes": ("Python's memory, MiB", MIB),
    "wasm_bytes": ("kernels' memory, MiB", MIB),
    "pages_held": ("KV pages held", 1),
    "pss_mib": ("renderer, MiB", 1),
}


def table(report: dict[str, Any]) -> str:
    """The counts as a Markdown table."""

    def cell(name: str, value: float) -> str:
        unit = COLUMNS[name][1]
        if unit == 1:
            return f"{value:.0f}"
        return f"{value / unit:.2f}"

    lines = [
        "| " + " | ".join(title for title, _ in COLUMNS.values()) + " |",
        "| " + " | ".join("---" for _ in COLUMNS) + " |",
    ]
    for sample in report["samples"]:
        lines.append("| " + " | ".join(cell(name, sample[name]) for name in COLUMNS) + " |")
    grown = ", ".join(f"{name} {grown:+}" for name, grown in report["growth"].items())
    return "\n".join([*lines, "", f"From the first count to the last: {grown}."])


def add_command(commands: Any) -> None:
    soak = commands.add_parser(
        "soak", help="memory over thousands of short requests in one browser worker (WASM)"
    )
    soak.add_argument("bundle", type=Path)
    soak.add_argument("--requests", type=int, default=10_000)
    soak.add_argument("--tokens", type=int, default=4, help="longest answer")
    soak.add_argument("--drafter", default="ngram", help="off, ngram, model or chain")
    soak.add_argument(
        "--timeout", type=float, default=900.0, help="the most seconds a tenth of the requests may take"
    )
    soak.add_argument("--json", action="store_true", help="print the report as one JSON object")
    soak.set_defaults(call=bench_soak, show=table)
