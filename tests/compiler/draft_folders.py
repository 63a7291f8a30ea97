"""Draft folders as a trainer writes them, beside a tiny champion, for the tests of their reader and of the gate."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from specdec_compiler.drafts import (
    Champion,
    Generator,
    PromptSource,
    Provenance,
    SampleCounts,
    Training,
    champion_sha256,
    write_draft_folder,
    write_prompts,
    write_provenance,
)
from specdec_compiler.sources.packed import EIGHT_BITS, Formats
from specdec_compiler.sources.safetensors_file import read_safetensors
from specdec_compiler.tiny import make_tiny

RECIPE = """
name = "trained"
license = "CC0-1.0"
[champion]
source = "champion"
context = 512
quantize = "q8"
[draft]
source = "trained"
embedding = "champion"
[pages]
size = 32
"""
OWN_SIZES = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32}
OWN_SIZES |= {"intermediate_size": 96, "rope_theta": 5000.0, "rms_norm_eps": 1e-6}
EVALUATION = [
    ("chat-01", "Explain to a ten-year-old why the sky is blue, and why sunsets are red."),
    ("code-07", "Write a function in Rust that returns the longest common prefix of two strings."),
    ("short-02", "Name three fruits."),
]
PROMPTS = ["Explain to a gardener why the soil is dry, and why roses fade.", "Name four rivers."]


def trained_pair(
    folder: Path,
    seed: int = 1,
    *,
    vocab: int = 384,
    formats: Formats = EIGHT_BITS,
    sizes: dict[str, Any] | None = None,
    prompts: Sequence[str] = PROMPTS,
    tied: bool | None = None,
    vocabulary: np.ndarray | None = None,
) -> Path:
    """folder/champion, folder/trained, folder/strata and folder/recipe.toml; -> the recipe.

    The draft is the champion's own layers, packed; with `sizes` (keys of config.json) random layers of those sizes.
    """
    make_tiny(folder, seed, vocab, tied=tied)
    config, tensors = champion_layers(folder / "champion")
    if sizes is not None:
        config |= sizes
        tensors = random_layers(config, seed)
    files = write_draft_folder(folder / "trained", config, tensors, formats, vocabulary)
    write_manifest(folder, files, prompts)
    write_strata(folder / "strata", EVALUATION)
    (folder / "recipe.toml").write_text(RECIPE)
    return folder / "recipe.toml"


def champion_layers(champion: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """(config, float tensors) of a folder, without its embedding and head."""
    config = json.loads((champion / "config.json").read_text()) | {"_name_or_path": "trained"}
    stored = read_safetensors(champion / "model.safetensors")
    tables = ("model.embed_tokens.weight", "lm_head.weight")
    return config, {name: tensor.read() for name, tensor in stored.items() if name not in tables}


def random_layers(config: dict[str, Any], seed: int) -> dict[str, np.ndarray]:
    """Random tensors of the config's sizes, by Hugging Face name."""
    rng = np.random.RandomState(seed)
    hidden, ffn, size = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * size, config["num_key_value_heads"] * size
    shapes = {
        "self_attn.q_proj": (q, hidden), "self_attn.k_proj": (kv, hidden), "self_attn.v_proj": (kv, hidden),
        "self_attn.o_proj": (hidden, q), "mlp.gate_proj": (ffn, hidden), "mlp.up_proj": (ffn, hidden),
        "mlp.down_proj": (hidden, ffn), "input_layernorm": (hidden,), "post_attention_layernorm": (hidden,),
    }  # fmt: skip
    tensors = {"model.norm.weight": np.ones(hidden, np.float32)}
    for layer in range(config["num_hidden_layers"]):
        for name, shape in shapes.items():
            values = rng.standard_normal(shape) * (0.3 if len(shape) == 2 else 0.1) + (len(shape) == 1)
            tensors[f"model.layers.{layer}.{name}.weight"] = values.astype(np.float32)
    return tensors


def write_manifest(folder: Path, files: dict[str, str], prompts: Sequence[str], **changes: Any) -> str:
    """folder/trained/provenance.json for a draft of folder/champion."""
    digest = write_prompts(folder / "trained", prompts)
    source = PromptSource("test prompts", "file", hashlib.sha256(b"test").hexdigest(), len(prompts))
    manifest = Provenance(
        champion=Champion("tiny", champion_sha256(folder / "champion")),
        code_commit="0123abc",
        generator=Generator([1], [0.0, 0.8], "top-p 0.95"),
        prompt_sources=[source],
        sample_counts=SampleCounts(len(prompts), len(prompts), 100),
        prompts_digest=digest,
        training=Training("full KL", 10, 4, 1e-3, 1, "cpu", [3.0, 2.5]),
        licence="CC0-1.0",
        files=files,
        ablation={"layers": {"1": 0.4}},
    )
    return write_provenance(folder / "trained", dataclasses.replace(manifest, **changes))


def write_strata(folder: Path, prompts: list[tuple[str, str]]) -> None:
    """One file of evaluation prompts a stratum, the part of the id before the dash."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in prompts:
        stratum = name.split("-")[0]
        record = {"id": name, "stratum": stratum, "messages": [{"role": "user", "content": text}]}
        (folder / f"{stratum}.jsonl").write_text(json.dumps(record | {"max_tokens": 160}) + "\n")
