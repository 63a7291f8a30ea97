"""GGUF files of the Llama architecture -> ModelSpec.

Knows the names, the metadata keys and the block formats of GGUF; gguf_file.py knows the container. Q4_0, Q4_1
and Q8_0 keep their codes exactly and their f16 scales widen to f32; F16, BF16 and F32 matrices are quantized.
Invariant: whatever would change the model's function and is not implemented is refused by name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from specdec_runtime.faults import ArtifactError

from ..quantize import GROUP, QuantWeight, check_finite, check_groups, quantize
from .floats import widen
from .gguf_file import GgufFile, TensorRecord
from .spec import (
    ModelConfig,
    ModelSpec,
    Quantization,
    Weight,
    check_config,
    tensor_shape,
)
from .tokenizer import read_gguf_text

_LAYER_NAMES = {
    "attn_norm": "attn_norm",
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "o": "attn_output",
    "mlp_norm": "ffn_norm",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
}
_TOP_NAMES = {"embed": "token_embd.weight", "norm": "output_norm.weight", "head": "output.weight"}

# Keys that change the function, with the one value that does not.
_NEUTRAL: dict[str, Any] = {
    "llama.rope.scaling.type": "none",
    "llama.expert_count": 0,
    "llama.attention.sliding_window": 0,
    "llama.attention.causal": True,
    "llama.attention.clamp_kqv": 0.0,
    "llama.attention.scale": 0.0,
    "llama.residual_scale": 1.0,
    "llama.embedding_scale": 1.0,
    "llama.logit_scale": 1.0,
}


def open_gguf(path: Path, quantization: Quantization) -> ModelSpec:
    """Open a GGUF file; tensors are read (and quantized where they are floats) on demand.

    Raises ArtifactError naming the file and the key or tensor: unreadable, truncated, an architecture,
    feature, tensor type or tokenizer that is not supported, a missing or unexpected tensor, a wrong shape; on
    reading a tensor, a scale, minimum or weight that is NaN or infinite.
    """
    file = GgufFile(path)
    config = _config(file)
    _check_tensors(file, config)
    text = read_gguf_text(file, config.vocab_size)
    licence = file.metadata.get("general.license")
    return ModelSpec(config, text, licence, lambda name: _read(file, config, quantization, name))


def _config(file: GgufFile) -> ModelConfig:
    architecture = file.get("general.architecture", str)
    if architecture != "llama":
        message = f"the architecture {architecture!r} is not supported"
        raise ArtifactError(
            message, f"{file.path}: general.architecture", "use a model of the architecture llama"
        )
    for key, neutral in _NEUTRAL.items():
        if file.metadata.get(key, neutral) != neutral:
            message = f"{key} = {file.metadata[key]!r} is not supported"
            raise ArtifactError(
                message, str(file.path), f"use a model without it (only {neutral!r} is supported)"
            )
    heads, hidden = file.get("llama.attention.head_count", int), file.get("llama.embedding_length", int)
    if heads <= 0 or hidden % heads:
        message = f"{heads} heads do not divide the hidden size {hidden}"
        raise ArtifactError(message, str(file.path), "the file is damaged: get it again")
    head_dim = file.get("llama.attention.key_length", int, hidden // heads)
    for key in ("llama.attention.value_length", "llama.rope.dimension_count"):
        if file.get(key, int, head_dim) != head_dim:
            message = f"{key} = {file.metadata[key]} differs from the head size {head_dim}"
            raise ArtifactError(message, str(file.path), "use a model whose whole heads are rotated")
    config = ModelConfig(
        architecture="llama",
        name=file.get("general.name", str, file.path.stem),
        vocab_size=file.get("llama.vocab_size", int, len(file.get("tokenizer.ggml.tokens", list))),
        hidden=hidden,
        ffn=file.get("llama.feed_forward_length", int),
        num_layers=file.get("llama.block_count", int),
        num_heads=heads,
        num_kv_heads=file.get("llama.attention.head_count_kv", int, heads),
        head_dim=head_dim,
        rope_theta=file.get("llama.rope.freq_base", float, 10000.0),
        norm_eps=file.get("llama.attention.layer_norm_rms_epsilon", float),
        context=file.get("llama.context_length", int),
        tied_embedding="output.weight" not in file.tensors,
    )
    return check_config(config, str(file.path))


def _stored_name(name: str) -> str:
    if name in _TOP_NAMES:
        return _TOP_NAMES[name]
    _, layer, part = name.split(".")
    return f"blk.{layer}.{_LAYER_NAMES[part]}.weight"


def _check_tensors(file: GgufFile, config: ModelConfig) -> None:
    wanted = {_stored_name(name): tensor_shape(config, name) for name in config.tensor_names()}
    for stored, shape in wanted.items():
        where = f"{file.path}: tensor {stored}"
        record = file.tensors.get(stored)
        if record is None:
            raise ArtifactError("the tensor is missing", where, "use a complete file of a Llama model")
        if record.shape != shape:
            message = f"the tensor has shape {list(record.shape)}, the metadata says {list(shape)}"
            raise ArtifactError(message, where, "the file is damaged: get it again")
        if len(shape) == 2:
            check_groups(shape, where)
    for stored in file.tensors:
        if stored not in wanted:
            where = f"{file.path}: tensor {stored}"
            raise ArtifactError(
                "the tensor has no place in a plain Llama model", where, "use a model without it"
            )


def _read(file: GgufFile, config: ModelConfig, quantization: Quantization, name: str) -> Weight:
    stored = _stored_name(name)
    record = file.tensors[stored]
    where = f"{file.path}: tensor {stored}"
    if len(record.shape) == 1:
        return _read_norm(file, record, where)
    weight = _read_matrix(file, record, quantization.for_tensor(name), where)
    part = name.rpartition(".")[2]
    if part == "q":
        return _unpermute(weight, config.num_heads)
    return _unpermute(weight, config.num_kv_heads) if part == "k" else weight


def _read_norm(file: GgufFile, record: TensorRecord, where: str) -> np.ndarray:
    if record.type not in ("F32", "F16", "BF16"):
        raise ArtifactError(f"a norm is stored as {record.type}", where, "use a file whose norms are floats")
    values = widen(file.raw(record.name), record.type, record.shape)
    check_finite(values, where)
    return values


def _read_matrix(file: GgufFile, record: TensorRecord, format: Any, where: str) -> QuantWeight:
    raw = file.raw(record.name)
    if record.type in ("F32", "F16", "BF16"):
        return quantize(widen(raw, record.type, record.shape), format, where)
    rows, columns = record.shape
    blocks = raw.reshape(rows, columns // GROUP, -1)
    scale = _f16(blocks[..., :2])
    check_finite(scale, where, "scale")
    if record.type == "Q8_0":
        return QuantWeight("q8", blocks[..., 2:].reshape(rows, columns).view(np.int8), scale, None)
    if record.type == "Q4_0":
        return QuantWeight("q4", _nibbles(blocks[..., 2:], record.shape), scale, scale * np.float32(-8))
    minimum = _f16(blocks[..., 2:4])
    check_finite(minimum, where, "minimum")
    return QuantWeight("q4", _nibbles(blocks[..., 4:], record.shape), scale, minimum)


def _f16(raw: np.ndarray) -> np.ndarray:
    """uint8 [..., 2] -> f32 [...]."""
    return np.ascontiguousarray(raw).view("<f2")[..., 0].astype(np.float32)


def _nibbles(packed: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """uint8 [rows, groups, 16]: low nibbles are weights 0..15 of the group, high ones 16..31 -> uint8 [rows,
    K]."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1).reshape(shape)


def _unpermute(weight: QuantWeight, num_heads: int) -> QuantWeight:
    """Rows of each head from interleaved pairs (0, half, 1, half + 1, ...), as GGUF stores q and k, to
    halves."""
    rows = weight.shape[0]
    order = np.arange(rows).reshape(num_heads, rows // num_heads // 2, 2).swapaxes(1, 2).reshape(-1)
    minimum = None if weight.minimum is None else weight.minimum[order]
    return QuantWeight(weight.format, weight.codes[order], weight.scale[order], minimum)
