"""The accept rules against exact enumeration on toy models, and the test vectors of the rules by name."""

from __future__ import annotations

from fractions import Fraction as F

import pytest
from specdec_runtime.decode import rules
from toys import DRAFTERS, TARGETS, VOCAB, argmax, chance, cycle_law, dist, fixed, point, target_law

MODES = (rules.REJECT, rules.BLOCK)


@pytest.mark.parametrize("k", (1, 2, 3))
@pytest.mark.parametrize("mode", MODES)
def test_a_cycle_emits_the_targets_distribution(mode: str, k: int) -> None:
    for target in TARGETS.values():
        wanted = target_law(target, k + 1)
        for draft in DRAFTERS.values():
            found, _ = cycle_law(mode, target, draft, k)
            assert found == wanted


def test_block_accepts_no_less_than_reject() -> None:
    more = 0
    for target in TARGETS.values():
        for draft in DRAFTERS.values():
            by_token, by_block = (cycle_law(mode, target, draft, 3)[1] for mode in MODES)
            assert by_block >= by_token
            more += by_block > by_token
    assert more


def test_a_point_mass_is_accepted_like_the_targets_own_draw() -> None:
    """Why a draft that was not drawn needs no judge: a draw from p that is compared with it has the law of F3, and of F9."""
    for target in TARGETS.values():
        for draft in (
            DRAFTERS["point"],
            DRAFTERS["ngram"],
            point(lambda prefix: argmax(TARGETS["fixed"](prefix))),
        ):
            mean, stands, prefix = F(0), F(1), ()
            for _ in range(3):
                x = argmax(draft(prefix))
                stands *= target(prefix)[x]
                mean += stands
                prefix = (*prefix, x)
            assert [cycle_law(mode, target, draft, 3)[1] for mode in MODES] == [mean, mean]


def test_min_and_residual_make_p() -> None:
    """F2: min(p, q)(y) + tv * r(y) = p(y)."""
    p, q = dist(1, 6, 3), dist(5, 3, 2)
    left = rules.residual(p, q)
    assert [min(a, b) + r for a, b, r in zip(p, q, left, strict=True)] == list(p)
    assert sum(left) == sum(abs(a - b) for a, b in zip(p, q, strict=True)) / 2


def test_u_0_does_not_accept_what_p_forbids() -> None:
    assert rules.reject_count(rules.reject_bounds([dist(0, 1, 0)], [dist(1, 1, 0)], [0]), [0]) == 0
    assert (
        rules.block_count(rules.block_bounds([dist(0, 1, 0)] * 2, [dist(1, 1, 0)] * 2, [0, 0]), [0, 0]) == 0
    )


def test_a_tiny_q_is_not_accepted_outright() -> None:
    tiny = (F(1, 10**12), 1 - F(1, 10**12), F(0))
    for bounds in (rules.reject_bounds, rules.block_bounds):
        assert chance(bounds([dist(0, 1, 1)], [tiny], [0])[0]) == 0


def test_a_residual_of_1e_9_is_still_drawn_from() -> None:
    tiny = F(1, 10**9)
    p, q = (F(1, 2) + tiny, F(1, 2) - tiny, F(0)), dist(1, 1, 0)
    assert rules.next_draw(p, q) == rules.Next([tiny, 0, 0], False)


def test_only_an_empty_residual_falls_back_to_p_and_says_so() -> None:
    p = dist(1, 6, 3)
    assert rules.next_draw(p, p) == rules.Next(list(p), True)
    assert rules.next_draw([float("nan")] * 3, p).fell_back


def test_rows_after_the_first_rejected_are_not_looked_at() -> None:
    class Untouchable:
        def __getitem__(self, index):
            raise AssertionError("read")

    p, q = [dist(0, 1, 1), Untouchable(), Untouchable()], [dist(1, 1, 1), dist(1, 1, 1)]
    judged = rules.judge(rules.REJECT, [p[0], dist(1, 1, 1), dist(1, 1, 1)], q, [0, 1], [F(1, 2)] * 2)
    assert judged == rules.Judgement(0, rules.Next([0, F(1, 6), F(1, 6)], False))
    assert rules.draw_after(rules.REJECT, p, q, [0, 1], 0) == judged.next
    assert rules.draw_after(rules.BLOCK, p, q, [0, 1], 0) == judged.next


def test_floats_and_fractions_agree() -> None:
    p, q = [dist(1, 6, 3), dist(2, 2, 1), dist(1, 1, 1)], [dist(5, 3, 2), dist(1, 3, 3)]
    floats = [[float(part) for part in row] for row in p], [[float(part) for part in row] for row in q]
    for mode in MODES:
        for u in range(16):
            exact = rules.judge(mode, p, q, [1, 2], [F(u, 16), F(15 - u, 16)])
            rough = rules.judge(mode, *floats, [1, 2], [u / 16, (15 - u) / 16])
            assert rough.num_accepted == exact.num_accepted
            assert rough.next.weights == pytest.approx([float(one) for one in exact.next.weights])


# --- the vectors --------------------------------------------------------------------------------------------------------


def test_vector_a_draft_dropped_for_its_own_q_is_biased() -> None:
    """p = q = (.5, .3, .2), "drop if q < .25", sampled fresh: (.60, .36, .04), not p."""
    p = dist(5, 3, 2)
    dropped = sum(q for q in p if q < F(1, 4))
    wrong = [(q if q >= F(1, 4) else 0) + dropped * one for q, one in zip(p, p, strict=True)]
    assert (
        wrong == [F(60, 100), F(36, 100), F(4, 100)]
        and cycle_law(rules.REJECT, fixed(5, 3, 2), fixed(5, 3, 2), 1)[1] == 1
    )


def test_vector_an_illegal_draft_cut_and_sampled_fresh_is_biased() -> None:
    """p = (.6, .4, 0), q = (.2, .3, .5): cut the illegal third, draw from p instead: (.5, .5, 0)."""
    p, q = dist(6, 4, 0), dist(2, 3, 5)
    accepted = [min(a, b) for a, b in zip(p, q, strict=True)]
    left = rules.next_draw(p, q).weights
    rejected = sum(b - a for a, b in zip(accepted[:2], q[:2], strict=True))
    wrong = [a + q[2] * b + rejected * c / sum(left) for a, b, c in zip(accepted, p, left, strict=True)]
    assert wrong == [F(1, 2), F(1, 2), 0]
    assert cycle_law(rules.REJECT, fixed(6, 4, 0), fixed(2, 3, 5), 1)[0] == target_law(fixed(6, 4, 0), 2)


def test_vector_the_couplings_chance() -> None:
    """p = (.1, .6, .3), q = (.5, .3, .2): .5818; bound .4286, optimum .6."""
    p, q = dist(1, 6, 3), dist(5, 3, 2)
    tv = sum(rules.residual(p, q))
    assert rules.coupled_chance(p, q) == F(32, 55) and round(float(F(32, 55)), 4) == 0.5818
    assert (1 - tv, (1 - tv) / (1 + tv)) == (F(3, 5), F(3, 7))
    assert cycle_law(rules.REJECT, fixed(1, 6, 3), fixed(5, 3, 2), 1)[1] == F(3, 5)


def test_vector_block_accepts_11_ninths() -> None:
    target, draft = fixed(1, 2), fixed(2, 1)
    target3, draft3 = (lambda prefix: (*target(prefix), F(0))), (lambda prefix: (*draft(prefix), F(0)))
    means = [cycle_law(mode, target3, draft3, 2)[1] for mode in MODES]
    assert means == [F(10, 9), F(11, 9)]


def test_vector_tokens_a_cycle() -> None:
    """E[N] at independent rows: alpha .8, k 4: 3.3616; alpha .6, k 3: 2.176."""
    p = dist(1, 6, 3)
    for alpha, k, wanted in ((F(8, 10), 4, F("3.3616")), (F(6, 10), 3, F("2.176"))):
        q = (p[0] + 1 - alpha, p[1] - (1 - alpha), p[2])  # tv = 1 - alpha
        bounds = rules.reject_bounds([p], [q], [0])
        assert chance(bounds[0]) == min(1, p[0] / q[0])
        alpha_found = sum(q[x] * chance(rules.reject_bounds([p], [q], [x])[0]) for x in range(VOCAB))
        assert sum(alpha_found**i for i in range(k + 1)) == wanted


def test_coupled_chance_is_between_its_bounds() -> None:
    for target in TARGETS.values():
        for draft in DRAFTERS.values():
            p, q = target(()), draft(())
            tv = sum(rules.residual(p, q))
            assert (1 - tv) / (1 + tv) <= rules.coupled_chance(p, q) <= 1 - tv
    assert rules.coupled_chance(dist(1, 6, 3), dist(1, 6, 3)) == 1
