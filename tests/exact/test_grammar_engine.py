"""The engine against Python's own regular expressions, on the forms that grammars are written in: random expressions, numbers within
random bounds, every string of a small alphabet. It reads other forms wrongly (grammars/ebnf.py says which)."""

from __future__ import annotations

import random
import re
from array import array
from itertools import product

import pytest
from specdec_runtime.grammars import numbers
from specdec_runtime.grammars.regex import regex_ebnf
from specdec_tools.grammar import NativeMatcher, bindings

END = 256


@pytest.fixture(scope="module")
def compiler():
    engine = bindings()
    vocabulary = [bytes([value]) for value in range(256)] + [b"</s>"]
    return engine.GrammarCompiler(engine.TokenizerInfo(vocabulary, 0, 257, [END], False), 1, False, -1)


def matcher(compiler, pattern: str) -> NativeMatcher:
    return NativeMatcher(compiler.compile_grammar(f"root ::= {regex_ebnf(pattern)}\n", "root"), 257, (END,))


def accepts(compiler, pattern: str, text: str) -> bool:
    follower = matcher(compiler, pattern)
    return all(follower.accept(value) for value in text.encode()) and follower.accept(END)


def sample(follower: NativeMatcher, choose: random.Random) -> str | None:
    """A text that the masks allow, one byte after another."""
    text = bytearray()
    while len(text) < 60:
        bits = int.from_bytes(follower.mask().tobytes(), "little")
        allowed = [value for value in range(257) if bits >> value & 1]
        assert allowed, "a dead end"
        value = END if END in allowed and choose.random() < 0.2 else choose.choice(allowed)
        assert follower.accept(value)
        if value == END:
            return text.decode()
        text.append(value)
    return None


def expression(choose: random.Random, depth: int = 0) -> str:
    kind = choose.randrange(9 if depth < 3 else 4)
    if kind == 0:
        return choose.choice("abc")
    if kind == 1:
        return choose.choice(["[ab]", "[a-c]", "[bcé]", "[^a]", "."])
    if kind == 2:
        return choose.choice("abc") + choose.choice("abcé")
    if kind == 3:
        return choose.choice(["[ab]", "c", "[a-c]", "[^b]"]) + choose.choice(
            ["?", "*", "+", "{2}", "{0,2}", "{1,3}", "{2,}"]
        )
    if kind == 6:
        return "(?:" + "|".join(expression(choose, depth + 1) for _ in range(choose.randint(2, 4))) + ")"
    if kind == 7:
        return f"(?:{expression(choose, depth + 1)})" + choose.choice(
            ["?", "*", "+", "{2}", "{0,2}", "{1,3}", "{2,}"]
        )
    return "".join(expression(choose, depth + 1) for _ in range(2 + (kind == 8)))


def test_random_expressions(compiler, pytestconfig: pytest.Config) -> None:
    choose = random.Random(3)
    texts = ["".join(text) for length in range(6) for text in product("abc", repeat=length)]
    texts += ["".join(text) for length in range(4) for text in product("aé\n", repeat=length)]
    for _ in range(1000 if pytestconfig.getoption("--all-exact") else 200):
        pattern = expression(choose)
        for text in choose.sample(texts, 40):
            wanted = re.fullmatch(pattern.replace(".", r"[^\n\r]"), text) is not None
            assert accepts(compiler, pattern, text) == wanted, (pattern, text)


def test_numbers_within_bounds(compiler, pytestconfig: pytest.Config) -> None:
    choose = random.Random(4)

    def bound() -> int | None:
        large = choose.randint(-(10**12), 10**12)
        return choose.choice(
            [None, 0, 1, -1, choose.randint(-20, 20), large, 10 ** choose.randint(0, 9) + 10]
        )

    for _ in range(400 if pytestconfig.getoption("--all-exact") else 80):
        low, high = bound(), bound()
        if low is not None and high is not None and low > high:
            low, high = high, low
        places = choose.randint(1, 4)
        for pattern, unit in (
            (numbers.integers(low, high), 1),
            (numbers.numbers(low, high), 1),
            (numbers.decimals(low, high, places), 10**places),
        ):
            assert pattern is not None
            for _ in range(8):
                text = sample(matcher(compiler, pattern), choose)
                assert text is not None and re.fullmatch(pattern, text), (pattern, text)
                value = float(text) * unit
                assert (low is None or value > low - 1e-3) and (high is None or value < high + 1e-3)


def test_masks_are_what_accept_says(compiler) -> None:
    follower = matcher(compiler, "(?:ab|[^a-c]é)*c{2,3}")
    for value in b"ab":
        assert follower.accept(value)
    bits = int.from_bytes(follower.mask().tobytes(), "little")
    for value in range(257):
        allowed = follower.accept(value)
        assert allowed == bool(bits >> value & 1)
        follower.rollback(int(allowed))
    assert isinstance(follower.mask(), array)
