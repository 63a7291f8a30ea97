"""A trained draft over the champion's embedding: ids equal the plain ones, and what it drafts is what its weights say."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
from draft_folders import OWN_SIZES, trained_pair
from lavapipe import Lavapipe
from llama_numpy import LlamaNumpy
from runs import KS, Native, check_books, random_prompt
from specdec_compiler.build import build_bundle, open_models
from specdec_compiler.drafts.gate import Gate
from specdec_compiler.emit.rows import MAX_BINDING
from specdec_compiler.recipe import read_recipe
from specdec_compiler.sources.packed import Formats
from specdec_runtime.bundle import open_bundle
from specdec_runtime.decode.effects import Submit
from specdec_tools.browser import BrowserOptions, page_session
from specdec_tools.serve import running_site

MAX_TOKENS = 48
RESULTS = ("tokens", "draft.out", "draft.logits", "draft.stats")
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
    made: dict[tuple[str, int], Path] = {}

    def make(kind: str, max_binding: int = MAX_BINDING) -> Path:
        if (kind, max_binding) not in made:
            folder = tmp_path_factory.mktemp("trained")
            recipe = trained_pair(folder, vocab=517, **KINDS[kind])
            build_bundle(recipe, folder / "bundle", lambda *_: None, Gate(folder / "strata"), max_binding)
            made[kind, max_binding] = folder / "bundle"
        return made[kind, max_binding]

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
        for rounds in (2, 4):
            result = native.run(prompt, MAX_TOKENS, "model", 3, rounds=rounds)
            assert result["token_ids"] == plain, (rounds, seed)
            check_books(result, 3)


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


def on_native(bundle: Path, writes: dict[str, list[int]], calls: list[str]) -> dict[str, np.ndarray]:
    """Every result of the draft after these calls."""
    native = Native(bundle)
    shapes = {t.name: t.shape for t in native.bundle.plan.targets[0].tensors if t.name in RESULTS}
    reads = [(name, 0, int(np.prod(shapes[name]))) for name in RESULTS]
    batch = Submit("draft", [(name, 0, values) for name, values in writes.items()], calls, reads)
    values = native.backend.submit(batch).values
    return {name: np.reshape(found, shapes[name]) for (name, _, _), found in zip(reads, values, strict=True)}


def on_lavapipe(bundle: Path, writes: dict[str, list[int]], calls: list[str]) -> dict[str, np.ndarray]:
    model = Lavapipe(bundle)
    for name, values in writes.items():
        model.write(name, values)
    for call in calls:
        model.run(call)
    return {name: model.read(name) for name in RESULTS}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "some ids" in kind])
@pytest.mark.parametrize(
    ("run", "max_binding"),
    [(on_native, MAX_BINDING), (on_lavapipe, MAX_BINDING), (on_lavapipe, 12_300)],
    ids=["native", "lavapipe", "lavapipe, by rows"],
)
def test_measured_steps_over_some_ids(bundles, kind, run, max_binding) -> None:
    """The ids, tokens and logits of steps; a row's statistics are those of the distribution over the ids that the draft has."""
    bundle = bundles(kind, max_binding)
    pages = list(range(open_bundle(bundle).plan.models[1].num_pages))
    prompt, num_steps = random_prompt(7, 517)[:2], 6
    writes = {"tokens": prompt, "draft.page_table": pages, "draft.args": [0, 2, 1, 0]}
    steps, measures = ([f"draft.{each}_2", *[f"draft.{each}_1"] * num_steps] for each in ("step", "measure"))
    step, measured = run(bundle, writes, steps), run(bundle, writes, measures)
    for name in ("draft.out", "tokens", "draft.logits"):
        np.testing.assert_array_equal(step[name], measured[name])
    if max_binding != MAX_BINDING:
        whole = run(bundles(kind), writes, measures)
        assert all(whole[name].tobytes() == measured[name].tobytes() for name in RESULTS)
    assert not step["draft.stats"].any()
    rows, last = measured["draft.out"], 1 + num_steps  # the row of the last step
    assert (rows[: last + 1, 1] == 1).all() and set(rows[: last + 1, 0]) <= set(SOME_IDS.tolist())
    assert len(set(rows[: last + 1, 0])) > 2, "what is proposed must vary"
    assert (rows[1 : last + 1, 0] == measured["tokens"][2 : 2 + last]).all() and not rows[last + 1 :].any()
    logits = measured["draft.logits"][0, : len(SOME_IDS)].astype(np.float64)
    assert rows[last, 0] == SOME_IDS[logits.argmax()]
    shares = np.exp(logits - logits.max())
    shares /= shares.sum()
    stats = measured["draft.stats"]
    expected = [np.log(shares.max()), -(shares * np.log(shares)).sum()]
    assert stats[last] == pytest.approx(expected, abs=1e-5)
    assert (stats[:last, 0] < 0).all() and (stats[:last, 1] > 0).all() and not stats[last + 1 :].any()


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
