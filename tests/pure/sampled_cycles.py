"""Cycles of drafting and judging for a million seeds at once, at a vocabulary of three, with the production random numbers.

Both models look at the last token only. k drafts a cycle; a token that falls is drawn anew in the next cycle, at its position. What the
sampled law of the first LENGTH tokens must be is known exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from noise import draw, uniform
from specdec_runtime.decode import rng

VOCAB, LENGTH, FIRST = 3, 4, 1  # FIRST: the token before the answer
TARGET = np.array([[0.1, 0.6, 0.3], [0.5, 0.2, 0.3], [0.0, 0.75, 0.25]])
DRAFT = np.array([[0.5, 0.3, 0.2], [0.2, 0.2, 0.6], [0.4, 0.6, 0.0]])
START = 100  # position of the first token of the answer


@dataclass(frozen=True)
class Keys:
    """Which noise each draw has; mutants share some."""

    draft: int = rng.DRAFT
    accept: int = rng.ACCEPT
    residual: int = rng.RESIDUAL
    place: Callable = rng.cycle_position


def law() -> np.ndarray:
    """Of the first LENGTH tokens, flat."""
    found = np.zeros([VOCAB] * LENGTH)
    for run in np.ndindex(found.shape):
        before = (FIRST, *run)
        found[run] = np.prod([TARGET[a, b] for a, b in zip(before, run, strict=False)])
    return found.reshape(-1)


def counts(ids: np.ndarray) -> np.ndarray:
    codes = ids @ (VOCAB ** np.arange(ids.shape[1])[::-1])
    return np.bincount(codes, minlength=VOCAB ** ids.shape[1])


def plain(seeds: np.ndarray) -> np.ndarray:
    """The target alone: [seeds, LENGTH]."""
    last, ids = np.full(len(seeds), FIRST), []
    for i in range(LENGTH):
        last = draw(seeds, START + i, TARGET[last], rng.NOISE)
        ids.append(last)
    return np.stack(ids, axis=1)


def run(mode: str, seeds: np.ndarray, k: int, keys: Keys = Keys()) -> np.ndarray:
    """What cycles of a mode commit: [seeds, LENGTH], the surplus cut off."""
    ids = np.zeros((len(seeds), LENGTH + k + 1), np.int64)
    length, active = np.zeros(len(seeds), np.int64), np.arange(len(seeds))
    while len(active):
        emitted, number = cycle(
            mode, seeds[active], _last(ids, length, active), START + length[active], k, keys
        )
        for i in range(k + 1):
            rows = active[number > i]
            ids[rows, length[rows] + i] = emitted[number > i, i]
        length[active] += number
        active = active[length[active] < LENGTH]
    return ids[:, :LENGTH]


def _last(ids: np.ndarray, length: np.ndarray, active: np.ndarray) -> np.ndarray:
    return np.where(length[active] > 0, ids[active, np.maximum(length[active] - 1, 0)], FIRST)


def cycle(mode: str, seeds: np.ndarray, last: np.ndarray, start: np.ndarray, k: int, keys: Keys):
    """(ids [seeds, k + 1], how many of them are committed)."""
    before, drafted = [last], []
    for i in range(k):
        drafted.append(draw(seeds, keys.place(start + i, i), DRAFT[before[-1]], keys.draft))
        before.append(drafted[-1])
    p, q = [TARGET[each] for each in before], [DRAFT[each] for each in before[:k]]
    u = [uniform(seeds, keys.place(start + i, i), keys.accept) for i in range(k)]
    judged = {"reject": _reject, "block": _block}[mode](p, q, drafted, u)
    every = np.arange(len(seeds))
    accepted, weight = judged
    p_next = np.stack(p)[accepted, every]
    q_next = np.stack([*q, np.zeros_like(q[0])])[accepted, every]
    left = np.maximum(weight[:, None] * p_next - q_next, 0)
    following = draw(seeds, keys.place(start + accepted, accepted), left, keys.residual)
    ids = np.stack([*drafted, following], axis=1)
    ids[every, accepted] = following
    return ids, accepted + 1


def _at(row: np.ndarray, token: np.ndarray) -> np.ndarray:
    return row[np.arange(len(token)), token]


def _reject(p, q, drafted, u):
    stands, accepted = np.ones(len(u[0]), bool), np.zeros(len(u[0]), np.int64)
    for i, x in enumerate(drafted):
        stands &= u[i] * _at(q[i], x) < _at(p[i], x)
        accepted += stands
    return accepted, np.ones(len(accepted))


def _block(p, q, drafted, u):
    k, accepted = len(drafted), np.zeros(len(u[0]), np.int64)
    w, weight = [np.ones(len(accepted))], np.ones(len(accepted))
    for i, x in enumerate(drafted):
        w.append(np.minimum(1, w[-1] * _at(p[i], x) / _at(q[i], x)))
        h = w[-1]
        if i + 1 < k:
            mass = np.maximum(w[-1][:, None] * p[i + 1] - q[i + 1], 0).sum(axis=1)
            h = np.where(h == 1, 1, mass / np.where(h == 1, 1, mass + 1 - h))
        stands = u[i] < h
        accepted = np.where(stands, i + 1, accepted)
        weight = np.where(stands, w[-1], weight)
    return accepted, np.where(accepted == k, 1, weight)
