"""Toy models of three ids with rational probabilities, drafters of every shape, and the exact distribution of what a cycle emits.

A model is a function from a prefix to three Fractions. A cycle of k drafts is enumerated: every drafted run, every number of accepted
drafts, every next token; what is left of k + 1 tokens then comes from the target. So the result has to be the target's own distribution
over sequences of k + 1 tokens, exactly. Uses decode/rules.py through its module, so that mutants are seen.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from fractions import Fraction as F
from itertools import product

from specdec_runtime.decode import rules

VOCAB = 3
Dist = tuple[F, ...]
Model = Callable[[tuple[int, ...]], Dist]
Law = dict[tuple[int, ...], F]


def dist(*parts: int) -> Dist:
    return tuple(F(part, sum(parts)) for part in parts)


def fixed(*parts: int) -> Model:
    return lambda prefix: dist(*parts)


def by_prefix(prefix: tuple[int, ...]) -> Dist:
    """A target that depends on all tokens before."""
    mixed = 1 + sum((i + 2) * (token + 1) for i, token in enumerate(prefix))
    return dist(1 + mixed % 5, 1 + mixed % 3, 1 + mixed % 2)


def with_zeros(prefix: tuple[int, ...]) -> Dist:
    """A target that forbids one id, another one at each place."""
    banned = (len(prefix) + sum(prefix)) % VOCAB
    return dist(*(0 if token == banned else 1 + (token + len(prefix)) % 3 for token in range(VOCAB)))


TARGETS: dict[str, Model] = {
    "fixed": fixed(1, 6, 3),
    "two": fixed(1, 2, 0),
    "by_prefix": by_prefix,
    "with_zeros": with_zeros,
}


def point(token_of: Callable[[tuple[int, ...]], int]) -> Model:
    return lambda prefix: tuple(F(part) for part in rules.point_mass(token_of(prefix), VOCAB))


def _mixture(prefix: tuple[int, ...]) -> Dist:
    """An n-gram's guess half of the time, else a draw."""
    guess, drawn = rules.point_mass((len(prefix) + 1) % VOCAB, VOCAB), dist(5, 3, 2)
    return tuple(F(a + b) / 2 for a, b in zip(guess, drawn, strict=True))


def only(kept: Sequence[int], model: Model) -> Model:
    """F6: masked and renormalised before the draw."""

    def masked(prefix: tuple[int, ...]) -> Dist:
        weights = [part if token in kept else F(0) for token, part in enumerate(model(prefix))]
        return tuple(part / sum(weights) for part in weights)

    return masked


def _rotated(prefix: tuple[int, ...]) -> Dist:
    """Depends on the prefix, in another way than the target."""
    parts = (4, 2, 1)
    turn = (2 * len(prefix) + sum(prefix)) % VOCAB
    return dist(*parts[turn:], *parts[:turn])


DRAFTERS: dict[str, Model] = {
    "independent": fixed(5, 3, 2),
    "reversed": fixed(2, 1, 0),
    "point": point(lambda prefix: 0),
    "ngram": point(lambda prefix: (sum(prefix) + len(prefix)) % VOCAB),
    "mixture": _mixture,
    "subset": only((0, 2), fixed(5, 3, 2)),
    "by_prefix": _rotated,
    "target": by_prefix,
}


def argmax(row: Sequence[F]) -> int:
    """The lowest of the largest."""
    return max(range(len(row)), key=lambda token: (row[token], -token))


def target_law(target: Model, length: int) -> Law:
    law: Law = {(): F(1)}
    for _ in range(length):
        law = {(*run, y): part * p for run, part in law.items() for y, p in enumerate(target(run)) if p}
    return law


def bounds_of(mode: str) -> Callable:
    return rules.reject_bounds if mode == rules.REJECT else rules.block_bounds


def chance(bound: rules.Bound) -> F:
    """Of a uniform in [0, 1) to be below."""
    if bound.over <= 0:
        return F(int(bound.under > 0))
    return min(F(1), max(F(0), F(bound.under) / F(bound.over)))


def counts(mode: str, bounds: Sequence[rules.Bound]) -> list[F]:
    """The chance of each number of accepted drafts: the counting functions, asked with every pattern of uniforms."""
    count = rules.reject_count if mode == rules.REJECT else rules.block_count
    found = [F(0)] * (len(bounds) + 1)
    chances = [chance(bound) for bound in bounds]
    sure = [rules.Bound(1, 1)] * len(bounds)  # u 0 stands, u 1 does not
    for pattern in product((0, 1), repeat=len(bounds)):
        part = F(1)
        for fails, c in zip(pattern, chances, strict=True):
            part *= 1 - c if fails else c
        found[count(sure, pattern)] += part
    return found


def cycle_law(mode: str, target: Model, draft: Model, k: int, verified: Model | None = None) -> tuple[Law, F]:
    """(the law of k + 1 tokens after one cycle, the mean number of accepted drafts). verified: the q that the rule is told,
    where a mutant lies about it."""
    law: Law = defaultdict(F)
    mean = F(0)
    for drafted in product(range(VOCAB), repeat=k):
        prefixes = [drafted[:i] for i in range(k + 1)]
        drawn = F(1)
        for prefix, token in zip(prefixes, drafted, strict=False):
            drawn *= draft(prefix)[token]
        if not drawn:
            continue
        p, q = (
            [target(prefix) for prefix in prefixes],
            [(verified or draft)(prefix) for prefix in prefixes[:k]],
        )
        for count, part in enumerate(counts(mode, bounds_of(mode)(p, q, drafted))):
            mean += drawn * part * count
            if part:
                _add_next(
                    law,
                    target,
                    drafted[:count],
                    drawn * part,
                    rules.draw_after(mode, p, q, drafted, count),
                    k,
                )
    return dict(law), mean


def _add_next(law: Law, target: Model, run: tuple[int, ...], part: F, drawn: rules.Next, k: int) -> None:
    total = sum(drawn.weights)
    for y, weight in enumerate(drawn.weights):
        if not weight:
            continue
        ends: Law = {(*run, y): part * F(weight) / total}
        while len(next(iter(ends))) < k + 1:
            ends = {(*end, z): one * p for end, one in ends.items() for z, p in enumerate(target(end)) if p}
        for end, one in ends.items():
            law[end] += one
