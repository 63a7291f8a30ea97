"""Stored ids: a change of kernels, quantization, tokenizer or decode core that changes any answer must be seen and meant."""

from __future__ import annotations

from pathlib import Path

import pytest
from golden_ids import SAME_IDS_HERE, SMOLLM2_PROMPTS, TINY_SEEDS, smollm2_ids, stored, tiny_ids
from runs import Native

pytestmark = pytest.mark.skipif(not SAME_IDS_HERE, reason="the golden ids are those of x86-64 machines")


@pytest.fixture(scope="module")
def native(smollm2_bundle: Path) -> Native:
    return Native(smollm2_bundle)


@pytest.mark.parametrize("seed", TINY_SEEDS)
def test_tiny(tiny_bundle, seed: int) -> None:
    assert tiny_ids(tiny_bundle, seed) == stored()["tiny"][str(seed)]


@pytest.mark.model
@pytest.mark.parametrize("name", SMOLLM2_PROMPTS)
def test_smollm2(native: Native, name: str) -> None:
    assert smollm2_ids(native, name) == stored()["smollm2"][name]


def test_nothing_else_is_stored() -> None:
    kept = stored()
    assert list(kept) == ["tiny", "smollm2"]
    assert list(kept["tiny"]) == [str(seed) for seed in TINY_SEEDS]
    assert list(kept["smollm2"]) == list(SMOLLM2_PROMPTS)
