"""python tests/golden/update.py: make every golden file anew (token ids, the excerpt in docs/plan.md) and say what changed.

A changed id needs a reason in the commit message: it means that answers changed.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import plan_example
from golden_ids import (
    FILE,
    SAME_IDS_HERE,
    SMOLLM2_PROMPTS,
    TINY_SEEDS,
    smollm2_ids,
    stored,
    tiny_ids,
    write,
)
from runs import Native
from specdec_compiler.build import build_bundle
from specdec_compiler.tiny import make_tiny

RECIPE = Path(__file__).resolve().parents[2] / "models" / "recipes" / "smollm2-135m.toml"


def _quiet(what: str, done: int, total: int) -> None:
    pass


def _answers(work: Path) -> dict[str, dict[str, Any]]:
    def tiny(seed: int, vocab: int) -> Path:
        folder = work / f"tiny-{seed}"
        build_bundle(make_tiny(folder, seed, vocab), folder / "bundle", _quiet)
        return folder / "bundle"

    build_bundle(RECIPE, work / "smollm2", _quiet)
    native = Native(work / "smollm2")
    return {
        "tiny": {str(seed): tiny_ids(tiny, seed) for seed in TINY_SEEDS},
        "smollm2": {name: smollm2_ids(native, name) for name in SMOLLM2_PROMPTS},
    }


def main() -> int:
    """Exit status 0, or 2 on a machine whose ids are not the golden ones."""
    if not SAME_IDS_HERE:
        print("error: make the golden ids on an x86-64 machine", file=sys.stderr)
        return 2
    before = stored() if FILE.exists() else {}
    with tempfile.TemporaryDirectory() as work:
        answers = _answers(Path(work))
    write(answers)
    for group, by_name in answers.items():
        for name, answer in by_name.items():
            same = before.get(group, {}).get(name) == answer
            print(f"{group} {name}: {'as before' if same else 'CHANGED'}, {len(answer['token_ids'])} ids")
    print(f"docs/plan.md: {'CHANGED' if plan_example.update() else 'as before'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
