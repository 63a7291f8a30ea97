"""Grammars as text: what is refused, where, and that numbers within bounds are exactly those. The engine is tests/exact's."""

import re

import pytest
from specdec_runtime.faults import RequestError
from specdec_runtime.grammars import lowered, numbers
from specdec_runtime.grammars.ebnf import merged, minus, one_of, repeated
from specdec_runtime.grammars.regex import regex_ebnf

DEEP: list = []
for _ in range(3000):
    DEEP = [DEEP]

REFUSED_SCHEMAS = [
    ({"not": {"type": "null"}}, "not cannot be kept to"),
    ({"type": "number", "multipleOf": 3}, "multipleOf"),
    ({"type": "array", "uniqueItems": True}, "uniqueItems"),
    ({"type": "array", "contains": {}}, "contains"),
    ({"type": "object", "patternProperties": {}}, "patternProperties"),
    ({"if": {}, "then": {}}, "if, then"),
    ({"type": "text"}, "type is 'text'"),
    ({"type": []}, "type is"),
    ({"minLength": 1, "minimum": 1}, "Name the type"),
    ({"anyOf": [{}], "type": "object"}, "anyOf stands beside type"),
    ({"$ref": "#/x"}, "leads nowhere"),
    ({"$ref": "http://x"}, "leads out"),
    ({"$ref": "#"}, "refers to itself"),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}]}}}, "refers to itself"),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "overlap"),
    ({"oneOf": [{}, {"type": "null"}]}, "overlap"),
    ({"allOf": [{}, {}]}, "allOf of several"),
    ({"type": "object", "properties": {"a": {}}, "additionalProperties": True}, "come twice"),
    ({"type": "object", "properties": {"a": {}}, "required": ["b"]}, "none of its properties"),
    ({"type": "string", "pattern": "a", "minLength": 2}, "two of"),
    ({"type": "string", "format": "color"}, "format is 'color'"),
    ({"type": "string", "minLength": 3, "maxLength": 2}, "minLength is above"),
    ({"type": "string", "maxLength": 1001}, "from 0 to 1000"),
    ({"type": "array", "maxItems": 65}, "from 0 to 64"),
    ({"type": "array", "items": False, "minItems": 1}, "no array"),
    ({"type": "integer", "minimum": 2, "maximum": 1}, "no number"),
    ({"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 2}, "no number"),
    ({"type": "number", "minimum": "1"}, "minimum is"),
    ({"type": "number", "minimum": 1.0000001}, "decimals"),
    ({"enum": []}, "leaves no value"),
    ({"type": "string", "enum": [1]}, "leaves no value"),
    ({"const": float("nan")}, "no JSON"),
    ({"$ref": []}, "leads out"),
    ({"$ref": "#/anyOf/" + 5000 * "9", "anyOf": [{}]}, "stands beside"),
    ({"anyOf": [{"$ref": "#/anyOf/" + 5000 * "9"}]}, "leads nowhere"),
    ({"type": "object", "properties": {"a": {}}, "required": [["a"]]}, "none of its properties"),
    ({"const": DEEP}, "256 deep"),
    ({"$ref": DEEP}, "256 deep"),
    ({"minimum": DEEP}, "256 deep"),
    ({"type": "object", "required": DEEP}, "256 deep"),
    (DEEP, "256 deep"),
    (False, "accepts nothing"),
    ("string", "no schema"),
]


@pytest.mark.parametrize(("schema", "said"), REFUSED_SCHEMAS)
def test_schemas_that_cannot_be_kept_to(schema, said):
    inside = {"type": "array", "prefixItems": [schema]}
    for whole, place in ((schema, "schema"), (inside, "schema.prefixItems[0]")):
        if said in ("leads nowhere", "refers to itself") and whole is inside:
            continue  # what it refers to is elsewhere then
        with pytest.raises(RequestError, match=re.escape(said)) as caught:
            lowered({"type": "json_schema", "schema": whole})
        assert caught.value.where.startswith((place, "#"))


def test_a_schema_too_deep():
    schema: dict = {}
    for _ in range(70):
        schema = {"type": "array", "items": schema}
    with pytest.raises(RequestError, match="64 deep"):
        lowered({"type": "json_schema", "schema": schema})


def test_the_place_of_what_is_too_deep_is_named_by_its_first_steps():
    with pytest.raises(RequestError) as caught:
        lowered({"type": "json_schema", "schema": {"properties": {"a": {"default": DEEP}}}})
    assert caught.value.where == "schema.properties.a.default" + 5 * "[0]"


@pytest.mark.parametrize(
    "grammar",
    [
        None,
        [],
        {},
        {"type": "json", "schema": {}},
        {"type": "regex"},
        {"type": "ebnf", "grammar": 1},
        {"type": ["json"]},
    ],
)
def test_what_is_no_grammar(grammar):
    with pytest.raises(RequestError):
        lowered(grammar)


@pytest.mark.parametrize(
    "pattern",
    [
        "(?=a)",
        "(?!a)",
        "(?i)a",
        r"\ba",
        r"(a)\1",
        r"\p{L}",
        "a{2",
        "a{3,2}",
        "a**",
        "(a",
        "a)",
        "[a",
        "[b-a]",
        "a$b",
        "*",
        r"\x1",
        "(ab){65}",
    ],
)
def test_expressions_that_are_not_read(pattern):
    with pytest.raises(RequestError):
        regex_ebnf(pattern)


def test_anchors_lazy_repetitions_and_names_change_nothing():
    assert regex_ebnf("^ab+?$") == regex_ebnf("ab+") and regex_ebnf("(?<name>a|b)") == regex_ebnf("(?:a|b)")


def test_inside_json_a_character_may_be_its_escape():
    assert regex_ebnf('"', in_json=True) == r'"\\\""'
    assert regex_ebnf("\n", in_json=True) == r'"\\n"'
    assert regex_ebnf("[a-c]", in_json=True) == "[a-c]"
    with pytest.raises(RequestError):
        regex_ebnf(r"\x01", in_json=True)


@pytest.mark.parametrize("low", [None, -1000, -25, -10, -1, 0, 1, 9, 10, 37, 99, 100, 999])
def test_integers_are_exactly_those_within_bounds(low):
    for high in (None, -1000, -100, -11, -1, 0, 1, 9, 10, 64, 100, 999, 1000):
        pattern = numbers.integers(low, high)
        for value in range(-1100, 1101):
            inside = (low is None or low <= value) and (high is None or value <= high)
            assert bool(pattern and re.fullmatch(pattern, str(value))) == inside, (low, high, value)


def test_decimals_are_exactly_the_steps_within_bounds():
    for low, high in ((-150, 37), (0, 1000), (5, 5), (-9, -1), (123, 4567), (None, -99), (990, None)):
        pattern = numbers.decimals(low, high, 2)
        assert pattern is not None
        for value in range(-1500, 5000):
            text = f"{value / 100:.2f}"
            inside = (low is None or low <= value) and (high is None or value <= high)
            assert bool(re.fullmatch(pattern, text)) == inside, (low, high, text)


def test_numbers_stay_between_their_bounds():
    for low, high, has_low, has_high in (
        (0, 1, True, True),
        (0, 1, False, False),
        (-2, 3, False, True),
        (-5, -4, True, False),
    ):
        pattern = numbers.numbers(low, high, has_low, has_high)
        assert pattern is not None
        for value in range(-60, 60):
            text = f"{value / 10:g}"
            inside = (
                low < value / 10 < high
                or (has_low and value == 10 * low)
                or (has_high and value == 10 * high)
            )
            assert bool(re.fullmatch(pattern, text)) == inside, (low, high, text)


def test_classes_are_of_the_forms_that_the_engine_reads():
    assert one_of(((97, 99),)) == "[a-c]" and one_of(((233, 233),)) == '"\\u00e9"'
    assert one_of(merged(minus(((0, 0x10FFFF),), ((97, 97),)))) == "[^a]"
    assert one_of(((0x400, 0x4FF),)) is not None and one_of(((0x400, 0x5FF),)) is None
    assert merged([(5, 9), (1, 4), (0xD700, 0xE001)]) == ((1, 9), (0xD700, 0xD7FF), (0xE000, 0xE001))


def test_counted_units_are_written_out():
    assert repeated("[a-c]", 1, 3) == "[a-c]{1,3}" and repeated('"ab"', 2, 2) == '("ab") ("ab")'
    assert repeated("x", 0, 2) == "((x) ((x))?)?" and repeated("x", 2, None) == "(x) (x) (x)*"
