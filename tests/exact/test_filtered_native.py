"""Tiny random pairs, native: with every processor, ids with speculation equal those without, and are what the plain Python pipeline
picks from the champion's own logits. Coupled and greedy."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from runs import Native, check_books, random_prompt, vocab_for
from specdec_compiler.kernels.noise_twin import gumbel
from specdec_runtime.decode.effects import Submit
from specdec_runtime.decode.pipeline import Processors, process
from specdec_runtime.decode.sampling import Sampling

MAX_TOKENS = 32
EOS_IDS = tuple(range(0, 288, 9))  # many of the ids end an answer, once it may
SETTINGS = {
    "top-p .9": Sampling(1.0, seed=1, top_p=0.9),
    "top-k 40": Sampling(1.3, seed=2, top_k=40),
    "min-p .05": Sampling(1.5, seed=3, min_p=0.05),
    "penalties": Sampling(
        0.8, seed=4, repetition_penalty=1.2, frequency_penalty=0.3, presence_penalty=0.4, top_p=0.95
    ),
    "penalties, greedy": Sampling(repetition_penalty=1.3, frequency_penalty=0.5),
    "presence, greedy": Sampling(presence_penalty=2.0),
    "bias": Sampling(1.0, seed=5, logit_bias={7: 3.0, 8: -5.0, 250: 100.0}, top_k=3),
    "bad words": Sampling(1.0, seed=6, bad_words=[[5], [6, 7], *([a, a] for a in range(25))], top_p=0.99),
    "min tokens": Sampling(1.0, seed=7, min_tokens=12),
    "everything": Sampling(
        0.9, "coupled", 8, 1.1, 0.2, 0.3, {9: 2.0}, [[1], [2, 3]], 9, 60, 0.95, 0.01, range(4, 290)
    ),
}
WAYS = [
    *product(("model", "ngram"), (1, 3, 7), (1,), (1,)),
    *product(("model",), (1, 3, 7), (2,), (1,)),
    ("chain", 7, 4, 2),
    ("off", 0, 1, 4),
]


@pytest.mark.parametrize("name", SETTINGS)
def test_ids_equal_plain(tiny_bundle, name: str) -> None:
    for seed in range(4):
        vocab, sampling = vocab_for(seed), SETTINGS[name]
        native = Native(tiny_bundle(seed, vocab))
        prompt = random_prompt(seed, vocab)
        common = {"sampling": replace(sampling, seed=sampling.seed + seed), "eos_ids": EOS_IDS}
        if not sampling.min_tokens:
            common["eos_ids"] = ()
        plain = native.run(prompt, MAX_TOKENS, **common)
        assert plain["speculation"]["mode"] == sampling.promise
        for drafter, k, rounds, steps in WAYS:
            result = native.run(prompt, MAX_TOKENS, drafter, k, rounds=rounds, steps=steps, **common)
            assert result["token_ids"] == plain["token_ids"], (drafter, k, rounds, steps)
            assert result["finish_reason"] == plain["finish_reason"]
            check_books(result, k)
        if sampling.min_tokens:
            assert len(plain["token_ids"]) > sampling.min_tokens


def _processors(sampling: Sampling, prompt_len: int, vocab: int) -> Processors:
    allowed = set(range(vocab) if sampling.allowed_ids is None else sampling.allowed_ids)
    allowed -= {word[0] for word in sampling.bad_words if len(word) == 1}
    return Processors(
        sampling.temperature > 0,
        1 / sampling.temperature if sampling.temperature else 1.0,
        prompt_len,
        sampling.repetition_penalty,
        sampling.frequency_penalty,
        sampling.presence_penalty,
        [sampling.logit_bias.get(token_id, 0.0) for token_id in range(vocab)],
        allowed.__contains__,
        [word for word in sampling.bad_words if len(word) > 1],
        EOS_IDS,
        prompt_len + sampling.min_tokens,
        sampling.top_k,
        sampling.top_p,
        sampling.min_p,
    )


@pytest.mark.parametrize("name", SETTINGS)
def test_ids_are_the_pipelines(tiny_bundle, name: str) -> None:
    """A plain run's ids, each from the logits that its pass left. The weights of float32 and double differ at a border only."""
    vocab, sampling = vocab_for(2), SETTINGS[name]
    native = Native(tiny_bundle(2, vocab))
    prompt = random_prompt(2, vocab)
    submit, rows = native.backend.submit, []

    def reading(batch: Submit):
        if not any(call.startswith("target.filter") for call in batch.calls):
            return submit(batch)
        readback = submit(batch._replace(reads=[*batch.reads, ("target.logits", 0, vocab)]))
        rows.append(readback.values.pop())
        return readback

    native.backend.submit = reading
    result = native.run(prompt, MAX_TOKENS, sampling=sampling, eos_ids=EOS_IDS if sampling.min_tokens else ())
    ids, use = [*prompt, *result["token_ids"]], _processors(sampling, len(prompt), vocab)
    seed = np.array([sampling.seed, 0], np.int32)
    assert len(rows) == len(result["token_ids"]) > 5
    for position, logits in enumerate(rows, len(prompt)):
        z = process(logits, ids[:position], use)
        assert z is not None
        noise = gumbel(seed, position, np.arange(vocab), 0) if use.noise else 0
        assert int(np.argmax(np.array(z) + noise)) == ids[position], position
