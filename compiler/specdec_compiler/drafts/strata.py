"""The evaluation prompts: a folder of <stratum>.jsonl files, the texts that no draft may have been trained on.

One JSON object a line: {"id", "stratum", "messages": [{"role", "content"}, ...]} and whatever else an evaluation wants of it
(max_tokens: specdec_tools/strata.py reads all of it). Knows nothing of drafts.
Invariant: a folder without a prompt is an error, never an empty answer.
"""

from __future__ import annotations

import hashlib
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from specdec_runtime.faults import ArtifactError

_CORRECT = "correct the line"
_WHERE = (
    "name the folder of the evaluation prompts: the option --strata of a build, --folder of an evaluation"
)


def _beside_models() -> Path:
    """models/strata, beside the package of the model definitions, which is not imported: it needs TVM."""
    spec = find_spec("specdec_models")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).resolve().parent.parent / "strata"


DEFAULT = _beside_models()


def evaluation_prompts(folder: Path) -> list[tuple[str, str]]:
    """(id, text) of every message of every prompt, so that no run of words spans two. Raises ArtifactError naming file and line."""
    prompts: list[tuple[str, str]] = []
    for path in strata_files(folder):
        lines = path.read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines, 1):
            if line.strip():
                prompts += _prompt(line, f"{path}, line {number}")
    if not prompts:
        raise ArtifactError("the folder has no evaluation prompt", str(folder), _WHERE)
    return prompts


def strata_files(folder: Path) -> list[Path]:
    """The files, by name. Raises ArtifactError where there are none."""
    files = sorted(folder.glob("*.jsonl"))
    if not files:
        raise ArtifactError("there are no evaluation prompts (*.jsonl) here", str(folder), _WHERE)
    return files


def strata_sha256(folder: Path) -> str:
    """One hash over the files' names and contents: which evaluation prompts a draft was compared with."""
    lines = [
        f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n" for path in strata_files(folder)
    ]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _prompt(line: str, where: str) -> list[tuple[str, str]]:
    try:
        data: Any = json.loads(line)
    except ValueError as error:
        raise ArtifactError(f"the line is not JSON: {error}", where, _CORRECT) from None
    if not isinstance(data, dict) or not isinstance(data.get("id"), str) or not data["id"]:
        raise ArtifactError("the prompt has no id", where, _CORRECT)
    messages = data.get("messages")
    if not isinstance(messages, list) or not messages:
        raise ArtifactError("the prompt has no messages", where, _CORRECT)
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("content"), str):
            raise ArtifactError("a message has no content", where, _CORRECT)
    return [(data["id"], message["content"]) for message in messages]
