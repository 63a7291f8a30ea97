"""The tokenizer.json of a GGUF file's vocabulary, and the ids that have a meaning.

Knows byte-level BPE ("gpt2") only, and no weights. A GGUF file names its pre-tokenizer by a short word; the
table below says what each means, checked against llama.cpp's own tokenizer, and an unknown word is refused: a
wrong rule gives other ids for digits or code without any error. Invariants: every id of the file is in the
vocabulary under the same number; the bytes are canonical (same metadata, same bytes).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from specdec_runtime.faults import ArtifactError

from .gguf_file import GgufFile
from .spec import TextConfig

# Token types of GGUF.
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4

_GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_WORDS = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _byte_level(use_regex: bool) -> dict[str, Any]:
    # use_regex: split by GPT-2's own expression as well.
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


@dataclass(frozen=True)
class PreTokenizer:
    """What a value of tokenizer.ggml.pre stands for; steps are pre-tokenizers in the terms of
    tokenizer.json."""

    steps: tuple[dict[str, Any], ...]
    ignore_merges: bool = (
        False  # a whole piece that is in the vocabulary is one token, whatever the merges say
    )
    add_bos: bool = False  # where the file does not say


_GPT2 = PreTokenizer((_byte_level(use_regex=True),))
_DIGITS = PreTokenizer((_split(r"\p{N}"), _byte_level(use_regex=True)))
_LLAMA3 = PreTokenizer(
    (_split(_WORDS + r"\p{N}{1,3}" + _REST), _byte_level(use_regex=False)), ignore_merges=True, add_bos=True
)
# Without Qwen's own NFC step, as llama.cpp does it.
_QWEN2 = PreTokenizer((_split(_WORDS + r"\p{N}" + _REST), _byte_level(use_regex=False)))
# llama.cpp's own fallback, for old files.
_DEFAULT = PreTokenizer(
    (
        *(_split(p) for p in (r"[\p{P}$+<=>^~|]+", _GPT2_PATTERN, r"\p{N}+", "[0-9][0-9][0-9]")),
        _byte_level(use_regex=False),
    )
)

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "gpt-2": _GPT2,
    "olmo": _GPT2,
    "smollm": _DIGITS,
    "starcoder": _DIGITS,
    "refact": _DIGITS,
    "command-r": _DIGITS,
    "codeshell": _DIGITS,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _QWEN2,
    "default": _DEFAULT,
}


def read_gguf_text(file: GgufFile, vocab_size: int) -> TextConfig:
    """The tokenizer, template and special ids of a GGUF file.

    Raises ArtifactError naming the metadata key: another tokenizer than byte-level BPE, an unknown
    pre-tokenizer, a vocabulary that does not fit vocab_size, merges of unknown pieces, an id outside the
    vocabulary.
    """
    where = str(file.path)
    model = file.get("tokenizer.ggml.model", str)
    if model != "gpt2":
        message = f"tokenizer.ggml.model = {model!r} is not supported"
        raise ArtifactError(message, where, "use a model with a byte-level BPE tokenizer (gpt2)")
    rule = _rule(file.get("tokenizer.ggml.pre", str, "default"), where)
    tokens = _tokens(file, vocab_size)
    types = file.get("tokenizer.ggml.token_type", list, [1] * len(tokens))
    if len(types) != len(tokens):
        message = f"tokenizer.ggml.token_type has {len(types)} entries for {len(tokens)} tokens"
        raise ArtifactError(message, where, "the file is damaged: get it again")
    bos, eos = _id(file, "bos", vocab_size), _eos_ids(file, vocab_size)
    add_bos = file.get("tokenizer.ggml.add_bos_token", bool, rule.add_bos)
    if add_bos and bos is None:
        message = "the model wants a first token (add_bos_token) but names none"
        raise ArtifactError(message, f"{where}: tokenizer.ggml.bos_token_id", "convert the model again")
    template = file.get("tokenizer.chat_template", str, "") or None
    hidden = {i for i, kind in enumerate(types) if kind in (_UNKNOWN, _CONTROL)} | set(eos)
    hidden |= set() if bos is None else {bos}
    merges = _merges(file, set(tokens))
    return TextConfig(
        tokenizer_json=tokenizer_json(tokens, types, merges, rule),
        chat_template=template,
        bos_id=bos,
        add_bos=add_bos,
        eos_ids=eos,
        special_ids=tuple(sorted(hidden)),
    )


def tokenizer_json(
    tokens: list[str], types: list[int], merges: list[tuple[str, str]], rule: PreTokenizer
) -> bytes:
    """The tokenizer.json of a byte-level BPE vocabulary: tokens and their GGUF types by id, merges by
    rank."""
    added = [
        {
            "id": i,
            "content": tokens[i],
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind != _USER_DEFINED,
        }
        for i, kind in enumerate(types)
        if kind in (_UNKNOWN, _CONTROL, _USER_DEFINED)
    ]
    steps = list(rule.steps)
    data = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": steps[0] if len(steps) == 1 else {"type": "Sequence", "pretokenizers": steps},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": rule.ignore_merges,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": merges,
        },
    }
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode()


def _rule(pre: str, where: str) -> PreTokenizer:
    if pre not in PRE_TOKENIZERS:
        raise ArtifactError(
            f"the pre-tokenizer {pre!r} is not known",
            f"{where}: tokenizer.ggml.pre",
            f"use a model with one of {', '.join(PRE_TOKENIZERS)}, or its Hugging Face folder",
        )
    return PRE_TOKENIZERS[pre]


def _tokens(file: GgufFile, vocab_size: int) -> list[str]:
    tokens = file.get("tokenizer.ggml.tokens", list)
    where = f"{file.path}: tokenizer.ggml.tokens"
    if len(tokens) > vocab_size:
        message = f"the tokenizer has {len(tokens)} pieces, the model {vocab_size} rows"
        raise ArtifactError(message, where, "the file is damaged: get it again")
    seen: set[str] = set()
    for i, token in enumerate(tokens):
        if not isinstance(token, str) or token in seen:
            message = f"the piece {i}, {token!r}, is not a string or occurs twice"
            raise ArtifactError(message, where, "the file is damaged: get it again")
        seen.add(token)
    return tokens


def _merges(file: GgufFile, vocabulary: set[str]) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for rank, merge in enumerate(file.get("tokenizer.ggml.merges", list)):
        # Pieces hold no plain space (byte-level text writes it as another letter): the one space parts the
        # two.
        left, _, right = str(merge).partition(" ")
        if not {left, right, left + right} <= vocabulary:
            message = f"the merge {rank}, {merge!r}, names pieces that are not in the vocabulary"
            where = f"{file.path}: tokenizer.ggml.merges"
            raise ArtifactError(message, where, "the file is damaged: get it again")
        pairs.append((left, right))
    return pairs


def _id(file: GgufFile, name: str, vocab_size: int) -> int | None:
    key = f"tokenizer.ggml.{name}_token_id"
    if key not in file.metadata:
        return None
    value = file.get(key, int)
    if not 0 <= value < vocab_size:
        message = f"the id {value} is outside the vocabulary of {vocab_size}"
        raise ArtifactError(message, f"{file.path}: {key}", "the file is damaged: get it again")
    return value


def _eos_ids(file: GgufFile, vocab_size: int) -> tuple[int, ...]:
    # eot and eom end a turn or a message: for a chat they end the answer as eos does.
    ids = (_id(file, name, vocab_size) for name in ("eos", "eot", "eom"))
    return tuple(sorted({i for i in ids if i is not None}))
