"""The integer dot in f32 is the packed dot: a bundle's ids and scores have the same bits with either."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import BrowserRig

pytestmark = pytest.mark.browser
PROMPT = [5, 9, 200, 33, 7, 101, 64, 300]


def _answers(rig: BrowserRig, bundle: Path, dot: str) -> tuple:
    session = rig.page(rig.site(bundle).url, "webgpu")
    rig.do(session.load("/bundle/", selftest=False, dot=dot))
    request = {"prompt_ids": PROMPT, "max_tokens": 24, "drafter": "off", "k": 0}
    ids = rig.do(session.generate(request))["token_ids"]
    asked = {"prompt_ids": PROMPT, "score_ids": ids[:9], "width": 4}
    return ids, rig.do(session.score(asked))["positions"]


def test_both_dots_give_the_same_bits(rig: BrowserRig, tiny_bundle: Callable[..., Path]) -> None:
    bundle = tiny_bundle(1, 384)
    packed = _answers(rig, bundle, "packed")
    assert len(packed[0]) == 24
    assert _answers(rig, bundle, "f32") == packed
