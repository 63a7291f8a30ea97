"""The strict reader of a distillation recipe (TOML): which champion, how much text, which draft, how it is trained.

Invariant: an unknown or missing key, or a value of the wrong type, is an ArtifactError that names it.
"""

from __future__ import annotations

import dataclasses
import tomllib
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specdec_runtime.faults import ArtifactError

from .corpus import LENGTHS


@dataclass(frozen=True)
class TextRecipe:
    """What the champion writes. Counts are of prompts; a share i of n writes with seed + i, and its part of each count."""

    seed: int
    composed: int  # from templates and word lists
    self_written: int  # whose user turn the champion writes too
    on_passages: int  # about texts the champion wrote before
    follow_ups: int  # a second turn
    held_out: int  # prompts of another seed, answered at temperature 0: for the figures
    temperatures: list[float]  # taken in turn
    max_new: int
    max_prompt: int
    rows: int  # texts written at once


@dataclass(frozen=True)
class DraftSizes:
    """The draft's shape: see draft.py."""

    copy: list[int]
    ffn: int


@dataclass(frozen=True)
class TrainRecipe:
    """steps: optimizer steps by the whole loss. filter_steps: by AdaSPEC's filter, of a fresh draft, the first as reference (or 0)."""

    seed: int
    steps: int
    filter_steps: int
    keep: float
    tv: float
    batch_tokens: int
    lr: float
    warmup: int
    eval_every: int


@dataclass(frozen=True)
class DistillRecipe:
    """A whole recipe; `folder` is where it lies. `champion` is the recipe of the bundle the draft is for."""

    name: str
    license: str
    champion: str
    text: TextRecipe
    draft: DraftSizes
    train: TrainRecipe
    folder: Path = field(default=Path())


def read_distill_recipe(path: Path) -> DistillRecipe:
    """Read and check. Raises ArtifactError."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ArtifactError(
            f"the recipe cannot be read: {error}", str(path), "correct or name the file"
        ) from None
    recipe = _read(DistillRecipe, data, "", str(path))
    if recipe.text.max_prompt >= LENGTHS[-1]:
        message = f"text.max_prompt = {recipe.text.max_prompt}, but texts are cut at {LENGTHS[-1]} tokens"
        raise ArtifactError(message, str(path), "give less: the answer must fit too")
    return dataclasses.replace(recipe, folder=path.parent)


def _read(kind: Any, data: dict[str, Any], prefix: str, where: str) -> Any:
    types = typing.get_type_hints(kind)
    wanted = [f.name for f in dataclasses.fields(kind) if f.name != "folder"]
    for key in data:
        if key not in wanted:
            raise ArtifactError(
                f"the key {prefix}{key} is unknown", where, f"remove it; the keys are {', '.join(wanted)}"
            )
    values = {}
    for key in wanted:
        if key not in data:
            raise ArtifactError(f"the key {prefix}{key} is missing", where, "add it")
        values[key] = _value(types[key], data[key], prefix + key, where)
    return kind(**values)


def _value(kind: Any, value: Any, key: str, where: str) -> Any:
    if dataclasses.is_dataclass(kind):
        if isinstance(value, dict):
            return _read(kind, value, f"{key}.", where)
    elif kind is float and type(value) in (int, float) and value >= 0:
        return float(value)
    elif (kind is int and type(value) is int and value >= 0) or (
        kind is str and isinstance(value, str) and value
    ):
        return value
    elif typing.get_origin(kind) is list and isinstance(value, list) and value:
        (item,) = typing.get_args(kind)
        return [_value(item, one, f"{key}[{index}]", where) for index, one in enumerate(value)]
    raise ArtifactError(
        f"{key} = {value!r} is not allowed", where, f"give a value of type {getattr(kind, '__name__', kind)}"
    )
