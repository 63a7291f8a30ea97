"""Exactness over real kernels. CI runs a stated subset; `make exact` passes --all-exact and runs everything."""

from __future__ import annotations

import pytest


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`tiny_seed` and `browser_seed`: the seeds of tiny models on native and browser backends."""
    everything = metafunc.config.getoption("--all-exact")
    seeds = {"tiny_seed": (200, 40), "browser_seed": (10, 3)}
    for name, (full, subset) in seeds.items():
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, range(full if everything else subset))
