"""Every processor, in mode coupled and at temperature 0: the committed ids are the target's own, however they are drafted."""

from dataclasses import replace
from itertools import product
from unittest.mock import patch

import pytest
from exactness_suite import Case, check_case, expected_ids, run_case
from specdec_runtime.backends import scripted, scripted_sampling
from specdec_runtime.decode.programs import Programs
from specdec_runtime.decode.sampling import Sampling

SETTINGS = {
    "top-k": Sampling(1.0, seed=3, top_k=3),
    "top-p": Sampling(0.9, seed=4, top_p=0.7),
    "min-p": Sampling(1.2, seed=5, min_p=0.1),
    "repetition": Sampling(1.0, seed=6, repetition_penalty=1.5),
    "repetition, greedy": Sampling(repetition_penalty=1.5),
    "frequency": Sampling(1.0, seed=7, frequency_penalty=1.8),
    "presence, greedy": Sampling(presence_penalty=2.0, frequency_penalty=0.3),
    "banned pairs": Sampling(1.0, seed=8, bad_words=[[a, b] for a in range(5) for b in range(0, 6, 2)]),
    "banned, greedy": Sampling(bad_words=[[1], [2, 3, 4], *([a, a] for a in range(7))]),
    "least length": Sampling(1.0, seed=9, min_tokens=6),
    "least length, greedy": Sampling(min_tokens=5),
    "truncations at temperature 0": Sampling(top_k=2, top_p=0.1, min_p=0.9, presence_penalty=1.0),
    "everything": Sampling(
        0.8, "coupled", 10, 1.3, 0.2, 0.4, {1: 2.0, 5: -3.0}, [[0], [1, 2]], 4, 5, 0.9, 0.02, range(6)
    ),
}
BASE = Case(7, "model", 3, quality=80, max_tokens=16)


def cases() -> list[Case]:
    listed = []
    for sampling, drafter, k in product(SETTINGS.values(), ("off", "ngram", "model", "chain"), (1, 3, 7)):
        listed.append(replace(BASE, drafter=drafter, k=k, memory=2, sampling=sampling))
    for sampling, rounds in product(SETTINGS.values(), (2, 4)):
        listed.append(replace(BASE, rounds=rounds, steps=3, sampling=sampling))
        listed.append(replace(BASE, drafter="chain", rounds=rounds, prompt_len=1, sampling=sampling))
    for sampling, steps in product(SETTINGS.values(), (2, 8)):
        listed.append(replace(BASE, drafter="off", steps=steps, sampling=sampling))
    for verify, drafter in product(("any", "widest", "plain"), ("ngram", "model")):
        use = replace(
            BASE, drafter=drafter, programs=Programs(verify, False), sampling=SETTINGS["everything"]
        )
        listed.append(use)
    for name in ("least length", "least length, greedy", "everything"):
        for eos_ids in ((1, 3), (0, 1, 2, 4)):
            listed.append(replace(BASE, rounds=2, eos_ids=eos_ids, sampling=SETTINGS[name]))
    for submit, row in product(range(3, 6), range(3)):
        bad = ((submit, "target.filter_4", row),)
        listed.append(replace(BASE, not_finite=bad, sampling=SETTINGS["everything"]))
    return listed


CASES = cases()


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_ids_are_the_targets_own(case):
    check_case(case)


@pytest.mark.parametrize("name", [name for name in SETTINGS if "temperature 0" not in name])
def test_every_setting_acts(name):
    """Without it the answer differs: else the cases above show nothing."""
    eos_ids = (1, 3, 4, 6) if "length" in name else ()
    case = replace(BASE, eos_ids=eos_ids, memory=2, max_tokens=30, sampling=SETTINGS[name])
    other = replace(case, sampling=Sampling(SETTINGS[name].temperature, seed=SETTINGS[name].seed))
    seeds = range(6)
    assert any(run_case(replace(case, seed=i)).ids != run_case(replace(other, seed=i)).ids for i in seeds)


def test_truncations_change_nothing_at_temperature_0():
    penalized = replace(BASE, sampling=Sampling(presence_penalty=1.0))
    both = Sampling(presence_penalty=1.0, top_k=2, top_p=0.1, min_p=0.9)
    assert run_case(replace(BASE, sampling=both)).ids == expected_ids(penalized)


def wrong_rows(change):
    """Each row's processors see another history, or another row's place."""

    def filtered_id(logits, history, out_row, tensors):
        return scripted_sampling.filtered_id(logits, change(history, tensors), out_row, tensors)

    return patch.object(scripted, "filtered_id", filtered_id)


def committed_only(history, tensors):
    """Without the drafts of this pass: penalties and banned sequences see the committed tokens."""
    return history[: tensors["target.args"][0] + 1]


MUTANTS = [committed_only, lambda history, tensors: history[:-1], lambda history, tensors: history[1:]]


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_wrong_history_is_found(mutant):
    """By the noise of another position, or by other counts."""
    greedy = [
        case for case in CASES if case.sampling.temperature == 0 and case.k > 1 and case.drafter == "model"
    ]
    with wrong_rows(mutant):
        assert any(run_case(case).ids != expected_ids(case) for case in greedy)


def test_no_answer_ends_before_its_least_length():
    for seed in range(20):
        case = replace(BASE, seed=seed, eos_ids=(0, 1, 2, 4), sampling=Sampling(1.0, seed=seed, min_tokens=6))
        run = run_case(case)
        assert len(run.ids) >= 6 and not set(run.ids[:6]) & {0, 1, 2, 4}
