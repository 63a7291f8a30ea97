"""200 varied schemas from a seed: nested objects and arrays, enums, bounds, optional keys, unions, references, Unicode.

`grammar_on_model.py` asks a real model for each of them.
"""

import json
import random
from typing import Any

NAMES = [
    "name",
    "age",
    "e-mail",
    "città",
    "名前",
    "a b",
    'quo"te',
    "back\\slash",
    "line\nend",
    "emoji 🙂",
    "",
    "$ref",
    "type",
]
WORDS = ["red", "grün", "青", 'say "hi"', "tab\there", "🙂", "", "null", "1"]
PATTERNS = [
    r"[A-Z]{2}-\d{3,5}",
    r"^(yes|no|per haps)$",
    r"\w+@\w+\.(com|org)",
    r".{2,6}",
    r'"[^a]*"',
    r"\\\d?",
    r"[^\s]{1,4}",
    "é+|ü",
]
FORMATS = ["date", "time", "date-time", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"]
DEPTH = 3


def schemas(count: int = 200, seed: int = 7) -> list[dict[str, Any]]:
    return [Maker(random.Random(f"{seed} {number}")).whole() for number in range(count)]


class Maker:
    """One schema's choices."""

    def __init__(self, choose: random.Random) -> None:
        self.choose = choose
        self.defs: dict[str, Any] = {}

    def whole(self) -> dict[str, Any]:
        schema = self.choose.choice([self.object, self.object, self.array, lambda depth: self.any(depth)])(0)
        return {**schema, "$defs": self.defs} if self.defs else schema

    def any(self, depth: int) -> dict[str, Any]:
        makers = [
            self.string,
            self.string,
            self.integer,
            self.number,
            self.enum,
            self.const,
            self.simple,
            self.union,
        ]
        if depth < DEPTH:
            makers += [self.object, self.object, self.array, self.array, self.reference]
        schema = self.choose.choice(makers)(depth)
        return {**schema, "description": "a remark"} if self.choose.random() < 0.1 else schema

    def object(self, depth: int) -> dict[str, Any]:
        if self.choose.random() < 0.15:
            return {"type": "object", "additionalProperties": self.any(depth + 1)}
        names = self.choose.sample(NAMES, self.choose.randint(1, 4))
        required = [name for name in names if self.choose.random() < 0.6]
        schema = {"type": "object", "properties": {name: self.any(depth + 1) for name in names}}
        if required:
            schema["required"] = required
        return {**schema, "additionalProperties": False} if self.choose.random() < 0.5 else schema

    def array(self, depth: int) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": "array"}
        if self.choose.random() < 0.3:
            schema["prefixItems"] = [self.any(depth + 1) for _ in range(self.choose.randint(1, 3))]
            schema["items"] = self.choose.choice([False, True, {"type": "boolean"}])
            least = self.choose.randint(0, len(schema["prefixItems"]))
            return {**schema, "minItems": least}
        schema["items"] = self.any(depth + 1)
        least = self.choose.randint(0, 3)
        if self.choose.random() < 0.6:
            schema["minItems"] = least
        if self.choose.random() < 0.6:
            schema["maxItems"] = least + self.choose.randint(0, 3)
        return schema

    def string(self, depth: int) -> dict[str, Any]:
        kind = self.choose.randrange(4)
        if kind == 0:
            return {"type": "string"}
        if kind == 1:
            return {"type": "string", "pattern": self.choose.choice(PATTERNS)}
        if kind == 2:
            return {"type": "string", "format": self.choose.choice(FORMATS)}
        least = self.choose.randint(0, 5)
        return {"type": "string", "minLength": least, "maxLength": least + self.choose.randint(0, 20)}

    def integer(self, depth: int) -> dict[str, Any]:
        return {
            "type": "integer",
            **self._bounds(lambda: self.choose.choice([0, 1, -7, 42, 99, 1000, -12345, 10**9])),
        }

    def number(self, depth: int) -> dict[str, Any]:
        return {
            "type": "number",
            **self._bounds(lambda: self.choose.choice([0, 1, 0.5, -1.5, 99.9, -273.15, 0.001, 1e6])),
        }

    def _bounds(self, draw) -> dict[str, Any]:
        low, high = sorted((draw(), draw()))
        chosen = {}
        if self.choose.random() < 0.6:
            chosen[self.choose.choice(["minimum", "exclusiveMinimum"])] = low
        if self.choose.random() < 0.6:
            chosen[self.choose.choice(["maximum", "exclusiveMaximum"])] = high + 10
        return chosen

    def enum(self, depth: int) -> dict[str, Any]:
        values = self.choose.sample(
            [*WORDS, 1, 2.5, -3, None, True, [1, "x"], {"k": "é"}], self.choose.randint(1, 5)
        )
        return {"enum": values}

    def const(self, depth: int) -> dict[str, Any]:
        return {"const": self.choose.choice([*WORDS, 3.25, {"a": [None, 1]}])}

    def simple(self, depth: int) -> dict[str, Any]:
        return {
            "type": self.choose.choice(
                ["boolean", "null", ["string", "null"], ["integer", "boolean"], "object", "array"]
            )
        }

    def union(self, depth: int) -> dict[str, Any]:
        if self.choose.random() < 0.3:
            return {"oneOf": [self.string(depth), self.integer(depth), {"type": "null"}]}
        if depth >= DEPTH:
            return {"anyOf": [{"type": "null"}, self.integer(depth)]}
        return {"anyOf": [self.any(depth + 1) for _ in range(self.choose.randint(1, 3))]}

    def reference(self, depth: int) -> dict[str, Any]:
        name = f"node/{len(self.defs)}"
        self.defs[name] = {}
        ref = {"$ref": "#/$defs/" + name.replace("/", "~1")}
        tail = {"anyOf": [{"type": "null"}, ref]}
        properties = {"value": self.any(depth + 1), "next": tail}
        self.defs[name] = {"type": "object", "properties": properties, "required": ["value", "next"]}
        return ref


def check(schema: Any, text: str) -> None:
    """The text is JSON that the schema accepts, its formats too."""
    from jsonschema import Draft202012Validator

    value = json.loads(text, parse_constant=lambda name: 1 / 0)
    Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER).validate(value)
