"""Promise of mode coupled: with any drafter, k, rounds and schedule the committed ids are those the target alone samples."""

from collections import Counter
from dataclasses import replace

import pytest
from exactness_suite import Case, check_case, expected_ids, models, plan_of, prompt_of, run_case
from sampled_suite import TURNS, check_failed_submits, check_turns, suite
from simulate import generate
from specdec_runtime.backends.scripted import ScriptedBackend
from specdec_runtime.decode.sampling import Sampling
from specdec_runtime.decode.sampling_state import Bias, Held, bias_writes, ints_of
from specdec_runtime.faults import DeviceFault
from specdec_runtime.plan.sampling_layout import BAN

CASES = suite()
CASE = Case(5, "model", 3, 90, sampling=Sampling(temperature=0.9, seed=4))


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_suite(case):
    check_case(case)


def test_the_suite_reaches_what_it_is_for():
    """Drafts that are sampled fall and stand; seeds and temperatures change answers; noise is used."""
    shares = Counter()
    for case in CASES[:108]:
        counts = run_case(case).result["speculation"]
        if case.drafter == "model":
            shares["stand"] += counts["num_accepted"]
            shares["fall"] += counts["num_evaluated"] - counts["num_accepted"]
    assert min(shares["stand"], shares["fall"]) > 50
    answers = {tuple(run_case(replace(CASE, sampling=Sampling(0.9, seed=seed))).ids) for seed in range(8)}
    assert len(answers) == 8


@pytest.mark.parametrize("temperature", [0.2, 1.0])
@pytest.mark.parametrize("costs", ["gpu", "free"])
def test_drafts_that_stop_by_confidence_are_first_choices(costs, temperature):
    """At any temperature: the target's own draw decides, whatever was drafted."""
    sampling = Sampling(temperature=temperature, seed=8)
    case = replace(CASE, schedule="confidence", costs=costs, k=7, max_tokens=30, sampling=sampling)
    run = run_case(case)
    assert run.ids == expected_ids(case)
    drafting = {call for batch in run.backend.submits for call in batch.calls if call.startswith("draft.")}
    assert drafting == {"draft.prefill", "draft.measure_1", "draft.measure_2"}
    assert run.result["speculation"]["num_accepted"] > 0


def test_the_mode_is_named():
    assert run_case(CASE).result["speculation"]["mode"] == "coupled"
    assert run_case(replace(CASE, sampling=Sampling())).result["speculation"]["mode"] == "greedy"
    assert (
        run_case(replace(CASE, sampling=Sampling(bad_words=[[1]]))).result["speculation"]["mode"] == "greedy"
    )


@pytest.mark.parametrize("known", [True, False])
def test_requests_in_turn_on_one_device(known):
    check_turns(known)


def test_a_submit_that_failed_leaves_nothing_known():
    """Its writes may have landed or not: they are made again."""
    target, draft = models(CASE)
    plan, held = plan_of(CASE), Held()
    for script in ({1: DeviceFault("lost", "here")}, {2: DeviceFault("lost", "here")}):
        backend = ScriptedBackend(plan, target, draft)
        backend._script.fail_before = script
        with pytest.raises(DeviceFault):
            generate(plan, target, prompt_of(CASE), 6, backend=backend, sampling=TURNS[3], held=held)
        assert (held.ints is None, held.bias is None) == ((True, True) if 1 in script else (False, False))


def test_the_draft_shares_a_submit_that_failed():
    check_failed_submits()


def test_ints_are_what_the_plan_says():
    sampling = Sampling(
        temperature=1.0, seed=0x80000001_FFFFFFFE, top_k=7, min_tokens=3, bad_words=[[1], [1, 2]], logit_bias={0: 1.0}
    )  # fmt: skip
    ints = ints_of(sampling, 9, [2, 5])
    assert ints == [-2, -0x7FFFFFFF, 7, 9, 12, 2, 1 | 2 | 16, 1, *[0] * 8, 2, 5]


def test_biases_that_differ_are_written_in_runs():
    held = Bias(0.0, {1: 1.0, 2: 2.0, 8: 3.0})
    wanted = Bias(0.0, {2: 2.5, 3: BAN, 8: 3.0})
    assert bias_writes(held, wanted, 10) == [("sampling.bias", 1, [0.0, 2.5, BAN])]
    assert bias_writes(held, held, 10) == []
    assert bias_writes(None, Bias(BAN, {1: 0.0}), 3) == [("sampling.bias", 0, [BAN, 0.0, BAN])]
    many = Bias(0.0, dict.fromkeys(range(0, 1000, 2), 1.0))
    assert [len(values) for _, _, values in bias_writes(held, many, 1000)] == [1000]
