"""A trained draft over the champion's embedding: ids equal the plain ones, and what it drafts is what its weights say."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
from draft_folders import OWN_SIZES, trained_pair
from llama_numpy import LlamaNumpy
from runs import KS, Native, check_books, random_prompt
from specdec_compiler.build import build_bundle, open_models
from specdec_compiler.drafts.gate import Gate
from specdec_compiler.recipe import read_recipe
from specdec_compiler.sources.packed import Formats
from specdec_runtime.decode.effects import Submit
from specdec_tools.browser import BrowserOptions, page_session
from specdec_tools.serve import running_site

MAX_TOKENS = 48
SOME_IDS = np.flatnonzero(np.arange(517) % 7 != 3)  # six of seven ids, the end token among them
KINDS = {
    "own layers, tied": {"seed": 1, "tied": True},
    "own layers, untied": {"seed": 2, "tied": False},
    "other sizes": {"seed": 3, "tied": True, "sizes": OWN_SIZES},
    "other sizes, mixed, some ids": {
        "seed": 4,
        "tied": False,
        "sizes": OWN_SIZES,
        "formats": Formats("q8", "q4"),
        "vocabulary": SOME_IDS,
    },
    "own layers, some ids": {"seed": 5, "tied": True, "vocabulary": SOME_IDS},
}


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    """bundles(kind): that pair, compiled."""
    made: dict[str, Path] = {}

    def make(kind: str) -> Path:
        if kind not in made:
            folder = tmp_path_factory.mktemp("trained")
            recipe = trained_pair(folder, vocab=517, **KINDS[kind])
            build_bundle(recipe, folder / "bundle", lambda *_: None, Gate(folder / "strata"))
            made[kind] = folder / "bundle"
        return made[kind]

    return make


@pytest.mark.parametrize("kind", KINDS)
def test_ids_equal_the_plain_ones(bundles, kind) -> None:
    native = Native(bundles(kind))
    for seed in range(2):
        prompt = random_prompt(seed, 517)
        plain = native.run(prompt, MAX_TOKENS)["token_ids"]
        for drafter in ("model", "chain"):
            for k in KS:
                result = native.run(prompt, MAX_TOKENS, drafter, k)
                assert result["token_ids"] == plain, (drafter, k, seed)
                check_books(result, k)


@pytest.mark.parametrize("kind", ["own layers, tied", "own layers, untied"])
def test_the_champions_own_layers_are_nearly_always_accepted(bundles, kind) -> None:
    """The same layers, embedding and head; only the scales are rounded to f16."""
    native = Native(bundles(kind))
    speculation = native.run(random_prompt(1, 517), 64, "model", 3)["speculation"]
    assert speculation["num_drafted"] > 20
    assert speculation["num_accepted"] >= 0.9 * speculation["num_evaluated"]


@pytest.mark.parametrize("kind", ["other sizes", "other sizes, mixed, some ids", "own layers, some ids"])
def test_what_it_drafts_is_its_own_greedy_text(bundles, kind) -> None:
    """The draft's programs over borrowed tables, against the slow model in NumPy."""
    bundle = bundles(kind)
    native = Native(bundle)
    draft = open_models(read_recipe(bundle.parent / "recipe.toml")).draft
    assert draft is not None
    ids = draft.tensor("vocabulary").tolist() if draft.config.head_ids else list(range(517))
    pages = list(range(native.bundle.plan.models[1].num_pages))
    for seed in range(3):
        prompt = random_prompt(seed, 517)[:32]
        last = len(prompt) - 1
        writes = [("tokens", 0, prompt), ("draft.page_table", 0, pages), ("draft.args", 0, [0, last, 0, 0])]
        native.backend.submit(Submit("draft", writes, ["draft.prefill"], []))
        batch = Submit(
            "draft", [("draft.args", 0, [last, 1, 1, 0])], ["draft.step_1"] * 8, [("draft.out", 0, 16)]
        )
        (out,) = native.backend.submit(batch).values
        chosen = LlamaNumpy(draft).greedy(prompt, 8, names=ids)
        assert out[0::2] == chosen, seed


@pytest.mark.browser
@pytest.mark.parametrize(
    "options",
    [BrowserOptions("wasm", threads=1), BrowserOptions("webgpu", "swiftshader")],
    ids=["wasm", "webgpu"],
)
def test_in_a_browser(bundles, options) -> None:
    bundle = bundles("other sizes, mixed, some ids" if options.backend == "wasm" else "own layers, some ids")
    prompt = random_prompt(2, 517)

    async def runs() -> tuple[dict, list[dict]]:
        with running_site(bundle) as site:
            async with page_session(site.url, options) as page:
                loaded = await page.load("bundle/")
                cases = [("off", 0), ("model", 1), ("model", 4), ("chain", 7)]
                return loaded, [
                    await page.generate({"prompt_ids": prompt, "max_tokens": 24, "drafter": drafter, "k": k})
                    for drafter, k in cases
                ]

    loaded, (plain, *others) = asyncio.run(runs())
    assert loaded["model"]["draft_provenance"] == "proven"
    for result in others:
        assert result["token_ids"] == plain["token_ids"]
        assert result["speculation"]["num_drafted"] > 0
    if options.backend == "wasm":
        assert Native(bundle).run(prompt, 24)["token_ids"] == plain["token_ids"]
