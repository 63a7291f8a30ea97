"""The sequences of the numeric comparison: foreign texts and the champion's own answers, as ids.

Knows files and the tokenizer, no model. Invariants: a sequence is never longer than the context; the same files give the same
sequences; `first` is the first row whose prediction counts (own answers: the row that predicts the answer's first id). A Sample takes
the last rows only of many short lists, where each row of logits is dear.
"""

from __future__ import annotations

import itertools
import json
import sys
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


@dataclass(frozen=True)
class Sample:
    """Compare only the last `rows` rows of each list of `window` ids."""

    rows: int
    window: int


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


def sampled_runs(text: BundleText, folder: Path, positions: int | None, sample: Sample) -> list[TextRun]:
    """Windows of the files: the first of each, then the second of each, until there are about `positions` rows.

    Each is fed by itself from position 0 on. Where a turn has more files than windows are wanted, files are left out evenly.
    """
    windows = []
    for run in foreign_runs(text, folder, sys.maxsize, None):
        parts = [run.ids[at : at + sample.window] for at in range(0, len(run.ids), sample.window)]
        whole = [part for part in parts if len(part) == sample.window] or parts[:1]
        windows.append([TextRun(run.group, False, ids, max(0, len(ids) - sample.rows)) for ids in whole])
    left = sum(map(len, windows)) if positions is None else -(-positions // sample.rows)
    chosen: list[TextRun] = []
    for turn in itertools.zip_longest(*windows):
        runs = [run for run in turn if run is not None]
        taken = min(left, len(runs))
        chosen += [runs[i * len(runs) // taken] for i in range(taken)]
        left -= taken
    return chosen


def own_runs(
    text: BundleText,
    folder: Path,
    source: str,
    context: int,
    positions: int | None,
    answer: Answer,
    sample: Sample | None = None,
) -> list[TextRun]:
    """Greedy answers to prompts.json: the stored ones where they are this champion's, else made by `answer`.

    With a sample, question and answer together are cut to its window (but to no fewer than its rows of answer).
    """
    stored = _stored_answers(folder, source)
    runs, rows = [], 0
    for prompt in json.loads(_read(folder / "prompts.json")):
        if positions is not None and rows >= positions:
            break
        prompt_ids = ask(text, prompt)
        ids = stored.get(tuple(prompt_ids)) or answer(prompt_ids, min(MAX_ANSWER, context - len(prompt_ids)))
        if sample is not None:
            ids = ids[: max(sample.rows, sample.window - len(prompt_ids))]
        elif positions is not None:
            ids = ids[: positions - rows]
        # The last id is predicted, never fed.
        fed = [*prompt_ids, *ids][:-1]
        first = len(prompt_ids) - 1 if sample is None else max(len(prompt_ids) - 1, len(fed) - sample.rows)
        runs.append(TextRun("own-answers", True, fed, first))
        rows += runs[-1].num_rows
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
