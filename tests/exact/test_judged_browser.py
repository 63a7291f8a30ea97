"""Modes `reject` and `block` in a real Chromium: on WASM the ids of native, whose law is tested; on WebGPU (SwiftShader) the books."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
from runs import Native, check_books, random_prompt
from specdec_runtime.decode.sampling import Sampling
from specdec_tools.browser import BrowserOptions, page_session
from specdec_tools.serve import running_site

pytestmark = pytest.mark.browser
VOCAB, MAX_TOKENS = 301, 16
WAYS = [("reject", 3, 1), ("reject", 2, 3), ("block", 3, 1), ("block", 7, 2)]
OPTIONS = {"wasm": BrowserOptions("wasm", threads=3), "webgpu": BrowserOptions("webgpu", "swiftshader")}


async def _runs(bundle: Path, backend: str, requests: list[dict]) -> list[dict]:
    with running_site(bundle) as site:
        async with page_session(site.url, OPTIONS[backend]) as page:
            await page.load("bundle/")
            return [await page.generate(request) for request in requests]


def _request(mode: str, k: int, rounds: int, seed: int) -> dict:
    sampling = {"temperature": 1.5, "mode": mode, "seed": seed}
    prompt = random_prompt(4, VOCAB)
    way = {"prompt_ids": prompt, "max_tokens": MAX_TOKENS, "drafter": "model", "k": k, "rounds": rounds}
    return way | sampling


@pytest.mark.parametrize("backend", OPTIONS)
def test_books_and_ids(tiny_bundle, backend: str) -> None:
    """Every way; drafts stand and fall; the same request twice; on WASM the very ids of native."""
    bundle = tiny_bundle(4, VOCAB)
    requests = [_request(*way, seed=seed) for seed in range(3) for way in WAYS]
    results = asyncio.run(_runs(bundle, backend, [*requests, *requests[: len(WAYS)]]))
    native, counts = Native(bundle), np.zeros(2)
    for request, result in zip(requests, results, strict=False):
        s = result["speculation"]
        check_books(result, request["k"])
        assert s["mode"] == request["mode"] and s["fallbacks"] == {}
        counts += s["num_accepted"], s["num_evaluated"]
        sampling = Sampling(1.5, request["mode"], seed=request["seed"])
        same = native.run(
            request["prompt_ids"],
            MAX_TOKENS,
            "model",
            request["k"],
            rounds=request["rounds"],
            sampling=sampling,
        )
        if backend == "wasm":
            assert result["token_ids"] == same["token_ids"], request
    assert 0 < counts[0] < counts[1]
    for first, again in zip(results, results[len(requests) :], strict=False):
        assert first["token_ids"] == again["token_ids"]


@pytest.mark.parametrize("backend", OPTIONS)
def test_judging_sees_what_filters_left(tiny_bundle, backend: str) -> None:
    """Of one id left in each row the law is that of greedy decoding, penalties and banned ids included."""
    greedy = {"temperature": 0.0, "presence_penalty": 1.5, "bad_words": [[3], [5, 6]], "min_tokens": 4}
    plain = {"prompt_ids": random_prompt(4, VOCAB), "max_tokens": MAX_TOKENS, "drafter": "off", "k": 0}
    filters = [{"top_k": 1}, {"min_p": 1.0}, {"top_p": 1e-9}]
    judged = [
        _request(*way, seed=1) | greedy | {"temperature": 1.5} | left for way in WAYS[1:3] for left in filters
    ]
    expected, *results = asyncio.run(_runs(tiny_bundle(4, VOCAB), backend, [plain | greedy, *judged]))
    assert [result["token_ids"] for result in results] == [expected["token_ids"]] * len(judged)
