"""The sequences of the numeric comparison: foreign texts and the champion's own answers, as ids.

Knows files and the tokenizer, no model. Invariants: a sequence is never longer than the context; the same files give the same
sequences; `first` is the first row whose prediction counts (own answers: the row that predicts the answer's first id).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdec_runtime.faults import ArtifactError, RequestError
from tqdm import tqdm

from specdec_tools.paths import ROOT
from specdec_tools.text import BundleText

TEXTS = ROOT / "tests" / "numerics" / "texts"
MAX_ANSWER = 80  # ids of one own answer

Answer = Callable[[list[int], int], list[int]]  # prompt ids, most ids -> greedy answer


@dataclass(frozen=True)
class TextRun:
    """Ids to feed, one row each; rows from `first` on are compared."""

    group: str
    own: bool
    ids: list[int]
    first: int = 0

    @property
    def num_rows(self) -> int:
        return len(self.ids) - self.first


def foreign_runs(text: BundleText, folder: Path, context: int, positions: int | None) -> list[TextRun]:
    """One run a file; `positions` shortens all of them alike to about that many rows together."""
    files = sorted(folder.glob("*.txt"))
    if not files:
        raise RequestError("there are no .txt files", str(folder), "Give a folder of texts with --texts")
    runs = [TextRun(path.stem, False, text.raw_ids(_read(path))[:context]) for path in files]
    total = sum(run.num_rows for run in runs)
    if positions is None or positions >= total:
        return runs
    shares = [-(-len(run.ids) * positions // total) for run in runs]
    return [TextRun(run.group, False, run.ids[:share]) for run, share in zip(runs, shares, strict=True)]


def own_runs(
    text: BundleText, folder: Path, source: str, context: int, positions: int | None, answer: Answer
) -> list[TextRun]:
    """Greedy answers to prompts.json: the stored ones where they are this champion's, else made by `answer`."""
    stored = _stored_answers(folder, source)
    runs, rows = [], 0
    for prompt in json.loads(_read(folder / "prompts.json")):
        if positions is not None and rows >= positions:
            break
        prompt_ids = ask(text, prompt)
        ids = stored.get(tuple(prompt_ids)) or answer(prompt_ids, min(MAX_ANSWER, context - len(prompt_ids)))
        if positions is not None:
            ids = ids[: positions - rows]
        rows += len(ids)
        # The last id is predicted, never fed.
        runs.append(TextRun("own-answers", True, [*prompt_ids, *ids][:-1], len(prompt_ids) - 1))
    return runs


def write_own(text: BundleText, folder: Path, source: str, answer: Answer) -> Path:
    """Make the stored answers anew."""
    prompts = [ask(text, prompt) for prompt in json.loads(_read(folder / "prompts.json"))]
    bar = tqdm(prompts, unit=" answers", disable=None, leave=False)
    answers = [{"prompt_ids": ids, "answer_ids": answer(ids, MAX_ANSWER)} for ids in bar]
    rows = ",\n".join(json.dumps(entry, separators=(",", ":")) for entry in answers)
    path = folder / "own.json"
    path.write_text(f'{{"source": {json.dumps(source)}, "answers": [\n{rows}\n]}}\n', encoding="utf-8")
    return path


def ask(text: BundleText, prompt: str) -> list[int]:
    """A question in the model's chat form, or as it stands where the model has none."""
    try:
        return text.prompt_ids(prompt)
    except RequestError:
        return text.prompt_ids(prompt, raw=True)


def _stored_answers(folder: Path, source: str) -> dict[tuple[int, ...], list[int]]:
    path = folder / "own.json"
    if not path.exists():
        return {}
    data: dict[str, Any] = json.loads(_read(path))
    if data["source"] != source:
        return {}
    return {tuple(entry["prompt_ids"]): entry["answer_ids"] for entry in data["answers"]}


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8")  # bytes: line ends stay as they are
    except (OSError, UnicodeDecodeError) as error:
        raise ArtifactError(f"cannot be read: {error}", str(path), "Restore the file") from None
