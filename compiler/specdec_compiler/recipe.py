"""The strict reader of recipes (TOML): which champion, which draft, which formats.

Knows no model and opens no weights. Invariants: an unknown key, a wrong type or a value outside the allowed
ones is an ArtifactError that names the key's path and what is allowed; a Recipe that exists is valid by
itself.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from specdec_runtime.faults import ArtifactError
from specdec_runtime.schedule.policy import DEFAULT as DEFAULT_POLICY
from specdec_runtime.schedule.policy import Policy, policy_of

from .quantize import Format

DEFAULT_CONTEXT = 2048
PAGE_SIZES = (8, 16, 32, 64, 128, 256)
MAX_CONTEXT = 1 << 20


@dataclass(frozen=True)
class ChampionRecipe:
    """The target model. context None means min(the model's, 2048)."""

    source: str
    context: int | None = None
    quantize: Format = "q4"
    quantize_embedding: Format = "q8"


@dataclass(frozen=True)
class DraftRecipe:
    """The draft: either from_layers (the champion's first layers) or source (another model) is set.

    embedding: with a source, whether the draft has an "own" embedding and head, or uses the "champion"'s.
    """

    from_layers: int | None = None
    source: str | None = None
    embedding: str = "own"


@dataclass(frozen=True)
class PagesRecipe:
    """KV pages: positions a page."""

    size: int = 64


@dataclass(frozen=True)
class Recipe:
    """A whole recipe. folder: where the recipe lies; relative sources start there."""

    name: str
    license: str
    champion: ChampionRecipe
    draft: DraftRecipe | None
    pages: PagesRecipe
    folder: Path
    schedule: Policy | None = None  # becomes the bundle's policy.json

    def context_for(self, model_context: int) -> int:
        """The context of the bundle, given the longest the champion was trained for.

        Raises ArtifactError when the recipe asks for more than the model has.
        """
        if self.champion.context is None:
            return min(model_context, DEFAULT_CONTEXT)
        if self.champion.context > model_context:
            message = f"{self.champion.context} positions asked, the champion has {model_context}"
            raise ArtifactError(message, "recipe: champion.context", f"give at most {model_context}")
        return self.champion.context


def read_recipe(path: Path | str) -> Recipe:
    """Read and check a recipe file. Raises ArtifactError for anything wrong with it."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ArtifactError(
            "there is no such recipe", str(path), "give the path of a recipe .toml file"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        message = f"the recipe cannot be read: {error}"
        raise ArtifactError(message, str(path), "give a readable UTF-8 file") from error
    return parse_recipe(text, path.parent, str(path))


def parse_recipe(text: str, folder: Path, where: str = "recipe") -> Recipe:
    """TOML text -> Recipe. folder: where relative sources start; where: the name used in errors.

    Raises ArtifactError for a syntax error, an unknown or missing key, a wrong type or value.
    """
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ArtifactError(f"the recipe is not TOML: {error}", where, "correct the named line") from error
    top = _Table(data, "", where)
    draft = top.take("draft", _is_table, "a table", None)
    recipe = Recipe(
        name=top.take(
            "name", _is_name, "lower-case letters, digits, '.', '_' and '-', starting with a letter or digit"
        ),
        license=top.take("license", _is_text, "a non-empty string"),
        champion=_champion(_Table(top.take("champion", _is_table, "a table"), "champion.", where)),
        draft=None if draft is None else _draft(_Table(draft, "draft.", where)),
        pages=_pages(_Table(top.take("pages", _is_table, "a table", {}), "pages.", where)),
        folder=folder,
        schedule=_schedule(top.take("schedule", _is_table, "a table", None), where),
    )
    top.finish()
    return recipe


def _champion(table: _Table) -> ChampionRecipe:
    formats = '"q4" or "q8"'
    champion = ChampionRecipe(
        source=table.take("source", _is_text, _SOURCE),
        context=table.take("context", _in_range(2, MAX_CONTEXT), f"an integer from 2 to {MAX_CONTEXT}", None),
        quantize=cast(Format, table.take("quantize", _is_format, formats, "q4")),
        quantize_embedding=cast(Format, table.take("quantize_embedding", _is_format, formats, "q8")),
    )
    table.finish()
    return champion


def _draft(table: _Table) -> DraftRecipe:
    draft = DraftRecipe(
        from_layers=table.take("from_layers", _in_range(1, 1024), "an integer from 1 to 1024", None),
        source=table.take("source", _is_text, _SOURCE, None),
        embedding=table.take("embedding", lambda v: v in ("own", "champion"), '"own" or "champion"', "own"),
    )
    table.finish()
    if (draft.from_layers is None) == (draft.source is None):
        found = "neither" if draft.source is None else "both"
        raise ArtifactError(
            f"the draft has {found} of from_layers and source",
            f"{table.where}: draft",
            "give exactly one of them, or leave the table [draft] out",
        )
    return draft


def _pages(table: _Table) -> PagesRecipe:
    sizes = "one of " + ", ".join(map(str, PAGE_SIZES))
    pages = PagesRecipe(size=table.take("size", lambda v: _is_int(v) and v in PAGE_SIZES, sizes, 64))
    table.finish()
    return pages


def _schedule(data: dict[str, Any] | None, where: str) -> Policy | None:
    """Keys that are left out have the defaults of policy.json; its strict reader checks the rest."""
    if data is None:
        return None
    table = _Table(data, "schedule.", where)
    merged = DEFAULT_POLICY.json()
    for key, good, allowed in (
        ("default", _is_text, "a schedule's name"),
        ("model", lambda v: isinstance(v, list), "a list of probabilities"),
        ("ngram", _is_table, "a table of probabilities by match length"),
        ("strength", _is_number, "a number"),
        ("confidence", lambda v: isinstance(v, list), "a list of [log-probability, probability]"),
        ("threshold", _is_number, "a number"),
    ):
        merged[key] = table.take(key, good, allowed, merged[key])
    table.finish()
    try:
        return policy_of(merged)
    except ArtifactError as error:
        place = error.where.rpartition("$.")[2]
        raise ArtifactError(
            error.message, f"{where}: schedule.{place}", "correct the table [schedule]"
        ) from None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


_SOURCE = 'a non-empty string: "package:NAME/FILE", or the path of a .gguf file or a Hugging Face folder'
_REQUIRED = object()


class _Table:
    """One TOML table being read: take() each known key, then finish() refuses what is left."""

    def __init__(self, data: dict[str, Any], prefix: str, where: str) -> None:
        self.where = where
        self._left = dict(data)
        self._known: list[str] = []
        self._prefix = prefix

    def take(self, key: str, good: Callable[[Any], bool], allowed: str, default: Any = _REQUIRED) -> Any:
        self._known.append(key)
        if key not in self._left:
            if default is _REQUIRED:
                raise ArtifactError(
                    f"the key {self._prefix}{key} is missing", self.where, f"add it: {allowed}"
                )
            return default
        value = self._left.pop(key)
        if not good(value):
            message = f"{self._prefix}{key} = {value!r} is not allowed"
            raise ArtifactError(message, f"{self.where}: {self._prefix}{key}", f"give {allowed}")
        return value

    def finish(self) -> None:
        for key in self._left:
            known = ", ".join(self._prefix + name for name in sorted(self._known))
            message = f"the key {self._prefix}{key} is unknown"
            raise ArtifactError(message, self.where, f"remove it; the keys here are: {known}")


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _in_range(low: int, high: int) -> Callable[[Any], bool]:
    return lambda value: _is_int(value) and low <= value <= high


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,99}", value) is not None


def _is_format(value: Any) -> bool:
    return isinstance(value, str) and value in ("q4", "q8")


def _is_table(value: Any) -> bool:
    return isinstance(value, dict)
