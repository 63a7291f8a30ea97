"""Tiny random pairs, native: greedy ids with speculation equal those without, for every drafter and k."""

from __future__ import annotations

import dataclasses
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from runs import KS, Native, check_books, random_prompt, vocab_for
from specdec_runtime.decode.effects import Readback, Submit
from specdec_runtime.decode.programs import Programs
from specdec_runtime.schedule.confidence import Confidence
from specdec_runtime.schedule.costs import Costs
from specdec_runtime.schedule.policy import Policy
from specdec_runtime.schedule.registry import make_schedule

MAX_TOKENS = 40
COSTS = (
    Costs(1.0, {1: 1.0, 2: 1.0, 4: 1.0, 8: 1.0}, 0.01, 0.01, 1.0),
    Costs(1.0, {1: 1.05, 2: 1.15, 4: 1.26, 8: 1.3}, 0.1, 0.25, 3.0),
    Costs(0.1, {1: 1.0, 2: 2.0, 4: 4.0, 8: 8.0}, 0.3, 2.0, 30.0),
)


def test_ids_equal_plain(tiny_bundle, tiny_seed: int) -> None:
    vocab = vocab_for(tiny_seed)
    native = Native(tiny_bundle(tiny_seed, vocab))
    prompt = random_prompt(tiny_seed, vocab)
    plain = native.run(prompt, MAX_TOKENS)
    assert plain["speculation"]["num_drafted"] == 0
    for drafter in ("model", "ngram", "chain"):
        for k in KS:
            result = native.run(prompt, MAX_TOKENS, drafter, k)
            assert result["token_ids"] == plain["token_ids"], (drafter, k)
            assert result["finish_reason"] == plain["finish_reason"]
            check_books(result, k)
    for (drafter, k), rounds in product((("model", 1), ("model", 3), ("model", 7), ("chain", 3)), (2, 4)):
        result = native.run(prompt, MAX_TOKENS, drafter, k, rounds=rounds)
        assert result["token_ids"] == plain["token_ids"], (drafter, k, rounds)
        assert result["finish_reason"] == plain["finish_reason"]
        check_books(result, k)
    for steps in (2, 4, 8):
        result = native.run(prompt, MAX_TOKENS, steps=steps)
        assert result["token_ids"] == plain["token_ids"], steps
        check_books(result, 0)


def test_ids_do_not_depend_on_the_schedule(tiny_bundle, tiny_seed: int) -> None:
    """Where speculation pays always, sometimes and never."""
    vocab = vocab_for(tiny_seed)
    native = Native(tiny_bundle(tiny_seed, vocab))
    prompt = random_prompt(tiny_seed, vocab)
    plain = native.run(prompt, MAX_TOKENS)["token_ids"]
    for name in ("heuristic", "break_even"):
        for costs in COSTS:
            for drafter in ("model", "chain"):
                for rounds in (1, 4):
                    schedule = make_schedule(name, costs, Policy(), 7)
                    several = {"steps": 4, "rounds": rounds}
                    result = native.run(prompt, MAX_TOKENS, drafter, 7, schedule=schedule, **several)
                    assert result["token_ids"] == plain, (name, costs, drafter, rounds)
                    check_books(result, 7)
    confident = native.run(prompt, MAX_TOKENS, "model", 7, schedule=Confidence(Policy(), 7))
    assert confident["token_ids"] == plain, "confidence"


@pytest.mark.parametrize("steps", [1, 2, 4, 8])
def test_several_steps_a_submit_end_where_one_does(tiny_bundle, steps: int) -> None:
    """End-of-text at every place in a submit, every token limit, and the end of the context."""
    native = Native(tiny_bundle(1, 384))
    prompt = random_prompt(1, 384)
    tokens = native.run(prompt, 20)["token_ids"]
    for at in range(10):
        stopped = native.run(prompt, 20, steps=steps, eos_ids=(tokens[at],))
        assert stopped["token_ids"] == tokens[: tokens.index(tokens[at]) + 1]
        assert stopped["finish_reason"] == "stop"
        assert native.run(prompt, at, steps=steps)["token_ids"] == tokens[:at]
    context = native.bundle.plan.target_model.max_context
    for room in range(1, 10):
        long = (prompt * context)[: context - room]
        last = native.run(long, 50, steps=steps)
        assert len(last["token_ids"]) == room and last["token_ids"] == native.run(long, 50)["token_ids"]
        check_books(last, 0)


@pytest.mark.parametrize("rounds", [2, 4])
def test_several_rounds_a_submit_end_where_one_does(self_drafting: Path, rounds: int) -> None:
    """With a draft that is always right: end-of-text at every place in a submit, every token limit, the end of the context."""
    native = Native(self_drafting)
    prompt = random_prompt(1, 384)
    tokens = native.run(prompt, 20)["token_ids"]
    for at, k in product(range(18), (3, 7)):
        stopped = native.run(prompt, 20, "model", k, rounds=rounds, eos_ids=(tokens[at],))
        assert stopped["token_ids"] == tokens[: tokens.index(tokens[at]) + 1]
        assert stopped["finish_reason"] == "stop"
        assert native.run(prompt, at, "model", k, rounds=rounds)["token_ids"] == tokens[:at]
    context = native.bundle.plan.target_model.max_context
    for room in range(1, 34, 3):
        long = (prompt * context)[: context - room]
        last = native.run(long, 50, "model", 3, rounds=rounds)
        assert len(last["token_ids"]) == room and last["token_ids"] == native.run(long, 50)["token_ids"]
        check_books(last, 3)


@pytest.mark.parametrize("rounds", [2, 4])
def test_a_row_that_is_not_finite_ends_the_submit_for_the_device_too(
    self_drafting: Path, rounds: int
) -> None:
    """A NaN in the champion's K at one position: the rows that see it are no tokens, and later passes change nothing."""
    native = Native(self_drafting)
    prompt = random_prompt(3, 384)
    plain = native.run(prompt, 30)["token_ids"]
    submit, seen = native.backend.submit, []

    def spoilt(batch):
        seen.append(batch)
        hurt = batch.kind == "round" and sum(each.kind == "round" for each in seen) == 2
        calls = batch.calls.index("draft.accept") if hurt else 0
        if not hurt:
            return submit(batch)
        submit(batch._replace(calls=batch.calls[:calls], reads=[]))
        flags = native.backend.view("target.out")
        flags[3] = 0  # row 1 of the first round
        before = [
            bytes(native.backend.view(name)) for name in ("tokens", "target.k.0", "draft.v.0", "target.out")
        ]
        answer = submit(batch._replace(writes=[], calls=batch.calls[calls:]))
        after = [
            bytes(native.backend.view(name)) for name in ("tokens", "target.k.0", "draft.v.0", "target.out")
        ]
        assert before == after, "nothing is appended, fed back or said after it"
        assert answer.values[-1] == [native.backend.view("target.args")[0]]
        return Readback(answer.values, [0.0] * len(batch.calls))

    native.backend.submit = spoilt  # type: ignore[method-assign]
    result = native.run(prompt, 30, "model", 3, rounds=rounds)
    assert result["token_ids"] == plain
    assert any(batch.kind == "verify" for batch in seen), "the plain pass that tries the row again"


@pytest.mark.parametrize("policy", [("any", False), ("widest", True), ("widest", False), ("plain", False)])
def test_policies_of_a_self_test(tiny_bundle, policy) -> None:
    """On kernels whose rows are equal every policy gives the same ids."""
    native = Native(tiny_bundle(2, 517))
    prompt = random_prompt(2, 517)
    plain = native.run(prompt, MAX_TOKENS)["token_ids"]
    for drafter, k, steps in (
        ("off", 0, 1),
        ("off", 0, 4),
        ("ngram", 4, 1),
        ("model", 3, 4),
        ("chain", 7, 1),
    ):
        policies = Programs(*policy)
        result = native.run(prompt, MAX_TOKENS, drafter, k, steps=steps, rounds=2, programs=policies)
        assert result["token_ids"] == plain, (drafter, k, steps)
        check_books(result, k)


@pytest.mark.parametrize("rounds", [1, 2, 4])
@pytest.mark.parametrize("k", KS)
def test_champion_as_its_own_draft_is_always_accepted(self_drafting: Path, k: int, rounds: int) -> None:
    native = Native(self_drafting)
    prompt = random_prompt(3, 384)
    plain = native.run(prompt, 48)
    result = native.run(prompt, 48, "model", k, rounds=rounds)
    s = result["speculation"]
    assert result["token_ids"] == plain["token_ids"]
    assert s["num_drafted"] > 0 and s["num_accepted"] == s["num_evaluated"]


def _shifted_rows(native: Native) -> None:
    """Verify reads its rows one position early."""
    submit = native.backend.submit

    def wrong(batch):
        writes = [
            (name, at, [values[0] - 1, *values[1:]])
            if name == "target.args" and values[1] > 1 and values[0] > 0
            else (name, at, values)
            for name, at, values in batch.writes
        ]
        return submit(batch._replace(writes=writes))

    native.backend.submit = wrong  # type: ignore[method-assign]


def _rollback_one_too_few(native: Native) -> None:
    """After a verify, the next pass starts one position late: a rejected draft's KV stays in use."""
    submit, last = native.backend.submit, [0]

    def wrong(batch):
        writes = []
        for name, at, values in batch.writes:
            if name == "target.args" and batch.kind != "prefill":
                start, rows, *rest = values
                kept = start + 1 if 0 < start < last[0] and rows > 1 else start
                last[0] = start + rows
                values = [kept, rows - (kept - start), *rest]
            writes.append((name, at, values))
        return submit(batch._replace(writes=writes))

    native.backend.submit = wrong  # type: ignore[method-assign]


@pytest.mark.parametrize("mutate", [_shifted_rows, _rollback_one_too_few])
def test_mutants_are_noticed(tiny_bundle, mutate) -> None:
    """The equality check above must fail on an engine that is wrong in these ways."""
    noticed = 0
    for seed in range(4):
        vocab = vocab_for(seed)
        prompt = random_prompt(seed, vocab)
        plain = Native(tiny_bundle(seed, vocab)).run(prompt, MAX_TOKENS)
        mutant = Native(tiny_bundle(seed, vocab))
        mutate(mutant)
        noticed += mutant.run(prompt, MAX_TOKENS, "model", 4)["token_ids"] != plain["token_ids"]
    assert noticed, "the suite would not notice this mutant"


def test_every_row_program_is_declared_row_invariant(tiny_bundle) -> None:
    plan = Native(tiny_bundle(0, 301)).bundle.plan
    for target in plan.targets:
        assert all(kernel.row_invariant for kernel in target.kernels)
        assert {dataclasses.astuple(a) for k in target.kernels for a in k.args}  # args are read back


@pytest.mark.parametrize("width", [1, 2])
def test_a_measured_step_is_a_step(tiny_bundle, width: int) -> None:
    """The same ids, tokens and logits, step after step of one submit; what it says of its rows follows from the logits."""
    prompt, seen = random_prompt(5, 517)[:width], []
    last = width + 3 - 1  # row of out that the last of four steps writes
    for kind in ("step", "measure"):
        native = Native(tiny_bundle(2, 517))
        pages = list(range(native.bundle.plan.models[1].num_pages))
        writes = [("tokens", 0, prompt), ("draft.page_table", 0, pages), ("draft.args", 0, [0, width, 1, 0])]
        calls = [f"draft.{kind}_{width}", *[f"draft.{kind}_1"] * 3]
        counts = {"draft.out": 16, "tokens": last + 2, "draft.logits": 517, "draft.stats": 16}
        reads = [(name, 0, count) for name, count in counts.items()]
        seen.append(native.backend.submit(Submit("draft", writes, calls, reads)).values)
    (*step, unmeasured), (*measured, stats) = seen
    assert measured == step and unmeasured == [0.0] * 16
    logits = np.array(measured[2])
    shares = np.exp(logits - logits.max())
    shares /= shares.sum()
    by_row = np.array(stats).reshape(8, 2)
    expected = [np.log(shares.max()), -(shares * np.log(shares)).sum()]
    assert by_row[last] == pytest.approx(expected, abs=1e-5)
    assert (by_row[:last, 0] < 0).all() and (by_row[:last, 1] > 0).all() and not by_row[last + 1 :].any()
