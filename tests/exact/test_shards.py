"""Matrices bound by rows: on lavapipe the same bits as in one piece, at every width, and shards that are wrong are noticed; then on
WebGPU in Chromium (SwiftShader) the same ids and scores."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lavapipe import Lavapipe
from runs import random_prompt
from specdec_compiler.build import build_bundle
from specdec_compiler.emit import rows
from specdec_compiler.tiny import make_tiny
from specdec_tools.browser import BrowserOptions, page_session
from specdec_tools.serve import running_site

VOCAB = 517  # padded to 544: shards of 192, 192 and 160 rows
ROW_BYTES = 64  # of the codes of the embedding and the head
MAX_BINDING = 192 * ROW_BYTES + 100
EDGES = [0, 191, 192, 383, 384, VOCAB - 1]  # ids: both ends of each shard
MAX_TOKENS = 20


def build(folder: Path, name: str, max_binding: int = rows.MAX_BINDING) -> Path:
    build_bundle(
        folder / "recipe.toml", folder / name, lambda what, done, total: None, max_binding=max_binding
    )
    return folder / name


def num_dispatches(model: Lavapipe, program: str) -> dict[str, int]:
    """How many look up in, or multiply with, a matrix by itself: the embedding and the head."""
    (found,) = (each for each in model.target.programs if each.name == program)
    ops = [model.target.kernels[dispatch.kernel].op for dispatch in found.dispatches]
    return {op: ops.count(op) for op in ("embed", "linear")}


def passes(model: Lavapipe) -> list[np.ndarray]:
    """Logits and ids of rows of every width after a prompt, then of greedy steps."""
    prompt = EDGES + random_prompt(3, VOCAB)[:26]
    prompt += prompt[::-1][:8]
    model.write("tokens", prompt)
    model.write("target.page_table", np.arange(model.plan.models[0].num_pages))
    model.write("target.args", [0, 32, 0, 0])
    model.run("target.prefill")
    found = [model.rows("target.verify_1", 0, 1)]
    for width in (1, 2, 4, 8):
        found += [model.rows(f"target.verify_{width}", 32, width), model.read("target.out")[:width]]
    found.append(model.rows("target.verify_8", 0, 6))  # the prefill's rows again: the ids at the ends
    for position in range(39, 39 + MAX_TOKENS):
        model.rows("target.verify_1", position, 1)
        prompt.append(int(model.read("target.out")[0, 0]))
        model.write("tokens", prompt)
    return [*found, np.array(prompt)]


def differing(a: list[np.ndarray], b: list[np.ndarray]) -> list[int]:
    return [i for i, (x, y) in enumerate(zip(a, b, strict=True)) if not np.array_equal(x, y)]


@pytest.mark.parametrize("tied", [True, False])
def test_bits_do_not_depend_on_shards(tmp_path: Path, tied: bool) -> None:
    make_tiny(tmp_path, 3, VOCAB, tied=tied)
    whole, cut = (
        Lavapipe(build(tmp_path, "whole")),
        Lavapipe(build(tmp_path, "cut", MAX_BINDING)),
    )
    for program, heads in (("target.verify_1", 1), ("target.verify_8", 1), ("target.prefill", 0)):
        assert num_dispatches(whole, program) == {"embed": 1, "linear": heads}
        assert num_dispatches(cut, program) == {"embed": 3, "linear": 3 * heads}
    expected = passes(whole)
    assert len(set(expected[-1][-MAX_TOKENS:].tolist())) > 3, "answers must vary"
    assert differing(expected, passes(cut)) == []


@pytest.mark.parametrize("op", ["embed", "linear"])
def test_shards_that_begin_elsewhere_are_noticed(tmp_path: Path, monkeypatch, op: str) -> None:
    """The embedding's first row is off by one; the head's window of logits by the 64 that its alignment allows."""
    make_tiny(tmp_path, 3, VOCAB, tied=True)
    expected, make = passes(Lavapipe(build(tmp_path, "whole"))), rows._MAKE[op]
    monkeypatch.setenv(
        "SPECDEC_CACHE", str(tmp_path / "cache")
    )  # the compiler's hash does not know of the change

    def off(params, out, first, count):
        return make(params, out, first + {"embed": 1, "linear": -rows.ROW_STEP}[op] * (first > 0), count)

    monkeypatch.setitem(rows._MAKE, op, off)
    assert differing(expected, passes(Lavapipe(build(tmp_path, "wrong", MAX_BINDING))))


async def _answers(bundle: Path, prompt: list[int]) -> dict[str, Any]:
    """Ids with a draft model and without, and the scores of the plain ids at two widths."""
    found: dict[str, Any] = {}
    with running_site(bundle) as site:
        async with page_session(site.url, BrowserOptions("webgpu", "swiftshader")) as page:
            await page.load("bundle/")
            for drafter, k in (("off", 0), ("model", 3)):
                request = {"prompt_ids": prompt, "max_tokens": MAX_TOKENS, "drafter": drafter, "k": k}
                found[drafter] = (await page.generate(request))["token_ids"]
            for width in (1, 8):
                request = {"prompt_ids": prompt, "score_ids": found["off"], "width": width}
                found[f"score {width}"] = (await page.score(request))["positions"]
    return found


@pytest.mark.browser
def test_the_page_gives_the_same_ids_and_scores(tmp_path: Path) -> None:
    make_tiny(tmp_path, 3, VOCAB, tied=True)
    prompt = random_prompt(3, VOCAB)
    bundles = build(tmp_path, "whole"), build(tmp_path, "cut", MAX_BINDING)
    expected, found = (asyncio.run(_answers(bundle, prompt)) for bundle in bundles)
    assert len(expected["off"]) > 5 and expected["off"] == expected["model"]
    assert expected["score 1"] == expected["score 8"]
    assert found == expected
