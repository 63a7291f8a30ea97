"""Tiny random pairs, native, mode coupled: sampled ids with speculation equal those without; and they follow the softmax."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from runs import KS, Native, check_books, random_prompt, vocab_for
from specdec_compiler.kernels.noise_twin import gumbel
from specdec_runtime.decode.effects import Submit
from specdec_runtime.decode.programs import Programs
from specdec_runtime.decode.sampling import Sampling
from specdec_runtime.decode.sampling_state import Held, SamplingState, ints_of
from specdec_runtime.faults import DeviceFault
from specdec_runtime.schedule.confidence import Confidence
from specdec_runtime.schedule.costs import Costs
from specdec_runtime.schedule.policy import Policy
from specdec_runtime.schedule.registry import make_schedule

MAX_TOKENS = 40
WAYS = [
    *(("ngram", k, 1, 1) for k in (2, 7)),
    *(("model", k, rounds, 1) for k, rounds in product(KS, (1, 2, 4))),
    ("chain", 3, 4, 1),
    ("chain", 7, 1, 1),
    *(("off", 0, 1, steps) for steps in (2, 4, 8)),
]


def test_ids_equal_plain(tiny_bundle, tiny_seed: int) -> None:
    vocab, temperature = vocab_for(tiny_seed), (0.3, 1.0, 2.5)[tiny_seed % 3]
    native = Native(tiny_bundle(tiny_seed, vocab))
    prompt = random_prompt(tiny_seed, vocab)
    sampling = Sampling(temperature=temperature, seed=tiny_seed * 0x9E3779B97F4A7C15 % 2**64)
    plain = native.run(prompt, MAX_TOKENS, sampling=sampling)
    assert plain["speculation"]["mode"] == "coupled"
    if temperature >= 1:
        assert plain["token_ids"] != native.run(prompt, MAX_TOKENS)["token_ids"]
    for drafter, k, rounds, steps in WAYS:
        result = native.run(prompt, MAX_TOKENS, drafter, k, rounds=rounds, steps=steps, sampling=sampling)
        assert result["token_ids"] == plain["token_ids"], (drafter, k, rounds, steps)
        assert result["finish_reason"] == plain["finish_reason"]
        check_books(result, k)


def test_policies_and_schedules(tiny_bundle) -> None:
    native = Native(tiny_bundle(2, 517))
    prompt, sampling = random_prompt(2, 517), Sampling(temperature=1.0, seed=3)
    plain = native.run(prompt, MAX_TOKENS, sampling=sampling)["token_ids"]
    for policy in (("any", False), ("widest", True), ("widest", False), ("plain", False)):
        for drafter, k, steps in (("off", 0, 4), ("model", 3, 4), ("chain", 7, 1)):
            ways = {"steps": steps, "rounds": 2, "programs": Programs(*policy), "sampling": sampling}
            assert native.run(prompt, MAX_TOKENS, drafter, k, **ways)["token_ids"] == plain, (policy, drafter)
    costs = Costs(1.0, {1: 1.0, 2: 1.0, 4: 1.0, 8: 1.0}, 0.01, 0.01, 1.0)
    for name in ("heuristic", "break_even"):
        schedule = make_schedule(name, costs, Policy(), 7)
        ways = {"steps": 4, "rounds": 4, "schedule": schedule, "sampling": sampling}
        assert native.run(prompt, MAX_TOKENS, "chain", 7, **ways)["token_ids"] == plain, name
    confident = native.run(
        prompt, MAX_TOKENS, "model", 7, schedule=Confidence(Policy(), 7), sampling=sampling
    )
    assert confident["token_ids"] == plain and confident["speculation"]["num_drafted"] > 0


def test_biases(tiny_bundle) -> None:
    """Greedy and sampled: what is banned never comes, what is pushed does, and no request acts on the next one."""
    native = Native(tiny_bundle(1, 384))
    prompt = random_prompt(1, 384)
    greedy = native.run(prompt, MAX_TOKENS)["token_ids"]
    for temperature in (0.0, 1.0):
        base = Sampling(temperature=temperature, seed=9)
        free = native.run(prompt, MAX_TOKENS, sampling=base)["token_ids"]
        words = [[token_id] for token_id in dict.fromkeys(free)][:20]
        for sampling in (
            replace(base, bad_words=words),
            replace(base, allowed_ids=list(range(5, 90))),
            replace(base, logit_bias={17: 100.0}),
        ):
            plain = native.run(prompt, MAX_TOKENS, sampling=sampling)["token_ids"]
            for drafter, k, rounds in (("model", 3, 2), ("model", 7, 1), ("ngram", 4, 1)):
                result = native.run(prompt, MAX_TOKENS, drafter, k, rounds=rounds, sampling=sampling)
                assert result["token_ids"] == plain, (sampling, drafter)
            assert not sampling.bad_words or not {word[0] for word in words} & set(plain)
            assert sampling.allowed_ids is None or set(plain) <= set(range(5, 90))
            assert not sampling.logit_bias or set(plain) == {17}
        assert native.run(prompt, MAX_TOKENS, "model", 3, sampling=base)["token_ids"] == free
    assert native.run(prompt, MAX_TOKENS)["token_ids"] == greedy


def test_nothing_left_to_choose_is_an_error(tiny_bundle) -> None:
    native = Native(tiny_bundle(1, 384))
    sampling = Sampling(
        temperature=1.0, allowed_ids=[4], bad_words=[[1, 4]]
    )  # seen only where it comes to it
    with pytest.raises(DeviceFault, match="not finite, twice"):
        native.run([3, 1], 4, sampling=sampling)


@pytest.mark.parametrize("rounds", [1, 4])
def test_champion_as_its_own_draft_is_always_accepted(self_drafting: Path, rounds: int) -> None:
    """Equal logits and equal noise: the draft's draw is the target's, at any temperature."""
    native = Native(self_drafting)
    prompt = random_prompt(3, 384)
    for seed, temperature in enumerate((0.5, 1.0, 5.0)):
        sampling = Sampling(temperature=temperature, seed=seed, logit_bias={7: 2.0})
        plain = native.run(prompt, 48, sampling=sampling)
        result = native.run(prompt, 48, "model", 4, rounds=rounds, sampling=sampling)
        s = result["speculation"]
        assert result["token_ids"] == plain["token_ids"]
        assert s["num_drafted"] > 0 and s["num_accepted"] == s["num_evaluated"]


class First:
    """The first sampled token of one prompt, seed after seed, by the program that decoding uses."""

    def __init__(
        self, native: Native, prompt: list[int], sampling: Sampling, program: str = "target.sample_1"
    ):
        self.native, self.prompt, self.sampling, self.program = native, prompt, sampling, program
        native.run(prompt, 1, sampling=sampling)  # the prompt is in the KV, sampling.* is written
        last = len(prompt) - 1
        logits = self._submit(
            sampling.seed, [("target.logits", 0, native.bundle.plan.target_model.vocab_size)]
        )[1]
        self.logits, self.position = np.array(logits), last + 1

    def _submit(self, seed: int, reads) -> list[list]:
        ints = ints_of(replace(self.sampling, seed=seed), len(self.prompt), [])
        writes = [("target.args", 0, [len(self.prompt) - 1, 1, 0, 0]), ("sampling.ints", 0, ints)]
        return self.native.backend.submit(
            Submit("verify", writes, [self.program], [("target.out", 0, 2), *reads])
        ).values

    def draw(self, seed: int) -> int:
        token_id, fine = self._submit(seed, [])[0]
        assert fine == 1
        return token_id


def chi_square(counts: np.ndarray, shares: np.ndarray) -> float:
    """In standard deviations above its mean; ids of few expected draws are one bin."""
    expected = shares * counts.sum()
    rare = expected < 8
    observed = np.append(counts[~rare], counts[rare].sum())
    wanted = np.append(expected[~rare], expected[rare].sum())
    observed, wanted = observed[wanted > 0], wanted[wanted > 0]
    freedom = len(wanted) - 1
    return float((((observed - wanted) ** 2 / wanted).sum() - freedom) / np.sqrt(2 * freedom))


@pytest.mark.parametrize(("temperature", "off"), [(1.0, 1.05), (2.0, 1.05), (4.0, 1.25)])
def test_first_tokens_follow_the_softmax(tiny_bundle, temperature: float, off: float) -> None:
    """Over 20,000 seeds; and a temperature a little off would be seen."""
    vocab, prompt = 301, random_prompt(4, 301)
    first = First(Native(tiny_bundle(4, vocab)), prompt, Sampling(temperature=temperature))
    drawn = np.array([first.draw(seed * 0x1_0000_0001) for seed in range(20_000)])
    counts = np.bincount(drawn, minlength=vocab)

    def shares(at: float) -> np.ndarray:
        weights = np.exp((first.logits - first.logits.max()) / at)
        return weights / weights.sum()

    assert (shares(temperature) * len(drawn) >= 8).sum() > 10
    assert abs(chi_square(counts, shares(temperature))) < 4
    assert chi_square(counts, shares(temperature * off)) > 4


def test_the_program_draws_what_decoding_and_the_reference_draw(tiny_bundle) -> None:
    """The same seed: one submit, a whole request, and NumPy over the logits."""
    native, prompt = Native(tiny_bundle(4, 301)), random_prompt(4, 301)
    first = First(native, prompt, Sampling(temperature=1.0))
    for seed in [*range(200), 2**63, 2**64 - 1]:
        drawn = first.draw(seed)
        state = SamplingState(Sampling(temperature=1.0, seed=seed), len(prompt), (), 0, Held())
        ints = np.array({name: values for name, _, values in state.writes()}["sampling.ints"])
        noise = gumbel(ints, first.position, np.arange(301), 0)
        assert drawn == int(np.argmax(first.logits + noise))
        if seed % 20 == 0:
            native.held = Held()  # it does not know of the submits above
            assert native.run(prompt, 1, sampling=Sampling(temperature=1.0, seed=seed))["token_ids"] == [
                drawn
            ]
