"""Fingerprints of prompts: what was trained on is found however it is written, what is merely alike is not."""

from __future__ import annotations

import json
import zlib

import numpy as np
import pytest
from specdec_compiler.drafts.ngrams import (
    STRIDES,
    Fingerprints,
    fingerprints,
    fitting,
    overlap,
    pack,
    unpack,
    words,
)
from specdec_runtime.faults import ArtifactError, RequestError

PLANTED = "Explain to a ten-year-old why the sky is blue, and why sunsets are red."


def random_texts(count: int, length: int = 60, vocabulary: int = 20000) -> list[str]:
    rng = np.random.default_rng(3)
    return [" ".join(f"w{i}" for i in rng.integers(0, vocabulary, length)) for _ in range(count)]


def test_words() -> None:
    assert words("Don't  STOP—the Ｆｕｌｌ width №5, x_y!") == [
        "don",
        "t",
        "stop",
        "the",
        "full",
        "width",
        "no5",
        "x",
        "y",
    ]
    assert words("Größe ÉTÉ 日本語と English") == ["größe", "été", "日", "本", "語", "と", "english"]
    assert words(" \n?!") == []


@pytest.mark.parametrize(
    "text",
    [
        PLANTED,
        PLANTED.upper(),
        "  explain\tto a TEN year old:\n\nwhy the sky is blue and why sunsets are red  ",
        "Ｅｘｐｌａｉｎ to a ten-year-old why the sky is blue; and why sunsets are red!!!",
        "Please do as I say. Explain, to a ten-year-old, why the sky is blue - and why sunsets are red. Be short.",
    ],
)
@pytest.mark.parametrize("stride", STRIDES[:2])
def test_a_planted_prompt_is_found(text, stride) -> None:
    known = fingerprints([*random_texts(50), text], stride=stride)
    assert overlap(known, PLANTED)


def test_what_is_shared_is_named_in_order() -> None:
    known = fingerprints(["tell me: why the sky is blue and why sunsets are red, please"])
    assert overlap(known, PLANTED) == [
        "why the sky is blue and why sunsets",
        "the sky is blue and why sunsets are",
        "sky is blue and why sunsets are red",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "Explain to a ten-year-old why seas are salty, and why forests are green.",
        "why the sky is blue and why sunrises are red",
        "red are sunsets why and blue is sky the why",
        "Explain to a ten-year-old why",
        "",
    ],
)
def test_what_is_merely_alike_is_not(text) -> None:
    assert overlap(fingerprints([*random_texts(50), text]), PLANTED) == []


def test_short_texts_are_grams_of_their_own() -> None:
    known = fingerprints(["Name three fruits.", "Say hi"])
    assert overlap(known, "name THREE fruits!") == ["name three fruits"]
    assert overlap(known, "Name three fruits and say why each of them is good") == []
    assert overlap(known, "hi") == [] and overlap(known, "...") == []


@pytest.mark.parametrize("stride", STRIDES)
def test_a_run_of_n_plus_stride_less_one_words_is_always_found(stride) -> None:
    text = random_texts(1, 64)[0].split()
    known = fingerprints([" ".join(text)], stride=stride)
    length = 8 + stride - 1
    for at in range(64 - length + 1):
        run = " ".join(text[at : at + length])
        assert overlap(known, f"before {run} after"), at
    assert overlap(known, " ".join(text[:8])) == [" ".join(text[:8])], (
        "the first gram is kept with every stride"
    )


def test_template_wording_does_not_hide_what_is_special() -> None:
    """A thousand prompts of one template: its words are known once, and a prompt of other words is not taken for one."""
    template = "You are a careful assistant. Write a helpful reply about {} for a reader who is new to it."
    texts = [template.format(f"subject{i}") for i in range(1000)]
    known = fingerprints(texts)
    assert (
        len(known.hashes) < 8 * 1000 + 20
    )  # the eight grams that hold the subject, and the shared ones once
    assert overlap(known, "Write a helpful reply about tides for somebody who has never seen the sea") == []
    assert overlap(known, template.format("subject77"))


def test_foreign_grams_are_rarely_taken_for_known_ones() -> None:
    known = fingerprints(random_texts(2000))
    assert known.false_positive_rate <= 2**-20
    narrow = Fingerprints(8, 1, 24, 1, np.unique(known.hashes >> np.uint64(known.bits - 24)))
    foreign = [" ".join(f"x{i}" for i in range(at, at + 5007)) for at in range(0, 50000, 5000)]
    hits = sum(len(overlap(narrow, text)) for text in foreign)
    expected = 50000 * narrow.false_positive_rate
    assert 0.8 * expected < hits < 1.2 * expected, "the stated rate is the one that is seen"
    assert not any(overlap(known, text) for text in foreign)


def test_a_file_comes_back() -> None:
    for texts in ([], ["one"], random_texts(300)):
        known = fingerprints(texts)
        found = unpack(pack(known), "test")
        assert (found.n, found.stride, found.bits, found.num_texts) == (8, 1, known.bits, len(texts))
        np.testing.assert_array_equal(found.hashes, known.hashes)
        assert pack(found) == pack(known)


def test_the_file_fits() -> None:
    texts = random_texts(1500)
    full = len(pack(fingerprints(texts)))
    assert full < 2.9 * len(fingerprints(texts).hashes), "bytes a gram"
    assert unpack(fitting(texts, max_bytes=full), "test").stride == 1
    assert unpack(fitting(texts, max_bytes=full - 1), "test").stride == 2
    assert unpack(fitting(texts, max_bytes=full // 3), "test").stride == 4
    with pytest.raises(RequestError, match="1500 texts need"):
        fitting(texts, max_bytes=full // 20)
    with pytest.raises(RequestError, match="stride = 0"):
        fingerprints(texts, stride=0)


def _with_head(data: bytes, **changes: object) -> bytes:
    name, line, body = data.split(b"\n", 2)
    return b"\n".join([name, json.dumps(json.loads(line) | changes).encode(), body])


def test_damaged_files_are_refused() -> None:
    good = pack(fingerprints(random_texts(5)))
    name, line, body = good.split(b"\n", 2)
    count = json.loads(line)["count"]
    planes = bytearray(zlib.decompress(body))
    bad = [
        b"", good[:-1], good + b"x", good.replace(b"ngrams 1", b"ngrams 2"), name + b"\n" + body, b"\n".join([name, b"[]", body]),
        _with_head(good, count=count + 1), _with_head(good, count=count - 1), _with_head(good, bits=0), _with_head(good, bits=65),
        _with_head(good, bits=20), _with_head(good, n=0), _with_head(good, stride=0), _with_head(good, n="8"),
        _with_head(good, count=1 << 41), _with_head(good, more=1),
        b"\n".join([name, line, zlib.compress(bytes(len(planes)))]),
        b"\n".join([name, line, zlib.compress(planes + bytes(8))]),
    ]  # fmt: skip
    for number, data in enumerate(bad):
        with pytest.raises(ArtifactError, match=r"prompts\.ngrams"):
            unpack(data, "prompts.ngrams")
            pytest.fail(f"case {number}")
    unpack(good, "prompts.ngrams")
