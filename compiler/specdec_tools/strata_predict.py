"""Predictions for a shape that was not run: measured costs of its passes, and this run's acceptance by position (F5).

    prediction = E[N] * t1 / (draft + verify + sync)

E[N] = 1 + the accepted drafts a round, counted by position up to k; t1 = verify(1) + sync / plain_steps, the cost of the plain step to
beat; draft = draft_ms a draft pass; verify = that of 1 + as many rows as were drafted, rounded up to a measured width; sync once a
submit. All over the rounds that this run had, also those in which nothing was drafted. It says nothing of another
model's acceptance, and leaves out prefill and text. Invariant: every figure is named prediction.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdec_runtime.faults import RequestError

from .json_file import read_json_file
from .strata_report import groups_of, pairs_of, speculative, summed

KEYS = {"name", "sync_ms", "verify_ms", "draft_ms"}
EXAMPLE = 'Give {"name": "8B", "sync_ms": 0.4, "verify_ms": {"1": 3.4, "2": 3.7}, "draft_ms": 0.9, "plain_steps": 4}'


@dataclass(frozen=True)
class Costs:
    """Milliseconds of a shape's passes on some device."""

    name: str
    sync_ms: float
    verify_ms: dict[int, float]
    draft_ms: float
    plain_steps: int = 1

    @property
    def plain_ms(self) -> float:
        return self.verify_ms[1] + self.sync_ms / self.plain_steps

    def verify(self, rows: int) -> float:
        """The narrowest measured pass that holds the rows."""
        widths = [width for width in self.verify_ms if width >= rows]
        if not widths:
            widest = max(self.verify_ms)
            raise RequestError(f"verify_ms ends at {widest} rows, {rows} are needed", self.name, "Measure it")
        return self.verify_ms[min(widths)]


def _good(value: Any) -> bool:
    return type(value) in (int, float) and value >= 0


def read_costs(path: Path) -> Costs:
    """The costs file; RequestError for anything that is not all of it."""

    def refuse(why: str) -> RequestError:
        return RequestError(why, str(path), EXAMPLE)

    data = read_json_file(path, EXAMPLE)
    if not isinstance(data, dict) or not KEYS <= set(data) <= KEYS | {"plain_steps"}:
        raise refuse("it is no object with the keys of a shape's costs")
    verify, steps = data["verify_ms"], data.get("plain_steps", 1)
    if not isinstance(verify, dict) or "1" not in verify or not all(key.isdecimal() for key in verify):
        raise refuse("verify_ms is no object of rows and milliseconds, 1 row among them")
    if not all(map(_good, [data["sync_ms"], data["draft_ms"], *verify.values()])) or verify["1"] <= 0:
        raise refuse("a cost is no number of milliseconds")
    if type(steps) is not int or steps < 1:
        raise refuse("plain_steps is no whole number of 1 or more")
    rows = {int(key): float(ms) for key, ms in verify.items()}
    return Costs(str(data["name"]), float(data["sync_ms"]), rows, float(data["draft_ms"]), steps)


def predicted(costs: Costs, counts: dict[str, Any], k: int, rounds: int = 1) -> float:
    """The speed-up of at most k drafts a round, `rounds` rounds a submit, with these counts."""
    cycles, positions = counts["num_cycles"], counts["positions"]
    tokens = 1 + sum(positions["accepted"][:k]) / cycles
    at_least = [1.0, *(count / cycles for count in positions["drafted"][:k]), 0.0]
    shares = [at_least[i] - at_least[i + 1] for i in range(len(at_least) - 1)]  # of rounds with i drafts
    verify = sum(share * costs.verify(drafts + 1) for drafts, share in enumerate(shares) if share)
    passes = counts["num_draft_passes"] / counts["num_drafted"] if counts["num_drafted"] else 0
    draft = costs.draft_ms * passes * sum(at_least[1:])
    return tokens * costs.plain_ms / (draft + verify + costs.sync_ms / rounds)


def predictions(raw: dict[str, Any], costs: Costs) -> list[dict[str, Any]]:
    """By group and configuration of a fixed k: the prediction at every k up to its own, and the best of them."""
    found = []
    for config in speculative(raw):
        if config["options"].get("schedule", "fixed") != "fixed":
            continue  # it drafts as this device's costs make it
        pairs = pairs_of(raw, config["name"])
        for group, ids in groups_of(raw).items():
            runs = [pair.run for pair in pairs if pair.prompt in ids]
            counts = summed(runs)
            if not counts["positions"]:
                continue
            rounds = runs[0]["speculation"].get("rounds", 1)
            by_k = {
                str(k): round(predicted(costs, counts, k, rounds), 3)
                for k in range(1, config["options"]["k"] + 1)
            }
            best = max(by_k, key=lambda k: by_k[k])
            row = {"group": group, "config": config["name"], "prediction_by_k": by_k}
            found.append({**row, "best_k": int(best), "prediction": by_k[best]})
    return found


def table(name: str, rows: list[dict[str, Any]]) -> list[str]:
    """Markdown lines."""
    most = max((len(row["prediction_by_k"]) for row in rows), default=0)
    heads = ["stratum", "configuration", *(f"prediction, k {k}" for k in range(1, most + 1)), "best k"]
    lines = ["", f"Prediction for {name}, not measured: this run's acceptance, that shape's costs (F5).", ""]
    lines += ["| " + " | ".join(heads) + " |", "| --- " * len(heads) + "|"]
    for row in rows:
        values = [f"{value:.2f}" for value in row["prediction_by_k"].values()]
        cells = [row["group"], row["config"], *values, *[""] * (most - len(values)), str(row["best_k"])]
        lines.append("| " + " | ".join(cells) + " |")
    return lines
