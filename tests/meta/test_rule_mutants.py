"""Every mutant of the accept rules must change what the exact enumeration, or a named vector, finds."""

from __future__ import annotations

import inspect
from fractions import Fraction as F

import pytest
import test_rules
import toys
from specdec_runtime.decode import rules

MUTANTS = {}
EPSILON = F(1, 10**6)


def mutant(function):
    MUTANTS[function.__name__] = function
    return function


def suite() -> None:
    """Every test of the rules, once for each of its parameters."""
    for name, test in vars(test_rules).items():
        if not name.startswith("test_"):
            continue
        marked = bool(inspect.signature(test).parameters)
        for arguments in [(mode, 2) for mode in test_rules.MODES] if marked else [()]:
            test(*arguments)


def reject_bounds_by(under, over):
    return lambda p, q, drafted: [rules.Bound(under(p[i][x]), over(q[i][x])) for i, x in enumerate(drafted)]


@mutant
def q_plus_an_epsilon(patch):
    patch.setattr(rules, "reject_bounds", reject_bounds_by(lambda p: p, lambda q: q + EPSILON))


@mutant
def a_tiny_q_is_accepted_outright(patch):
    patch.setattr(
        rules, "reject_bounds",
        lambda p, q, d: [rules.Bound(1, 1) if q[i][x] < EPSILON else rules.Bound(p[i][x], q[i][x]) for i, x in enumerate(d)],
    )  # fmt: skip


@mutant
def not_strict(patch):
    patch.setattr(rules, "below", lambda u, bound: u * bound.over <= bound.under)


@mutant
def full_p_after_a_rejection(patch):
    patch.setattr(rules, "next_draw", lambda p, q, weight=1: rules.Next(list(p), False))


@mutant
def q_after_a_rejection(patch):
    patch.setattr(rules, "next_draw", lambda p, q, weight=1: rules.Next(list(p if q is None else q), False))


@mutant
def residual_dropped_when_small(patch):
    honest = rules.next_draw

    def next_draw(p, q, weight=1):
        found = honest(p, q, weight)
        return found if sum(found.weights) > 1e-7 else rules.Next(list(p), True)

    patch.setattr(rules, "next_draw", next_draw)


@mutant
def residual_without_its_floor(patch):
    patch.setattr(
        rules, "residual", lambda p, q, weight=1: [abs(weight * a - b) for a, b in zip(p, q, strict=True)]
    )


@mutant
def rows_shifted_by_one(patch):
    honest = rules.draw_after
    patch.setattr(
        rules, "draw_after",
        lambda mode, p, q, d, count: honest(mode, [*p[1:], p[-1]], q, d, count),
    )  # fmt: skip


@mutant
def rollback_off_by_one(patch):
    """One accepted draft too few is kept, and what followed it comes next."""
    honest = rules.draw_after

    def draw_after(mode, p, q, drafted, count):
        return honest(mode, p, q, drafted, max(0, count - 1))

    patch.setattr(rules, "draw_after", draw_after)


@mutant
def one_accepted_too_many(patch):
    honest = rules.reject_count
    patch.setattr(rules, "reject_count", lambda bounds, us: min(len(bounds), honest(bounds, us) + 1))


@mutant
def bonus_from_the_last_residual(patch):
    honest = rules.draw_after

    def draw_after(mode, p, q, drafted, count):
        return (
            rules.next_draw(p[count], q[count - 1])
            if count == len(drafted)
            else honest(mode, p, q, drafted, count)
        )

    patch.setattr(rules, "draw_after", draw_after)


@mutant
def block_counts_to_the_first_failure(patch):
    patch.setattr(rules, "block_count", rules.reject_count)


@mutant
def block_h_of_the_row_before(patch):
    honest = rules.block_bound

    def block_bounds(p, q, drafted):
        weights, num = rules.block_weights(p, q, drafted), len(drafted)
        masses = [sum(rules.residual(p[i - 1], q[i - 1], weights[i])) for i in range(1, num)]
        return [*(honest(weights[i], masses[i - 1]) for i in range(1, num)), rules.Bound(weights[num], 1)]

    patch.setattr(rules, "block_bounds", block_bounds)


@mutant
def block_h_with_the_weight_after(patch):
    def block_bounds(p, q, drafted):
        weights, num = rules.block_weights(p, q, drafted), len(drafted)
        bounds = [
            rules.block_bound(weights[i + 1], sum(rules.residual(p[i], q[i], weights[i])))
            for i in range(1, num)
        ]
        return [*bounds, rules.Bound(weights[num], 1)]

    patch.setattr(rules, "block_bounds", block_bounds)


@mutant
def block_last_h_like_the_others(patch):
    def block_bounds(p, q, drafted):
        weights, num = rules.block_weights(p, q, drafted), len(drafted)
        return [rules.block_bound(weights[i], sum(p[i]) * weights[i]) for i in range(1, num + 1)]

    patch.setattr(rules, "block_bounds", block_bounds)


@mutant
def block_weights_above_1(patch):
    def block_weights(p, q, drafted):
        weights = [F(1)]
        for i, x in enumerate(drafted):
            weights.append(weights[-1] * F(p[i][x]) / F(q[i][x]))
        return weights

    patch.setattr(rules, "block_weights", block_weights)


@mutant
def block_weights_not_multiplied(patch):
    def block_weights(p, q, drafted):
        return [F(1), *(min(F(1), F(p[i][x]) / F(q[i][x])) for i, x in enumerate(drafted))]

    patch.setattr(rules, "block_weights", block_weights)


@mutant
def block_residual_without_its_weight(patch):
    honest = rules.draw_after
    patch.setattr(
        rules, "draw_after", lambda mode, p, q, d, count: honest(rules.REJECT, p, q, d, count)
    )  # fmt: skip


@mutant
def argmax_draft_verified_with_its_full_q(patch):
    """The drafter takes the argmax of a table; the rule is told the table."""
    for mode in toys.DRAFTERS, test_rules.DRAFTERS:
        patch.setitem(mode, "point", toys.fixed(5, 3, 2))
    _lie(patch, toys.point(lambda prefix: 0), toys.fixed(5, 3, 2))


@mutant
def subset_unmasked(patch):
    """The drafter draws from a subset, renormalised; the rule is told the q before the mask."""
    _lie(patch, toys.only((0, 2), toys.fixed(5, 3, 2)), toys.fixed(5, 3, 2))


@mutant
def subset_not_renormalised(patch):
    """Masked after the draw: an id outside becomes id 0."""
    full = toys.fixed(5, 3, 2)

    def drawn(prefix):
        a, b, c = full(prefix)
        return (a + b, F(0), c)

    _lie(patch, drawn, toys.only((0, 2), full))


@mutant
def temperature_of_q_forgotten(patch):
    _lie(patch, toys.fixed(25, 9, 4), toys.fixed(5, 3, 2))


def _lie(patch, drawn, told) -> None:
    honest = toys.cycle_law

    def cycle_law(mode, target, draft, k):
        return honest(mode, target, drawn, k, verified=told)

    patch.setattr(test_rules, "cycle_law", cycle_law)


@mutant
def a_drawn_token_is_dropped_for_its_value(patch):
    """F10: where the draft's q is under a quarter, the cycle forgets it and draws from p."""
    honest = toys.cycle_law

    def cycle_law(mode, target, draft, k):
        law, mean = honest(mode, target, draft, k)
        if k != 2:
            return law, mean
        found = {}
        wanted = toys.target_law(target, k + 1)
        dropped = sum(one for one in draft(()) if one < F(1, 4))
        for run in wanted:  # kept runs as they are, those of a dropped first draft anew
            first = draft(())[run[0]]
            found[run] = (law[run] if first >= F(1, 4) else 0) + dropped * wanted[run]
        return found, mean

    patch.setattr(test_rules, "cycle_law", cycle_law)


@mutant
def coupling_over_one_side_only(patch):
    patch.setattr(rules, "coupled_chance", lambda p, q: sum(min(a, b) for a, b in zip(p, q, strict=True)))


def test_the_suite_passes_unharmed() -> None:
    suite()


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_mutant_is_killed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[name](monkeypatch)
    with pytest.raises((AssertionError, ZeroDivisionError, IndexError, TypeError)):
        suite()
