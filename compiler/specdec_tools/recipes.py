"""Which recipe made a bundle: bundles carry its hash, recipes lie in models/recipes or are named."""

from __future__ import annotations

from pathlib import Path

from specdec_compiler.build import sha256
from specdec_runtime.bundle import Bundle
from specdec_runtime.faults import RequestError

from specdec_tools.paths import ROOT


def recipe_path(bundle: Bundle, given: Path | None) -> Path:
    """The recipe the bundle was made from, known by its hash."""
    candidates = [given] if given else sorted((ROOT / "models" / "recipes").glob("*.toml"))
    for path in candidates:
        if path.is_file() and sha256(path.read_bytes()) == bundle.plan.ids.recipe:
            return path
    where = str(given or "models/recipes")
    raise RequestError(
        "no recipe here made this bundle", where, "Give its recipe with --recipe, or build again"
    )
