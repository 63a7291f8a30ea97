"""Tiny random pairs, native, modes `reject` and `block`: the books hold, whatever drafter, k and rounds, and answers repeat.

That sequences follow the target's own law is for test_distribution_native.py.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from native_laws import logits_after
from runs import KS, Native, check_books, random_prompt, vocab_for
from specdec_runtime.decode.sampling import Sampling

MODES = ("reject", "block")


def test_books_and_repetition(tiny_bundle, tiny_seed: int) -> None:
    """Any drafter, k and rounds: the counts hold, the same request gives the same ids, the residual is never empty."""
    vocab = vocab_for(tiny_seed)
    native, prompt = Native(tiny_bundle(tiny_seed, vocab)), random_prompt(tiny_seed, vocab)
    for mode, drafter, k, rounds in product(MODES, ("model", "chain", "ngram"), KS, (1, 4)):
        sampling = Sampling((0.3, 1.0, 2.5)[tiny_seed % 3], mode, seed=tiny_seed)
        result = native.run(prompt, 24, drafter, k, rounds=rounds, sampling=sampling)
        check_books(result, k)
        assert result["speculation"]["mode"] == mode and result["speculation"]["fallbacks"] == {}
        again = native.run(prompt, 24, drafter, k, rounds=rounds, sampling=sampling)
        assert again["token_ids"] == result["token_ids"]


def test_points_are_compared_with_the_targets_own_draw(tiny_bundle) -> None:
    """Where nothing is drawn by a draft model, every mode commits what the target alone samples."""
    native, prompt = Native(tiny_bundle(1, 384)), random_prompt(1, 384)
    base = Sampling(1.0, "coupled", seed=5)
    alone = native.run(prompt, 40, sampling=base)["token_ids"]
    for mode, (drafter, k, steps) in product(MODES, (("off", 0, 4), ("ngram", 4, 1))):
        result = native.run(prompt, 40, drafter, k, steps=steps, sampling=replace(base, mode=mode))
        assert result["token_ids"] == alone, (mode, drafter)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rounds", [1, 4])
def test_champion_as_its_own_draft_is_always_accepted(self_drafting: Path, mode: str, rounds: int) -> None:
    """Equal logits are equal p and q, bit for bit: no uniform is above 1."""
    native = Native(self_drafting)
    for seed, temperature in enumerate((0.5, 1.0, 5.0)):
        sampling = Sampling(temperature, mode, seed=seed, logit_bias={7: 2.0})
        counts = native.run(random_prompt(3, 384), 48, "model", 4, rounds=rounds, sampling=sampling)[
            "speculation"
        ]
        assert counts["num_accepted"] == counts["num_evaluated"] > 0


def test_what_the_bias_bans_never_comes(tiny_bundle) -> None:
    native, prompt = Native(tiny_bundle(1, 384)), random_prompt(1, 384)
    for mode in MODES:
        sampling = Sampling(
            1.0, mode, seed=2, allowed_ids=list(range(5, 90)), bad_words=[[i] for i in range(5, 60)]
        )
        ids = native.run(prompt, 40, "model", 4, rounds=2, eos_ids=(), sampling=sampling)["token_ids"]
        assert set(ids) <= set(range(60, 90)) and len(set(ids)) > 5


@pytest.mark.parametrize("mode", MODES)
def test_log_probabilities_are_those_of_what_was_committed(tiny_bundle, mode: str) -> None:
    """Of accepted drafts and of residual draws alike: the raw softmax after the tokens before."""
    native, prompt = Native(tiny_bundle(4, 301)), random_prompt(4, 301)
    sampling = Sampling(2.0, mode, seed=3)
    result = native.run(prompt, 16, "model", 3, rounds=2, eos_ids=(), sampling=sampling, logprobs=1)
    counts = result["speculation"]
    assert 0 < counts["num_accepted"] < counts["num_evaluated"]
    for i, told in enumerate(result["logprobs"]):
        logits = logits_after(native, [*prompt, *result["token_ids"][:i]])
        wanted = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
        assert told["id"] == result["token_ids"][i]
        assert told["logprob"] == pytest.approx(wanted[told["id"]], abs=1e-4)
