"""Text, stop strings and log-probabilities: the cases by name, then random ones; all expectations come from the plain ids."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from specdec_runtime import drive
from specdec_runtime.backends.scripted import ScriptedBackend
from specdec_runtime.decode.request import Request
from specdec_runtime.decode.round import decode
from specdec_runtime.decode.text import MAX_STOP_LEN, MAX_STOPS, ByteTable, StopText, StreamDecoder
from specdec_runtime.drafters.registry import make_drafter
from specdec_runtime.faults import ContractError, DeviceFault, RequestError
from text_suite import (
    EOS,
    LETTERS,
    PLAN,
    PROMPT,
    WAYS,
    WORD,
    Shown,
    TextCase,
    check_agreement,
    check_case,
    expected,
    run_case,
    run_text_suite,
    says,
)

BASE = TextCase(LETTERS, WORD, logprobs=5)


def test_the_suite() -> None:
    run_text_suite()


@pytest.mark.parametrize("at", range(1, 9))
def test_eos_at_each_position_of_an_accepted_run(at: int) -> None:
    run = check_case(replace(BASE, k=7, eos_ids=(at,)))
    assert run.ids == list(WORD[:at]) and run.result["finish_reason"] == "stop"


@pytest.mark.parametrize("at", range(1, 9))
def test_a_stop_string_ending_at_each_position_of_an_accepted_run(at: int) -> None:
    run = check_case(replace(BASE, k=7, stops=(chr(96 + at),)))
    assert run.ids == list(WORD[:at]) and run.result["text"] == "abcdefgh"[: at - 1]


@pytest.mark.parametrize("rounds", [1, 4])
@pytest.mark.parametrize("at", range(8))
def test_a_stop_string_across_tokens_and_cycles(at: int, rounds: int) -> None:
    stop = "abcdefghijklmnopqrst"[at : at + 6]
    run = check_case(replace(BASE, k=2, rounds=rounds, agree=4, stops=(stop,)))
    assert run.result["stop"] == stop and len(run.ids) == at + 6 and run.result["text"] == "abcdefgh"[:at]


def test_a_character_across_tokens() -> None:
    """A stop string is whole only with the last byte of its last character; other bytes of that token are no text."""
    tokens = (b"x\xf0\x9f", b"\x98", b"\x80y", b"z")
    run = check_case(TextCase(tokens, (1, 2, 3, 4), ("\U0001f600",)))
    assert run.ids == [1, 2, 3] and run.result["text"] == "x"
    run = check_case(TextCase(tokens, (1, 2, 3, 4), ("q",), max_tokens=2))
    assert run.result["text"] == "x\ufffd", "an unfinished character is flushed at the end"
    assert [piece for emit in run.emits for piece in emit.pieces or []] == ["x", ""], "and not before"


def test_bytes_that_are_no_character_are_shown_as_such() -> None:
    run = check_case(TextCase((b"\xff", b"a"), (1, 2, EOS), ("q",)))
    assert run.result["text"] == "\ufffda" and run.emits[0].pieces == ["\ufffd", "a", ""]


def test_overlapping_prefixes() -> None:
    for answer in ((1, 1, 1, 2, 2), (3, 4, 2), (1, 5, 2), (3, 3, 2, 2)):
        run = check_case(TextCase((b"a", b"b", b"aa", b"ab", b"aab"), answer, ("aab",)))
        assert run.result["stop"] == "aab" and set(run.result["text"]) == {"a"}


def test_the_first_to_be_whole_wins_whatever_the_order_and_the_tokens() -> None:
    for tokens, answer in (
        ((b"a", b"b", b"c", b"d"), (1, 2, 3, 4)),
        ((b"abcd",), (1,)),
        ((b"ab", b"cd"), (1, 2)),
    ):
        for stops in (("abcd", "bc"), ("bc", "abcd"), ("c", "bc"), ("bc", "c", "cd")):
            run = check_case(TextCase(tokens, answer, stops))
            assert (run.result["text"], run.result["stop"]) == ("a", "bc")


def test_caps_around_a_stop_string() -> None:
    for way in WAYS:
        case = replace(BASE, stops=("de",), **way)
        held = check_case(replace(case, max_tokens=4)).result
        assert (held["text"], held["finish_reason"], held["stop"]) == ("abcd", "length", None)
        both = check_case(replace(case, max_tokens=5)).result
        assert (both["text"], both["finish_reason"], both["stop"]) == ("abc", "stop", "de"), (
            "stop beats length"
        )


def test_cancel_anywhere_with_text_held_back() -> None:
    """What is committed is the answer, the text that waited among it."""
    held = 0
    for way in WAYS:
        case = replace(BASE, stops=("bcdefghijklmnop!", "st?"), max_tokens=30, **{"k": 3, **way, "steps": 1})
        whole = run_case(case)
        for at in range(1, len(whole.backend.submits) + 1):
            run = run_case(case, cancel_at=at)
            assert run.ids == whole.ids[: len(run.ids)]
            assert run.result["finish_reason"] == ("cancelled" if len(run.ids) < len(whole.ids) else "length")
            check_agreement(case, run)
            streamed = sum(len(piece) for emit in run.emits for piece in emit.pieces or [])
            held += run.result["finish_reason"] == "cancelled" and streamed < len(run.result["text"])
    assert held > 20


def test_an_empty_stop_list_makes_no_text() -> None:
    run = check_case(replace(BASE, stops=(), max_tokens=9))
    assert run.result["stop"] is None and len(run.ids) == 9


def test_a_stop_string_equal_to_the_whole_text() -> None:
    for way in WAYS:
        run = check_case(replace(BASE, stops=("abcdefg",), **way))
        assert run.result["text"] == "" and len(run.ids) == 7


def test_an_end_token_shows_no_text_and_frees_what_was_held() -> None:
    case = TextCase(LETTERS, (1, 2, EOS, 3), ("bc",))
    assert check_case(case).result["text"] == "ab"
    ignored = check_case(replace(case, eos_ids=())).result  # ignore_eos
    assert (ignored["text"], ignored["token_ids"], ignored["stop"]) == ("a", [1, 2, EOS, 3], "bc")


def test_a_first_space_that_is_no_text_stops_nothing() -> None:
    case = TextCase((b" a", b" ", b"b"), (1, 2, 3, EOS), (" ",), strips=True)
    run = check_case(case)
    assert run.result["text"] == "a" and run.ids == [1, 2]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_log_probabilities_do_not_depend_on_drafting(way: dict) -> None:
    plain = run_case(replace(BASE, drafter="off", max_tokens=17)).result
    found = check_case(replace(BASE, max_tokens=17, **way)).result
    assert len(found["logprobs"]) == 17 and found["logprobs"] == plain["logprobs"]


def test_log_probabilities_that_are_no_numbers_are_a_fault() -> None:
    backend = ScriptedBackend(PLAN, says(BASE), tops=lambda prefix, token_id: [float("nan")] * 12)
    effects = decode(PLAN, Request(PROMPT, 5, logprobs=1), make_drafter("off", PLAN))
    with pytest.raises(DeviceFault, match="not finite"):
        drive.run(effects, backend)


def test_passes_are_counted_without_what_is_read_off_them() -> None:
    for way in WAYS:
        with_them = run_case(replace(BASE, **way)).result["speculation"]
        without = run_case(replace(BASE, logprobs=0, **way)).result["speculation"]
        assert with_them == without


BAD = [
    ("stop", 5, "stop"),
    ("stop", ["a"] * (MAX_STOPS + 1), "stop"),
    ("stop", ["a", ""], "stop[1]"),
    ("stop", ["a", 7], "stop[1]"),
    ("stop", ["a" * (MAX_STOP_LEN + 1)], "stop[0]"),
    ("stop", ["a\ufffd"], "stop[0]"),
    ("stop", ["\ud83d"], "stop[0]"),
    ("logprobs", 6, "logprobs"),
    ("logprobs", -1, "logprobs"),
    ("logprobs", True, "logprobs"),
]


@pytest.mark.parametrize(("name", "value", "where"), BAD)
def test_a_bad_value_is_named(name: str, value, where: str) -> None:
    with pytest.raises(RequestError) as caught:
        decode(PLAN, Request(PROMPT, 5, **{name: value}), make_drafter("off", PLAN), tokens=Shown(()))
    assert caught.value.where == where


def test_stop_strings_need_the_table() -> None:
    with pytest.raises(ContractError, match="no table"):
        next(decode(PLAN, Request(PROMPT, 5, stop=["a"]), make_drafter("off", PLAN)))


def test_the_table_as_it_crosses() -> None:
    tokens = [b"a", b"", b"\xc3\xa9\xff\x00", b'"']
    shown = [each.decode("latin-1") for each in tokens]
    table = ByteTable(json.dumps({"strips_first_space": True, "bytes": shown}))
    assert [table.bytes(token_id) for token_id in range(6)] == [
        *tokens,
        b"",
        b"",
    ] and table.strips_first_space
    for bad in ("[]", "{}", '{"bytes": []}'):
        with pytest.raises(ContractError):
            ByteTable(bad)


BYTES = st.lists(
    st.sampled_from([b"a", b"b", b" ", b"\xc3", b"\xa9", b"\xf0\x9f", b"\x98", b"\x80", b"\xff"]), max_size=4
)
TOKENS = st.lists(BYTES.map(b"".join), min_size=1, max_size=8)
STOPS = st.lists(
    st.text(st.sampled_from("ab \u00e9\U0001f600"), min_size=1, max_size=5), min_size=1, max_size=4
)


@given(TOKENS, st.data(), STOPS, st.sampled_from(WAYS), st.integers(0, 30), st.booleans(), st.integers(2, 9))
def test_any_text_any_stops_any_cut(tokens, data, stops, way, max_tokens, strips, agree) -> None:
    ids = st.integers(0, len(tokens))
    answer = tuple(data.draw(st.lists(ids, min_size=1, max_size=25)))
    ends = data.draw(st.sampled_from([(), (EOS,), (1,)]))
    case = TextCase(tuple(tokens), answer, tuple(stops), ends, max_tokens, strips=strips, logprobs=1)
    check_case(replace(case, **{**way, "agree": agree}))


@given(TOKENS, st.data(), STOPS)
def test_the_text_does_not_depend_on_how_it_is_cut_into_tokens(tokens, data, stops) -> None:
    """Valid text only: bytes that are no character may be told apart differently."""
    answer = data.draw(st.lists(st.integers(1, len(tokens)), max_size=20))
    text = Shown(tokens).chars(answer, True).replace("\ufffd", "")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text.encode())), max_size=6)))
    whole = text.encode()
    parts = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    found = []
    for table in (parts, [whole], [bytes([byte]) for byte in whole]):
        watch, shown = StopText(stops, Shown(table)), ""
        for token_id in range(1, len(table) + 1):
            ended = watch.push(token_id)
            shown += "".join(watch.take())
            if ended:
                break
        assert watch.finish().startswith(shown)
        found.append((watch.finish(), watch.stop))
    assert found[0] == found[1] == found[2]


@given(TOKENS, st.data(), st.booleans())
def test_streamed_text_is_the_text(tokens, data, strips) -> None:
    shown = Shown(tokens, strips)
    ids = data.draw(st.lists(st.integers(0, len(tokens)), max_size=30))
    stream = StreamDecoder(shown)
    assert "".join([stream.push(token_id) for token_id in ids]) + stream.finish() == shown.chars(ids, True)


def test_the_reference_cuts() -> None:
    """The suite's own expectation, once by hand."""
    wanted = expected(TextCase((b"a", b"\xc3", b"\xa9b"), (1, 2, 3, 1), ("\u00e9",)))
    assert (wanted.ids, wanted.text, wanted.reason, wanted.stop) == ([1, 2, 3], "a", "stop", "\u00e9")
