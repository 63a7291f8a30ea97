"""Pairing: good pairs pass, and each difference is named, the first one first."""

import json
from dataclasses import replace

import pytest
from gguf_files import smollm2
from specdec_compiler.pairing import check_pair, pieces
from specdec_compiler.sources import ModelSpec, first_layers, open_source
from specdec_compiler.tiny import make_tiny
from specdec_runtime.faults import ArtifactError


@pytest.fixture
def champion(tmp_path) -> ModelSpec:
    make_tiny(tmp_path, 1, 301)
    return open_source("champion", tmp_path)


def with_text(spec: ModelSpec, **changes) -> ModelSpec:
    return replace(spec, text=replace(spec.text, **changes))


def with_piece(spec: ModelSpec, old: str, new: str) -> ModelSpec:
    data = json.loads(spec.text.tokenizer_json)
    data["model"]["vocab"][new] = data["model"]["vocab"].pop(old)
    return with_text(spec, tokenizer_json=json.dumps(data).encode())


def test_pairs_that_are_good(champion, tmp_path):
    check_pair(champion, open_source("draft", tmp_path), 512)
    check_pair(smollm2(), first_layers(smollm2(), 6), 2048)
    data = json.loads(champion.text.tokenizer_json)
    data["model"]["merges"] = [" ".join(pair) for pair in data["model"]["merges"]]
    check_pair(champion, with_text(champion, tokenizer_json=json.dumps(data, indent=1).encode()), 512)


def test_pieces():
    found = pieces(smollm2().text.tokenizer_json)
    assert (len(found), found[2]) == (49152, "<|im_end|>")
    gap = {"model": {"vocab": {"a": 0, "b": 2}}, "added_tokens": [{"id": 4, "content": "<x>"}]}
    assert pieces(json.dumps(gap).encode()) == ["a", None, "b", None, "<x>"]
    for bad in (b"", b"[]", b"{}", b'{"model": {"vocab": 5}}'):
        with pytest.raises(ArtifactError, match="no vocabulary"):
            pieces(bad)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: with_piece(s, "Q", "QQQ"), r"id 84 is 'Q' for the champion, 'QQQ' for the draft"),
        (
            lambda s: replace(s, config=replace(s.config, vocab_size=304)),
            "vocabulary size differs: 301 .* 304",
        ),
        (lambda s: with_text(s, bos_id=None), r"first token \(bos\) differs: 1 .* None"),
        (lambda s: with_text(s, add_bos=True), "add_bos"),
        (lambda s: with_text(s, eos_ids=(0, 2)), r"end ids \(eos\) differs: \(2,\) .* \(0, 2\)"),
        (lambda s: with_text(s, special_ids=(0, 2)), "special ids differs"),
        (lambda s: with_text(s, chat_template=None), "only the champion has one"),
        (lambda s: with_text(s, chat_template=s.text.chat_template + "\n"), "differs from character"),
        (lambda s: with_text(s, chat_template="{% for x"), r"character 7 on: 'm.*'x'"),
        (lambda s: replace(s, config=replace(s.config, context=511)), "511 positions, the bundle 512"),
    ],
)
def test_each_difference_is_named(champion, change, message):
    draft = change(champion)
    with pytest.raises(ArtifactError, match=message) as caught:
        check_pair(champion, draft, 512)
    assert caught.value.action


def test_the_first_difference_is_the_one_named(champion, tmp_path):
    make_tiny(tmp_path / "larger", 1, 302)
    other = open_source("draft", tmp_path / "larger")
    with pytest.raises(ArtifactError, match="id 301 is None for the champion"):
        check_pair(champion, other, 512)
    with pytest.raises(ArtifactError, match=r"id 3 is '<repo_name>' for the champion"):
        check_pair(smollm2(), with_text(other, eos_ids=(0,)), 512)
