"""A tiny pair in a real Chromium: on WASM and on WebGPU (SwiftShader) sequences follow the distribution of the scores of the same page.

2,000 a way on WASM, 500 on WebGPU; 300 and 60 in CI, of fewer ways on WebGPU. One page each. On WebGPU a session keeps the prompt's KV,
which changes no law and saves the slowest submit.
"""

from __future__ import annotations

import asyncio
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chi_square import Law, Run, fit
from laws import (
    ALLOWED,
    LIMIT,
    PROMPT,
    TINY_SEED,
    VOCAB,
    Drawn,
    Way,
    asked,
    check_way,
    gather,
    kinds,
    law,
    seeds,
    together,
)
from specdec_tools.browser import BrowserOptions, PageSession, page_session
from specdec_tools.serve import running_site

pytestmark = pytest.mark.browser
OPTIONS = {
    "wasm": BrowserOptions("wasm", threads=1),
    "webgpu": BrowserOptions("webgpu", "swiftshader", timeout_s=3600),
}
MORE = {"wasm": {}, "webgpu": {"session": "drawn"}}
DRAW_JS = """async ([asked, seeds]) => {
  const results = [];
  for (const seed of seeds) {
    const { token_ids, speculation } = await window.specdec.generate({ ...asked, seed });
    results.push({ token_ids, speculation });
  }
  return results;
}"""


async def _draw(page: PageSession, way: Way, more: dict[str, Any], drawn: list[int]) -> Drawn:
    """A request a seed, without coming back to Python in between."""
    work = page.page.evaluate(DRAW_JS, [way.fields | more, drawn])
    return gather(way, await page.wait(work, str(way)))


async def _law(page: PageSession, sampling: str, length: int) -> Law:
    """Log-probabilities are logits but for one number a row, which no processor here looks at."""
    logits: dict[Run, np.ndarray] = {}
    for run in product(ALLOWED, repeat=length):
        scores = await page.score({"prompt_ids": PROMPT, "score_ids": list(run), "width": 4})
        for depth, position in enumerate(scores["positions"]):
            row = logits.setdefault(run[:depth], np.full(VOCAB, -np.inf))
            assert row[run[depth]] in (-np.inf, position["logprob"]), "a score that depends on what follows"
            row[run[depth]] = position["logprob"]
    return law(logits.__getitem__, sampling, length)


async def _all(bundle: Path, backend: str, ways: list[Way], count: int):
    """The laws by kind, and what was drawn by way."""
    with running_site(bundle) as site:
        async with page_session(site.url, OPTIONS[backend]) as page:
            await page.load("bundle/")
            laws = {kind: await _law(page, *kind) for kind in kinds(ways)}
            first = 100 * (1 + list(OPTIONS).index(backend))  # other seeds than natively
            drawn = {
                way: await _draw(page, way, MORE[backend], seeds(first + number, count))
                for number, way in enumerate(ways)
            }
    return laws, drawn


@pytest.mark.parametrize("backend", OPTIONS)
def test_sequences_follow_the_targets_distribution(
    tiny_bundle, backend: str, pytestconfig: pytest.Config
) -> None:
    ways, count = asked(backend, bool(pytestconfig.getoption("--all-exact")))
    bundle = tiny_bundle(TINY_SEED, VOCAB)
    laws, drawn = asyncio.run(_all(bundle, backend, ways, count))
    found = {str(way): fit(drawn[way].counts, laws[way.law]) for way in ways}
    for kind, of_kind in laws.items():
        found[f"{kind}, together"] = fit(together(drawn[way] for way in ways if way.law == kind), of_kind)
    for name, fitted in found.items():
        print(name, fitted)
    for way in ways:
        assert drawn[way].counts.total() == count
        check_way(way, drawn[way])
    assert not {name: str(fitted) for name, fitted in found.items() if fitted.p <= LIMIT}
