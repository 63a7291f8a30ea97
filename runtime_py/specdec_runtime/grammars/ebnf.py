"""EBNF text, in the form that XGrammar reads: literals, classes, rules.

Knows no schema and no engine. Invariants: every text is ASCII where it can be (escapes for the rest of a class), so that it
crosses to JavaScript as it is; a rule's name is made here, once.
"""

from __future__ import annotations

from collections.abc import Iterable

LAST = 0x10FFFF
SURROGATES = (0xD800, 0xDFFF)
Ranges = tuple[tuple[int, int], ...]  # of code points, rising, apart from each other

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


def one_of(ranges: Ranges) -> str:
    """A class: one character of these."""
    return "[" + "".join(_span(low, high) for low, high in ranges) + "]"


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
    """That often; `part` is one unit or gets brackets."""
    if most == 0:
        return NOTHING
    if (least, most) == (1, 1):
        return part
    unit = f"({part})"
    if most is None:
        return unit + {0: "*", 1: "+"}.get(least, f"{{{least},}}")
    return unit + ("?" if (least, most) == (0, 1) else f"{{{least},{most}}}")


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
