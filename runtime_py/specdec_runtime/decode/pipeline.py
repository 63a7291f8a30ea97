"""The processors of a row's logits, one after another, in plain Python: what the kernels of `target.filter_W` are to compute.

Knows no tensors, no device and no request (docs/sampling.md has the formulas and their sources). Scripted models are sampled with it;
the kernels' twins are compared with it. A dropped id is -inf. Order: penalties (Keskar et al. 2019 the first of them), bias, mask,
banned sequences, stop ids that come too early; the temperature; top-k, top-p (Holtzman et al. 2019), min-p (Nguyen et al. 2024), each
over what the one before left. Masks come first: the other way round could leave nothing. Invariant: of equal values all stay or all go.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, inf, isfinite, log

from specdec_runtime.plan.sampling_layout import LEAST


@dataclass(frozen=True)
class Processors:
    """One request's, as a row sees them; the defaults are off. mask(id): may it be chosen? banned: sequences of ids, whose last is not
    chosen after the others. stops: ids not to be chosen at positions below min_len. Truncations act only where `noise` is drawn."""

    noise: bool = False
    inverse_t: float = 1.0
    prompt_len: int = 0
    repetition: float = 1.0
    frequency: float = 0.0
    presence: float = 0.0
    bias: Sequence[float] | None = None
    mask: Callable[[int], bool] | None = None
    banned: Sequence[Sequence[int]] = ()
    stops: Sequence[int] = ()
    min_len: int = 0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


def process(logits: Sequence[float], history: Sequence[int], use: Processors) -> list[float] | None:
    """The values that noise is added to, after the tokens of `history`; None where nothing survives, or a logit is not finite."""
    if not all(isfinite(logit) for logit in logits):
        return None
    z = penalized(logits, history, use)
    if use.bias is not None:
        z = [value + bias for value, bias in zip(z, use.bias, strict=False)]
    forbidden = too_early(history, use)
    for token_id, value in enumerate(z):
        allowed = use.mask is None or use.mask(token_id)
        dropped = not allowed or token_id in forbidden or value <= LEAST
        z[token_id] = -inf if dropped else value * use.inverse_t
    if max(z) == -inf:
        return None
    return truncated(z, use) if use.noise else z


def penalized(logits: Sequence[float], history: Sequence[int], use: Processors) -> list[float]:
    """Repetition counts the whole history, the other two the answer alone."""
    z = list(logits)
    for token_id in set(history):
        z[token_id] = z[token_id] / use.repetition if z[token_id] > 0 else z[token_id] * use.repetition
    for token_id, count in Counter(history[use.prompt_len :]).items():
        z[token_id] -= use.frequency * count + use.presence
    return z


def too_early(history: Sequence[int], use: Processors) -> set[int]:
    """Ids that would end a banned sequence, or the answer before its least length."""
    found = set(use.stops) if len(history) < use.min_len else set[int]()
    for *before, last in use.banned:
        if list(history[max(len(history) - len(before), 0) :]) == before:
            found.add(last)
    return found


def truncated(z: list[float], use: Processors) -> list[float]:
    """What top-k, top-p and min-p leave."""
    if use.top_k:
        z = at_least(z, sorted(z, reverse=True)[min(use.top_k, len(z)) - 1])
    if use.top_p < 1:
        z = at_least(z, nucleus(z, use.top_p))
    if use.min_p > 0:
        z = at_least(z, max(z) + log(use.min_p))
    return z


def nucleus(z: Sequence[float], top_p: float) -> float:
    """The largest value from which on the ids have a share of top_p."""
    largest = max(z)
    weights = Counter[float]()
    for value in z:
        weights[value] += exp(value - largest)  # type: ignore[assignment]  # floats add up as counts do
    goal, mass = top_p * sum(weights.values()), 0.0
    for value in sorted(weights, reverse=True):
        mass += weights[value]
        if mass >= goal:
            return value
    return min(z)


def at_least(z: Sequence[float], least: float) -> list[float]:
    """Drop what is below."""
    return [value if value >= least else -inf for value in z]
