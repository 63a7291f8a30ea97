"""The policy of a bundle: which schedule is its default and what is believed before a request has shown anything.

Strict reader of policy.json; knows no schedule's code but the names. It holds figures measured when the draft was made, nothing of
any user, and a run changes nothing in it. Invariants: probabilities lie strictly between 0 and 1; the confidence table rises.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

from specdec_runtime.faults import ArtifactError

FORMAT, VERSION = "specdec-policy", 1
FILE = "policy.json"
AUTO = "auto"  # the schedule that the policy names
SCHEDULES = ("fixed", "heuristic", "confidence", "break_even")
MAX_POSITIONS = 7
NGRAM_LENGTHS = (2, 3, 4)
SAMPLED = 0.75  # acceptance at temperature 0.8 over that at 0, as measured (docs/performance.md)


@dataclass(frozen=True, slots=True)
class Policy:
    """The defaults stand where a bundle has none: a fair draft, lookups that get better with their length, little certainty."""

    default: str = "break_even"  # the schedule of requests that name none
    model: tuple[float, ...] = (0.65,)  # acceptance of draft 1, 2, ...: the last stands for those after it
    ngram: dict[int, float] = field(default_factory=lambda: {2: 0.35, 3: 0.5, 4: 0.65})  # by match length
    strength: float = 1.5  # drafts that the figures above count for
    confidence: tuple[
        tuple[float, float], ...
    ] = ()  # (log-probability of the draft's first choice, P(accepted)), rising
    threshold: float = 0.4  # predicted survival under which `confidence` stops drafting

    def sampled(self) -> Policy:
        """What is believed above temperature 0: a draft that agrees with the likeliest token does not agree with every draw."""
        ngram = {length: SAMPLED * value for length, value in self.ngram.items()}
        return replace(self, model=tuple(SAMPLED * value for value in self.model), ngram=ngram)

    def json(self) -> dict[str, Any]:
        ngram = {str(length): value for length, value in self.ngram.items()}
        return {
            "format": FORMAT,
            "version": VERSION,
            "default": self.default,
            "model": list(self.model),
            "ngram": ngram,
            "strength": self.strength,
            "confidence": [list(point) for point in self.confidence],
            "threshold": self.threshold,
        }


DEFAULT = Policy()


def read_policy(text: str | bytes) -> Policy:
    """policy.json -> Policy; ArtifactError for the first thing wrong."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise _bad(f"it is not JSON: {error}", "$") from None
    return policy_of(data)


def policy_of(data: Any) -> Policy:
    """The same from the object; every key must be there, and no other."""
    names = set(DEFAULT.json())
    if not isinstance(data, dict) or set(data) != names:
        raise _bad(f"expected an object of {', '.join(sorted(names))}", "$")
    if data["format"] != FORMAT or data["version"] != VERSION or type(data["version"]) is not int:
        raise _bad(f"expected {FORMAT} version {VERSION}", "$.format")
    if data["default"] not in SCHEDULES:
        raise _bad(f"{data['default']!r} is none of {', '.join(SCHEDULES)}", "$.default")
    model, ngram = data["model"], data["ngram"]
    if not isinstance(model, list) or not 1 <= len(model) <= MAX_POSITIONS:
        raise _bad(f"expected 1 to {MAX_POSITIONS} probabilities", "$.model")
    if not isinstance(ngram, dict) or set(ngram) != {str(length) for length in NGRAM_LENGTHS}:
        raise _bad(f"expected one probability for each of {list(NGRAM_LENGTHS)}", "$.ngram")
    return Policy(
        default=data["default"],
        model=tuple(_share(value, f"$.model[{at}]") for at, value in enumerate(model)),
        ngram={length: _share(ngram[str(length)], f"$.ngram.{length}") for length in NGRAM_LENGTHS},
        strength=_number(data["strength"], "$.strength", 0.0, 1000.0),
        confidence=_table(data["confidence"]),
        threshold=_share(data["threshold"], "$.threshold"),
    )


def _table(data: Any) -> tuple[tuple[float, float], ...]:
    where = "$.confidence"
    if not isinstance(data, list):
        raise _bad("expected a list of [log-probability, probability]", where)
    points: list[tuple[float, float]] = []
    for at, point in enumerate(data):
        if not isinstance(point, list) or len(point) != 2:
            raise _bad("expected [log-probability, probability]", f"{where}[{at}]")
        pair = (_number(point[0], f"{where}[{at}][0]", -1000.0, 0.0), _share(point[1], f"{where}[{at}][1]"))
        if points and (pair[0] <= points[-1][0] or pair[1] < points[-1][1]):
            raise _bad("the table must rise", f"{where}[{at}]")
        points.append(pair)
    return tuple(points)


def _share(value: Any, where: str) -> float:
    number = _number(value, where, 0.0, 1.0)
    if not 0 < number < 1:
        raise _bad(f"{value!r} is not strictly between 0 and 1", where)
    return number


def _number(value: Any, where: str, low: float, high: float) -> float:
    if type(value) not in (int, float) or not low <= value <= high:
        raise _bad(f"{value!r} is no number from {low:g} to {high:g}", where)
    return float(value)


def _bad(message: str, where: str) -> ArtifactError:
    return ArtifactError(message, f"{FILE}: {where}", "Build the bundle again")
