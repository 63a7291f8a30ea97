"""What a request may ask of a grammar, and the one form an engine gets: EBNF text.

Knows no engine, no model. Everything becomes EBNF here, so that the native engine and the browser's read the same grammar.
Invariant: a grammar that cannot be kept to exactly is a RequestError, before any device work.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specdec_runtime.faults import RequestError
from specdec_runtime.grammars.json_schema import json_ebnf, schema_ebnf
from specdec_runtime.grammars.regex import regex_ebnf

FIELDS = {"json": None, "json_schema": "schema", "regex": "pattern", "ebnf": "grammar"}
MAX_TEXT = 1_000_000  # characters of the EBNF


def lowered(grammar: Any) -> str:
    """The EBNF of {"type": "json"}, {"type": "json_schema", "schema"}, {"type": "regex", "pattern"} or {"type": "ebnf", "grammar"}."""
    text = _lowered(grammar)
    if len(text) > MAX_TEXT:
        raise RequestError("the grammar is too large", "grammar", "Ask for less of it at a time")
    return text


def _lowered(grammar: Any) -> str:
    kind = grammar.get("type") if isinstance(grammar, Mapping) else None
    if not isinstance(grammar, Mapping) or not isinstance(kind, str) or kind not in FIELDS:
        kinds = ", ".join(FIELDS)
        raise RequestError(
            "there is no such grammar", "grammar", f"Give an object whose type is one of {kinds}"
        )
    field = FIELDS[kind]
    wanted = {"type"} if field is None else {"type", field}
    if set(grammar) != wanted:
        has, needs = ", ".join(sorted(map(str, grammar))), ", ".join(sorted(wanted))
        raise RequestError(f"a grammar of type {kind} has {has}", "grammar", f"Give {needs}, nothing else")
    if field is None:
        return json_ebnf()
    if kind == "json_schema":
        return schema_ebnf(grammar["schema"])
    if not isinstance(grammar[field], str):
        raise RequestError(f"{field} is no text", "grammar", "Give a string")
    return f"root ::= {regex_ebnf(grammar['pattern'])}\n" if kind == "regex" else grammar["grammar"]
