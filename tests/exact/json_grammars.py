"""A grammar for each prompt of the JSON stratum (models/strata/json.jsonl): what its author would send along.

The keys that the prompt names, with their types; `{"type": "object"}` and plain JSON where it leaves open what comes.
"""

from typing import Any

STRING, INTEGER, BOOLEAN = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [*properties]}


def _list(items: dict[str, Any], least: int = 0, most: int | None = None) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "array", "items": items}
    return schema | ({"minItems": least} if least else {}) | ({} if most is None else {"maxItems": most})


_FOUR = _list(STRING, 4, 4)
SCHEMAS: dict[str, dict[str, Any] | None] = {
    "json-01": _object(name=STRING, age=INTEGER, city=STRING),
    "json-02": _list(STRING, 7, 7),
    "json-03": _object(
        customer=STRING, items=_list(_object(product=STRING, quantity=INTEGER), 1), express=BOOLEAN
    ),
    "json-04": _list(_object(plant=STRING, height_cm=INTEGER, colour=STRING), 3, 3),
    "json-05": _object(sentiment={"enum": ["positive", "negative", "mixed"]}, reason=STRING),
    "json-06": _object(clothes=_FOUR, bathroom=_FOUR, other=_FOUR),
    "json-07": {"type": "object"},
    "json-08": _object(river=INTEGER, stone=INTEGER, lantern=INTEGER, oak=INTEGER, meadow=INTEGER),
    "json-09": _object(name=STRING, price={"type": "number"}, in_stock=BOOLEAN, tags=_list(STRING)),
    "json-10": _object(
        title=STRING,
        date={"type": "string", "format": "date"},
        start=STRING,
        end=STRING,
        attendees=_list(STRING),
    ),
    "json-11": _object(
        question=STRING, options=_FOUR, answer={"type": "integer", "minimum": 0, "maximum": 3}
    ),
    "json-12": None,  # a JSON schema itself: any JSON
}


def grammar_of(prompt: str) -> dict[str, Any]:
    schema = SCHEMAS[prompt]
    return {"type": "json"} if schema is None else {"type": "json_schema", "schema": schema}
