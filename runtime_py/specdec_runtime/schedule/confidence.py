"""Drafts one token at a time and stops when the next one is not likely to be reached and stand.

Needs the draft's own confidence between steps, so every step is a submit: for devices where a submit is cheap. The table of the
bundle's policy says how often a draft of such a log-probability was accepted; survival is the product over the drafts so far.
F10: whether to draft token i + 1 is decided from tokens 1 .. i, and token i, once drawn, is verified whatever its confidence.
Knows no device.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

from specdec_runtime.decode.choice import MODEL, NGRAM, Choice, Done, View
from specdec_runtime.schedule.policy import Policy

# log-probability of the draft's first choice -> P(accepted), where a bundle was not calibrated: the draft is believed
UNCALIBRATED = (
    (-6.0, 0.05),
    (-2.3, 0.15),
    (-1.2, 0.35),
    (-0.7, 0.5),
    (-0.36, 0.65),
    (-0.1, 0.85),
    (-0.01, 0.97),
)


class Confidence:
    """Stops under a threshold of predicted survival."""

    name = "confidence"
    version = 1
    looks = True

    def __init__(self, policy: Policy, k: int) -> None:
        self._table = policy.confidence or UNCALIBRATED
        self._threshold = policy.threshold
        self._k = k
        self._stops = 0

    def choose(self, view: View) -> Choice:
        k = min(self._k, view.max_drafts)
        if k and view.ngram_ids:
            return Choice(NGRAM, min(k, view.ngram_ids))
        return Choice(MODEL, k) if k and view.model_ready else Choice()

    def observe(self, done: Done) -> None:
        pass

    def goes_on(self, confidences: list[tuple[float, float]]) -> bool:
        survival = 1.0
        for logprob, _ in confidences:
            survival *= self._accepted(logprob)
        self._stops += survival < self._threshold
        return survival >= self._threshold

    def _accepted(self, logprob: float) -> float:
        """The table's last point that is not above."""
        at = bisect_right([point[0] for point in self._table], logprob)
        return self._table[max(0, at - 1)][1]

    def report(self) -> dict[str, Any]:
        return {"num_stops": self._stops}
