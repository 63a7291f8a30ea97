"""Tiny pairs: the same bytes for a seed, greedy text worth testing with, and transformers' logits as a
golden."""

import itertools
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from gguf_files import smollm2
from llama_numpy import LlamaNumpy
from specdec_compiler.pairing import check_pair
from specdec_compiler.recipe import DraftRecipe, read_recipe
from specdec_compiler.sources import open_source
from specdec_compiler.tiny import make_tiny
from specdec_compiler.tiny_tokenizer import tiny_tokenizer
from specdec_runtime.faults import ArtifactError, RequestError
from tokenizers import Tokenizer

GOLDEN = json.loads(Path(__file__).with_name("logits_golden.json").read_text())


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def pair(folder: Path, seed: int, vocab: int = 301) -> tuple[LlamaNumpy, LlamaNumpy]:
    make_tiny(folder, seed, vocab)
    return LlamaNumpy(open_source("champion", folder)), LlamaNumpy(open_source("draft", folder))


def test_what_is_written(tmp_path):
    started = time.perf_counter()
    path = make_tiny(tmp_path, seed=5, vocab=301)
    assert time.perf_counter() - started < 1
    recipe = read_recipe(path)
    assert (recipe.name, recipe.champion.source, recipe.draft) == (
        "tiny-5",
        "champion",
        DraftRecipe(source="draft"),
    )
    assert (recipe.champion.context, recipe.pages.size) == (512, 32)
    champion, draft = (open_source(part, recipe.folder) for part in ("champion", "draft"))
    check_pair(champion, draft, recipe.context_for(champion.config.context))
    assert (champion.config.num_layers, draft.config.num_layers) == (2, 1)
    assert (champion.config.vocab_size, champion.config.hidden, champion.config.ffn) == (301, 64, 128)
    for spec in (champion, draft):
        assert all(spec.tensor(name) is not None for name in spec.names())


def test_a_seed_gives_its_bytes_and_only_the_seed_changes_them(tmp_path):
    for name, seed in (("a", 3), ("b", 3), ("c", 5)):
        make_tiny(tmp_path / name, seed, 300)
    a, b, c = (contents(tmp_path / name) for name in "abc")
    assert a == b
    assert sorted(a) == sorted(c)
    assert {name for name in a if a[name] != c[name]} == {
        "champion/model.safetensors", "draft/model.safetensors", "draft/provenance.json", "recipe.toml",
    }  # fmt: skip


def test_both_kinds_of_head_occur(tmp_path):
    make_tiny(tmp_path / "even", 6, 300)
    make_tiny(tmp_path / "odd", 7, 300)
    make_tiny(tmp_path / "forced", 6, 300, tied=True, add_bos=True)
    tied = [
        open_source("champion", tmp_path / name).config.tied_embedding for name in ("even", "odd", "forced")
    ]
    assert tied == [False, True, True]
    assert open_source("draft", tmp_path / "forced").text.add_bos


@pytest.mark.parametrize("vocab", [259, 300, 301, 999, 1000])
def test_vocabularies(vocab):
    tokenizer = Tokenizer.from_buffer(tiny_tokenizer(vocab))
    assert tokenizer.get_vocab_size() == vocab
    assert all(tokenizer.id_to_token(i) is not None for i in range(vocab))
    for text in ("Hello, how are you today? 1234", "def f(x):\n\treturn x", "\u00e9\u4e2d\U0001f600\x00", ""):
        assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text
    assert tokenizer.encode("<|im_start|>user<|im_end|><|endoftext|>").ids[0::5][:1] == [1]
    assert len(set(tokenizer.encode("hello there, thank you").ids)) > 3


def test_larger_vocabularies_use_fewer_tokens():
    text = "The keeper of the lighthouse wrote every evening"
    lengths = [len(Tokenizer.from_buffer(tiny_tokenizer(v)).encode(text).ids) for v in (259, 400, 1000)]
    assert lengths[0] == len(text)
    assert lengths[0] > lengths[1] > lengths[2]


@pytest.mark.parametrize("vocab", [0, 299, 1001, -5])
def test_vocabularies_that_are_refused(tmp_path, vocab):
    with pytest.raises(RequestError, match="300 to 1000"):
        make_tiny(tmp_path, 0, vocab)
    assert not any(tmp_path.iterdir())


def test_seeds_and_folders_that_are_refused(tmp_path):
    with pytest.raises(RequestError, match="seed -1"):
        make_tiny(tmp_path, -1)
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtifactError, match="cannot write"):
        make_tiny(tmp_path / "file", 0)


def test_greedy_text_is_worth_testing_with(tmp_path):
    """Over 16 seeds: varied text, ends met but not at once, the draft right on a part of the tokens."""
    distinct, ends, agreed = [], [], []
    for seed in range(16):
        champion, draft = pair(tmp_path, seed)
        prompt = [1, *np.random.RandomState(seed).randint(3, 301, 9).tolist()]
        text = champion.greedy(prompt, 48)
        draft.extend(prompt[:-1])
        guesses = np.argmax(draft.extend([prompt[-1], *text[:-1]]), axis=1)
        distinct.append(len(set(text)))
        ends.append(text.index(2) if 2 in text else None)
        agreed.append(float(np.mean(guesses == text)))
        longest = max(len(list(run)) for _, run in itertools.groupby(text))
        assert longest <= 24, f"seed {seed} repeats one token"
    assert np.mean(distinct) > 30
    assert all(0.1 < share < 0.9 for share in agreed)
    assert 2 <= sum(end is not None for end in ends) <= 12
    assert 0 not in ends


@pytest.mark.parametrize("row", GOLDEN["tiny"], ids=lambda row: f"seed{row['seed']}")
def test_the_oracle_gives_transformers_logits_tiny(tmp_path, row):
    champion, _ = pair(tmp_path, row["seed"])
    whole = champion.extend(row["ids"])[-1]
    assert np.allclose(whole, row["logits"], rtol=0, atol=5e-4)
    champion.rollback(0)
    for ids in (row["ids"][:13], row["ids"][13:14], row["ids"][14:]):
        parts = champion.extend(ids)
    assert np.allclose(parts[-1], whole, rtol=0, atol=5e-4)
    champion.rollback(13)
    assert np.allclose(champion.extend(row["ids"][13:])[-1], whole, rtol=0, atol=5e-4)


def test_the_oracle_gives_transformers_logits_smollm2():
    golden = GOLDEN["smollm2"]
    rows = LlamaNumpy(smollm2()).extend(golden["ids"])
    for row, ids, values in zip(rows, golden["top_ids"], golden["top_logits"], strict=True):
        assert np.allclose(row[ids], values, rtol=0, atol=2e-3)
        assert row.max() <= values[0] + 2e-3


def test_reading_needs_neither_torch_nor_transformers_nor_tvm(tmp_path):
    make_tiny(tmp_path, 0, 300)
    code = (
        "import sys, pathlib\n"
        "for name in ('torch', 'transformers', 'safetensors', 'gguf', 'tvm'): sys.modules[name] = None\n"
        "from specdec_compiler.sources import open_source\n"
        "spec = open_source('champion', pathlib.Path(sys.argv[1]))\n"
        "print(len([spec.tensor(name) for name in spec.names()]))\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "21\n", done.stderr
