"""The real model, native: 20 prompts x 64 tokens x {ngram, model} x k in {1, 2, 3, 4, 7}, the model also with 2 and 4 rounds a submit.

CI runs every prompt at two of them."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
from prompts import PROMPTS
from runs import KS, Native, check_books
from specdec_tools.text import BundleText

pytestmark = pytest.mark.model
MAX_TOKENS = 64


@pytest.fixture(scope="module")
def native(smollm2_bundle: Path) -> Native:
    return Native(smollm2_bundle)


@pytest.fixture(scope="module")
def text(native: Native) -> BundleText:
    plan = native.bundle.plan
    return BundleText.open(native.bundle.folder, plan.text, plan.ids.chat_template is not None)


@pytest.mark.parametrize("name,prompt,raw", PROMPTS, ids=[name for name, _, _ in PROMPTS])
def test_ids_equal_plain(
    native: Native, text: BundleText, request, name: str, prompt: str, raw: bool
) -> None:
    ids = text.prompt_ids(prompt, raw=raw)
    plain = native.run(ids, MAX_TOKENS)
    everything = request.config.getoption("--all-exact")
    cases = [("ngram", 7, 1), ("model", 3, 4)]
    if everything:
        cases = [*product(("ngram", "model"), KS, (1,)), *product(("model",), (1, 3, 7), (2, 4))]
    for drafter, k, rounds in cases:
        result = native.run(ids, MAX_TOKENS, drafter, k, rounds=rounds)
        assert result["token_ids"] == plain["token_ids"], (name, drafter, k, rounds)
        assert result["finish_reason"] == plain["finish_reason"]
        check_books(result, k)
