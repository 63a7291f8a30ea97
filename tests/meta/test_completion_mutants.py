"""Mutants of the page's queue and chat completions must make their tests fail: tests/web/completions.test.mjs by Node."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TESTS = ("completions.test.mjs", "fake_worker.mjs")
LIMIT_S = 60  # an honest run takes a second; a mutant may wait for ever
MUTANTS = {
    "last come, first served": ("queue.js", "this.turns.push(turn)", "this.turns.splice(1, 0, turn)"),
    "two at once": ("queue.js", "if (this.turns.length === 1) void", "void"),
    "a dropped one runs": ("queue.js", "this.turns.splice(this.turns.indexOf(turn), 1);", ""),
    "a dropped one is never told": ("queue.js", "turn.reject(aborted());", ""),
    "an error ends the queue": ("queue.js", "settle = () => turn.reject(error);", "throw error;"),
    "told before the next one runs": (
        "queue.js",
        "this.turns.shift();\n    if",
        "settle();\n    await null;\n    this.turns.shift();\n    if",
    ),
    "cancel ends whoever runs": (
        "client.js",
        'if (!this.queue.drop(turn) && turn.state === "running") this.cancel();',
        "if (!this.queue.drop(turn)) this.cancel();",
    ),
    "leaving does not cancel": ("completions.js", "this.chunks = [];\n    this.call.cancel();", "this.chunks = [];"),
    "an abort does not cancel": ("completions.js", "reject(aborted());\n        this.cancel();", "reject(aborted());"),
    "an abort waits": ("completions.js", "reject(aborted());\n        this.cancel();", "this.cancel();"),
    "listeners stay": ("completions.js", 'signal?.removeEventListener("abort", onAbort)', "undefined"),
    "the error before the text": ("completions.js", "this.error = error;\n", "this.error = error;\n    if (error) this.chunks = [];\n"),
    "the error again and again": ("completions.js", "this.error = null; // told once", ""),
    "no usage": ("completions.js", "if (this.includeUsage) this.give", "if (false) this.give"),
    "the role in every chunk": ("completions.js", "this.begun = true;", ""),
    "any model": ("completions.js", "model !== loaded.model.name", "false"),
    "256 tokens": ("completions.js", "?? loaded?.context", "?? 256"),
}  # fmt: skip


def _tests_pass(folder: Path, change: tuple[str, str, str] | None) -> bool:
    """The tests on a copy of the page's files, one of them changed."""
    (folder / "tests" / "web").mkdir(parents=True)
    for name in TESTS:
        shutil.copy(ROOT / "tests" / "web" / name, folder / "tests" / "web" / name)
    for part in ("page", "executor"):
        shutil.copytree(ROOT / "web" / part, folder / "web" / part)
    shutil.copy(ROOT / "web" / "request.js", folder / "web" / "request.js")
    if change:
        path = folder / "web" / "page" / change[0]
        text = path.read_text()
        assert text.count(change[1]) == 1, f"{change[0]} no longer holds {change[1]!r} once"
        path.write_text(text.replace(change[1], change[2]))
    command = ["node", "--test", str(folder / "tests" / "web" / TESTS[0])]
    try:
        return subprocess.run(command, capture_output=True, timeout=LIMIT_S, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def test_the_tests_pass_unchanged(tmp_path: Path) -> None:
    assert _tests_pass(tmp_path, None)


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_killed(name: str, tmp_path: Path) -> None:
    assert not _tests_pass(tmp_path, MUTANTS[name])
