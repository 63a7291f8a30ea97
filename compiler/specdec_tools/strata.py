"""The strict reader of models/strata: prompts for evaluation, one JSON object a line, grouped into preregistered strata.

Does not know models, tokens or measurements; a folder's files and the default folder are those of the compiler's gate for drafts.
Invariants: what it returns was checked in full, in the order of STRATA and then of
the lines; a fault names file and line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from specdec_compiler.drafts.strata import DEFAULT as FOLDER
from specdec_compiler.drafts.strata import strata_files
from specdec_runtime.faults import ArtifactError, RequestError

STRATA = (
    "chat",
    "ambiguity",
    "source_conflict",
    "untrusted_memory",
    "summary",
    "rewrite",
    "json",
    "repetitive",
    "multilingual",
    "long_context",
    "adversarial",
)
HEADLINE = ("chat", "rewrite", "summary", "json")
KEYS = ("id", "stratum", "messages", "max_tokens")
MOST_TOKENS = 1024
FIX = "Compare the line with models/strata/README.md"

Message = dict[str, str]


@dataclass(frozen=True)
class Prompt:
    """One line."""

    id: str
    stratum: str
    messages: tuple[Message, ...]
    max_tokens: int

    @property
    def text(self) -> str:
        """What makes two prompts the same."""
        return json.dumps(self.messages, ensure_ascii=False)


class _Line:
    """One line being read; knows where it stands."""

    def __init__(self, where: str) -> None:
        self.where = where

    def refuse(self, message: str) -> NoReturn:
        raise ArtifactError(message, self.where, FIX)

    def _unique(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in pairs]
        if len(set(keys)) != len(keys):
            self.refuse(f"a key stands twice among {keys}")
        return dict(pairs)

    def keyed(self, value: Any, keys: Sequence[str], what: str) -> dict[str, Any]:
        if not isinstance(value, dict) or sorted(value) != sorted(keys):
            self.refuse(f"{what} is no object with exactly the keys {', '.join(keys)}")
        return value

    def prompt(self, text: str, stratum: str) -> Prompt:
        try:
            data = json.loads(text, object_pairs_hook=self._unique)
        except ValueError as error:
            self.refuse(f"no JSON: {error}")
        data = self.keyed(data, KEYS, "the line")
        if data["stratum"] != stratum:
            self.refuse(f"stratum is {data['stratum']!r} in the file of {stratum!r}")
        if not isinstance(data["id"], str) or not re.fullmatch(rf"{stratum}-\d\d+", data["id"]):
            self.refuse(f"id {data['id']!r} is not {stratum}- and a number of two digits or more")
        most = data["max_tokens"]
        if type(most) is not int or not 1 <= most <= MOST_TOKENS:
            self.refuse(f"max_tokens {most!r} is no whole number from 1 to {MOST_TOKENS}")
        return Prompt(data["id"], stratum, self.messages(data["messages"]), most)

    def messages(self, value: Any) -> tuple[Message, ...]:
        if not isinstance(value, list) or not value:
            self.refuse("messages is no list with something in it")
        for message in value:
            self.keyed(message, ("role", "content"), "a message")
            content = message["content"]
            if not isinstance(content, str) or content != content.strip() or not content:
                self.refuse("a message's content is no text, is empty or has blanks around it")
        roles = [message["role"] for message in value]
        talk = roles[1:] if roles[0] == "system" else roles
        if not talk or len(talk) % 2 == 0 or talk != (["user", "assistant"] * len(talk))[: len(talk)]:
            self.refuse(
                f"roles {roles}: a system's first if any, then user and assistant in turn, a user's last"
            )
        return tuple(value)


def _lines(path: Path) -> list[str]:
    try:
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise ArtifactError(f"it cannot be read: {error.strerror}", str(path), FIX) from None
    except UnicodeDecodeError as error:
        raise ArtifactError(f"it is not UTF-8: {error.reason}", str(path), FIX) from None
    if not text.endswith("\n"):
        raise ArtifactError("it is empty, or its last line does not end", str(path), FIX)
    return text[:-1].split("\n")


def chosen_strata(names: Sequence[str] | None) -> list[str]:
    """The strata asked for, in their own order; None asks for all."""
    if names is None:
        return list(STRATA)
    if unknown := sorted(set(names) - set(STRATA)):
        raise RequestError(f"no stratum is called {', '.join(unknown)}", "strata", f"Of {', '.join(STRATA)}")
    if not names:
        raise RequestError("no stratum is named", "strata", f"Choose among {', '.join(STRATA)}")
    return [name for name in STRATA if name in names]


def read_strata(folder: Path = FOLDER, names: Sequence[str] | None = None) -> list[Prompt]:
    """The prompts of the strata asked for. Every stratum's file is read, since ids and texts are unique over all."""
    chosen = chosen_strata(names)
    if extra := sorted({path.stem for path in strata_files(folder)} - set(STRATA)):
        raise ArtifactError("no stratum is called so", str(folder / f"{extra[0]}.jsonl"), FIX)
    prompts: list[Prompt] = []
    seen: dict[str, str] = {}
    for stratum in STRATA:
        path = folder / f"{stratum}.jsonl"
        for number, text in enumerate(_lines(path), 1):
            line = _Line(f"{path}:{number}")
            prompt = line.prompt(text, stratum)
            for what, value in (("id", prompt.id), ("messages", prompt.text)):
                if value in seen:
                    line.refuse(f"its {what} stand at {seen[value]} already")
                seen[value] = line.where
            prompts.append(prompt)
    return [prompt for prompt in prompts if prompt.stratum in chosen]
