"""Modes `reject` and `block` in the decode core, on the scripted backend: ids, counts, faults, and the law of what is committed."""

from __future__ import annotations

from dataclasses import replace
from math import exp

import numpy as np
import pytest
from exactness_suite import VOCAB, Case, models, plan_of, prompt_of, run_case
from judged_suite import check_judged, shares, suite
from noise import chi_square, quantile
from plan_factory import load_made
from simulate import generate, seeded
from specdec_runtime.backends.scripted import Script, ScriptedBackend
from specdec_runtime.backends.scripted_sampling import logits_of
from specdec_runtime.decode.sampling import Sampling
from specdec_runtime.decode.verify import Verdict, accept_judged, fell_back
from specdec_runtime.faults import DeviceFault

CASES = suite()
CASE = Case(5, "model", 3, 90, eos_ids=(), sampling=Sampling(0.9, "reject", seed=4))


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_suite(case: Case) -> None:
    check_judged(case)


def test_the_suite_reaches_what_it_is_for() -> None:
    """Drafts stand and fall under both rules, and block accepts more."""
    accepted = {"reject": 0, "block": 0}
    drafted = dict(accepted)
    for case in CASES:
        if case.drafter == "model" and case.schedule == "fixed":
            found = check_judged(case)
            accepted[case.sampling.mode] += found.accepted
            drafted[case.sampling.mode] += found.drafted
    assert all(200 < accepted[mode] < drafted[mode] - 200 for mode in accepted)


@pytest.mark.parametrize("mode", ["reject", "block"])
def test_a_draft_that_is_the_target_is_accepted_whole(mode: str) -> None:
    counts = run_case(replace(CASE, quality=100, sampling=Sampling(1.0, mode), rounds=2)).result[
        "speculation"
    ]
    assert counts["num_accepted"] == counts["num_evaluated"] > 0


@pytest.mark.parametrize("mode", ["reject", "block"])
def test_the_same_seed_and_schedule_give_the_same_ids(mode: str) -> None:
    case = replace(CASE, sampling=Sampling(1.0, mode, seed=9))
    assert (
        run_case(case).ids
        == run_case(case).ids
        != run_case(replace(case, sampling=Sampling(1.0, mode, seed=10))).ids
    )


SMALL = 3  # ids of the vocabulary whose law is enumerated


def _law(target, prompt: list[int], temperature: float, length: int) -> np.ndarray:
    found = np.zeros([SMALL] * length)
    for run in np.ndindex(found.shape):
        part = 1.0
        for i, token in enumerate(run):
            logits = [z / temperature for z in logits_of(target, (*prompt, *run[:i]), SMALL)]
            parts = [exp(z) for z in logits]
            part *= parts[token] / sum(parts)
        found[run] = part
    return found.reshape(-1)


WAYS = [("reject", 1, 1), ("reject", 3, 2), ("block", 3, 1), ("block", 2, 3)]


@pytest.mark.parametrize(("mode", "k", "rounds"), WAYS)
def test_the_law_of_the_first_tokens_is_the_targets(mode: str, k: int, rounds: int) -> None:
    """4,000 runs of four tokens against the enumerated law; Bonferroni over the ways."""
    plan = load_made(draft={}, vocab_size=SMALL, eos_ids=())
    target, draft, prompt, length, num = seeded(1, SMALL, 2), seeded(2, SMALL, 2), [0, 2, 1], 4, 4000
    found = np.zeros(SMALL**length)
    for seed in range(num):
        sampling = Sampling(2.0, mode, seed=seed * 0x9E3779B97F4A7C15 % 2**64)
        run = generate(
            plan, target, prompt, length, "model", k, draft, rounds=rounds, sampling=sampling, eos_ids=()
        )
        found[int("".join(map(str, run.ids)), SMALL)] += 1
    statistic, freedom = chi_square(found, _law(target, prompt, 2.0, length))
    assert statistic < quantile(freedom, 0.001 / len(WAYS))


@pytest.mark.parametrize("mode", ["reject", "block"])
@pytest.mark.parametrize("row", range(4))
def test_a_target_row_that_is_not_finite(mode: str, row: int) -> None:
    """What stands before it is committed; a plain step decides the next; twice is a fault, which this is not."""
    case = replace(CASE, quality=100, sampling=Sampling(1.0, mode), not_finite=((4, "target.verify_4", row),))
    run = run_case(case)
    batch = run.backend.submits[4]
    assert batch.kind == "round"
    count, _, flags, _ = run.backend.readbacks[4].values[1]  # type: ignore[union-attr]
    assert (count, flags) == (row, 0)
    assert run.backend.submits[5].calls == ["target.sample_1"] and len(run.ids) == case.max_tokens


@pytest.mark.parametrize("mode", ["reject", "block"])
@pytest.mark.parametrize("step", range(3))
def test_a_draft_row_that_is_not_finite(mode: str, step: int) -> None:
    """Drafts before it are judged, and the row after them gives the bonus."""
    run = run_case(replace(CASE, quality=100, sampling=Sampling(1.0, mode), not_finite_calls=((4, step),)))
    count, _, flags, _ = run.backend.readbacks[4].values[1]  # type: ignore[union-attr]
    assert (count, flags) == (step, 1)
    assert run.result["speculation"]["fallbacks"] == {"draft_not_finite": 1}
    assert len(run.ids) == CASE.max_tokens


def test_a_round_that_failed_is_a_plain_step() -> None:
    target, draft = models(CASE)
    script = Script(fail_before={4: DeviceFault("lost", "here")})
    backend = ScriptedBackend(plan_of(CASE), target, draft, script)
    run = generate(
        plan_of(CASE),
        target,
        prompt_of(CASE),
        9,
        "model",
        3,
        backend=backend,
        eos_ids=(),
        sampling=CASE.sampling,
    )
    assert backend.submits[5].calls == ["target.sample_1"] and len(run.ids) == 9
    assert run.result["speculation"]["fallbacks"] == {"device_fault": 1}


def test_confidence_drafts_are_points_in_every_mode() -> None:
    """F10: the schedule looks at first choices, which the target's own draw is compared with; nothing drawn is dropped."""
    case = replace(CASE, schedule="confidence", costs="free", k=7, max_tokens=30)
    called = {call for batch in run_case(case).backend.submits for call in batch.calls if "draft." in call}
    assert called == {"draft.prefill", "draft.measure_1", "draft.measure_2"}
    coupled = replace(case, sampling=replace(case.sampling, mode="coupled"))
    assert run_case(case).ids == run_case(coupled).ids


@pytest.mark.parametrize("mode", ["reject", "block"])
@pytest.mark.parametrize("schedule", ["fixed", "heuristic", "break_even"])
def test_every_draft_that_was_drawn_is_judged(mode: str, schedule: str) -> None:
    """F10: as many draws of the draft as rows of the target after the first, in every round of every submit."""
    case = replace(
        CASE, schedule=schedule, costs="free", k=7, max_tokens=30, sampling=Sampling(1.0, mode), rounds=2
    )
    rounds = [batch for batch in run_case(case).backend.submits if batch.kind == "round"]
    assert rounds
    for batch in rounds:
        rows = next(values[1] for name, _, values in batch.writes if name == "target.args")
        drawn = sum(call.startswith("draft.draw_") for call in batch.calls)
        assert drawn == (rows - 1) * batch.calls.count("draft.judge")


def test_a_verdict_past_the_drafts_is_a_fault() -> None:
    assert accept_judged([5, 6], [2, 9, 1, 0]) == Verdict(2, 9)
    assert accept_judged([5, 6], [1, 9, 0, 0]) == Verdict(1, None)
    for count in (-1, 3):
        with pytest.raises(DeviceFault):
            accept_judged([5, 6], [count, 9, 1, 0])
    assert fell_back([0, 9, 3, 0]) and not fell_back([0, 9, 1, 0]) and not fell_back([0, 9, 2, 0])


def test_shares_are_a_distribution() -> None:
    row = shares(models(CASE)[0], (1, 2), Sampling(0.5, bad_words=[[3]]))
    assert sum(row) == pytest.approx(1) and row[3] == 0 and len(row) == VOCAB
