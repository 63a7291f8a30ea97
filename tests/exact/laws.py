"""Sampled sequences and their distribution: the ways that are tried, how many sequences each, and the law enumerated in float64.

Knows no device: a rig tells the target's logits after a prefix, and draws. The processors are written once more here, from
docs/sampling.md. Invariant: no two sequences of a run have the same seed, whatever their way and device.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import log
from typing import Any, NamedTuple

import numpy as np
from chi_square import Run

PROMPT = [7, 40, 40, 7, 40]  # its end was there before: an n-gram drafts, and first an id that often comes
VOCAB, TINY_SEED = 301, 4
COUNTS = {"native": (10_000, 2_000), "wasm": (2_000, 300), "webgpu": (500, 60)}  # sequences a way: all, CI
# the total variation that the test of a way finds, nine times of ten, at those counts
SEEN = {"native": (0.075, 0.12), "wasm": (0.1, 0.22), "webgpu": (0.16, 0.42)}
# and that of all ways over few ids together
SEEN_TOGETHER = {"native": (0.015, 0.03), "wasm": (0.03, 0.07), "webgpu": (0.06, 0.21)}
CHANCE = 0.001  # that right code fails in a whole run: over all its tests (Bonferroni)
ALLOWED = [7, 40, 111, 260]
FEW, FILTERED, ALL, ALL_FILTERED = "few ids", "few ids, filtered", "all ids", "all ids, filtered"
SAMPLINGS: dict[str, dict[str, Any]] = {
    FEW: {"temperature": 2.5, "allowed_ids": ALLOWED},
    FILTERED: {
        "temperature": 2.5,
        "allowed_ids": ALLOWED,
        "logit_bias": {"111": 1.5},
        "presence_penalty": 0.8,
        "frequency_penalty": 0.4,
        "top_k": 3,
        "top_p": 0.97,
        "min_p": 0.01,
    },
    ALL: {"temperature": 1.0},
    ALL_FILTERED: {"temperature": 1.2, "repetition_penalty": 1.2, "bad_words": [[107, 27]], "top_p": 0.8},
}


@dataclass(frozen=True)
class Way:
    """How answers are made whose first `length` tokens are looked at. The limit is further on: it leaves its last token no draft."""

    mode: str
    drafter: str
    k: int = 0
    rounds: int = 1
    sampling: str = FEW
    max_tokens: int = 4
    length: int = 3
    steps: int = 1

    def __str__(self) -> str:
        several = (
            f" x {self.rounds}" if self.rounds > 1 else f", {self.steps} steps" if self.steps > 1 else ""
        )
        return f"{self.mode}: {self.drafter} {self.k}{several}: {self.sampling}"

    @property
    def law(self) -> tuple[str, int]:
        return self.sampling, self.length

    @property
    def fields(self) -> dict[str, Any]:
        """Of its requests, but for the seed."""
        way = {"prompt_ids": PROMPT, "max_tokens": self.max_tokens, "drafter": self.drafter, "k": self.k}
        several = {"rounds": self.rounds, "plain_steps": self.steps, "ignore_eos": True}
        return way | several | {"mode": self.mode} | SAMPLINGS[self.sampling]


def _ways() -> list[Way]:
    """Of native code and WASM: each mode with each drafter, several rounds a submit, and filters."""
    ways = [Way("coupled", "off"), Way("coupled", "off", sampling=FILTERED), Way("coupled", "off", steps=3)]
    for mode in ("coupled", "reject", "block"):
        ways += [
            Way(mode, "model", 3),
            Way(mode, "model", 1, 3, max_tokens=6),
            Way(mode, "model", 2, 2, FILTERED, max_tokens=6),
            Way(mode, "ngram", 3),
            Way(mode, "chain", 2, 2, max_tokens=6),
        ]
    return ways


WAYS = _ways()
NATIVE_WAYS = [
    *WAYS,
    Way("coupled", "off", sampling=ALL, length=2),
    Way("coupled", "chain", 2, 2, ALL, 6, 2),
    Way("reject", "model", 2, 2, ALL, 6, 2),
    Way("block", "model", 3, 1, ALL, 4, 2),
    Way("reject", "model", 3, 1, ALL_FILTERED, 4, 2),
    Way("block", "model", 2, 2, ALL_FILTERED, 6, 2),
]
WEBGPU_WAYS = [  # software that takes a tenth of a second for a submit: short ones
    Way("coupled", "off", max_tokens=2, length=2),
    Way("coupled", "chain", 1, max_tokens=3, length=2),
    Way("reject", "model", 2, max_tokens=3, length=2),
    Way("block", "model", 2, max_tokens=3, length=2),
    Way("coupled", "model", 1, 2, max_tokens=3, length=2),
    Way("coupled", "ngram", 2, max_tokens=3, length=2),
    Way("reject", "chain", 1, max_tokens=3, length=2),
    Way("reject", "model", 2, 1, FILTERED, max_tokens=3, length=2),
    Way("block", "model", 1, 2, max_tokens=3, length=2),
]
BACKENDS = {"native": NATIVE_WAYS, "wasm": WAYS, "webgpu": WEBGPU_WAYS}
NUM_CI_WAYS = {"webgpu": 4}


def asked(backend: str, everything: bool) -> tuple[list[Way], int]:
    """The ways that are tried, and how many sequences each."""
    ways, (full, subset) = BACKENDS[backend], COUNTS[backend]
    return (ways, full) if everything else (ways[: NUM_CI_WAYS.get(backend)], subset)


def kinds(ways: Iterable[Way]) -> list[tuple[str, int]]:
    """Their laws, by sampling and length: sequences of all ways of one are tested together too."""
    return list(dict.fromkeys(way.law for way in ways))


NUM_TESTS = sum(len(ways) + len(kinds(ways)) for ways in BACKENDS.values())
LIMIT = CHANCE / NUM_TESTS  # of a p-value, in CI too


def seeds(series: int, count: int) -> list[int]:
    """Of a series of its own: all differ, as an odd factor is a bijection of 53 bits."""
    return [(series * 1_000_000 + number) * 0x9E3779B97F4A7C15 % 2**53 for number in range(count)]


# --- the distribution ------------------------------------------------------------------------------------------------------


def law(logits_after: Callable[[Run], np.ndarray], sampling: str, length: int) -> dict[Run, float]:
    """Of the first tokens: each sequence that may come, by the target's logits after every beginning of it."""
    found: dict[Run, float] = {(): 1.0}
    for _ in range(length):
        found = {
            (*run, int(token)): share * part[token]
            for run, share in found.items()
            for part in [probabilities(logits_after(run), run, SAMPLINGS[sampling])]
            for token in np.flatnonzero(part)
        }
    return found


def probabilities(logits: np.ndarray, answer: Run, asked: Mapping[str, Any]) -> np.ndarray:
    """Of the next token after PROMPT and the answer so far, every processor applied in the order of docs/sampling.md."""
    z, counts = np.array(logits, np.float64), np.bincount(np.array(answer, int), minlength=len(logits))
    known, r = (counts > 0) | np.isin(np.arange(len(z)), PROMPT), asked.get("repetition_penalty", 1.0)
    z = np.where(known, np.where(z > 0, z / r, z * r), z)
    z -= asked.get("frequency_penalty", 0.0) * counts + asked.get("presence_penalty", 0.0) * (counts > 0)
    for token, bias in asked.get("logit_bias", {}).items():
        z[int(token)] += bias
    banned = np.ones(len(z), bool)
    banned[asked.get("allowed_ids", range(len(z)))] = False
    for *before, last in asked.get("bad_words", []):
        banned[last] |= [*PROMPT, *answer][-len(before) :] == before
    z = np.where(banned, -np.inf, z / asked["temperature"])
    z = np.where(z >= _top_k(z, asked.get("top_k", 0)), z, -np.inf)
    z = np.where(z >= _top_p(z, asked.get("top_p", 1.0)), z, -np.inf)
    if asked.get("min_p", 0.0) > 0:
        z = np.where(z >= z.max() + log(asked["min_p"]), z, -np.inf)
    weights = np.exp(z - z.max())
    return weights / weights.sum()


def _top_k(z: np.ndarray, k: int) -> float:
    """The least value that stays."""
    return float(np.sort(z)[-k]) if k else -np.inf


def _top_p(z: np.ndarray, p: float) -> float:
    largest = np.sort(z)[::-1]
    mass = np.cumsum(np.exp(largest - largest[0]))
    return float(largest[int(np.argmax(mass >= p * mass[-1]))]) if p < 1 else -np.inf


# --- what was drawn ------------------------------------------------------------------------------------------------------


class Drawn(NamedTuple):
    """Of one way: how often each sequence came, drafts that stood and were judged, and what its submits held."""

    counts: Counter[Run]
    num_accepted: int
    num_evaluated: int
    choices: Counter[str]


def gather(way: Way, results: Iterable[Mapping[str, Any]]) -> Drawn:
    """results: the token ids and the books of each request."""
    counts, choices, accepted, evaluated = Counter[Run](), Counter[str](), 0, 0
    for result in results:
        books = result["speculation"]
        counts[tuple(result["token_ids"][: way.length])] += 1
        choices.update(books["schedule"]["choices"])
        accepted += books["num_accepted"]
        evaluated += books["num_evaluated"]
        assert books["fallbacks"] == {}, (str(way), books["fallbacks"])
    return Drawn(counts, accepted, evaluated, choices)


def together(drawn: Iterable[Drawn]) -> Counter[Run]:
    return sum((each.counts for each in drawn), Counter[Run]())


def check_way(way: Way, drawn: Drawn) -> None:
    """The sequences were made as the way says: drafts stood and fell, by each of its drafters, in rounds."""
    count, found = drawn.counts.total(), Counter[str]()
    if way.drafter == "off":
        assert drawn.num_evaluated == 0
        return
    assert count / 20 < drawn.num_accepted < drawn.num_evaluated - count / 20, (str(way), drawn)
    for label, number in drawn.choices.items():
        found[label.split()[0]] += number
        found["rounds"] += number * ("rounds)" in label)
    sources = ("model", "ngram") if way.drafter == "chain" else (way.drafter,)
    assert all(found[source] > count / 20 for source in sources), (str(way), drawn.choices)
    assert found["rounds"] >= (count / 4 if way.rounds > 1 and "model" in sources else 0), str(way)
