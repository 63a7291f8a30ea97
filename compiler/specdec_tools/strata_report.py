"""The report of an evaluation: from the raw runs of strata_matrix.py or web/bench/strata.js to figures.

Knows no backend. A run's decoding is what follows its prefill: tokens / (total - prefill), by the clock of the page. A turn's speed-up
compares with the fastest plain run of the same turn; a prompt's is the median over its turns; a stratum's figures are over
its prompts. Invariants: everything is computed from the raw runs, so that a saved file gives the same report; a partial run gives no
verdict; acceptance by position is given only where its sums agree with the runtime's own counts.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from specdec_runtime.decode.sampling import GREEDY, Sampling
from specdec_runtime.faults import RequestError

from .strata import HEADLINE, STRATA
from .strata_matrix import is_plain, sampling_of
from .strata_stats import median_of, verdict

Run = dict[str, Any]
FORMAT = 1
COUNTS = (
    "num_cycles",
    "num_drafted",
    "num_accepted",
    "num_evaluated",
    "num_target_passes",
    "num_draft_passes",
)


@dataclass(frozen=True)
class Pair:
    """One speculative run beside the plain runs of its turn."""

    prompt: str
    run: Run
    plains: list[Run]

    @property
    def plain(self) -> Run:
        return max(self.plains, key=rate)

    @property
    def speedup(self) -> float:
        return rate(self.run) / rate(self.plain)

    @property
    def answer_speedup(self) -> float:
        return min(run["total_ms"] for run in self.plains) / self.run["total_ms"]


def rate(run: Run) -> float:
    """Tokens a second after the prefill."""
    return run["tokens"] / (run["total_ms"] - run["prefill_ms"]) * 1000


def check_report(raw: dict[str, Any]) -> None:
    """A file of this format with at least one whole turn."""
    if raw.get("strata_format") != FORMAT:
        raise RequestError("this is no report of specdec-bench strata", "FILE", "Name one of this version")
    if not raw["runs"]:
        raise RequestError("not one turn was finished: there is nothing to report", "FILE", "Run it longer")


def groups_of(raw: dict[str, Any]) -> dict[str, list[str]]:
    """Names and prompts: the headline, each stratum that was run, and all of them."""
    seen = {run["prompt"] for run in raw["runs"]}
    strata: dict[str, list[str]] = {name: [] for name in STRATA}
    for prompt in raw["prompts"]:
        if prompt["id"] in seen:
            strata[prompt["stratum"]].append(prompt["id"])
    strata = {name: ids for name, ids in strata.items() if ids}
    headline = [prompt for name in HEADLINE for prompt in strata.get(name, [])]
    return (
        ({"headline": headline} if headline else {})
        | strata
        | {"all": [prompt for ids in strata.values() for prompt in ids]}
    )


def pairs_of(raw: dict[str, Any], config: str) -> list[Pair]:
    """Every run of one configuration with the plain runs of its turn that choose tokens as it does."""
    (mine,) = [sampling_of(one) for one in raw["configs"] if one["name"] == config]
    plain_names = {one["name"] for one in raw["configs"] if is_plain(one) and sampling_of(one) == mine}
    plains: dict[int, list[Run]] = {}
    for run in raw["runs"]:
        if run["config"] in plain_names:
            plains.setdefault(run["turn"], []).append(run)
    return [Pair(run["prompt"], run, plains[run["turn"]]) for run in raw["runs"] if run["config"] == config]


def by_prompt(pairs: Iterable[Pair], value: Callable[[Pair], float]) -> dict[str, float]:
    """The median over a prompt's turns, by prompt."""
    found: dict[str, list[float]] = {}
    for pair in pairs:
        found.setdefault(pair.prompt, []).append(value(pair))
    return {prompt: statistics.median(values) for prompt, values in found.items()}


def summed(runs: Iterable[Run]) -> dict[str, Any]:
    """Counts over runs; by position the drafts offered, judged and accepted, or None where they do not add up."""
    total: dict[str, Any] = dict.fromkeys(COUNTS, 0)
    positions: dict[str, Counter] = {key: Counter() for key in ("drafted", "evaluated", "accepted")}
    for run in runs:
        for name in COUNTS:
            total[name] += run["speculation"][name]
        for key, counts in positions.items():
            counts.update(dict(enumerate(run[key])))
    agree = all(sum(counts.values()) == total[f"num_{key}"] for key, counts in positions.items())
    total["positions"] = (
        {key: [counts[i] for i in range(len(counts))] for key, counts in positions.items()} if agree else None
    )
    return total


def _row(
    raw: dict[str, Any], group: str, ids: Sequence[str], config: str, pairs: list[Pair]
) -> dict[str, Any]:
    def middle(value: Callable[[Pair], float], digits: int) -> float:
        return round(statistics.median(by_prompt(pairs, value).values()), digits)

    counts = summed(pair.run for pair in pairs)
    tokens = sum(pair.run["tokens"] for pair in pairs)
    speedup = median_of(list(by_prompt(pairs, lambda p: p.speedup).values()))
    answer = median_of(list(by_prompt(pairs, lambda p: p.answer_speedup).values()))
    return {
        "group": group,
        "config": config,
        "prompts": len({pair.prompt for pair in pairs}),
        "turns": len(pairs),
        "tokens": tokens,
        "tokens_per_target_pass": round(tokens / counts["num_target_passes"], 3),
        "acceptance": round(counts["num_accepted"] / counts["num_evaluated"], 4)
        if counts["num_evaluated"]
        else None,
        "positions": counts["positions"],
        "ttft_plain_ms": middle(lambda p: min(run["first_ms"] for run in p.plains), 2),
        "ttft_ms": middle(lambda p: p.run["first_ms"], 2),
        "plain_tokens_per_s": middle(lambda p: rate(p.plain), 1),
        "tokens_per_s": middle(lambda p: rate(p.run), 1),
        "fastest_plain": dict(Counter(pair.plain["config"] for pair in pairs)),
        "speedup": speedup.json(),
        "answer_speedup": answer.json(),
        "target_calls": counts["num_target_passes"],
        "draft_calls": counts["num_draft_passes"],
        "cycles": counts["num_cycles"],
        "verdict": verdict(speedup, raw["partial"]),
    }


def speculative(raw: dict[str, Any]) -> list[dict[str, Any]]:
    return [config for config in raw["configs"] if not is_plain(config)]


# judged by the decode core, which refuses what it cannot keep to; no result repeats them
_UNSAID = {one.name for one in fields(Sampling)} - {"temperature", "mode", "seed"}


def _unheard(options: dict[str, Any], run: Run) -> list[str]:
    """Options that the runtime does not say it followed: the configuration's name promises too much then."""
    said, found = run["speculation"], []
    for key, asked in options.items():
        if key == "k" or key in _UNSAID or asked == "auto":
            continue
        if key == "temperature":  # told by the mode alone
            if (asked > 0) != (said.get("mode", GREEDY) != GREEDY):
                found.append(f"asked for temperature {asked}, the runtime says mode {said.get('mode')}")
            continue
        got = run.get("seed") if key == "seed" else said.get(key)
        got = got.get("name") if isinstance(got, dict) else got
        if got is None:
            found.append(f"the runtime did not say that it knows {key}")
        elif got != asked:
            found.append(f"asked for {key} {asked}, the runtime says {got}")
    return found


def _notes(raw: dict[str, Any]) -> list[str]:
    """What a reader must know before the figures."""
    notes = []
    if raw["partial"]:
        why = raw["error"]["message"] if "error" in raw else "it was stopped"
        notes.append(f"partial: {why}")
    done = {run["config"]: run for run in raw["runs"]}
    for config in speculative(raw):
        notes += [f"{config['name']}: {what}" for what in _unheard(config["options"], done[config["name"]])]
    fallbacks: Counter = Counter()
    for run in raw["runs"]:
        fallbacks.update({f"{run['config']}: {why}": n for why, n in run["speculation"]["fallbacks"].items()})
    return notes + [f"fallback, {what}, {count} times" for what, count in fallbacks.items()]


def _is_scheduled(config: dict[str, Any]) -> bool:
    return config["options"].get("schedule", "fixed") != "fixed"


def _oracle(raw: dict[str, Any], groups: dict[str, list[str]]) -> list[dict[str, Any]]:
    """By group: the fixed configuration that would have been best, plain included, and each scheduled one against it."""
    speeds = {
        config["name"]: by_prompt(pairs_of(raw, config["name"]), lambda p: p.speedup)
        for config in speculative(raw)
    }
    fixed = [config["name"] for config in speculative(raw) if not _is_scheduled(config)]
    scheduled = [config["name"] for config in speculative(raw) if _is_scheduled(config)]
    found = []
    for group, ids in groups.items():
        plain = dict.fromkeys(ids, 1.0)
        best, best_speeds = max(
            [("plain", plain), *((name, speeds[name]) for name in fixed)],
            key=lambda one: statistics.median(one[1][prompt] for prompt in ids),
        )
        each = [max([1.0, *(speeds[name][prompt] for name in fixed)]) for prompt in ids]
        against = {
            name: median_of([speeds[name][p] / best_speeds[p] for p in ids]).json() for name in scheduled
        }
        found.append(
            {
                "group": group,
                "best_fixed": best,
                "best_fixed_speedup": round(statistics.median(best_speeds[p] for p in ids), 4),
                "best_of_each_prompt": round(statistics.median(each), 4),
                "scheduled_against_best_fixed": against,
            }
        )
    return found


def summary(raw: dict[str, Any]) -> dict[str, Any]:
    """All figures of a raw run."""
    check_report(raw)
    groups = groups_of(raw)
    rows = []
    for config in speculative(raw):
        pairs = pairs_of(raw, config["name"])
        for group, ids in groups.items():
            inside = [pair for pair in pairs if pair.prompt in ids]
            rows.append(_row(raw, group, ids, config["name"], inside))
    rows.sort(key=lambda row: list(groups).index(row["group"]))
    return {"partial": raw["partial"], "notes": _notes(raw), "rows": rows, "oracle": _oracle(raw, groups)}


def position_shares(positions: dict[str, list[int]]) -> list[float]:
    """Accepted of judged at each position."""
    accepted = positions["accepted"] + [0] * len(positions["evaluated"])
    return [good / judged for good, judged in zip(accepted, positions["evaluated"], strict=False)]
