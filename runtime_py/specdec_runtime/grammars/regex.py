"""Regular expressions to EBNF, by themselves or inside a JSON string.

Knows the common core of the syntax: characters, classes, groups, alternatives, repetition, and anchors at the ends, where they
change nothing: an expression always matches the whole text. Whatever else is in one (look-around, back references, word
boundaries, flags, Unicode properties) is a RequestError. Inside a JSON string a character that JSON escapes is its escape.
Laziness of a repetition is read and means nothing: the set of texts is the same.
"""

from __future__ import annotations

from specdec_runtime.faults import RequestError
from specdec_runtime.grammars.ebnf import (
    LAST,
    NOTHING,
    Ranges,
    either,
    joined,
    literal,
    merged,
    minus,
    one_of,
    repeated,
)

DIGITS: Ranges = ((48, 57),)
WORD: Ranges = ((48, 57), (65, 90), (95, 95), (97, 122))
SPACE: Ranges = ((9, 13), (32, 32))
ALL: Ranges = ((0, LAST),)
NEWLINES: Ranges = ((10, 10), (13, 13))
CLASSES = {"d": DIGITS, "w": WORD, "s": SPACE}
CONTROLS = {"t": 9, "n": 10, "r": 13, "f": 12, "v": 11, "0": 0}
MAX_REPEAT = 1000  # of a character; of what is written out MAX_WRITTEN
MAX_WRITTEN = 64
MAX_DEPTH = 50

JSON_ESCAPES = {8: "b", 9: "t", 10: "n", 12: "f", 13: "r", 34: '"', 92: "\\"}
JSON_PLAIN: Ranges = ((32, 33), (35, 91), (93, LAST))


def regex_ebnf(pattern: str, in_json: bool = False, where: str = "grammar") -> str:
    """The expression's texts; in_json: as they stand between the quotes of a JSON string."""
    return _Parser(pattern, in_json, where).whole()


class _Parser:
    """Recursive descent; `at` is the next character."""

    def __init__(self, pattern: str, in_json: bool, where: str) -> None:
        self.pattern, self.in_json, self.where = pattern, in_json, where
        self.at = 0
        self.depth = 0

    def whole(self) -> str:
        found = self._alternatives()
        if self.at < len(self.pattern):
            raise self._bad("an unmatched )")
        return found

    def _bad(self, what: str) -> RequestError:
        message = f"the regular expression has {what} at position {min(self.at, len(self.pattern))}"
        return RequestError(message, self.where, "Write it without, or use an EBNF grammar")

    def _peek(self, text: str) -> bool:
        return self.pattern.startswith(text, self.at)

    def _take(self) -> str:
        if self.at >= len(self.pattern):
            raise self._bad("an end too early")
        self.at += 1
        return self.pattern[self.at - 1]

    def _alternatives(self) -> str:
        choices = [self._sequence()]
        while self._peek("|"):
            self.at += 1
            choices.append(self._sequence())
        return either(choices)

    def _sequence(self) -> str:
        """Up to a | or ) or the end. ^ may begin it and $ end it, at the outermost level."""
        parts: list[str] = []
        if self.depth == 0 and self._peek("^"):
            self.at += 1
        while self.at < len(self.pattern) and self.pattern[self.at] not in "|)":
            if self._peek("$"):
                if self.depth or (self.at + 1 < len(self.pattern) and self.pattern[self.at + 1] != "|"):
                    raise self._bad("a $ that is not at its end")
                self.at += 1
                break
            parts.append(self._quantified(self._unit()))
        return joined(parts)

    def _unit(self) -> str:
        char = self._take()
        if char == "(":
            return self._group()
        if char == "[":
            return self._characters(self._class())
        if char == ".":
            return self._characters(minus(ALL, NEWLINES))
        if char == "\\":
            return self._characters(self._escape())
        if char in "*+?{}]^":
            self.at -= 1
            raise self._bad(f"a {char} in a wrong place")
        return self._characters(_just(ord(char)))

    def _group(self) -> str:
        if self._peek("?"):
            self._group_kind()
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self._bad(f"more than {MAX_DEPTH} nested groups")
        found = self._alternatives()
        self.depth -= 1
        if not self._peek(")"):
            raise self._bad("a group without an end")
        self.at += 1
        return found if found == NOTHING or found.startswith("(") else f"({found})"

    def _group_kind(self) -> None:
        """(?: and (?<name> group; nothing else does."""
        if self._peek("?:"):
            self.at += 2
            return
        named = next((start for start in ("?<", "?P<") if self._peek(start)), None)
        name_at = self.at + len(named or "")
        end = self.pattern.find(">", name_at)
        if named is None or end < 0 or not self.pattern[name_at:end].isidentifier():
            raise self._bad("a group that does more than to group")
        self.at = end + 1

    def _quantified(self, unit: str) -> str:
        least, most = 1, 1
        bounds: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        if self.at < len(self.pattern) and self.pattern[self.at] in bounds:
            least, most = bounds[self._take()]
        elif self._peek("{"):
            least, most = self._counts()
        else:
            return unit
        if self._peek("?"):
            self.at += 1
        if self.at < len(self.pattern) and self.pattern[self.at] in "*+?{":
            raise self._bad("a repetition of a repetition")
        if not unit.startswith("[") and max(least, most or 0) > MAX_WRITTEN:
            raise self._bad(f"more than {MAX_WRITTEN} of what is more than a character")
        return NOTHING if unit == NOTHING else repeated(unit, least, most)

    def _counts(self) -> tuple[int, int | None]:
        end = self.pattern.find("}", self.at)
        first, comma, last = self.pattern[self.at + 1 : end].partition(",") if end > 0 else ("", "", "")
        numbers = [number for number in (first, last) if number]
        if not first or not all(number.isascii() and number.isdigit() for number in numbers):
            raise self._bad("a { that counts nothing")
        least, most = int(first), int(last) if last else (None if comma else int(first))
        if max(least, most or 0) > MAX_REPEAT or (most is not None and most < least):
            raise self._bad(f"counts that fall, or above {MAX_REPEAT},")
        self.at = end + 1
        return least, most

    def _escape(self) -> Ranges:
        char = self._take()
        if char.lower() in CLASSES:
            ranges = CLASSES[char.lower()]
            return ranges if char.islower() else minus(ALL, ranges)
        if char in CONTROLS:
            return _just(CONTROLS[char])
        if char in "xu":
            digits = self.pattern[self.at : self.at + (2 if char == "x" else 4)]
            if len(digits) != (2 if char == "x" else 4) or not all(
                c in "0123456789abcdefABCDEF" for c in digits
            ):
                raise self._bad(f"a \\{char} without its digits")
            self.at += len(digits)
            return _just(int(digits, 16))
        if char.isalnum():
            self.at -= 1
            raise self._bad(f"\\{char}, which is not supported,")
        return _just(ord(char))

    def _class(self) -> Ranges:
        negated = self._peek("^")
        self.at += negated
        found: list[tuple[int, int]] = []
        while not self._peek("]"):
            item = self._class_item()
            if self._peek("-") and not self._peek("-]"):
                self.at += 1
                (low, *rest), (high, *more) = item, self._class_item()
                if rest or more or low[0] != low[1] or high[0] != high[1] or low > high:
                    raise self._bad("a range that is none")
                found.append((low[0], high[0]))
            else:
                found.extend(item)
        self.at += 1
        ranges = merged(found)
        return minus(ALL, ranges) if negated else ranges

    def _class_item(self) -> Ranges:
        char = self._take()
        if char == "\\":
            if self._peek("b"):  # a backspace, in a class
                self.at += 1
                return _just(8)
            return self._escape()
        return _just(ord(char))

    def _characters(self, ranges: Ranges) -> str:
        """One character of these."""
        ranges = merged(ranges)
        choices = []
        if self.in_json:
            escaped = [code for code in JSON_ESCAPES if any(low <= code <= high for low, high in ranges)]
            choices = [literal("\\" + JSON_ESCAPES[code]) for code in escaped]
            ranges = _common(ranges, JSON_PLAIN)
        if ranges:
            one = one_of(ranges)
            if one is None:
                raise self._bad("a class of many characters above ASCII, but not all of them,")
            choices.insert(0, one)
        if not choices:
            raise self._bad("a class of no characters that can stand here")
        return either(choices)


def _common(ranges: Ranges, others: Ranges) -> Ranges:
    return minus(ranges, minus(ALL, others))


def _just(code: int) -> Ranges:
    return ((code, code),)
