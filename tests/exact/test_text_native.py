"""Tiny random pairs, native: log-probabilities and stop strings are those of plain decoding, whatever drafts."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from runs import Native, check_books, random_prompt, vocab_for
from specdec_runtime import drive
from specdec_runtime.decode.sampling import PLAIN, Sampling
from specdec_runtime.decode.score import score

MAX_TOKENS = 40
WAYS = [
    *(("ngram", k, 1, 1) for k in (2, 7)),
    *(("model", k, rounds, 1) for k, rounds in product((1, 3, 7), (1, 4))),
    ("chain", 4, 2, 1),
    *(("off", 0, 1, steps) for steps in (3, 8)),
]
SAMPLINGS = [
    PLAIN,
    Sampling(temperature=1.0, seed=11),
    Sampling(temperature=1.5, seed=12, top_k=40, presence_penalty=0.5),
]


class Letters:
    """Text for ids that have none: a letter each, or the two bytes of one."""

    strips_first_space = False

    def bytes(self, token_id: int) -> bytes:
        return "abcdefghijklmnopqrstuvwxy\u00e9"[token_id % 26].encode()


def _ways(native: Native, prompt: list[int], **asked: Any) -> list[tuple[dict, tuple]]:
    return [
        (
            native.run(prompt, MAX_TOKENS, drafter, k, rounds=rounds, steps=steps, **asked),
            (drafter, k, rounds, steps),
        )
        for drafter, k, rounds, steps in WAYS
    ]


def test_log_probabilities_equal_plain(tiny_bundle, tiny_seed: int) -> None:
    vocab = vocab_for(tiny_seed)
    native, prompt = Native(tiny_bundle(tiny_seed, vocab)), random_prompt(tiny_seed, vocab)
    sampling = SAMPLINGS[tiny_seed % 3]
    without = native.run(prompt, MAX_TOKENS, sampling=sampling)
    plain = native.run(prompt, MAX_TOKENS, sampling=sampling, logprobs=5)
    assert plain["token_ids"] == without["token_ids"] and plain["speculation"] == without["speculation"]
    assert [one["id"] for one in plain["logprobs"]] == plain["token_ids"]
    for result, way in _ways(native, prompt, sampling=sampling, logprobs=5):
        assert result["token_ids"] == plain["token_ids"], way
        assert result["logprobs"] == plain["logprobs"], way
        check_books(result, way[1])


@pytest.mark.parametrize("number", range(3))
def test_log_probabilities_are_the_scores(tiny_bundle, number: int) -> None:
    """The same numbers, by another kernel, from the same logits: the raw ones, whatever the sampling."""
    native, prompt = Native(tiny_bundle(4, 301)), random_prompt(4, 301)
    result = native.run(prompt, MAX_TOKENS, "model", 3, rounds=2, sampling=SAMPLINGS[number], logprobs=5)
    scored = drive.run(score(native.bundle.plan, prompt, result["token_ids"], 4), native.backend)["positions"]
    for one, by_score in zip(result["logprobs"], scored, strict=True):
        assert one["logprob"] == pytest.approx(by_score["logprob"], abs=2e-4)
        assert one["top"][0]["id"] == by_score["top_id"]
        assert one["top"][0]["logprob"] - one["top"][1]["logprob"] == pytest.approx(
            by_score["margin"], abs=2e-4
        )
        likeliest = [top["logprob"] for top in one["top"]]
        assert likeliest == sorted(likeliest, reverse=True) and len({top["id"] for top in one["top"]}) == 5


def test_stop_strings_cut_the_plain_answer(tiny_bundle, tiny_seed: int) -> None:
    vocab = vocab_for(tiny_seed)
    native, prompt = Native(tiny_bundle(tiny_seed, vocab)), random_prompt(tiny_seed, vocab)
    sampling = SAMPLINGS[tiny_seed % 3]
    ids = native.run(prompt, MAX_TOKENS, sampling=sampling)["token_ids"]
    text = b"".join(map(Letters().bytes, ids)).decode()
    at = tiny_seed % max(1, len(ids) - 3)
    stop = text[at : at + 3]
    num_ids = text.index(stop) + len(stop)  # a letter an id
    for result, way in _ways(
        native, prompt, sampling=sampling, stop=[stop, "?"], tokens=Letters(), logprobs=1
    ):
        assert result["token_ids"] == ids[:num_ids], way
        assert (result["text"], result["stop"]) == (text[: text.index(stop)], stop), way
        assert len(result["logprobs"]) == num_ids and result["finish_reason"] == "stop"
        check_books(result, way[1])
