"""The report of specdec-numerics: distances of every source by group, the verdict, and its table.

Knows no model: it is fed rows and asked for figures. Invariant: `ok` is true only if every bound that applies is met; a bound on
llama.cpp applies where llama.cpp can read the champion.
"""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from specdec_tools import numerics_metrics as metrics
from specdec_tools.numerics_texts import TextRun

PACKAGES = ("torch", "transformers", "llama-cpp-python", "numpy", "apache-tvm")


class Tally:
    """Collects rows run by run."""

    def __init__(self, judged: str, sources: list[str]) -> None:
        self.judged = judged  # the source that the bounds are about
        self.distances = {name: metrics.Distances() for name in sources}
        self.rows_equal = 0  # native and wasm, bit for bit
        self._groups: list[str] = []
        self._own: list[bool] = []
        self._margins: list[np.ndarray] = []

    def add(self, run: TextRun, reference: np.ndarray, rows: dict[str, np.ndarray]) -> None:
        """The reference's and every source's rows of one run, from run.first on."""
        self._groups += [run.group] * len(reference)
        self._own += [run.own] * len(reference)
        self._margins.append(metrics.margins(reference))
        for name, logits in rows.items():
            self.distances[name].add(reference, logits)
        if {"native", "wasm"} <= rows.keys():
            same = rows["native"].view(np.uint32) == rows["wasm"].view(np.uint32)
            self.rows_equal += int(same.all(axis=1).sum())

    def report(self, required: tuple[int, int], *, sampled: bool = False) -> dict[str, Any]:
        """`required`: least foreign and own positions. Of a sample, top-1 is shown and not judged: one row is a percent."""
        own = np.array(self._own, bool)
        clear = np.concatenate(self._margins) >= metrics.CLEAR_MARGIN
        groups = np.array(self._groups)
        masks = {name: groups == name for name in dict.fromkeys(self._groups)}
        masks |= {"all foreign": ~own, "all own": own, "all": np.ones(len(own), bool), "all clear": clear}
        table = [self._line(name, mask) for name, mask in masks.items()]
        lines = {line["group"]: line for line in table}
        bounds = self._bounds(lines, required)
        bounds += [] if sampled else self._top1_bounds(lines)
        result: dict[str, Any] = {
            "judged": self.judged,
            "groups": table,
            "bounds": bounds,
            "ok": all(line["ok"] for line in bounds),
        }
        if "wasm" in self.distances:
            result |= {"wasm_rows_equal": self.rows_equal, "rows": len(own)}
        return result

    def _line(self, name: str, mask: np.ndarray) -> dict[str, Any]:
        by_source = {source: metrics.figures(found, mask) for source, found in self.distances.items()}
        return {"group": name, "positions": int(mask.sum()), **by_source}

    def _bounds(self, lines: dict[str, dict[str, Any]], required: tuple[int, int]) -> list[dict[str, Any]]:
        kl = lines["all"][self.judged]["kl_mean"]
        bound = metrics.bound
        found = [
            bound("foreign positions", lines["all foreign"]["positions"], required[0], at_most=False),
            bound("own positions", lines["all own"]["positions"], required[1], at_most=False),
            bound("mean KL", kl, metrics.MAX_MEAN_KL, at_most=True),
        ]
        if "llama.cpp" in self.distances:
            ratio = kl / lines["all"]["llama.cpp"]["kl_mean"]
            found.append(bound("mean KL / llama.cpp's", ratio, metrics.MAX_KL_RATIO, at_most=True))
        return found

    def _top1_bounds(self, lines: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
        shares = {
            "all clear": metrics.MIN_TOP1_CLEAR,
            "all foreign": metrics.MIN_TOP1_FOREIGN,
            "all own": metrics.MIN_TOP1_OWN,
        }
        return [
            metrics.bound(f"top-1, {name}", lines[name][self.judged]["top1"], limit, at_most=False)
            for name, limit in shares.items()
        ]


def machine() -> dict[str, Any]:
    """What ran it."""
    names = {}
    for name in PACKAGES:
        try:
            names[name] = version(name)
        except PackageNotFoundError:
            names[name] = None
    about = {"system": platform.system(), "machine": platform.machine(), "cpus": os.cpu_count()}
    return {**about, "cpu": _cpu_name(), "python": platform.python_version(), "packages": names}


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor()


def render(report: dict[str, Any]) -> str:
    """The report as text."""
    sources = [name for name in report["groups"][0] if name not in ("group", "positions")]
    head = f"{'group':<26}{'positions':>9}"
    head += "".join(f" | {name + ': mean KL':>19} {'p99':>8} {'max':>8} {'top-1':>7}" for name in sources)
    lines = [head, "-" * len(head)]
    for group in report["groups"]:
        cells = [f" | {_cells(group[name])}" for name in sources]
        lines.append(f"{group['group']:<26}{group['positions']:>9}{''.join(cells)}")
    lines.append("")
    for line in report["bounds"]:
        verdict = "ok  " if line["ok"] else "MISS"
        lines.append(
            f"{verdict} {line['name']:<24} {_number(line['value']):>10} {line['rule']} {line['limit']:g}"
        )
    if "rows" in report:
        lines.append(
            f"native and WASM rows equal, bit for bit: {report['wasm_rows_equal']} of {report['rows']}"
        )
    if report.get("sample"):
        lines.append(f"a sample: {report['sample']}; top-1 is shown and not judged")
    if report.get("device"):
        lines.append(f"WebGPU: {report['device']['adapter']}; {report['device']['browser']}")
    spent = ", ".join(f"{name} {seconds}" for name, seconds in report["seconds_of"].items())
    lines.append(f"own answers: {report['own_answers']}; {report['seconds']} s in all: {spent}")
    return "\n".join(lines)


def _cells(found: dict[str, float | None]) -> str:
    kl = [_number(found[key]) for key in ("kl_mean", "kl_p99", "kl_max")]
    top1 = "-" if found["top1"] is None else f"{100 * found['top1']:.2f}%"
    return f"{kl[0]:>19} {kl[1]:>8} {kl[2]:>8} {top1:>7}"


def _number(value: float | int | None) -> str:
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else (f"{value:.1e}" if abs(value) < 1e-3 else f"{value:.4f}")
