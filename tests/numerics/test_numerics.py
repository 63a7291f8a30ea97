"""The compiled model against the float32 NumPy oracle, row by row; needs no torch.

CPU activations are 15-bit groups, so what is left beside float32 rounding is tiny; the bounds are about ten times what was seen,
and thousands of times below those of docs/numerics.md. What a mistake looks like: a row shifted by one, or a lost layer, gives a KL
of 0.1 and more.
"""

import shutil
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from llama_numpy import LlamaNumpy
from specdec_compiler.build import build_bundle, open_models
from specdec_compiler.recipe import read_recipe
from specdec_compiler.tiny import make_tiny
from specdec_runtime.bundle import open_bundle
from specdec_tools.numerics_metrics import kl_divergence, margins
from specdec_tools.numerics_rows import NativeRows, WasmRows

MAX_MEAN_KL = 1e-6  # seen: 1.3e-7
MAX_KL = 2e-5  # seen: 1.6e-6
MAX_DIFFERENCE = 0.1  # logits, which spread over tens; seen: 0.02
CLEAR = 0.05  # no argmax may differ where the first two are further apart
REAL_IDS = [
    1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411, 407, 19712, 8182, 2, 198, 1,
    4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198, 504, 3575, 282, 4649, 314, 7042, 30, 2, 198,
    1, 4093, 198, 6330, 5217, 29, 216, 33, 34, 1232, 216, 35, 32, 446, 12849, 24, 8055, 25, 42,
]  # fmt: skip


def native(bundle: Path, ids: list[int]) -> np.ndarray:
    with closing(NativeRows(open_bundle(bundle))) as rows:
        return rows.rows(ids)


def oracle(recipe: Path, ids: list[int]) -> np.ndarray:
    return LlamaNumpy(open_models(read_recipe(recipe)).champion).extend(ids)


def random_ids(seed: int, vocab: int, count: int) -> list[int]:
    return [int(i) for i in np.random.RandomState(seed + 1000).randint(0, vocab, count)]


def check_close(expected: np.ndarray, found: np.ndarray) -> None:
    assert expected.shape == found.shape
    kl, far = kl_divergence(expected, found), np.abs(expected - found).max()
    assert kl.mean() <= MAX_MEAN_KL
    assert kl.max() <= MAX_KL, f"row {kl.argmax()}: KL {kl.max():.3g}"
    assert far <= MAX_DIFFERENCE
    other = np.argmax(expected, axis=1) != np.argmax(found, axis=1)
    assert not np.any(other & (margins(expected) > CLEAR))


@pytest.mark.parametrize(("seed", "vocab"), [(0, 384), (1, 384), (2, 301), (3, 301), (4, 300), (5, 1000)])
def test_tiny_native(tiny_bundle, seed, vocab):
    """Tied and untied heads, vocabularies of every remainder, over the 256-position border and a last chunk of 3 rows."""
    bundle = tiny_bundle(seed, vocab)
    ids = random_ids(seed, vocab, 299)
    check_close(oracle(bundle.parent / "recipe.toml", ids), native(bundle, ids))


@pytest.mark.parametrize(("seed", "vocab"), [(1, 384), (2, 301)])
def test_tiny_wasm_has_the_bits_of_native(tiny_bundle, seed, vocab):
    assert shutil.which("node"), "install Node 18 or later: WASM is run in it"
    bundle = tiny_bundle(seed, vocab)
    ids = random_ids(seed, vocab, 267)
    with closing(WasmRows(open_bundle(bundle))) as rows:
        found = rows.rows(ids)
        again = rows.rows(ids[:9])  # from position 0 once more, over a used cache
    expected = native(bundle, ids)
    assert np.array_equal(expected.view(np.uint32), found.view(np.uint32))
    assert np.array_equal(again, found[:9])


def test_the_comparison_sees_a_wrong_model(tiny_bundle):
    """Another seed's weights, and rows shifted by one, are far outside the bounds."""
    bundle = tiny_bundle(0, 384)
    ids = random_ids(0, 384, 40)
    expected, found = oracle(bundle.parent / "recipe.toml", ids), native(bundle, ids)
    shifted = np.roll(found, 1, axis=0)
    stranger = native(tiny_bundle(1, 384), ids)
    for wrong in (shifted, stranger):
        assert kl_divergence(expected, wrong).mean() > 1000 * MAX_KL
        with pytest.raises(AssertionError):
            check_close(expected, wrong)


@pytest.mark.model
def test_smollm2_native(smollm2_bundle):
    """64 positions of chat text on the real weights; the oracle reads the GGUF file by itself."""
    recipe = Path(__file__).resolve().parents[2] / "models" / "recipes" / "smollm2-135m.toml"
    ids = REAL_IDS[:64]
    assert len(ids) == 64
    check_close(oracle(recipe, ids), native(smollm2_bundle, ids))


def test_tiny_formats(tmp_path):
    """8-bit matrices beside a 4-bit embedding and head: the other way round than the default."""
    recipe = make_tiny(tmp_path, 6, 300)
    formats = 'quantize = "q8"\nquantize_embedding = "q4"\n\n[draft]'
    recipe.write_text(recipe.read_text().replace("[draft]", formats))
    build_bundle(recipe, tmp_path / "bundle", lambda what, done, total: None)
    ids = random_ids(6, 300, 200)
    check_close(oracle(recipe, ids), native(tmp_path / "bundle", ids))
