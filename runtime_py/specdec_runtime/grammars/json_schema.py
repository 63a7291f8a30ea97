"""JSON Schema to EBNF: every text of the grammar is JSON that the schema accepts.

Knows no engine. A text is one line, ", " between members and ": " after a key, an object's keys in the schema's order. What a
grammar cannot say exactly is a RequestError that names the place, never a looser grammar; what it says may be narrower: no
other properties than those named, numbers of MAX_DIGITS digits, patterns match the whole string. Annotations are read over.
Invariant: a `$ref` that would go round without a character in between is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from specdec_runtime.faults import RequestError
from specdec_runtime.grammars.bounds import bounded
from specdec_runtime.grammars.ebnf import NOTHING, Rules, either, joined, literal, repeated
from specdec_runtime.grammars.formats import FORMATS
from specdec_runtime.grammars.numbers import INTEGER, NUMBER
from specdec_runtime.grammars.regex import regex_ebnf

TYPES = ("object", "array", "string", "integer", "number", "boolean", "null")
ANNOTATIONS = {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"}
ANNOTATIONS |= {"$schema", "$id", "$comment", "$defs", "definitions"}
OF_TYPE = {
    "object": {"properties", "required", "additionalProperties"},
    "array": {"items", "prefixItems", "minItems", "maxItems"},
    "string": {"minLength", "maxLength", "pattern", "format"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"},
}
OF_TYPE["integer"] = OF_TYPE["number"]
# one of them, and no other constraint, but a type beside enum and const
ALONE = (
    "$ref",
    "enum",
    "const",
    "anyOf",
    "oneOf",
    "allOf",
)
KNOWN = ANNOTATIONS | {"type", *ALONE} | set().union(*OF_TYPE.values())
MAX_DEPTH = 64
MAX_NESTING = 256  # of all that a schema holds, values too: so far Python can follow
NAMED_STEPS = 8  # of a place that lies deep
MAX_COUNT = 1000  # of minLength, maxLength
MAX_ITEMS = 64  # of minItems, maxItems: they are written out
PLAIN = r'[^"\\\u0000-\u001f]'  # characters of a string of limited length: none that needs an escape

CHARACTER = (
    r'[^"\\\u0000-\u001f] | "\\" (["\\/bfnrt] | "u" ([0-9a-cA-CefEF] [0-9a-fA-F]{3} | [dD] [0-7] [0-9a-fA-F]{2} '
    r'| [dD] [89abAB] [0-9a-fA-F]{2} "\\u" [dD] [c-fC-F] [0-9a-fA-F]{2}))'
)

Open = frozenset[str]  # references being followed since the last character


def schema_ebnf(schema: Any) -> str:
    """The whole grammar of a schema."""
    _check_nesting(schema)
    converter = _Converter(schema)
    return converter.rules.text(converter.value(schema, "schema", frozenset()))


def json_ebnf() -> str:
    """Any object or array."""
    converter = _Converter(True)
    return converter.rules.text(either([converter.any_of("object"), converter.any_of("array")]))


def _refuse(message: str, where: str, action: str = "Leave it out, or say it in another way") -> NoReturn:
    raise RequestError(message, where, action)


def _check_nesting(schema: Any) -> None:
    """Before anything goes down into it, or shows it in a message. The place is named by its first steps."""
    left = [(schema, "schema", 0)]
    while left:
        value, where, depth = left.pop()
        if depth > MAX_NESTING:
            _refuse(f"it is nested more than {MAX_NESTING} deep", where)
        parts = value.items() if isinstance(value, Mapping) else ()
        parts = enumerate(value) if isinstance(value, (list, tuple)) else parts
        for key, part in parts:
            step = f"[{key}]" if isinstance(key, int) else f".{key}"
            left.append((part, where + step if depth < NAMED_STEPS else where, depth + 1))


class _Converter:
    """One schema's rules; shared ones are made when first used."""

    def __init__(self, root: Any) -> None:
        self.rules = Rules()
        self._root = root
        self._shared: dict[str, str] = {}
        self._depth = 0

    def value(self, schema: Any, where: str, opened: Open) -> str:
        """An expression for the values that the schema accepts."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            _refuse(f"the schema is nested more than {MAX_DEPTH} deep", where)
        try:
            if schema is True:
                return self.any_value()
            if not isinstance(schema, Mapping):
                _refuse(f"{schema!r} accepts nothing, or is no schema", where)
            return self._mapping(schema, where, opened)
        finally:
            self._depth -= 1

    def _mapping(self, schema: Mapping[str, Any], where: str, opened: Open) -> str:
        unknown = sorted(str(key) for key in set(schema) - KNOWN)
        if unknown:
            _refuse(f"{', '.join(unknown)} cannot be kept to by a grammar", where)
        alone = [key for key in ALONE if key in schema]
        if not alone:
            kinds = self._kinds(schema, where)
            return either(self._of_kind(kind, schema, where) for kind in kinds) if kinds else self.any_value()
        beside = (
            set(schema) - ANNOTATIONS - {alone[0]} - ({"type"} if alone[0] in ("enum", "const") else set())
        )
        if beside:
            _refuse(f"{alone[0]} stands beside {', '.join(sorted(beside))}", where)
        return getattr(
            self, {"$ref": "_ref", "enum": "_enum", "const": "_const"}.get(alone[0], "_" + alone[0].lower())
        )(schema, where, opened)

    def _kinds(self, schema: Mapping[str, Any], where: str) -> list[str]:
        """Its types; where it names none, the one that its keywords speak of."""
        if "type" in schema:
            kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
            if not kinds or any(kind not in TYPES for kind in kinds):
                _refuse(f"type is {schema['type']!r}", where, f"Types are {', '.join(TYPES)}")
            return [kind for kind in kinds if not (kind == "integer" and "number" in kinds)]
        spoken = [kind for kind, keys in OF_TYPE.items() if kind != "integer" and keys & set(schema)]
        if len(spoken) > 1:
            _refuse(f"no type, and keywords of {' and '.join(spoken)}", where, "Name the type")
        return spoken

    def _of_kind(self, kind: str, schema: Mapping[str, Any], where: str) -> str:
        if kind in ("boolean", "null"):
            return '("true" | "false")' if kind == "boolean" else '"null"'
        if not OF_TYPE[kind] & set(schema):
            return self.any_of(kind)
        make = {"object": self._object, "array": self._array, "string": self._string}.get(kind)
        return make(schema, where) if make else self._number(kind, schema, where)

    # what is shared

    def any_of(self, kind: str) -> str:
        """Any value of a type."""
        if kind not in self._shared:
            name = self._shared[kind] = self.rules.reserve(kind)
            self.rules.set(name, self._any_body(kind))
        return self._shared[kind]

    def _any_body(self, kind: str) -> str:
        if kind == "string":
            return joined([r'"\""', repeated(self._character(), 0, None), r'"\""'])
        if kind == "object":
            return self._pairs(self.any_value())
        if kind == "array":
            return self._elements([], self.any_value(), 0, None)
        return regex_ebnf(INTEGER if kind == "integer" else NUMBER)

    def any_value(self) -> str:
        if "value" not in self._shared:
            name = self._shared["value"] = self.rules.reserve("value")
            kinds = [self.any_of(kind) for kind in ("object", "array", "string", "number")]
            self.rules.set(name, either([*kinds, '"true"', '"false"', '"null"']))
        return self._shared["value"]

    def _character(self) -> str:
        if "character" not in self._shared:
            self._shared["character"] = self.rules.add("character", CHARACTER)
        return self._shared["character"]

    # what stands alone

    def _ref(self, schema: Mapping[str, Any], where: str, opened: Open) -> str:
        ref = schema["$ref"]
        if not isinstance(ref, str) or not (ref == "#" or ref.startswith("#/")):
            _refuse(f"$ref {ref!r} leads out of the schema", where, "Refer to #/$defs/...")
        if ref in opened:
            _refuse(f"{ref} refers to itself at once", where)
        if ref not in self._shared:
            target = self._resolve(ref, where)
            name = self._shared[ref] = self.rules.reserve("ref")
            depth, self._depth = self._depth, 0
            self.rules.set(name, self.value(target, ref, opened | {ref}))
            self._depth = depth
        return self._shared[ref]

    def _resolve(self, ref: str, where: str) -> Any:
        found = self._root
        for part in ref.split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and key in map(str, range(len(found))):
                found = found[int(key)]
            elif isinstance(found, Mapping) and key in found:
                found = found[key]
            else:
                _refuse(f"$ref {ref!r} leads nowhere", where)
        return found

    def _enum(self, schema: Mapping[str, Any], where: str, opened: Open) -> str:
        values = schema["enum"]
        if not isinstance(values, Sequence) or isinstance(values, str):
            _refuse("enum is no list", where)
        kinds = self._kinds(schema, where) if "type" in schema else list(TYPES)
        kept = [
            value
            for value in values
            if _kind_of(value) in kinds or (_kind_of(value) == "integer" and "number" in kinds)
        ]
        if not kept:
            _refuse("enum leaves no value", where)
        return either(literal(_json(value, where)) for value in kept)

    def _const(self, schema: Mapping[str, Any], where: str, opened: Open) -> str:
        return self._enum({**schema, "enum": [schema["const"]]}, where, opened)

    def _anyof(self, schema: Mapping[str, Any], where: str, opened: Open) -> str:
        return either(self._choices("anyOf", schema["anyOf"], where, opened))

    def _oneof(self, schema: Mapping[str, Any], where: str, opened: Open) -> str:
        """Exactly one: the grammar of "any" where no value can be of two."""
        seen: list[str] = []
        for part in schema["oneOf"] if isinstance(schema["oneOf"], list) else []:
            kinds = part.get("type", []) if isinstance(part, Mapping) else []
            for kind in kinds if isinstance(kinds, list) else [kinds]:
                seen.append("number" if kind == "integer" else str(kind))
            if not kinds:
                seen += ["untyped", "untyped"]
        if len(set(seen)) != len(seen):
            _refuse("oneOf whose choices overlap", where, "Use anyOf, or give every choice a type of its own")
        return either(self._choices("oneOf", schema["oneOf"], where, opened))

    def _allof(self, schema: Mapping[str, Any], where: str, opened: Open) -> str:
        if not isinstance(schema["allOf"], list) or len(schema["allOf"]) != 1:
            _refuse("allOf of several", where, "Write them as one schema")
        return self.value(schema["allOf"][0], f"{where}.allOf[0]", opened)

    def _choices(self, key: str, parts: Any, where: str, opened: Open) -> list[str]:
        if not isinstance(parts, list) or not parts:
            _refuse(f"{key} is no list of schemas", where)
        return [self.value(part, f"{where}.{key}[{i}]", opened) for i, part in enumerate(parts)]

    # types

    def _object(self, schema: Mapping[str, Any], where: str) -> str:
        properties, required = schema.get("properties", {}), schema.get("required", [])
        more = schema.get("additionalProperties", "properties" not in schema)
        if not isinstance(properties, Mapping) or not isinstance(required, list):
            _refuse("properties or required is of a wrong form", where)
        lacking = [key for key in required if not isinstance(key, str) or key not in properties]
        if lacking:
            _refuse(f"required names {lacking[0]!r}, which is none of its properties", where)
        if not properties:
            if more is False:
                return literal("{}")
            return self.rules.add(
                "object", self._pairs(self.value(more, f"{where}.additionalProperties", frozenset()))
            )
        if more is not False:
            message = "additionalProperties beside properties: a key of theirs could come twice"
            _refuse(message, where, "Set additionalProperties to false")
        members = [
            (
                joined([literal(_json(key, where) + ": "), self.value(part, f"{where}.{key}", frozenset())]),
                key in required,
            )
            for key, part in properties.items()
        ]
        return self.rules.add("object", joined([literal("{"), self._members(members), literal("}")]))

    def _members(self, members: list[tuple[str, bool]]) -> str:
        """In order, each optional one there or not: a rule for what may follow once a member was written, and before."""
        tail = head = NOTHING
        for text, must in reversed(members):
            with_comma = joined([literal(", "), text, tail])
            first = joined([text, tail])
            tail = self.rules.add("rest", with_comma if must else either([with_comma, tail]))
            head = self.rules.add("members", first if must else either([first, head]))
        return head

    def _pairs(self, value: str) -> str:
        pair = joined([self.any_of("string"), literal(": "), value])
        more = repeated(joined([literal(", "), pair]), 0, None)
        return joined([literal("{"), repeated(joined([pair, more]), 0, 1), literal("}")])

    def _array(self, schema: Mapping[str, Any], where: str) -> str:
        prefix, items = schema.get("prefixItems", []), schema.get("items", "prefixItems" not in schema)
        least, most = self._counts(schema, "minItems", "maxItems", where)
        if not isinstance(prefix, list):
            _refuse("prefixItems is no list", where)
        first = [self.value(part, f"{where}.prefixItems[{i}]", frozenset()) for i, part in enumerate(prefix)]
        if items is False:
            most = len(first) if most is None else min(most, len(first))
        if most is not None and least > most:
            _refuse("no array has so many items", where)
        rest = NOTHING if items is False else self.value(items, f"{where}.items", frozenset())
        return self.rules.add("array", self._elements(first, rest, least, most))

    def _elements(self, first: list[str], rest: str, least: int, most: int | None) -> str:
        """`first` by place, then more of `rest`: least to most in all."""
        most_rest = None if most is None else max(0, most - len(first))
        least_rest = max(0, least - len(first))
        comma = literal(", ")
        if first:
            tail = repeated(joined([comma, rest]), least_rest, most_rest)
        elif most_rest == 0:
            tail = NOTHING
        else:
            after = None if most_rest is None else most_rest - 1
            tail = joined([rest, repeated(joined([comma, rest]), max(0, least_rest - 1), after)])
            tail = tail if least_rest else repeated(tail, 0, 1)
        for place in range(len(first) - 1, -1, -1):
            if most is not None and place >= most:
                tail = NOTHING
                continue
            one = joined([comma, first[place], tail] if place else [first[place], tail])
            tail = self.rules.add("items", one if place < least else either([one, NOTHING]))
        return joined([literal("["), tail, literal("]")])

    def _string(self, schema: Mapping[str, Any], where: str) -> str:
        special = [key for key in ("pattern", "format") if key in schema]
        least, most = self._counts(schema, "minLength", "maxLength", where)
        if len(special) + ((least, most) != (0, None)) > 1:
            _refuse("two of a length, pattern and format", where)
        if not special:
            return joined([r'"\""', repeated(PLAIN, least, most), r'"\""'])
        pattern = schema.get("pattern")
        if special == ["format"]:
            pattern = FORMATS.get(schema["format"]) if isinstance(schema["format"], str) else None
            if pattern is None:
                _refuse(f"format is {schema['format']!r}", where, f"Use one of {', '.join(FORMATS)}")
        if not isinstance(pattern, str):
            _refuse("pattern is no text", where)
        return self.rules.add("string", joined([r'"\""', regex_ebnf(pattern, True, where), r'"\""']))

    def _number(self, kind: str, schema: Mapping[str, Any], where: str) -> str:
        return self.rules.add(kind, regex_ebnf(bounded(kind, schema, where)))

    def _counts(self, schema: Mapping[str, Any], least: str, most: str, where: str) -> tuple[int, int | None]:
        low, high = schema.get(least, 0), schema.get(most)
        for name, value in ((least, low), (most, high)):
            limit = MAX_ITEMS if name.endswith("Items") else MAX_COUNT
            if value is not None and (type(value) is not int or not 0 <= value <= limit):
                _refuse(f"{name} is {value!r}", where, f"Give a whole number from 0 to {limit}")
        if high is not None and low > high:
            _refuse(f"{least} is above {most}", where)
        return low, high


def _kind_of(value: Any) -> str:
    kinds: dict[type, str] = {
        bool: "boolean",
        int: "integer",
        float: "number",
        str: "string",
        list: "array",
        dict: "object",
    }
    if isinstance(value, float) and value.is_integer():
        return "integer"
    return "null" if value is None else kinds.get(type(value), "unknown")


def _json(value: Any, where: str) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except (ValueError, TypeError):
        _refuse(f"{value!r} has no JSON", where)
    return text
