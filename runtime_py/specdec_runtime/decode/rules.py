"""The accept rules of `reject` and `block`, and the chance of an accept under `coupled`: probabilities in, probabilities out.

Pure arithmetic: numbers may be Fractions (tests enumerate with them) or floats (the scripted backend). p[i] is the target's
distribution after i drafts, q[i] the one that draft i was REALLY drawn from, both over all ids of the target; a draft that was
not drawn (n-gram, argmax, forced) has the q of a point mass. Know no random stream and no device (kernels/judge.py computes the
same there). Invariants: a draft stands by strict comparison of products, never of a ratio; an id of p 0 is never emitted; rows
after the last one a rule needs are not looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

Row = Sequence[Any]
Rows = Sequence[Row]
REJECT, BLOCK = "reject", "block"


class Bound(NamedTuple):
    """A uniform u in [0, 1) is under it where u * over < under."""

    under: Any
    over: Any


class Next(NamedTuple):
    """What the next token is drawn from, not normalised."""

    weights: list[Any]
    fell_back: bool  # the residual's sum was no positive finite number: p itself


class Judgement(NamedTuple):
    """The first num_accepted drafts stand; then comes a draw from next."""

    num_accepted: int
    next: Next


def point_mass(token_id: int, vocab_size: int) -> list[int]:
    """The q of a draft that was not drawn."""
    return [int(v == token_id) for v in range(vocab_size)]


def below(u: Any, bound: Bound) -> bool:
    return u * bound.over < bound.under


def residual(p: Row, q: Row, weight: Any = 1) -> list[Any]:
    """[weight * p - q]+, not normalised."""
    return [max(weight * a - b, 0) for a, b in zip(p, q, strict=True)]


def reject_bounds(p: Rows, q: Rows, drafted: Sequence[int]) -> list[Bound]:
    """F1, one a draft: it stands where u * q(x) < p(x)."""
    return [Bound(p[i][x], q[i][x]) for i, x in enumerate(drafted)]


def reject_count(bounds: Sequence[Bound], uniforms: Sequence[Any]) -> int:
    """Drafts before the first that does not stand."""
    for i, bound in enumerate(bounds):
        if not below(uniforms[i], bound):
            return i
    return len(bounds)


def block_weights(p: Rows, q: Rows, drafted: Sequence[int]) -> list[Any]:
    """F9: w_0 = 1 .. w_k, the running product of the ratios, never above 1."""
    weights: list[Any] = [1]
    for i, x in enumerate(drafted):
        reached = weights[-1] * p[i][x]
        weights.append(1 if reached >= q[i][x] and reached > 0 else reached / q[i][x] if reached > 0 else 0)
    return weights


def block_bounds(p: Rows, q: Rows, drafted: Sequence[int]) -> list[Bound]:
    """h_1 .. h_k as (under, over)."""
    weights, num = block_weights(p, q, drafted), len(drafted)
    bounds = [block_bound(weights[i], sum(residual(p[i], q[i], weights[i]))) for i in range(1, num)]
    return [*bounds, Bound(weights[num], 1)] if num else []


def block_bound(weight: Any, mass: Any) -> Bound:
    """h_i of a draft before the last; mass: s_i, of the residual after it. At weight 1 it is 1, also where both are 0."""
    return Bound(1, 1) if weight == 1 else Bound(mass, mass + 1 - weight)


def block_count(bounds: Sequence[Bound], uniforms: Sequence[Any]) -> int:
    """The most drafts whose uniform is under the bound, whatever those before them say."""
    for i in range(len(bounds), 0, -1):
        if below(uniforms[i - 1], bounds[i - 1]):
            return i
    return 0


def next_draw(p: Row, q: Row | None, weight: Any = 1) -> Next:
    """What follows the last accepted draft: p where there was no draft after it (q None), else the residual (F2)."""
    if q is None:
        return Next(list(p), False)
    weights = residual(p, q, weight)
    total = sum(weights)
    if not 0 < total < float("inf"):
        return Next(list(p), True)
    return Next(weights, False)


def judge(mode: str, p: Rows, q: Rows, drafted: Sequence[int], uniforms: Sequence[Any]) -> Judgement:
    """p has a row more than q, drafted and uniforms."""
    if mode == REJECT:
        count = reject_count(reject_bounds(p, q, drafted), uniforms)
        return Judgement(count, draw_after(mode, p, q, drafted, count))
    count = block_count(block_bounds(p, q, drafted), uniforms)
    return Judgement(count, draw_after(mode, p, q, drafted, count))


def draw_after(mode: str, p: Rows, q: Rows, drafted: Sequence[int], count: int) -> Next:
    """The draw that follows `count` accepted drafts."""
    if count == len(drafted):
        return next_draw(p[count], None)
    weight = block_weights(p, q, drafted[:count])[count] if mode == BLOCK else 1
    return next_draw(p[count], q[count], weight)


def coupled_chance(p: Row, q: Row) -> Any:
    """F8: how likely argmax(log q + G) and argmax(log p + G) are the same id, with the same G in both."""
    total: Any = 0
    for a, b in zip(p, q, strict=True):
        if a > 0 and b > 0:
            total += 1 / sum(max(each / a, other / b) for each, other in zip(p, q, strict=True))
    return total
