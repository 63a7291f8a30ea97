"""The checks themselves: `make check` runs every folder of tests and no target is defined twice."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def _plan(target: str) -> str:
    done = subprocess.run(
        ["make", "-n", "-C", str(ROOT), target], capture_output=True, text=True, check=True, timeout=60
    )
    assert "warning" not in done.stderr, done.stderr
    return done.stdout


def test_make_check_runs_every_folder() -> None:
    plan = _plan("check")
    folders = {path.parent.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py")}
    missing = sorted(folder for folder in folders if folder not in plan)
    assert not missing, f"make check does not run {missing}"


def test_ci_runs_the_readme_command() -> None:
    assert "make test" in (ROOT / ".ci" / "run").read_text()
    assert "make test" in (ROOT / "README.md").read_text()


def test_exact_runs_everything() -> None:
    assert "--all-exact" in _plan("exact") and "--all-exact" not in _plan("test-exact")
