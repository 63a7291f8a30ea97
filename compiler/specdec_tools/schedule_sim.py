"""Schedules on a made-up machine: costs and acceptance are given, time is a sum. `specdec-bench schedule` prints what comes out.

Knows the schedules by name only. A world is one answer: for every position a coin says whether a draft of it would stand. So all
schedules, plain decoding and the oracle (the best fixed action of each stratum) meet the same text. Invariant: same seed, same figures.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from specdec_runtime.decode.choice import ANY, MODEL, NATURAL_KS, NGRAM, Choice, Done, Schedule, View
from specdec_runtime.schedule.break_even import ROUNDS
from specdec_runtime.schedule.costs import Costs, LiveCosts
from specdec_runtime.schedule.policy import DEFAULT, Policy
from specdec_runtime.schedule.registry import make_schedule

from .plot import Bar, Chart

TOKENS = 256
PROMPT = 40
ALPHAS = (0.1, 0.3, 0.5, 0.65, 0.8, 0.95)


@dataclass(frozen=True)
class Machine:
    """Costs, and what its backend allows."""

    costs: Costs
    steps: int = 1  # plain steps a submit
    rounds: int = 1


def _machine(
    sync: float, verify: Sequence[float], draft: Sequence[float], steps: int = 1, rounds: int = 1
) -> Machine:
    """draft: a step, and a chunk of its prefill."""
    rows: dict[int, float] = dict(zip((1, 2, 4, 8), verify, strict=True))
    return Machine(Costs(sync, rows, *draft, target_read=3 * verify[3], how="given"), steps, rounds)


def _gpu_measured(sync: float, verify: Sequence[float], draft: Sequence[float]) -> Machine:
    """Wall times of submits on an H200 (docs/performance.md): 0.4 ms of S are the host's."""
    made = _machine(sync, verify, draft, steps=8, rounds=8)
    return replace(made, costs=replace(made.costs, accept=0.05, outside=0.4, chunks_in_ms=True))


MACHINES = {
    "flat": _machine(0.5, (5.0, 5.0, 5.0, 5.0), (0.25, 1.0)),
    "linear": _machine(0.5, (5.0, 10.0, 20.0, 40.0), (0.25, 3.0)),
    "stepped": _machine(0.5, (5.0, 5.5, 6.5, 9.0), (0.4, 1.5)),
    "gpu": _machine(1.0, (1.05, 1.15, 1.26, 1.30), (0.1, 0.25), steps=4),
    "gpu, 4 rounds": _machine(1.0, (1.05, 1.15, 1.26, 1.30), (0.1, 0.25), steps=4, rounds=4),
    "gpu, 8 rounds": _gpu_measured(0.87, (1.05, 1.10, 1.26, 1.40), (0.16, 0.25)),  # the default bundle
    "wasm": _machine(0.7, (7.3, 11.5, 20.1, 39.4), (2.0, 12.0)),
}


# passes of a shape with random weights: nobody has seen a text of theirs, so these are for replayed answers of another model only
SHAPES = {
    "8B, 1B draft": _gpu_measured(0.8, (3.63, 3.90, 5.16, 5.65), (1.3, 1.8)),
    "8B, 4-layer draft": _gpu_measured(0.8, (3.63, 3.90, 5.16, 5.65), (0.6, 0.8)),
}


@dataclass(frozen=True)
class World:
    """Acceptance by stretches of the answer: [(tokens, alpha of the model, alpha of lookup, share of positions it matches)]."""

    strata: tuple[tuple[int, float, float, float], ...]
    seed: int = 0
    policy: Policy = DEFAULT

    @property
    def num_tokens(self) -> int:
        return sum(stratum[0] for stratum in self.strata)


def steady(alpha: float, seed: int = 0, tokens: int = TOKENS) -> World:
    return World(((tokens, alpha, 0.0, 0.0),), seed)


def flipping(alphas: Sequence[float], seed: int = 0, each: int = 128) -> World:
    return World(tuple((each, alpha, 0.0, 0.0) for alpha in alphas), seed)


@dataclass
class Trace:
    """One answer under one schedule."""

    ms: float = 0.0
    cycles: list[tuple[int, Choice, float]] = field(default_factory=list)  # (position, choice, ms)

    def ks(self, start: int, end: int) -> list[int]:
        return [choice.k for at, choice, _ in self.cycles if start <= at < end]


class Text:
    """The coins of a world."""

    def __init__(self, world: World) -> None:
        rng = random.Random(world.seed)
        self.model: list[bool] = []
        self.ngram: list[bool] = []
        self.matches: list[bool] = []
        for tokens, model, ngram, share in world.strata:
            for _ in range(tokens):
                one, two, three = rng.random(), rng.random(), rng.random()
                self.model.append(one < model)
                self.ngram.append(two < ngram)
                self.matches.append(three < share)

    def __len__(self) -> int:
        return len(self.model)

    def round(self, at: int, source: str, k: int) -> tuple[int, int]:
        """(accepted, evaluated) of k drafts for positions at .. at + k - 1."""
        coins = (self.model if source == MODEL else self.ngram)[at : at + k]
        accepted = next((i for i, stands in enumerate(coins) if not stands), len(coins))
        return accepted, min(len(coins), accepted + 1)


def simulate(
    world: World, machine: Machine, schedule: Schedule, drift: Callable[[int], float] = lambda at: 1.0
) -> Trace:
    """Serve the world; drift(position): a factor on all of the machine's times."""
    text, trace, at, lag = Text(world), Trace(), 0, PROMPT
    costs = LiveCosts(machine.costs)
    trace.ms = -(-PROMPT // machine.costs.target_chunk) * machine.costs.target_read
    while at < len(text):
        remaining = len(text) - at
        matched = text.matches[at]
        drafts = min(7, remaining - 1)
        view = View(
            remaining,
            drafts,
            min(machine.steps, remaining) if at else 1,  # as the core does
            machine.rounds,
            3 * matched,
            7 * matched,
            True,
            lag,
            PROMPT,
        )
        choice = schedule.choose(view)
        if choice.source == ANY:
            choice = choice._replace(source=NGRAM, rounds=1) if matched else choice._replace(source=MODEL)
        choice = choice._replace(
            rounds=min(choice.rounds, -(-remaining // (choice.k + 1)))
        )  # as the core does
        rounds, end = _rounds(text, at, choice)
        ms = drift(at) * costs.time(choice)
        read_ms = drift(at) * costs.reading(lag) if choice.source == MODEL else 0.0
        known_ms = (
            ms
            - drift(at) * machine.costs.host(choice.rounds)
            + (read_ms if machine.costs.chunks_in_ms else 0.0)
        )
        schedule.observe(Done(choice, end - at, rounds, known_ms, lag))
        trace.ms += ms + read_ms
        trace.cycles.append((at, choice, ms + read_ms))
        lag = 1 if choice.source == MODEL else lag + end - at
        at = end
    return trace


def _rounds(text: Text, at: int, choice: Choice) -> tuple[tuple[tuple[int, int], ...], int]:
    if choice.source is None:
        return (), min(len(text), at + choice.steps)
    rounds: list[tuple[int, int]] = []
    for _ in range(choice.rounds):
        if at >= len(text):
            break  # the device works on, for nothing: its time counts
        rounds.append(text.round(at, choice.source, choice.k))
        at = min(len(text), at + rounds[-1][0] + 1)
    return tuple(rounds), at


class Always:
    """One action throughout, as far as the budget goes: plain decoding, and what the oracle chooses from."""

    name = "always"
    version = 1
    looks = True

    def __init__(self, choice: Choice) -> None:
        self._choice = choice

    def choose(self, view: View) -> Choice:
        source, k, rounds, _ = self._choice
        k = min(k, view.max_drafts)
        if source is None or k < 1 or (source == NGRAM and not view.ngram_ids):
            return Choice(steps=view.max_steps)
        return Choice(source, k, rounds)

    def observe(self, done: Done) -> None:
        pass

    def report(self) -> dict[str, Any]:
        return {}


def plain_ms(world: World, machine: Machine) -> float:
    return simulate(world, machine, Always(Choice())).ms


def oracle_ms(world: World, machine: Machine) -> float:
    """The best fixed action of every stratum, each on a text of its own."""
    rounds = [n for n in ROUNDS if n <= machine.rounds]
    choices = [
        Choice(),
        *(Choice(MODEL, k, n) for k in NATURAL_KS for n in rounds),
        *(Choice(NGRAM, k) for k in NATURAL_KS),
    ]
    total = 0.0
    for number, stratum in enumerate(world.strata):
        alone = World((stratum,), world.seed + 1000 * number)
        read = simulate(World((), 0), machine, Always(Choice())).ms if number else 0.0
        total += min(simulate(alone, machine, Always(choice)).ms for choice in choices) - read
    return total


def run(name: str, world: World, machine: Machine, k: int = 7) -> Trace:
    return simulate(world, machine, make_schedule(name, machine.costs, world.policy, k))


def report(names: Sequence[str], seeds: int) -> dict[str, Any]:
    """Every machine x acceptance x schedule: time as a share of plain decoding's, mean and worst over seeds."""
    rows = []
    worlds: dict[str, Callable[[int], World]] = {str(a): lambda seed, a=a: steady(a, seed) for a in ALPHAS}
    worlds[".9 > .1 > .9"] = lambda seed: flipping((0.9, 0.1, 0.9), seed)
    for machine_name, machine in MACHINES.items():
        for acceptance, world_of in worlds.items():
            entry: dict[str, Any] = {"machine": machine_name, "acceptance": acceptance}
            for name in (*names, "oracle"):
                shares = []
                for seed in range(seeds):
                    world = world_of(seed)
                    ms = oracle_ms(world, machine) if name == "oracle" else run(name, world, machine).ms
                    shares.append(ms / plain_ms(world, machine))
                entry[name] = {"mean": round(sum(shares) / len(shares), 3), "worst": round(max(shares), 3)}
            rows.append(entry)
    return {
        "simulated": True,
        "seeds": seeds,
        "tokens": TOKENS,
        "schedules": [*names, "oracle"],
        "rows": rows,
    }


def table(found: dict[str, Any]) -> str:
    """Time over plain decoding's, mean (worst): below 1 is faster."""
    names = found["schedules"]
    lines = ["| machine | acceptance | " + " | ".join(names) + " |", "| --- | --- |" + " --- |" * len(names)]
    for row in found["rows"]:
        cells = [f"{row[name]['mean']:.3f} ({row[name]['worst']:.3f})" for name in names]
        lines.append(f"| {row['machine']} | {row['acceptance']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def charts(found: dict[str, Any]) -> list[Chart]:
    """One chart a machine: speed over plain decoding's, by acceptance and schedule."""
    made = []
    for machine in dict.fromkeys(row["machine"] for row in found["rows"]):
        bars = [
            Bar(f"{row['acceptance']}, {name}", round(1 / row[name]["mean"], 3), group=name)
            for row in found["rows"]
            if row["machine"] == machine
            for name in found["schedules"]
        ]
        made.append(Chart(machine, "x plain", bars))
    return made
