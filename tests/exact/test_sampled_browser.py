"""Mode coupled in a real Chromium, on WASM and on WebGPU (SwiftShader): sampled ids with speculation equal those without; WASM gives
native's. One page each."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from runs import Native, check_books, random_prompt, vocab_for
from specdec_runtime.decode.sampling import Sampling
from specdec_tools.browser import BrowserOptions, page_session
from specdec_tools.serve import running_site

pytestmark = pytest.mark.browser
MAX_TOKENS = 16
WAYS = [("model", 3, 1), ("ngram", 2, 1), ("chain", 7, 2), ("model", 3, 4)]
SAMPLINGS = {
    "seed 5": {"temperature": 1.0, "seed": 5},
    "seed 2^40": {"temperature": 1.0, "seed": 2**40},
    "biased": {"temperature": 0.7, "seed": 5, "logit_bias": {"7": 3.0}, "bad_words": [[3], [4]]},
    "filtered": {
        "temperature": 1.2,
        "seed": 6,
        "top_k": 40,
        "top_p": 0.95,
        "min_p": 0.01,
        "repetition_penalty": 1.2,
        "frequency_penalty": 0.2,
        "presence_penalty": 0.1,
        "bad_words": [[5], [6, 7]],
        "min_tokens": 4,
    },
    "greedy, penalized": {"presence_penalty": 2.0, "repetition_penalty": 10.0, "bad_words": [[438, 8]]},
    "greedy, biased": {"logit_bias": {"7": 3.0, "9": -2.0}},
}
OPTIONS = {
    "wasm": BrowserOptions("wasm", threads=2),
    "webgpu": BrowserOptions("webgpu", "swiftshader"),
}


async def _all_runs(bundle: Path, prompt: list[int], backend: str) -> dict[tuple, dict]:
    """By sampling and way; the samplings in turn, so that each finds what the one before left on the device."""
    results = {}
    with running_site(bundle) as site:
        async with page_session(site.url, OPTIONS[backend]) as page:
            await page.load("bundle/")
            for name, sampling in SAMPLINGS.items():
                base = {"prompt_ids": prompt, "max_tokens": MAX_TOKENS, "drafter": "off", "k": 0, **sampling}
                for drafter, k, rounds in WAYS:
                    way = {"drafter": drafter, "k": k, "rounds": rounds}
                    results[name, drafter, k, rounds] = await page.generate(base | way)
                results[name, "plain"] = await page.generate(base | {"plain_steps": 1})
                results[name, "steps"] = await page.generate(base | {"plain_steps": 4})
    return results


@pytest.mark.parametrize("backend", OPTIONS)
def test_sampled_ids(tiny_bundle, backend: str) -> None:
    vocab = vocab_for(2)
    bundle, prompt = tiny_bundle(2, vocab), random_prompt(2, vocab)
    results = asyncio.run(_all_runs(bundle, prompt, backend))
    native = Native(bundle)
    for name, sampling in SAMPLINGS.items():
        plain = results[name, "plain"]
        assert plain["speculation"]["mode"] == ("coupled" if "temperature" in sampling else "greedy")
        for drafter, k, rounds in WAYS:
            result = results[name, drafter, k, rounds]
            assert result["token_ids"] == plain["token_ids"], (name, drafter, k, rounds)
            check_books(result, k)
        assert results[name, "steps"]["token_ids"] == plain["token_ids"], name
        assert not {
            token_id for word in sampling.get("bad_words", []) if len(word) == 1 for token_id in word
        } & set(plain["token_ids"])
        if backend == "wasm":
            asked = dict(sampling)
            if "logit_bias" in asked:
                asked["logit_bias"] = {int(token_id): bias for token_id, bias in asked["logit_bias"].items()}
            alone = native.run(prompt, MAX_TOKENS, sampling=Sampling(**asked))
            assert alone["token_ids"] == plain["token_ids"], name
    answers = [tuple(results[name, "plain"]["token_ids"]) for name in SAMPLINGS]
    assert len(set(answers)) == len(answers)
