"""The bounds that a schema sets on a number, as a regular expression.

Knows the four keywords, decimal arithmetic, and numbers.py. Invariant: no bound is rounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from specdec_runtime.faults import RequestError
from specdec_runtime.grammars.numbers import MAX_DECIMALS, decimals, integers, numbers

LARGEST = 10**15
Bound = tuple[Decimal, bool]  # and whether it is itself allowed


def bounded(kind: str, schema: Mapping[str, Any], where: str) -> str:
    """Integers or numbers within the schema's bounds."""
    low = _tightest(schema, "minimum", "exclusiveMinimum", 1, where)
    high = _tightest(schema, "maximum", "exclusiveMaximum", -1, where)
    places = max(_places(low), _places(high))
    if places > MAX_DECIMALS:
        raise RequestError(f"a bound of more than {MAX_DECIMALS} decimals", where, "Round it")
    if kind == "number" and not places:
        ends = (None if low is None else int(low[0]), None if high is None else int(high[0]))
        text = numbers(*ends, low is None or low[1], high is None or high[1])
    else:
        unit = 10**places if kind == "number" else 1
        first, last = (
            None if low is None else _first(low, unit),
            None if high is None else -_first(_negated(high), unit),
        )
        text = decimals(first, last, places) if unit > 1 else integers(first, last)
    if text is None:
        raise RequestError("no number lies within its bounds", where, "Widen them")
    return text


def _places(bound: Bound | None) -> int:
    exponent = bound[0].as_tuple().exponent if bound else 0
    return -exponent if isinstance(exponent, int) and exponent < 0 else 0


def _negated(bound: Bound) -> Bound:
    return -bound[0], bound[1]


def _first(low: Bound, unit: int) -> int:
    """The least multiple of 1 / unit from this bound on, in that unit."""
    value, included = low[0] * unit, low[1]
    whole = int(value.to_integral_value(rounding="ROUND_CEILING"))
    return whole + 1 if whole == value and not included else whole


def _tightest(schema: Mapping[str, Any], key: str, beyond: str, sign: int, where: str) -> Bound | None:
    """Of two bounds on one side; sign 1: of lower ones the highest."""
    found: list[Bound] = []
    for name, included in ((key, True), (beyond, False)):
        if name not in schema:
            continue
        value = schema[name]
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not abs(value) <= LARGEST:
            raise RequestError(f"{name} is {value!r}", where, "Give a number, at most 10^15 in size")
        number = Decimal(repr(value))
        found.append(
            (
                number.quantize(Decimal(1)) if number == number.to_integral_value() else number.normalize(),
                included,
            )
        )
    return max(found, key=lambda bound: (sign * bound[0], not bound[1])) if found else None
