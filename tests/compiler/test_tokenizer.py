"""The tokenizer.json made from GGUF metadata against llama.cpp's own tokenizer (ids in
tokenizer_golden.jsonl)."""

import json
from functools import lru_cache
from pathlib import Path

import pytest
from gguf_files import float_weights, smollm2, smollm2_path, write_gguf
from specdec_compiler.sources import open_source
from specdec_compiler.sources.gguf_file import GgufFile
from specdec_compiler.sources.tokenizer import PRE_TOKENIZERS, tokenizer_json
from tokenizers import Tokenizer

GOLDEN = Path(__file__).with_name("tokenizer_golden.jsonl")
ROWS = [json.loads(line) for line in GOLDEN.read_text(encoding="ascii").splitlines()]
RULES = ("smollm", "gpt-2", "llama-bpe", "qwen2", "default")


@lru_cache(maxsize=1)
def vocabulary():
    metadata = GgufFile(smollm2_path()).metadata
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    return metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"], merges


def test_the_golden_file_is_worth_its_name():
    assert len(ROWS) >= 300
    for rule in RULES[1:]:
        assert sum(rule in row for row in ROWS) > 10, f"{rule} never differs from smollm"


def test_smollm2_encodes_as_llama_cpp_does():
    tokenizer = Tokenizer.from_buffer(smollm2().text.tokenizer_json)
    wrong = [
        row["text"]
        for row in ROWS
        if tokenizer.encode(row["text"], add_special_tokens=False).ids != row["smollm"]
    ]
    assert wrong == []


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_encodes_as_llama_cpp_does_and_decodes_back(rule):
    tokenizer = Tokenizer.from_buffer(tokenizer_json(*vocabulary(), PRE_TOKENIZERS[rule]))
    for row in ROWS:
        ids = row.get(rule, row["smollm"])
        assert tokenizer.encode(row["text"], add_special_tokens=False).ids == ids, row["text"]
        assert tokenizer.decode(ids, skip_special_tokens=False) == row["text"]


def test_every_id_keeps_its_number():
    tokens, types, _ = vocabulary()
    tokenizer = Tokenizer.from_buffer(smollm2().text.tokenizer_json)
    assert tokenizer.get_vocab_size() == len(tokens) == 49152
    assert [tokenizer.id_to_token(i) for i in range(len(tokens))] == tokens
    added = json.loads(smollm2().text.tokenizer_json)["added_tokens"]
    assert [entry["id"] for entry in added] == [i for i, kind in enumerate(types) if kind == 3]


def test_the_bytes_are_the_same_every_time():
    again = open_source(str(smollm2_path()), Path("/"))
    assert again.text.tokenizer_json == smollm2().text.tokenizer_json


def test_user_defined_tokens_are_text(tmp_path):
    """Type 4: matched whole in the text, but shown; type 3 and 2: matched and hidden."""
    types = [3, 4, 2] + [1] * 297
    changes = {"tokenizer.ggml.token_type": types, "tokenizer.ggml.bos_token_id": None}
    changes |= {"tokenizer.ggml.eos_token_id": 0}
    write_gguf(tmp_path / "made.gguf", float_weights(), changes=changes)
    text = open_source("made.gguf", tmp_path).text
    assert text.special_ids == (0, 2)
    tokenizer = Tokenizer.from_buffer(text.tokenizer_json)
    ids = tokenizer.encode("a<|im_start|>b<|endoftext|>").ids
    assert (ids[1], ids[3]) == (1, 0)
    assert tokenizer.decode(ids, skip_special_tokens=True) == "a<|im_start|>b"
