"""Bundles that many tests share, built once a run into a temporary folder. Kernels come from the compile cache when it has them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from specdec_compiler.build import build_bundle
from specdec_compiler.tiny import make_tiny

ROOT = Path(__file__).resolve().parent.parent
SMOLLM2_RECIPE = ROOT / "models" / "recipes" / "smollm2-135m.toml"


def pytest_addoption(parser: pytest.Parser) -> None:
    """--all-exact: the whole exactness matrix instead of CI's subset."""
    parser.addoption("--all-exact", action="store_true", help="run the whole exactness matrix")


@pytest.fixture(scope="session")
def smollm2_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default recipe, compiled."""
    out = tmp_path_factory.mktemp("smollm2") / "bundle"
    build_bundle(SMOLLM2_RECIPE, out, lambda what, done, total: None)
    return out


@pytest.fixture(scope="session")
def tiny_bundle(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """tiny_bundle(seed, vocab=384): a tiny random pair, compiled; the source folders lie beside the bundle."""

    @cache
    def make(seed: int, vocab: int = 384) -> Path:
        folder = tmp_path_factory.mktemp(f"tiny-{seed}-{vocab}")
        make_tiny(folder, seed, vocab)
        build_bundle(folder / "recipe.toml", folder / "bundle", lambda what, done, total: None)
        return folder / "bundle"

    return make
