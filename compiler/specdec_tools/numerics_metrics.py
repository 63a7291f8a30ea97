"""Distances between rows of logits, and the bounds they must meet.

Knows no model and no text. Invariants: everything is computed in float64 from float32 logits; KL is KL(reference || other), in
nats; the top id is the lowest one on ties; a figure over no positions is None and meets no bound.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from specdec_runtime.faults import ContractError

MAX_MEAN_KL = 0.005
MAX_KL_RATIO = 1.1  # to llama.cpp's
CLEAR_MARGIN = 0.5  # logits between the reference's first and second
MIN_TOP1_CLEAR, MIN_TOP1_FOREIGN, MIN_TOP1_OWN = 0.995, 0.955, 0.98
MIN_FOREIGN, MIN_OWN = 2000, 1000  # positions of a full run

_ROWS_AT_ONCE = 64


@dataclass
class Distances:
    """One source's distances, position by position."""

    kl: list[np.ndarray] = field(default_factory=list)
    same: list[np.ndarray] = field(default_factory=list)

    def add(self, reference: np.ndarray, logits: np.ndarray) -> None:
        """Compare rows with the reference's."""
        if reference.shape != logits.shape:
            raise ContractError(f"rows of shape {logits.shape} for {reference.shape}", "numerics")
        self.kl.append(kl_divergence(reference, logits))
        self.same.append(np.argmax(reference, axis=1) == np.argmax(logits, axis=1))


def kl_divergence(reference: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """KL(softmax(reference) || softmax(logits)) of every row."""
    parts = []
    for at in range(0, len(reference), _ROWS_AT_ONCE):
        p, q = (_log_softmax(rows[at : at + _ROWS_AT_ONCE]) for rows in (reference, logits))
        parts.append(np.sum(np.exp(p) * (p - q), axis=1))
    return np.concatenate(parts) if parts else np.zeros(0)


def margins(reference: np.ndarray) -> np.ndarray:
    """First minus second logit of every row."""
    top = np.partition(reference.astype(np.float64), -2, axis=1)[:, -2:]
    return top[:, 1] - top[:, 0]


def figures(distances: Distances, chosen: np.ndarray) -> dict[str, float | None]:
    """Mean, 99th percentile and maximum of KL, and top-1 agreement, over the chosen positions (a mask)."""
    kl, same = np.concatenate(distances.kl)[chosen], np.concatenate(distances.same)[chosen]
    if not len(kl):
        return {"kl_mean": None, "kl_p99": None, "kl_max": None, "top1": None}
    return {
        "kl_mean": float(kl.mean()),
        "kl_p99": float(np.percentile(kl, 99)),
        "kl_max": float(kl.max()),
        "top1": float(same.mean()),
    }


def bound(name: str, value: float | None, limit: float, at_most: bool) -> dict[str, Any]:
    """One line of the verdict. No value, or NaN, does not pass."""
    ok = value is not None and bool(value <= limit if at_most else value >= limit)
    return {"name": name, "value": value, "limit": limit, "rule": "<=" if at_most else ">=", "ok": ok}


def _log_softmax(rows: np.ndarray) -> np.ndarray:
    x = rows.astype(np.float64)
    x -= x.max(axis=1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=1, keepdims=True))
