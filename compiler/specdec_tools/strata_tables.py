"""An evaluation's report as Markdown and as pictures. Knows the summary of strata_report.py, computes nothing."""

from __future__ import annotations

from typing import Any

from . import strata_predict
from .plot import Bar, Chart
from .strata_report import position_shares, speculative, summary
from .strata_stats import THRESHOLDS

HEADS = (
    "stratum",
    "configuration",
    "prompts",
    "tokens/pass",
    "accepted",
    "by position, %",
    "TTFT ms: plain",
    "with it",
    "tokens/s: plain",
    "with it",
    "speed-up",
    "quartiles",
    "95 % interval",
    "whole answer",
    "target calls",
    "draft calls",
    "verdict",
)


def _lines(heads: tuple[str, ...] | list[str], rows: list[list[str]]) -> list[str]:
    return [
        "| " + " | ".join(heads) + " |",
        "| --- " * len(heads) + "|",
        *("| " + " | ".join(cells) + " |" for cells in rows),
    ]


def _pair(values: list[float] | None) -> str:
    return f"{values[0]:.2f} to {values[1]:.2f}" if values else "none"


def _cells(row: dict[str, Any]) -> list[str]:
    positions = position_shares(row["positions"]) if row["positions"] else []
    return [
        row["group"],
        row["config"],
        str(row["prompts"]),
        f"{row['tokens_per_target_pass']:.2f}",
        "" if row["acceptance"] is None else f"{row['acceptance']:.1%}",
        " ".join(f"{share:.0%}".rstrip("%") for share in positions),
        f"{row['ttft_plain_ms']:.1f}",
        f"{row['ttft_ms']:.1f}",
        f"{row['plain_tokens_per_s']:.1f}",
        f"{row['tokens_per_s']:.1f}",
        f"{row['speedup']['median']:.2f}",
        _pair(row["speedup"]["quartiles"]),
        _pair(row["speedup"]["interval"]),
        f"{row['answer_speedup']['median']:.2f}",
        str(row["target_calls"]),
        str(row["draft_calls"]),
        row["verdict"],
    ]


def _oracle(rows: list[dict[str, Any]]) -> list[str]:
    scheduled = list(rows[0]["scheduled_against_best_fixed"])
    heads = [
        "stratum",
        "best fixed",
        "speed-up",
        "best of each prompt",
        *(f"{name} / best fixed" for name in scheduled),
    ]
    cells = []
    for row in rows:
        against = row["scheduled_against_best_fixed"].values()
        shown = [f"{one['median']:.2f} ({_pair(one['interval'])})" for one in against]
        speeds = [f"{row['best_fixed_speedup']:.2f}", f"{row['best_of_each_prompt']:.2f}"]
        cells.append([row["group"], row["best_fixed"], *speeds, *shown])
    return _lines(heads, cells)


def _head(raw: dict[str, Any]) -> str:
    device = raw["device"]
    where = " ".join(str(device[key]) for key in ("backend", "adapter") if device.get(key))
    kinds = ", ".join(f"{kind} {size / 1e6:.1f}" for kind, size in raw["memory"].items())
    more = f"; the page's renderer {raw['renderer']['pss_mib']:.0f} MiB" if raw.get("renderer") else ""
    return f"{raw['name']} on {where}; peak MB by kind: {kinds}{more}."


def table(raw: dict[str, Any]) -> str:
    """The report of a raw run."""
    made = summary(raw)
    legend = (
        "Speed-up: tokens/s after the prefill over the fastest plain run of the same turn, median over prompts. "
        f"Promote above {THRESHOLDS['promote_above']:g}, delete below {THRESHOLDS['delete_below']:g}: the whole interval."
    )
    lines = [
        _head(raw),
        *made["notes"],
        "",
        *_lines(HEADS, [_cells(row) for row in made["rows"]]),
        "",
        legend,
        "",
    ]
    lines += _oracle(made["oracle"])
    lines += [
        "",
        "Best of each prompt: the fixed configuration that was fastest on it, chosen afterwards (noise lifts it).",
    ]
    if found := raw.get("prediction"):
        lines += strata_predict.table(found["costs"]["name"], found["rows"])
    return "\n".join(lines)


def charts(raw: dict[str, Any]) -> list[Chart]:
    """Speed-ups with their intervals, a panel a configuration; and acceptance by position."""
    made = summary(raw)["rows"]
    found = []
    for config in speculative(raw):
        rows = [row for row in made if row["config"] == config["name"]]
        bars = []
        for row in rows:
            low, high = row["speedup"]["interval"] or (None, None)
            bars.append(Bar(row["group"], row["speedup"]["median"], low, high, config["name"]))
        found.append(Chart(f"{config['name']}: speed-up over the fastest plain run", "times", bars))
    positions = []
    for row in made:
        if row["group"] != "all" or not row["positions"]:
            continue
        for i, share in enumerate(position_shares(row["positions"])):
            positions.append(Bar(f"{row['config']}, draft {i + 1}", share, group=row["config"]))
    return [*found, Chart("accepted of judged, by position in the round, all strata", "share", positions)]
