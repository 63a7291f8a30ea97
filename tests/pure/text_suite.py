"""The suite of stop strings and log-probabilities: what an answer is, where it is cut, what may be shown of it when.

`run_text_suite` raises at the first case that fails; tests/meta runs it on mutants. The expected answer is made from the plain ids: all
of their bytes are decoded at once, and cut. Invariant: nothing of the code under test has a part in that.
"""

import codecs
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

from plan_factory import load_made
from simulate import NextId, Run, generate
from specdec_runtime.backends.scripted import flat_tops

VOCAB = 29
PROMPT = [1, 2, 1, 2, 3]
PLAN = load_made(vocab_size=VOCAB, padded_vocab=32, draft={}, eos_ids=(), max_context=64)
EOS = 0


class Shown:
    """Each id shows its own bytes; those after the list, and EOS, show none."""

    def __init__(self, tokens: Sequence[bytes], strips_first_space: bool = False) -> None:
        self.tokens = list(tokens)
        self.strips_first_space = strips_first_space

    def bytes(self, token_id: int) -> bytes:
        return self.tokens[token_id - 1] if 0 < token_id <= len(self.tokens) else b""

    def chars(self, ids: Sequence[int], final: bool) -> str:
        """The text of the ids, all at once; final: an unfinished character at the end is shown as what it is."""
        data = b"".join(map(self.bytes, ids))
        if self.strips_first_space:
            data = data.removeprefix(b" ")
        return codecs.utf_8_decode(data, "replace", final)[0]


@dataclass(frozen=True)
class TextCase:
    """An answer that the target would give for ever, in tokens of these bytes, and what was asked of it."""

    tokens: tuple[bytes, ...]
    answer: tuple[int, ...]  # ids, from 1; EOS is 0
    stops: tuple[str, ...] = ()
    eos_ids: tuple[int, ...] = (EOS,)
    max_tokens: int = 99
    drafter: str = "model"
    k: int = 4
    rounds: int = 1
    steps: int = 1
    agree: int = 100  # every so-many-th draft is wrong
    logprobs: int = 0
    strips: bool = False


@dataclass(frozen=True)
class Expected:
    ids: list[int]
    text: str
    reason: str
    stop: str | None


def says(case: TextCase) -> NextId:
    """The answer, then its last id again and again."""
    return lambda prefix: case.answer[min(len(prefix) - len(PROMPT), len(case.answer) - 1)]


def sometimes_wrong(case: TextCase) -> NextId:
    right = says(case)
    return lambda prefix: right(prefix) if (len(prefix) + 1) % case.agree else (right(prefix) + 1) % VOCAB


def expected(case: TextCase) -> Expected:
    """Plain ids first, then the cut."""
    shown, right = Shown(case.tokens, case.strips), says(case)
    ids, reason = [], "length"
    while len(ids) < min(case.max_tokens, PLAN.target_model.max_context - len(PROMPT)):
        ids.append(right((*PROMPT, *ids)))
        if ids[-1] in case.eos_ids:
            reason = "stop"
            break
    text = shown.chars(ids, True)
    ends = [
        (text.find(stop) + len(stop), text.find(stop), stop) for stop in case.stops if text.find(stop) >= 0
    ]
    if not ends:
        return Expected(ids, text, reason, None)
    end, start, stop = min(ends)
    needed = next(n for n in range(len(ids) + 1) if len(shown.chars(ids[:n], False)) >= end)
    return Expected(ids[:needed], text[:start], "stop", stop)


def may_show(case: TextCase, ids: Sequence[int]) -> str:
    """Of ids that no stop string ended: all but an unfinished character and the longest end that begins a stop string."""
    text = Shown(case.tokens, case.strips).chars(ids, False)
    held = [n for n in range(1, len(text) + 1) if any(stop.startswith(text[-n:]) for stop in case.stops)]
    return text[: len(text) - max(held, default=0)]


def run_case(case: TextCase, cancel_at: int | None = None) -> Run:
    return generate(
        PLAN,
        says(case),
        PROMPT,
        case.max_tokens,
        case.drafter,
        case.k,
        draft=sometimes_wrong(case),
        eos_ids=case.eos_ids,
        cancel_at=cancel_at,
        steps=case.steps,
        rounds=case.rounds,
        stop=case.stops,
        tokens=Shown(case.tokens, case.strips),
        logprobs=case.logprobs,
    )


def check_case(case: TextCase) -> Run:
    run, wanted = run_case(case), expected(case)
    result = run.result
    assert run.ids == wanted.ids, f"{case}: {run.ids} is not {wanted.ids}"
    assert (result["finish_reason"], result["stop"]) == (wanted.reason, wanted.stop), case
    if case.stops:
        assert result["text"] == wanted.text, f"{case}: {result['text']!r} is not {wanted.text!r}"
    else:
        assert "text" not in result and all(emit.pieces is None for emit in run.emits), (
            "no text where none is asked for"
        )
    assert result["usage"]["completion_tokens"] == len(wanted.ids)
    check_agreement(case, run)
    return run


def check_agreement(case: TextCase, run: Run) -> None:
    """Ids, text and log-probabilities of one run, whatever cut it, end with the same token; what was shown stays."""
    result, ids = run.result, run.ids
    assert [token_id for emit in run.emits for token_id in emit.ids] == ids
    if case.stops:
        so_far, num_ids = "", 0
        for emit in run.emits:
            assert emit.pieces is not None and len(emit.pieces) == len(emit.ids), "a piece for each id"
            for piece in emit.pieces:
                so_far, num_ids = so_far + piece, num_ids + 1
                ended = result["stop"] is not None and num_ids == len(ids)
                assert so_far == (result["text"] if ended else may_show(case, ids[:num_ids])), case
        assert result["text"].startswith(so_far)
        assert not any(stop in result["text"] for stop in case.stops), "no stop string is text"
        if result["stop"] is None:
            assert result["text"] == Shown(case.tokens, case.strips).chars(ids, True), (
                "what was held back is shown at the end"
            )
    if not case.logprobs:
        assert result["logprobs"] is None and all(emit.logprobs is None for emit in run.emits)
        return
    assert result["logprobs"] == [logprob_of(case, ids, at) for at in range(len(ids))], case
    assert [one for emit in run.emits for one in emit.logprobs or []] == result["logprobs"]


def logprob_of(case: TextCase, ids: Sequence[int], at: int) -> dict:
    """By definition: of the tokens before it and of itself, and of nothing else."""
    numbers = flat_tops((*PROMPT, *ids[:at]), ids[at])
    top = [{"id": int(numbers[2 + 2 * i]), "logprob": numbers[3 + 2 * i]} for i in range(case.logprobs)]
    return {"id": ids[at], "logprob": numbers[0], "top": top}


LETTERS = tuple(bytes([byte]) for byte in b"abcdefghijklmnopqrst")
WORD = tuple(range(1, 21))  # the answer "abcdefghijklmnopqrst", a letter a token
WAYS = (
    {"drafter": "off"},
    {"drafter": "off", "steps": 4},
    {"drafter": "ngram"},
    {"drafter": "model", "k": 3},
    {"drafter": "model", "k": 7, "agree": 3},
    {"drafter": "model", "k": 3, "rounds": 4, "agree": 7},
    {"drafter": "chain", "k": 4, "rounds": 2},
)


def suite() -> list[TextCase]:
    """Every ending at every place, however tokens were drafted."""
    base = TextCase(LETTERS, WORD, logprobs=2)
    cases = []
    for way, at in product(WAYS, range(1, 16)):
        one = replace(base, **way)
        cases.append(replace(one, eos_ids=(at,)))
        cases.append(replace(one, stops=(chr(96 + at),)))  # one token
        cases.append(
            replace(one, stops=("xyz", "abcdefghijklmnopqrst"[at - 1 : at + 2]))
        )  # three tokens, any cycle
        cases.append(
            replace(one, stops=("cdefghij!", "".join(map(chr, range(97, 97 + at)))))
        )  # the whole text
        cases.append(replace(one, stops=("efg",), max_tokens=at))  # caps around it
        cases.append(replace(one, stops=("g",), eos_ids=(at,)))
    aaab = TextCase((b"a", b"b", b"aa", b"ab", b"aab!"), (1, 1, 1, 2, 1, 3, 4, 5, 1), ("aab",), logprobs=1)
    accents = TextCase(
        (b"\xc3", b"\xa9", b"x", b"\xa9x", b"\xf0\x9f", b"\x98\x80", b"\xff"),
        (3, 1, 2, 5, 6, 7, 1, 4, 5, 3, 1),
    )
    one_token = TextCase(
        (b"abcd", b"d"), (2, 1, 2), ("abcd", "bc")
    )  # the text is as if its letters came one by one
    for way in WAYS:
        cases += [replace(aaab, **way), replace(one_token, **way)]
        cases += [
            replace(aaab, answer=answer, **way) for answer in ((1, 3, 2), (3, 4), (5,), (1, 1, 0), (3, 1))
        ]
        for stop in ("\u00e9", "x", "\u00e9x", "x\u00e9", "\U0001f600", "never"):
            cases += [
                replace(accents, stops=(stop,), max_tokens=most, **way) for most in (1, 2, 3, 4, 5, 11, 14)
            ]
    return cases


def run_text_suite() -> None:
    for case in suite():
        check_case(case)
