"""Every mutant of a grammar's round must be noticed: by another answer, by other counts, or by a refusal of the machinery's own."""

import pytest
from specdec_runtime.decode import grammar
from specdec_runtime.decode.constrain import Constraint
from specdec_runtime.decode.sampling import Sampling
from specdec_runtime.drafters.draft_model import ModelDrafter
from specdec_runtime.faults import SpecdecError
from specdec_runtime.masks import Masks
from test_constrain import PROMPT, SIZES, run, test_the_draft_model_is_fed_what_was_committed
from toy_grammar import ToyMatcher, defined, seeded_grammar


def suite():
    for seed in range(12):
        for drafter, k in (("off", 3), ("model", 3), ("chain", 7)):
            allowed, sampling = seeded_grammar(seed, 40), Sampling(temperature=seed % 2, seed=seed)
            found, _ = run(seed, allowed, drafter, k, percent=70, sampling=sampling)
            assert found.ids == defined(seed, allowed, PROMPT, 20, SIZES["max_context"], sampling)
            counts = found.result["speculation"]
            assert counts["num_accepted"] >= counts["num_forced_accepted"]
    found, _ = run(3, seeded_grammar(3, 100), k=4)
    assert found.result["speculation"]["num_forced_accepted"] == 8
    test_the_draft_model_is_fed_what_was_committed()


def rows_shifted_by_one(patch):
    real = Masks.walk

    def walk(self, asked):
        walked = real(self, asked)
        self._rows = [*self._rows[1:], self._rows[0]]
        return walked

    patch.setattr(Masks, "walk", walk)


def no_rollback(patch):
    patch.setattr(ToyMatcher, "rollback", lambda self, num_ids: None)


def committed_ids_are_not_told(patch):
    real = Constraint.asked
    patch.setattr(Constraint, "asked", lambda self, *rest: real(self, *rest)._replace(accepted=[]))


def nothing_is_forced(patch):
    patch.setattr(grammar, "only_id", lambda words: None)


def a_guess_stays_in_the_drafts_kv(patch):
    patch.setattr(ModelDrafter, "_num_right", lambda self: len(self._sequence))


MUTANTS = [
    rows_shifted_by_one,
    no_rollback,
    committed_ids_are_not_told,
    nothing_is_forced,
    a_guess_stays_in_the_drafts_kv,
]


def test_the_suite_passes():
    suite()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_mutants_are_killed(mutant, monkeypatch):
    mutant(monkeypatch)
    with pytest.raises((AssertionError, SpecdecError)):
        suite()
