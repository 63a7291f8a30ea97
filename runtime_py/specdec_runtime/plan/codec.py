"""plan.json to `Plan` and back: a strict reader and a canonical writer.

Knows the shapes in schema.py and nothing of their meaning (check.py does). Invariants: an unknown, missing
or mistyped key is an ArtifactError whose `where` is its JSON path (`$.models[0].hidden`); there are no
floats and no defaults; `dump_plan(read_plan(text))` is the canonical form of text: sorted keys, no spaces,
ASCII.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

from specdec_runtime.faults import ArtifactError
from specdec_runtime.plan.schema import Plan

MAX_INT = 2**53 - 1  # what a JavaScript number holds exactly
REBUILD = "Rebuild the bundle with this version of specdec-compile"

Reader = Callable[[Any, str], Any]


def read_plan(text: str | bytes) -> Plan:
    """The plan in `text`, well formed but not yet checked; see `load_plan`."""
    data = _parse(text)
    _check_version(data)
    return _reader(Plan)(data, "$")


def dump_plan(plan: Plan) -> str:
    """The canonical JSON text of a plan."""
    return json.dumps(_plain(plan), sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def fail(path: str, message: str, action: str = REBUILD) -> NoReturn:
    """Refuse the plan at a JSON path."""
    raise ArtifactError(f"plan.json: {message}", path, action)


def _parse(text: str | bytes) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        fail("$", f"not valid JSON: {error}")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key appears twice in one object")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _check_version(data: Any) -> None:
    """Another version has other keys: say so before complaining about them."""
    if not isinstance(data, dict) or "format" not in data or "version" not in data:
        return  # the reader below names the missing key
    if data["format"] != "specdec-plan":
        fail("$.format", "this is not a specdec plan")
    if type(data["version"]) is int and data["version"] != 1:
        fail("$.version", f"this runtime reads plan version 1, not {data['version']}")


@cache
def _reader(kind: Any) -> Reader:
    """The reader for one annotation of schema.py."""
    if is_dataclass(kind):
        return _record_reader(kind)
    if kind in (int, str, bool, NoneType):
        return _SCALARS[kind]
    origin = get_origin(kind)
    if origin is Literal:
        return _choice_reader(get_args(kind))
    if origin in (Union, UnionType):
        return _union_reader(get_args(kind))
    if origin is tuple:
        return _tuple_reader(get_args(kind))
    if origin is dict:
        return _map_reader(get_args(kind)[1])
    raise TypeError(f"schema.py uses an annotation that codec.py cannot read: {kind!r}")


def _record_reader(kind: Any) -> Reader:
    hints = get_type_hints(kind)
    readers = {field.name: _reader(hints[field.name]) for field in fields(kind)}

    def read(value: Any, path: str) -> Any:
        _expect(isinstance(value, dict), value, path, "an object")
        for key in value:
            if key not in readers:
                fail(f"{path}.{key}", "unknown key")
        for key in readers:
            if key not in value:
                fail(f"{path}.{key}", "missing key")
        return kind(**{key: reader(value[key], f"{path}.{key}") for key, reader in readers.items()})

    return read


def _read_int(value: Any, path: str) -> int:
    _expect(type(value) is int, value, path, "an integer")
    _expect(-MAX_INT <= value <= MAX_INT, value, path, "an integer of at most 53 bits")
    return value


def _read_str(value: Any, path: str) -> str:
    _expect(isinstance(value, str), value, path, "a string")
    return value


def _read_bool(value: Any, path: str) -> bool:
    _expect(isinstance(value, bool), value, path, "true or false")
    return value


def _read_none(value: Any, path: str) -> None:
    _expect(value is None, value, path, "null")


_SCALARS: dict[Any, Reader] = {int: _read_int, str: _read_str, bool: _read_bool, NoneType: _read_none}


def _choice_reader(choices: tuple[Any, ...]) -> Reader:
    def read(value: Any, path: str) -> Any:
        for choice in choices:
            if type(value) is type(choice) and value == choice:
                return choice
        fail(path, f"expected one of {', '.join(map(repr, choices))}, found {_short(value)}")

    return read


def _union_reader(kinds: tuple[Any, ...]) -> Reader:
    def read(value: Any, path: str) -> Any:
        for kind in kinds:
            if type(value) is kind:
                return _reader(kind)(value, path)
        fail(path, f"expected {' or '.join(kind.__name__ for kind in kinds)}, found {_short(value)}")

    return read


def _tuple_reader(kinds: tuple[Any, ...]) -> Reader:
    item = _reader(kinds[0])
    length = None if kinds[-1] is Ellipsis else len(kinds)  # every fixed list in the schema has one item type

    def read(value: Any, path: str) -> tuple[Any, ...]:
        _expect(isinstance(value, list), value, path, "a list")
        if length is not None and len(value) != length:
            fail(path, f"expected a list of {length}, found {len(value)}")
        return tuple([item(part, f"{path}[{index}]") for index, part in enumerate(value)])

    return read


def _map_reader(kind: Any) -> Reader:
    item = _reader(kind)

    def read(value: Any, path: str) -> dict[str, Any]:
        _expect(isinstance(value, dict), value, path, "an object")
        return {key: item(part, f"{path}.{key}") for key, part in value.items()}

    return read


def _expect(holds: bool, value: Any, path: str, wanted: str) -> None:
    if not holds:
        fail(path, f"expected {wanted}, found {_short(value)}")


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _plain(value: Any) -> Any:
    """Dataclasses to objects, tuples to lists; slots have no __dict__, so by field."""
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, (tuple, list)):
        return [_plain(part) for part in value]
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    return value
