"""Mutants of modes `reject` and `block` in the decode core and in a device's judge: the suite with a second opinion notices each."""

from __future__ import annotations

import pytest
from judged_suite import run_judged_suite
from specdec_runtime.backends import scripted, scripted_sampling
from specdec_runtime.backends.scripted import ScriptedBackend
from specdec_runtime.decode import round as round_file
from specdec_runtime.decode.cache import ModelCache
from specdec_runtime.decode.rng import DRAFT, NOISE
from specdec_runtime.decode.sampling_state import SamplingState
from specdec_runtime.decode.state import Generation
from specdec_runtime.decode.verify import Verdict, accept_judged
from specdec_runtime.drafters import draft_model
from specdec_runtime.drafters.draft_model import ModelDrafter
from specdec_runtime.faults import SpecdecError

MUTANTS = {}


def mutant(function):
    MUTANTS[function.__name__] = function
    return function


def judge_with(patch, change) -> None:
    """The device's judge, given other arguments."""
    honest = scripted_sampling.judged
    patch.setattr(scripted, "judged", lambda tensors, start, p, q: honest(*change(tensors, start, p, q)))


@mutant
def target_rows_shifted_by_one(patch):
    judge_with(patch, lambda tensors, start, p, q: (tensors, start, [*p[1:], p[-1]], q))


@mutant
def draft_rows_shifted_by_one(patch):
    judge_with(patch, lambda tensors, start, p, q: (tensors, start, p, [*q[1:], *q[-1:]]))


@mutant
def positions_shifted_by_one(patch):
    judge_with(patch, lambda tensors, start, p, q: (tensors, start + 1, p, q))


@mutant
def q_is_not_what_was_drawn_from(patch):
    def flat(row):
        return row and [1 / len(row)] * len(row)

    judge_with(patch, lambda tensors, start, p, q: (tensors, start, p, [flat(row) for row in q]))


@mutant
def q_of_the_cycle_before(patch):
    honest = ScriptedBackend._keep

    def keep(self, lane, finite):
        if lane.tensor("args")[0] % 3:
            honest(self, lane, finite)
        else:
            self._q.setdefault(len(lane.prefixes[-1]) - self.tensors["target.args"][0] - 1, None)

    patch.setattr(ScriptedBackend, "_keep", keep)


@mutant
def a_round_reads_the_verdict_of_the_first(patch):
    honest = round_file.accept_judged
    seen = []

    def accept(drafted, row):
        seen.append(row)
        return honest(drafted, seen[0] if seen[0][0] <= len(drafted) else row)

    patch.setattr(round_file, "accept_judged", accept)


@mutant
def one_accepted_too_few(patch):
    def accept(drafted, row):
        found = accept_judged(drafted, row)
        return Verdict(max(0, found.num_accepted - 1), found.next_id)

    patch.setattr(round_file, "accept_judged", accept)


@mutant
def next_dropped_after_full_acceptance(patch):
    def accept(drafted, row):
        found = accept_judged(drafted, row)
        return Verdict(found.num_accepted, 0 if found.num_accepted == len(drafted) else found.next_id)

    patch.setattr(round_file, "accept_judged", accept)


@mutant
def judged_by_equality(patch):
    """A drawn draft is compared with the target's own draw, as in coupled mode: lossless, but another seed's answer."""
    patch.setattr(Generation, "judges", lambda self, proposal: False)


@mutant
def block_by_the_rule_of_reject(patch):
    patch.setattr(scripted_sampling, "BLOCK_RULE", 0)


@mutant
def draft_draws_with_the_targets_noise(patch):
    patch.setattr(scripted, "DRAFT", NOISE)


@mutant
def residual_draws_with_the_drafts_noise(patch):
    patch.setattr(scripted_sampling, "RESIDUAL", DRAFT)


@mutant
def drawn_anew_with_the_same_noise(patch):
    patch.setattr(scripted_sampling, "cycle_position", lambda position, offset: position)


@mutant
def points_are_judged_as_drawn(patch):
    """An n-gram's draft has no q: its round must not be judged by what a row of q happens to hold."""
    patch.setattr(
        Generation, "judges", lambda self, proposal: self.draft_kind == "draw" and proposal is not None
    )


@mutant
def further_rounds_follow_equality(patch):
    patch.setitem(draft_model.GOING_ON, "draw", "draft.accept")


@mutant
def temperature_is_never_written(patch):
    patch.setattr(SamplingState, "writes", lambda self: [])


@mutant
def rollback_one_too_few(patch):
    rollback = ModelCache.rollback
    patch.setattr(
        ModelCache, "rollback", lambda self, to: rollback(self, to + (self.model.role == "draft" and to > 0))
    )


@mutant
def draft_never_rolled_back(patch):
    def observe(self, outcome):
        if self._num_appended:
            self._cache.landed(self._num_appended)
            self._num_appended = 0

    patch.setattr(ModelDrafter, "observe", observe)


@mutant
def fallbacks_are_not_told(patch):
    """The books: what fell back must be counted."""
    honest = scripted_sampling.draw_after

    def draw_after(mode, p, q, drafted, count):
        return honest(mode, p, q, drafted, count)._replace(fell_back=True)

    patch.setattr(scripted_sampling, "draw_after", draw_after)


def test_the_suite_passes_unharmed() -> None:
    run_judged_suite()


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_mutant_is_killed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[name](monkeypatch)
    with pytest.raises((AssertionError, SpecdecError, KeyError, IndexError, ValueError, TypeError)):
        run_judged_suite()
