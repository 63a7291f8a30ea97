"""Exactness over real kernels. CI runs a stated subset; `make exact` passes --all-exact and runs everything."""

from __future__ import annotations

from pathlib import Path

import pytest
from specdec_compiler.build import build_bundle
from specdec_compiler.tiny import make_tiny


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`tiny_seed` and `browser_seed`: the seeds of tiny models on native and browser backends."""
    everything = metafunc.config.getoption("--all-exact")
    seeds = {"tiny_seed": (200, 40), "browser_seed": (10, 3)}
    for name, (full, subset) in seeds.items():
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, range(full if everything else subset))


@pytest.fixture(scope="session")
def self_drafting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle whose draft is the champion itself: all of its layers, on the same kernels."""
    folder = tmp_path_factory.mktemp("self")
    make_tiny(folder, 7, 384)
    recipe = (folder / "recipe.toml").read_text()
    before, _, after = recipe.partition("[draft]")
    rest = after.split("\n[", 1)[1] if "\n[" in after else ""
    (folder / "recipe.toml").write_text(f"{before}[draft]\nfrom_layers = 2\n\n[{rest}" if rest else recipe)
    build_bundle(folder / "recipe.toml", folder / "bundle", lambda *_: None)
    return folder / "bundle"
