"""Regular expressions for JSON numbers within bounds.

Knows no schema. Invariants: what matches is within the bounds, also after it was read as a double; not every such number
matches: integers have MAX_DIGITS digits at most (all of them exact in a double) unless a bound has more, fractions of bounded
numbers few digits, and their last one is not 0.
"""

from __future__ import annotations

MAX_DIGITS = 15
MAX_DECIMALS = 6  # of a bound, and of a fraction between two

INTEGER = rf"-?(?:0|[1-9][0-9]{{0,{MAX_DIGITS - 1}}})"
NUMBER = INTEGER + rf"(?:\.[0-9]{{1,{MAX_DIGITS}}})?(?:[eE][+-]?[0-9]{{1,2}})?"
FRACTION = rf"\.[0-9]{{0,{MAX_DECIMALS - 1}}}[1-9]"


def integers(low: int | None, high: int | None) -> str | None:
    """Integers from low to high, both included; None: no bound there. None where there is no such number."""
    return _alternatives(_integers(low, high))


def numbers(low: int | None, high: int | None, has_low: bool = True, has_high: bool = True) -> str | None:
    """Numbers between whole bounds; has_low, has_high: are the bounds themselves allowed?"""
    first = None if low is None else low + (not has_low)
    last = None if high is None else high - (not has_high)
    parts = list(_integers(first, last))
    # n.f above 0 lies between n and n + 1; -n.f between -n - 1 and -n
    up = _integers(max(0, low or 0), None if high is None else high - 1)
    down = _integers(max(0, -(high or 0)), None if low is None else -low - 1)
    parts += [f"{whole}{FRACTION}" for whole in up if not whole.startswith("-")]
    parts += [f"-{whole}{FRACTION}" for whole in down if not whole.startswith("-")]
    return _alternatives(parts)


def decimals(low: int | None, high: int | None, places: int) -> str | None:
    """The multiples of 10^-places from low to high (in that unit), written with all their places."""
    limit = 10**MAX_DIGITS
    first, last = -limit if low is None else low, limit if high is None else high
    parts = _padded(max(0, first), last, places)
    parts += ["-" + text for text in _padded(max(1, -last), -first, places)]
    return _alternatives(parts)


def _alternatives(parts: list[str]) -> str | None:
    return "(?:" + "|".join(parts) + ")" if parts else None


def _integers(low: int | None, high: int | None) -> list[str]:
    widest = max(MAX_DIGITS, len(str(abs(low or 0))), len(str(abs(high or 0))))
    first = 1 - 10**widest if low is None else low
    last = 10**widest - 1 if high is None else high
    parts = ["-" + text for text in _by_length(max(1, -last), -first)]
    if first <= 0 <= last:
        parts.append("0")
    return parts + list(_by_length(max(1, first), last))


def _by_length(low: int, high: int) -> list[str]:
    """Whole numbers above 0; those lengths that are there whole are one text."""
    found, whole = [], list[int]()
    for digits in range(len(str(low)), len(str(max(high, 1))) + 1):
        first, last = max(low, 10 ** (digits - 1)), min(high, 10**digits - 1)
        if (first, last) == (10 ** (digits - 1), 10**digits - 1):
            whole.append(digits)
        elif first <= last:
            found += ["".join(text) for text in _same_length(str(first), str(last))]
    if whole:
        found.append("[1-9]" + _digits(whole[0] - 1, whole[-1] - 1))
    return found


def _digits(least: int, most: int) -> str:
    if most <= 1:
        return "[0-9]" * least + "[0-9]?" * (most - least)
    return f"[0-9]{{{least},{most}}}"


def _padded(low: int, high: int, places: int) -> list[str]:
    """Whole numbers with a point before their last digits, and zeros in front of it where there is nothing."""
    found, whole = [], list[int]()
    for digits in range(max(len(str(low)), places + 1), max(len(str(max(high, 0))), places + 1) + 1):
        least = 0 if digits == places + 1 else 10 ** (digits - 1)
        first, last = max(low, least), min(high, 10**digits - 1)
        if least and (first, last) == (least, 10**digits - 1):
            whole.append(digits - places)
        elif first <= last:
            texts = _same_length(str(first).zfill(digits), str(last).zfill(digits))
            found += [_pointed(text, places) for text in texts]
    if whole:
        found.append(f"[1-9]{_digits(whole[0] - 1, whole[-1] - 1)}\\.[0-9]{{{places}}}")
    return found


def _pointed(digits: list[str], places: int) -> str:
    return "".join(digits[:-places]) + r"\." + "".join(digits[-places:])


def _same_length(low: str, high: str) -> list[list[str]]:
    """Digits from low to high, of one length; a text is a list of one unit a digit."""
    if not low:
        return [[]]
    if low[0] == high[0]:
        return [[low[0], *rest] for rest in _same_length(low[1:], high[1:])]
    zeros, nines = "0" * (len(low) - 1), "9" * (len(low) - 1)
    first, last = int(low[0]), int(high[0])
    found = []
    if low[1:] != zeros:
        found += [[low[0], *rest] for rest in _same_length(low[1:], nines)]
        first += 1
    ends = [] if high[1:] == nines else [[high[0], *rest] for rest in _same_length(zeros, high[1:])]
    last -= bool(ends)
    if first <= last:
        found.append([f"[{first}-{last}]", *["[0-9]"] * len(zeros)])
    return found + ends
