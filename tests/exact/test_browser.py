"""Tiny pairs in a real Chromium, on WASM and on WebGPU (SwiftShader): equal ids with and without speculation, equal scores at every
width, and WASM, on one thread and on three, bit-equal to native. A page of its own for each."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from runs import Native, check_books, random_prompt, vocab_for
from specdec_runtime.decode.sampling import Sampling
from specdec_tools.browser import BrowserOptions, page_session
from specdec_tools.serve import running_site

pytestmark = pytest.mark.browser
MAX_TOKENS = 24
CASES = [("model", 1, 1), ("model", 3, 1), ("ngram", 2, 1), ("chain", 7, 2), ("model", 3, 2), ("model", 3, 4)]
SCHEDULES = {"break_even": 4, "heuristic": 2, "confidence": 1}  # with so many rounds
OPTIONS = {
    "wasm": BrowserOptions("wasm", threads=1),
    "wasm, 3 threads": BrowserOptions("wasm", threads=3),
    "webgpu": BrowserOptions("webgpu", "swiftshader"),
}


async def _all_runs(bundle: Path, seed: int, backend: str) -> dict[str, dict]:
    vocab = vocab_for(seed)
    prompt = random_prompt(seed, vocab)
    results = {}
    with running_site(bundle) as site:
        async with page_session(site.url, OPTIONS[backend]) as page:
            loaded = await page.load("bundle/")
            device = loaded["device"]
            assert device.get("threads") == OPTIONS[backend].threads, device
            for drafter, k, rounds in [("off", 0, 1), *CASES]:
                request = {"prompt_ids": prompt, "max_tokens": MAX_TOKENS, "drafter": drafter, "k": k}
                results[f"{drafter}-{k}-{rounds}"] = await page.generate(request | {"rounds": rounds})
            for schedule, rounds in SCHEDULES.items():
                request = {"prompt_ids": prompt, "max_tokens": MAX_TOKENS, "drafter": "chain", "k": 7}
                request |= {"schedule": schedule, "rounds": rounds}
                results[schedule] = await page.generate(request)
            request = {
                "prompt_ids": prompt,
                "max_tokens": MAX_TOKENS,
                "drafter": "off",
                "k": 0,
                "plain_steps": 4,
            }
            results["steps-4"] = await page.generate(request)
            ids = results["off-0-1"]["token_ids"]
            for width in (1, 2, 4, 8):
                request = {"prompt_ids": prompt, "score_ids": ids, "width": width}
                results[f"score-{width}"] = await page.score(request)
    return results


@pytest.mark.parametrize("backend", OPTIONS)
def test_ids_and_scores(tiny_bundle, browser_seed: int, backend: str) -> None:
    bundle = tiny_bundle(browser_seed, vocab_for(browser_seed))
    results = asyncio.run(_all_runs(bundle, browser_seed, backend))
    plain = results["off-0-1"]
    for drafter, k, rounds in CASES:
        result = results[f"{drafter}-{k}-{rounds}"]
        assert result["token_ids"] == plain["token_ids"], (drafter, k, rounds)
        assert result["speculation"]["rounds"] == rounds
        check_books(result, k)
    for schedule in SCHEDULES:
        assert results[schedule]["token_ids"] == plain["token_ids"], schedule
        check_books(results[schedule], 7)
    steps = results["steps-4"]
    assert steps["token_ids"] == plain["token_ids"], "several plain steps in one submit"
    assert steps["speculation"]["num_cycles"] < plain["speculation"]["num_cycles"]
    verdict = {"wasm": "by specification", "webgpu": "reduced: row-invariant"}[backend.split(",")[0]]
    assert plain["device"]["self_test"]["verdict"] == verdict
    scores = [results[f"score-{width}"]["positions"] for width in (1, 2, 4, 8)]
    assert all(score == scores[0] for score in scores[1:]), "scores depend on the width"
    assert [position["top_id"] for position in scores[0]] == plain["token_ids"], (
        "score and generation disagree"
    )
    if backend != "webgpu":
        prompt = random_prompt(browser_seed, vocab_for(browser_seed))
        assert Native(bundle).run(prompt, MAX_TOKENS)["token_ids"] == plain["token_ids"]


DRAWN = [{}, {"temperature": 1.2, "seed": 6, "top_k": 30, "presence_penalty": 0.5}]
WAYS = [
    {"drafter": "off", "k": 0, "plain_steps": 1},
    {"drafter": "off", "k": 0, "plain_steps": 4},
    {"drafter": "model", "k": 3, "rounds": 4},
    {"drafter": "chain", "k": 7, "rounds": 1},
]


async def _with_logprobs(bundle: Path, prompt: list[int], backend: str) -> list[list[dict]]:
    """Greedy, and drawn from what processors leave; each of them plain and drafted."""
    asked = {"prompt_ids": prompt, "max_tokens": MAX_TOKENS, "logprobs": 3}
    with running_site(bundle) as site:
        async with page_session(site.url, OPTIONS[backend]) as page:
            await page.load("bundle/")
            return [[await page.generate(asked | drawn | way) for way in WAYS] for drawn in DRAWN]


@pytest.mark.parametrize("backend", ["wasm", "webgpu"])
def test_logprobs(tiny_bundle, backend: str) -> None:
    """One entry a token, the same however it was drafted; the ids are those without them."""
    bundle, prompt = tiny_bundle(1, vocab_for(1)), random_prompt(1, vocab_for(1))
    native = Native(bundle)
    for drawn, results in zip(DRAWN, asyncio.run(_with_logprobs(bundle, prompt, backend)), strict=True):
        plain = results[0]
        assert [one["id"] for one in plain["logprobs"]] == plain["token_ids"]
        assert plain["seed"] == drawn.get("seed")
        for way, result in zip(WAYS, results, strict=True):
            assert result["token_ids"] == plain["token_ids"], (drawn, way)
            assert result["logprobs"] == plain["logprobs"], (drawn, way)
        if backend == "wasm":
            sampling = Sampling(**drawn)
            same = native.run(prompt, MAX_TOKENS, sampling=sampling, logprobs=3)
            assert (same["token_ids"], same["logprobs"]) == (plain["token_ids"], plain["logprobs"])
