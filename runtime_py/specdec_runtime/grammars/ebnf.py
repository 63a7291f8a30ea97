"""EBNF text, in the form that XGrammar reads: literals, classes, rules.

Knows no schema. The engine (0.1.27, in both worlds) reads more than this file writes, and reads some of it wrongly: a class of
characters above ASCII counts bytes, and a repetition with counts of anything but a class can match more often
(tests/exact/test_grammar_engine.py). So a class is ASCII, or everything but some ASCII, or a choice of single characters; and
counted units are written out.
Invariants: every text is ASCII (escapes for the rest), so that it crosses to JavaScript as it is; a rule's name is made here, once.
"""

from __future__ import annotations

from collections.abc import Iterable

LAST = 0x10FFFF
SURROGATES = (0xD800, 0xDFFF)
Ranges = tuple[tuple[int, int], ...]  # of code points, rising, apart from each other

MAX_CHOICES = 256  # characters above ASCII that a class may name
NOTHING = '""'


def literal(text: str) -> str:
    """Just this text."""
    return '"' + "".join(_in_literal(char) for char in text) + '"'


def _in_literal(char: str) -> str:
    if char in '"\\':
        return "\\" + char
    return char if 32 <= ord(char) < 127 else _escape(ord(char))


def _escape(code: int) -> str:
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def one_of(ranges: Ranges) -> str | None:
    """One character of these; None where the engine has no way to say it."""
    ascii_part = _common_ascii(ranges)
    above = minus(ranges, ((0, 127),))
    if above == merged([(128, LAST)]):
        others = minus(((0, 127),), ascii_part)
        return "[^" + "".join(_span(low, high) for low, high in others) + "]" if others else None
    if sum(high - low + 1 for low, high in above) > MAX_CHOICES:
        return None
    choices = [literal(chr(code)) for low, high in above for code in range(low, high + 1)]
    if len(ascii_part) == 1 and ascii_part[0][0] == ascii_part[0][1]:
        choices.insert(0, literal(chr(ascii_part[0][0])))
    elif ascii_part:
        choices.insert(0, "[" + "".join(_span(low, high) for low, high in ascii_part) + "]")
    return either(choices) if choices else None


def _common_ascii(ranges: Ranges) -> Ranges:
    return minus(ranges, ((128, LAST),))


def _span(low: int, high: int) -> str:
    return _in_class(low) if low == high else f"{_in_class(low)}-{_in_class(high)}"


def _in_class(code: int) -> str:
    char = chr(code)
    return char if code < 128 and char.isalnum() else _escape(code)


def joined(parts: Iterable[str]) -> str:
    """One after the other."""
    kept = [part for part in parts if part != NOTHING]
    return " ".join(kept) if kept else NOTHING


def either(choices: Iterable[str]) -> str:
    """One of them, in brackets."""
    kept = list(dict.fromkeys(choices))
    return kept[0] if len(kept) == 1 else "(" + " | ".join(kept) + ")"


def repeated(part: str, least: int, most: int | None) -> str:
    """That often. What is no single class is written out, each optional one inside the one before."""
    if most == 0:
        return NOTHING
    if (least, most) == (1, 1):
        return part
    unit = part if part.startswith("[") and part.count("[") == 1 else f"({part})"
    if most is None and least <= 1:
        return unit + ("+" if least else "*")
    if (least, most) == (0, 1):
        return f"{unit}?"
    if unit == part:
        return f"{unit}{{{least},{'' if most is None else most}}}"
    if most is None:
        return joined([*[unit] * least, f"{unit}*"])
    rest = NOTHING
    for _ in range(most - least):
        rest = f"({joined([unit, rest])})?"
    return joined([*[unit] * least, rest])


def merged(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """The same characters, in order, without surrogates."""
    found: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if found and low <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], high))
        else:
            found.append((low, high))
    return minus(tuple(found), (SURROGATES,))


def minus(ranges: Ranges, taken: Ranges) -> Ranges:
    """Those of `ranges` that are not in `taken`."""
    for start, end in taken:
        cut: list[tuple[int, int]] = []
        for low, high in ranges:
            if high < start or low > end:
                cut.append((low, high))
                continue
            if low < start:
                cut.append((low, start - 1))
            if high > end:
                cut.append((end + 1, high))
        ranges = tuple(cut)
    return ranges


class Rules:
    """The rules of one grammar."""

    def __init__(self) -> None:
        self._bodies: dict[str, str] = {}

    def reserve(self, hint: str) -> str:
        """A new name, its body to come."""
        name = f"{hint}_{len(self._bodies)}"
        self._bodies[name] = NOTHING
        return name

    def set(self, name: str, body: str) -> str:
        self._bodies[name] = body
        return name

    def add(self, hint: str, body: str) -> str:
        return self.set(self.reserve(hint), body)

    def text(self, root: str) -> str:
        lines = [f"{name} ::= {body}" for name, body in self._bodies.items()]
        return "\n".join([f"root ::= {root}", *lines]) + "\n"
