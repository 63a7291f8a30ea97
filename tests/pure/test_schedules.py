"""Schedules: what they promise (schedule_suite.py), the costs they know, the readers, and what is refused."""

import json
import math
from collections import Counter
from dataclasses import replace

import pytest
import schedule_suite as suite
from exactness_suite import COSTS, VOCAB
from plan_factory import load_made
from simulate import Run, generate, mostly, plain_ids, seeded
from specdec_runtime.backends.scripted import Script
from specdec_runtime.decode.choice import MODEL, NGRAM, Choice, Done, Fixed, View
from specdec_runtime.decode.programs import Programs
from specdec_runtime.faults import ArtifactError, ContractError, DeviceFault, RequestError
from specdec_runtime.schedule.allowance import FULL, HORIZON, RATE, SHARE
from specdec_runtime.schedule.break_even import FIRST_WAIT, BreakEven
from specdec_runtime.schedule.costs import AGAIN, LiveCosts
from specdec_runtime.schedule.heuristic import Heuristic
from specdec_runtime.schedule.measure import Times, costs_of, probes, times_from_json
from specdec_runtime.schedule.policy import DEFAULT, SCHEDULES, Policy, policy_of, read_policy
from specdec_runtime.schedule.registry import make_schedule, open_schedules
from specdec_runtime.schedule.survival import LEVELS, Belief
from specdec_tools.schedule_sim import (
    MACHINES,
    Machine,
    flipping,
    plain_ms,
    report,
    run,
    simulate,
    steady,
    table,
)

PLAN = load_made(vocab_size=VOCAB, draft={})
GPU = COSTS["gpu"]
VIEW = View(200, 7, 4, 1, model_ready=True, model_lag=1)


def test_losses_are_bounded():
    assert FULL + RATE * HORIZON <= SHARE * HORIZON
    suite.check_losses(range(10))


def test_k_follows_the_acceptance():
    suite.check_following()


def test_break_even_is_near_the_oracle():
    suite.check_regret(range(6))


def test_sources_have_records_of_their_own():
    suite.check_sources()


def test_confidence_is_exact_and_verifies_whatever_it_drew():
    suite.check_confidence()


@pytest.mark.parametrize("at", range(4, 12))
def test_confidence_outlives_a_draft_row_that_is_not_finite(at):
    """Its confidence is no number then, and nothing is decided by it: what was drawn before is verified, and the model rests."""
    target, prompt = seeded(3, VOCAB), [5, 6, 7]
    draft, schedule = mostly(target, seeded(4, VOCAB), 90), make_schedule("confidence", GPU, DEFAULT, 7)
    script = Script(not_finite_calls={(at, 0)})
    done = generate(PLAN, target, prompt, 30, "model", 7, draft, eos_ids=(), script=script, schedule=schedule)
    assert done.ids == plain_ids(target, prompt, 30, 48)
    was_draft = done.backend.submits[at].kind == "draft"
    assert done.result["speculation"]["fallbacks"] == ({"draft_not_finite": 1} if was_draft else {})


def succeeded(done, call_prefix: str) -> int:
    """Calls of that kind in the submits that did not fail."""
    pairs = zip(done.backend.submits, done.backend.readbacks, strict=True)
    return sum(call.startswith(call_prefix) for batch, read in pairs if read for call in batch.calls)


def test_confidence_counts_steps_that_came_to_nothing():
    """Steps before a fault, and one whose row is no number, are passes of the draft like any other."""
    target, prompt, lost = seeded(3, VOCAB), [5, 6, 7], 0

    def run(script: Script) -> Run:
        draft, schedule = mostly(target, seeded(4, VOCAB), 90), make_schedule("confidence", GPU, DEFAULT, 7)
        return generate(
            PLAN, target, prompt, 30, "model", 7, draft, eos_ids=(), script=script, schedule=schedule
        )

    kinds = [batch.kind for batch in run(Script()).backend.submits]
    for at in [at for at, kind in enumerate(kinds[:16]) if kind == "draft"]:
        for script in (Script(fail_before={at: DeviceFault("lost")}), Script(not_finite_calls={(at, 0)})):
            done = run(script)
            counts = done.result["speculation"]
            assert done.ids == plain_ids(target, prompt, 30, 48)
            assert counts["num_draft_passes"] == succeeded(done, "draft.measure_"), at
            lost += counts["num_draft_passes"] > counts["num_drafted"]
    assert lost > 4


class Recording(Fixed):
    """Remembers what it was told."""

    def __init__(self):
        self.heard: list[Done] = []

    def observe(self, done: Done) -> None:
        self.heard.append(done)


def test_a_round_whose_first_draft_is_bad_is_told_as_what_it_ran():
    """Its time is that of the drafts and of all rows; where the submit failed and the target ran alone, plain."""
    target, at = seeded(3, VOCAB), 4
    for script, label in (
        (Script(not_finite_calls={(at, 0)}), "model 3"),
        (Script(fail_before={at: DeviceFault("lost")}), "plain 1"),
    ):
        schedule = Recording()
        done = generate(PLAN, target, [5, 6, 7], 30, "model", 3, eos_ids=(), script=script, schedule=schedule)
        assert done.ids == plain_ids(target, [5, 6, 7], 30, 48)
        assert done.backend.submits[at].kind == "round"
        bad = next(heard for heard in schedule.heard if heard.num_committed == 1)
        assert (bad.choice.label, bad.rounds) == (label, ())
        heard = Counter(one.choice.label for one in schedule.heard)
        assert heard == done.result["speculation"]["schedule"]["choices"]


def test_break_even_takes_such_a_round_for_what_it_ran():
    """Its time moves the costs of drafting as any, its draft says nothing of acceptance, and it is no plain step."""
    schedule, choice = BreakEven(GPU, DEFAULT, 7), Choice(MODEL, 3)
    schedule.choose(VIEW)
    before = schedule.report()
    schedule.observe(Done(choice, 1, (), LiveCosts(GPU).time(choice), 1))
    after = schedule.report()
    assert after["costs"] == before["costs"] and after["acceptance"] == before["acceptance"]
    assert schedule._unseen == 1


@pytest.mark.parametrize("name", MACHINES)
def test_costs_that_drift_are_followed(name):
    """Costs that were measured twice too low or too high are put right by the times of the first submits."""
    machine = MACHINES[name]
    for factor in (0.5, 2.0):
        verify = {rows: factor * ms for rows, ms in machine.costs.verify.items()}
        wrong = replace(machine.costs, verify=verify, sync=factor * machine.costs.sync)
        for alpha in (0.1, 0.5, 0.9):
            world = steady(alpha, 3)
            found = simulate(world, machine, make_schedule("break_even", wrong, DEFAULT, 7))
            assert found.ms <= 1.13 * plain_ms(world, machine), (name, factor, alpha)


def test_nothing_is_chosen_that_cannot_be():
    for view in (VIEW, VIEW._replace(max_drafts=1), VIEW._replace(remaining=2, max_drafts=1, max_steps=2)):
        for name in ("fixed", "heuristic", "break_even"):
            schedule = make_schedule(name, GPU, DEFAULT, 7)
            for _ in range(40):
                choice = schedule.choose(view)
                assert 0 <= choice.k <= view.max_drafts and 1 <= choice.steps <= view.max_steps
                assert choice.rounds == 1
                schedule.observe(Done(choice, 1, ((0, 1),) if choice.k else (), 1.0, 1))


@pytest.mark.parametrize("name", MACHINES)
def test_the_first_token_waits_for_no_draft(name):
    """The first submit is one plain step, however good the draft; the second drafts, where that pays."""
    machine = MACHINES[name]
    cycles = run("break_even", steady(0.95, 1), machine).cycles
    first, second = cycles[0][1], cycles[1][1]
    assert first == Choice()
    assert second.source is not None or name in ("linear", "gpu", "wasm")


def test_rounds_are_used_where_a_submit_may_hold_several():
    machine = MACHINES["gpu, 4 rounds"]
    trace = run("break_even", steady(0.8, 0), machine)
    assert {choice.rounds for _, choice, _ in trace.cycles} >= {1, 4}
    assert all(choice.k in (1, 3, 7) for _, choice, _ in trace.cycles if choice.rounds > 1)
    assert trace.ms < run("break_even", steady(0.8, 0), Machine(machine.costs, machine.steps)).ms


def test_several_rounds_of_a_submit_are_chosen_and_told():
    suite.check_rounds()


@pytest.mark.parametrize(("sync", "accept", "most"), [(0.01, 2.0, 1), (16.0, 0.02, 4)])
def test_rounds_follow_what_a_submit_costs(sync, accept, most):
    """Where S is small and going on costs much, one round; where S is large, four, once the draft is known to be good."""
    machine = MACHINES["gpu, 4 rounds"]
    machine = replace(machine, costs=replace(machine.costs, sync=sync, accept=accept))
    for seed in range(4):
        cycles = run("break_even", steady(0.9, seed), machine).cycles
        rounds = [choice.rounds for _, choice, _ in cycles if choice.k]
        assert set(rounds[5:]) == {most} or (most > 1 and rounds.count(most) > 0.6 * len(rounds)), rounds


def test_a_trial_of_several_rounds_where_one_cannot_pay():
    """k 1 commits two tokens a round at most, four plain steps a submit are faster; four rounds are faster still."""
    machine = Machine(replace(GPU, sync=20.0), steps=4, rounds=4)
    found = run("break_even", steady(0.95, 0), machine, k=1)
    rounds = [choice.rounds for _, choice, _ in found.cycles if choice.k]
    assert 1 not in rounds and rounds.count(4) > 0.8 * len(rounds), rounds
    assert found.ms < 0.8 * plain_ms(steady(0.95, 0), machine)
    one_round = run("break_even", steady(0.95, 0), replace(machine, rounds=1), k=1)
    assert not any(choice.k for _, choice, _ in one_round.cycles)


def test_a_model_that_cannot_pay_is_never_tried():
    trace = run("break_even", steady(0.99, 0), MACHINES["linear"])
    assert {choice.source for _, choice, _ in trace.cycles} == {None}


def test_k_0_where_nothing_stands_and_trials_ever_rarer():
    trace = run("break_even", flipping((0.02, 0.02, 0.02), 1), MACHINES["gpu"])
    tried = [at for at, choice, _ in trace.cycles if choice.k]
    assert tried and tried[-1] < 384 and len(tried) < 14, tried


def test_a_trial_counts_once():
    """After a row that is undecided the core takes its plain retry without asking: that is no trial, nor what comes after it."""
    for retries in (0, 1, 3):
        schedule = BreakEven(GPU, Policy(model=(0.3,)), 7)
        assert schedule.choose(VIEW).source is None
        trial = schedule.choose(VIEW)
        source = schedule._sources[MODEL, 0]
        assert trial.source == MODEL and not source.on
        schedule.observe(Done(trial, 1, ((0, 1),), 2.0, 1))
        after = source.next_wait
        for _ in range(retries):
            schedule.observe(Done(Choice(), 0, (), 2.0, 1))
        assert source.next_wait == after == 2 * FIRST_WAIT, retries


def test_a_stale_draft_must_pay_for_what_it_has_to_read():
    """The same belief: behind by a few tokens the model drafts, behind by many it does not."""
    expensive = replace(GPU, draft_read=4.0)
    for lag, source in ((2, MODEL), (30, MODEL), (1000, None)):
        schedule = make_schedule("break_even", expensive, Policy(model=(0.9,), strength=50.0), 7)
        assert schedule.choose(VIEW).source is None  # the first is plain in any case
        assert schedule.choose(VIEW._replace(model_lag=lag)).source == source, lag


def test_several_plain_steps_only_where_lookup_is_worth_less_than_s():
    schedule = make_schedule("break_even", replace(GPU, draft_step=None, draft_read=None), DEFAULT, 7)
    nothing, match = View(500, 7, 4, 1), View(500, 7, 4, 1, ngram_len=4, ngram_ids=7)
    assert schedule.choose(nothing) == Choice()  # the first
    assert schedule.choose(nothing) == Choice(steps=4)
    for _ in range(60):
        choice = schedule.choose(match)
        assert (
            choice.source == NGRAM or choice == Choice()
        )  # now and then a plain step, to know what it costs
        schedule.observe(Done(choice, choice.k + 1, ((choice.k, choice.k),) if choice.k else (), 0.0))
    assert schedule.choose(nothing) == Choice(steps=1)


def test_heuristic_moves_along_the_widths():
    schedule, seen = Heuristic(7), []
    for accepted in (3, 7, 7, 2, 0, 0, 1):
        choice = schedule.choose(VIEW)
        seen.append(choice.k)
        schedule.observe(Done(choice, accepted + 1, ((min(accepted, choice.k), choice.k),), 0.0))
    assert seen == [3, 7, 7, 7, 3, 1, 1] and schedule.choose(VIEW).k == 3


def test_belief_agrees_with_f4():
    """A certain belief: E[N] of the vectors, (1 - alpha^(k + 1)) / (1 - alpha)."""
    for level, k, expected in ((0.81, 4, 3.4280), (0.58, 3, 2.1115)):
        belief = Belief([level], 1.0)
        belief._weights = [float(abs(known - level) < 1e-9) for known in LEVELS]
        assert belief.means()[k] == pytest.approx(expected, abs=1e-3)
        assert belief.means()[k] == pytest.approx((1 - level ** (k + 1)) / (1 - level))


def test_lower_bound_rises_with_evidence():
    few, many = Belief([0.65], 1.5), Belief([0.65], 1.5)
    few.saw(3, 4, 4)
    for _ in range(12):
        many.saw(3, 4, 4)
    low, mean = few.lowers()[3], few.means()[3]
    assert low < mean and low < many.lowers()[3] <= many.means()[3] * 1.05


def test_times_of_submits_pull_the_costs():
    live = LiveCosts(replace(GPU, outside=0.5))
    for _ in range(60):
        live.ran(Choice(steps=4), 2 * (live._first.sync + 4 * 1.05) - 0.5)
    assert live.time(Choice(steps=4)) == pytest.approx(2 * (1.0 + 4.2), rel=0.03)
    before = live.time(Choice(MODEL, 7))
    live.ran(Choice(MODEL, 7), 1e9)  # a machine that slept
    live.ran(Choice(MODEL, 7), math.nan)
    live.ran(Choice(MODEL, 7), 0.0)  # not timed
    assert before < live.time(Choice(MODEL, 7)) < 1.3 * before


def test_what_a_chunk_of_the_draft_takes_is_followed():
    """Where only submits are timed, the first draft after a long prompt waits for the chunks before it."""
    choice, lag = Choice(MODEL, 3), 2 + 10 * GPU.draft_chunk
    live = LiveCosts(replace(GPU, chunks_in_ms=True))
    rest = live.time(choice)
    live.ran(choice, rest + 10 * 0.25, lag)
    assert live.time(choice) == pytest.approx(rest) and live.costs.draft_read == pytest.approx(0.25)
    live.ran(choice, rest + 10 * 0.5, lag)  # chunks take twice as long: the costs of the rest move less
    assert 0.25 * 1.09 < live.costs.draft_read < 0.25 * 1.11 and rest < live.time(choice) < 1.06 * rest
    for _ in range(60):
        live.ran(choice, rest + 10 * 0.5, lag)
    assert live.time(choice, lag) == pytest.approx(rest + 10 * 0.5, rel=0.03)
    calls = LiveCosts(GPU)  # where calls are timed, a submit's time knows of no chunk before it
    calls.ran(choice, rest, lag)
    assert calls.time(choice) == pytest.approx(rest) and calls.costs.draft_read == 0.25
    calls.ran(choice, 1.5 * rest, lag)
    assert calls.costs.draft_read == pytest.approx(0.25 * (1 + 0.12 * 0.5))  # with the clock, as all


def test_chunks_are_those_of_the_plan():
    plan = load_made(vocab_size=VOCAB, prefill_width=16, draft={"prefill_width": 4})
    times = Times(True, [1.0] * len(probes(plan, True)), 2.0, 1.0)
    for costs in (costs_of(plan, times), open_schedules(plan).costs):
        assert (costs.target_chunk, costs.draft_chunk) == (16, 4)
        assert LiveCosts(costs).reading(2 + 4 * 3 + 1) == pytest.approx(4 * (costs.draft_read or 0.0))
    assert not costs_of(plan, times).chunks_in_ms
    slopes = Times(False, [1.0] * len(probes(plan, False)), 2.0, 1.0)
    assert costs_of(plan, slopes).chunks_in_ms


def test_the_schedule_tells_the_costs_what_the_draft_read():
    schedule, lag = (
        make_schedule("break_even", replace(GPU, chunks_in_ms=True), DEFAULT, 7),
        2 + 10 * GPU.draft_chunk,
    )
    schedule.choose(VIEW)
    choice = Choice(MODEL, 3)
    ms = LiveCosts(GPU).time(choice, lag)
    schedule.observe(Done(choice, 4, ((3, 3),), ms, lag))
    told = schedule.report()["costs"]
    assert told["draft_step"] == GPU.draft_step and told["verify"]["4"] == GPU.verify[4]


def test_costs_where_the_self_test_leaves_one_program():
    costs = GPU.through(Programs("widest"), PLAN.target_model)
    assert set(costs.verify.values()) == {GPU.verify[8]}
    assert GPU.rows(3) == GPU.verify[4]


@pytest.mark.parametrize("split", [True, False])
def test_costs_from_times(split):
    """Made-up times of a device with S = 1 (0.25 of it outside): the costs come out again."""
    passes = {"target.verify_1": 2.0, "target.verify_2": 2.5, "target.verify_4": 3.0, "target.verify_8": 4.0}
    passes |= {"target.prefill": 9.0, "draft.step_1": 0.2, "draft.prefill": 0.7, "draft.accept": 0.05}
    inside = 0.0 if split else 0.75
    asked = probes(PLAN, split)
    times = [inside + passes[probe.program] * probe.num_calls for probe in asked]
    costs = costs_of(PLAN, Times(split, times, 3.0, 2.0 if split else 2.75))
    assert costs.verify == pytest.approx({1: 2.0, 2: 2.5, 4: 3.0, 8: 4.0})
    draft = (costs.draft_step, costs.draft_read, costs.target_read, costs.accept)
    assert draft == pytest.approx((0.2, 0.7, 9.0, 0.05))
    again = AGAIN * costs.outside  # the host's work for each round after the first
    assert LiveCosts(costs).time(Choice(MODEL, 3, 4)) == pytest.approx(
        1.0 + 4 * (0.6 + 3.0) + 3 * (0.05 + again)
    )
    assert (costs.sync, costs.outside) == pytest.approx((1.0, 1.0 if split else 0.25))
    assert json.loads(json.dumps(costs.json()))["verify"]["8"] == pytest.approx(4.0)


def test_probes_run_and_leave_no_trace():
    """A request after the probes gives what it gave before."""
    target = seeded(3, VOCAB)
    made = generate(PLAN, target, [5, 6, 7], 12, "model", 3, mostly(target, seeded(4, VOCAB), 60), eos_ids=())
    for probe in probes(PLAN, True) + probes(PLAN, False):
        made.backend.submit(probe.submit)
    again = generate(PLAN, target, [5, 6, 7], 12, "model", 3, backend=made.backend, eos_ids=())
    assert again.ids == made.ids == plain_ids(target, [5, 6, 7], 12, 48)


@pytest.mark.parametrize(
    "change",
    [
        {"probe_ms": [math.inf]},
        {"probe_ms": [-1.0]},
        {"probe_ms": ["1"]},
        {"cycle_ms": math.nan},
        {"split": 1},
        {"more": 1},
    ],
)
def test_bad_times_are_refused(change):
    good = {"split": True, "probe_ms": [1.0], "cycle_ms": 2.0, "submit_ms": 1.0}
    times_from_json(good)
    with pytest.raises(ContractError):
        times_from_json(good | change)
    with pytest.raises(ContractError, match="1 times for"):
        costs_of(PLAN, times_from_json(good))


def test_a_policy_survives_its_file():
    policy = Policy("heuristic", (0.7, 0.6), {2: 0.2, 3: 0.4, 4: 0.6}, 3.0, ((-2.0, 0.2), (-0.1, 0.9)), 0.3)
    assert read_policy(json.dumps(policy.json())) == policy
    assert read_policy(json.dumps(DEFAULT.json())) == DEFAULT


@pytest.mark.parametrize(
    ("where", "change"),
    [
        ("$", {"more": 1}),
        ("$.format", {"version": 2}),
        ("$.format", {"format": "x"}),
        ("$.default", {"default": "best"}),
        ("$.model", {"model": []}),
        ("$.model[1]", {"model": [0.5, 1.0]}),
        ("$.model[0]", {"model": [True]}),
        ("$.ngram", {"ngram": {"2": 0.5}}),
        ("$.ngram.3", {"ngram": {"2": 0.5, "3": 0, "4": 0.5}}),
        ("$.strength", {"strength": -1}),
        ("$.confidence[1]", {"confidence": [[-2.0, 0.5], [-1.0, 0.4]]}),
        ("$.confidence[0][0]", {"confidence": [[0.5, 0.5]]}),
        ("$.threshold", {"threshold": None}),
    ],
)
def test_a_wrong_policy_is_refused(where, change):
    with pytest.raises(ArtifactError) as caught:
        policy_of(DEFAULT.json() | change)
    assert caught.value.where == f"policy.json: {where}"


def test_names():
    schedules = open_schedules(PLAN)
    assert schedules.make("auto", 7).name == "break_even"
    believed = [schedules.make("break_even", 7, sampled).report()["acceptance"] for sampled in (False, True)]
    assert all(believed[1][source] < 0.95 * share for source, share in believed[0].items()), (
        "draws agree less"
    )
    assert (
        open_schedules(PLAN, policy_json=json.dumps(Policy("fixed").json())).make("auto", 7).name == "fixed"
    )
    with pytest.raises(RequestError, match=r"no schedule 'best'.*fixed, heuristic"):
        schedules.make("best", 7)
    assert schedules.names == list(SCHEDULES) and schedules.make("confidence", 7).name == "confidence"
    alone = open_schedules(load_made(vocab_size=VOCAB))
    assert "confidence" not in alone.names
    with pytest.raises(RequestError, match="no draft model"):
        alone.make("confidence", 7)
    with pytest.raises(RequestError, match="k is 8"):
        schedules.make("break_even", 8)


def test_the_report_of_the_simulator():
    found = report(("fixed", "break_even"), 1)
    assert len(found["rows"]) == len(MACHINES) * 7 and found == report(("fixed", "break_even"), 1)
    assert table(found).count("\n") == len(found["rows"]) + 1
