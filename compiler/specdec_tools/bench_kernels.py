"""specdec-bench kernels: every GPU kernel of a bundle or shape at every width, beside the speed of a pure read.

The measuring is the bench page's (web/bench); this file asks for it and makes tables. A kernel is one row, whatever its width: its
parameters without m. Ratios are to the one-row instance of the same kernel in the same run.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from .bench_gpu import bench_model
from .browser import BrowserOptions
from .plot import Bar, Chart

QUERY = "&parts=kernels&programs=^target\\.(verify|prefill)"
SHAPE_KEYS = ("n", "rows", "k", "fmt", "h", "kv", "d")


def bench_kernels(name: str, context: int, start: int, options: BrowserOptions) -> dict[str, Any]:
    """Measure in this machine's browser; the page's result."""
    return bench_model(name, context, options, f"{QUERY}&start={start}")


def label(kernel: dict[str, Any]) -> str:
    """Op and shape: what a kernel is without its width, page and vocabulary bookkeeping."""
    params = kernel["params"]
    first = min(params)  # names are op, then the parameters in order (kernels/base.py)
    op = kernel["kernel"].split(f"_{first}{str(params[first]).replace('-', '_').replace('.', '_')}")[0]
    shape = " ".join(f"{key}={params[key]}" for key in SHAPE_KEYS if key in params)
    return f"{op} {shape}".strip()


def by_width(result: dict[str, Any]) -> dict[str, dict[int, dict[str, Any]]]:
    """label -> width -> the measured kernel, in program order."""
    found: dict[str, dict[int, dict[str, Any]]] = defaultdict(dict)
    for kernel in result["kernels"]:
        found[label(kernel)].setdefault(kernel["width"], kernel)
    return found


def table(result: dict[str, Any]) -> str:
    """Markdown: us by width, GB/s of weights at one row, its share of the read speed, 8 rows against 1."""
    read, kernels = result["read"]["gb_per_s"], by_width(result)
    widths = sorted({width for row in kernels.values() for width in row})
    lines = [
        f"{result['name']} on {result['adapter']}, position {result['options']['start']}: read {read:.0f} GB/s, "
        f"{result['floor_us']:.1f} us an empty dependent dispatch",
        "",
        "| kernel | MB | "
        + " | ".join(f"{width} rows, us" for width in widths)
        + " | GB/s at 1 | of read | 8 : 1 |",
        "| --- | --- | " + " | ".join("---" for _ in widths) + " | --- | --- | --- |",
    ]
    for name, row in kernels.items():
        us = [f"{row[width]['us']:.1f}" if width in row else "" for width in widths]
        speed = share = ratio = ""
        megabytes = next(iter(row.values()))["bytes"] / 1e6
        if 1 in row and megabytes >= 0.1:
            gb_per_s = row[1]["bytes"] / row[1]["us"] / 1e3
            speed, share = f"{gb_per_s:.0f}", f"{gb_per_s / read:.0%}"
        if 1 in row and 8 in row:
            ratio = f"{row[8]['us'] / row[1]['us']:.2f}"
        lines.append("| " + " | ".join([name, f"{megabytes:.1f}", *us, speed, share, ratio]) + " |")
    return "\n".join(lines)


def charts(result: dict[str, Any]) -> list[Chart]:
    """us of each kernel, a panel a width."""
    kernels = by_width(result)
    widths = sorted({width for row in kernels.values() for width in row})
    panels = []
    for width in widths:
        bars = [
            Bar(name, row[width]["us"], group=name.split()[0])
            for name, row in kernels.items()
            if width in row
        ]
        panels.append(Chart(f"{result['name']}: kernels at {width} rows", "us", bars))
    return panels
