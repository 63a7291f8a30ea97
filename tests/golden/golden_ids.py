"""Which requests have golden ids, and how their ids are made: plain greedy runs on the native backend.

Knows no stored file; update.py writes what this makes, test_golden.py compares. Invariants: prompts are text or a seed, never ids from
a file, so that a change of tokenizer or template shows too; all ids of an answer are kept, an end token included. Native kernels use
no fused multiply-add, so every x86-64 machine gives the same ids; another CPU family need not.
"""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "exact"))  # update.py runs without pytest

from prompts import PROMPTS
from runs import Native, random_prompt, vocab_for
from specdec_tools.text import BundleText

FOLDER = Path(__file__).resolve().parent
FILE = FOLDER / "ids.json"
TINY_SEEDS = (0, 1, 3)  # an untied head, a tied one, a vocabulary of 1000
TINY_TOKENS = 48
SMOLLM2_PROMPTS = ("explain", "list", "german", "raw code")
SMOLLM2_TOKENS = 32
SAME_IDS_HERE = platform.machine().lower() in ("x86_64", "amd64")


def tiny_ids(bundle: Callable[..., Path], seed: int) -> dict[str, Any]:
    """One tiny model's answer; `bundle(seed, vocab)` gives its folder."""
    vocab = vocab_for(seed)
    return _kept(Native(bundle(seed, vocab)).run(random_prompt(seed, vocab), TINY_TOKENS))


def smollm2_ids(native: Native, name: str) -> dict[str, Any]:
    """The real model's answer to one of the prompts of tests/exact."""
    plan = native.bundle.plan
    text = BundleText.open(native.bundle.folder, plan.text, plan.ids.chat_template is not None)
    prompt, raw = next((prompt, raw) for each, prompt, raw in PROMPTS if each == name)
    return _kept(native.run(text.prompt_ids(prompt, raw=raw), SMOLLM2_TOKENS))


def _kept(result: dict[str, Any]) -> dict[str, Any]:
    return {key: result[key] for key in ("prompt_ids", "token_ids", "finish_reason")}


def stored() -> dict[str, dict[str, Any]]:
    """The file: answers of "tiny" by seed, of "smollm2" by prompt name."""
    return json.loads(FILE.read_text(encoding="utf-8"))


def write(answers: dict[str, dict[str, Any]]) -> None:
    """One answer a line, so that a change shows which."""
    groups = []
    for group, by_name in answers.items():
        lines = ",\n".join(f'  "{name}": {json.dumps(answer)}' for name, answer in by_name.items())
        groups.append(f' "{group}": {{\n{lines}\n }}')
    FILE.write_text("{\n" + ",\n".join(groups) + "\n}\n", encoding="utf-8")
