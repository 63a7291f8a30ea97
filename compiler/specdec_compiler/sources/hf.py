"""Hugging Face folders of LlamaForCausalLM -> ModelSpec.

Knows config.json and the tensor names; safetensors_file.py knows the container, packed.py matrices in groups, hf_text.py the
tokenizer's files. Rows of q and k are already in the order that rotate-half rope wants. Invariant: whatever would change
the model's function and is not implemented is refused by its key.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from specdec_runtime.faults import ArtifactError

from ..quantize import check_finite, check_groups, quantize
from .hf_text import read_hf_text
from .packed import Formats, check_packed, declared_formats, read_packed, stored_parts
from .safetensors_file import FloatTensor, open_safetensors, read_json
from .spec import (
    ModelConfig,
    ModelSpec,
    Quantization,
    Weight,
    check_config,
    tensor_shape,
)

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "mlp_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
_TOP_NAMES = {
    "embed": "model.embed_tokens.weight",
    "norm": "model.norm.weight",
    "head": "lm_head.weight",
    "vocabulary": "draft_vocabulary",
}

_WRITE_AGAIN = "write the folder again with write_draft_folder"

# Keys of config.json that change the function, with the values that do not (the first is the default).
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu", "swish"),
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "partial_rotary_factor": (1.0, None),
    "rope_interleaved": (False, None),
    "sliding_window": (None,),
    "quantization_config": (None,),
    "num_local_experts": (None, 0),
    "no_rope_layers": (None, []),
}


def open_hf(folder: Path, quantization: Quantization) -> ModelSpec:
    """Open a folder; tensors are read and quantized on demand.

    Raises ArtifactError naming the file and the key or tensor: a missing or damaged file, an architecture or
    feature that is not supported, a missing or unexpected tensor, a wrong shape or dtype; on reading a
    tensor, a weight that is NaN or infinite.
    """
    data = read_json(folder / "config.json")
    config = read_config(data, folder)
    if config.head_ids:
        message = "draft_vocabulary_size is for drafts that use the champion's head"
        action = 'use it with embedding = "champion" in the recipe'
        raise ArtifactError(message, str(folder / "config.json"), action)
    read = open_tensors(folder, config, declared_formats(data, str(folder / "config.json")), quantization)
    return ModelSpec(config, read_hf_text(folder, config.vocab_size), None, read)


def open_tensors(
    folder: Path, config: ModelConfig, packed: Formats | None, quantization: Quantization
) -> Callable[[str], Weight]:
    """The reader of a folder's tensors, all of which have been found in their places. packed: what config.json declares."""
    tensors = open_safetensors(folder)
    _check_tensors(tensors, config, packed, folder)
    return lambda name: _read(tensors, packed, quantization, name)


def read_config(data: dict[str, Any], folder: Path) -> ModelConfig:
    """config.json -> ModelConfig. Raises ArtifactError naming the key."""
    where = str(folder / "config.json")
    if data.get("architectures") != ["LlamaForCausalLM"]:
        message = f"architectures = {data.get('architectures')!r} is not supported"
        raise ArtifactError(message, where, "use a LlamaForCausalLM model")
    for key, neutral in _NEUTRAL.items():
        if data.get(key, neutral[0]) not in neutral:
            message = f"{key} = {data[key]!r} is not supported"
            raise ArtifactError(message, where, f"use a model with {key} = {neutral[0]!r}")
    hidden, heads = _integer(data, "hidden_size", where), _integer(data, "num_attention_heads", where)
    head_dim = data.get("head_dim")
    if head_dim is None and (heads <= 0 or hidden % heads):
        message = f"{heads} heads do not divide the hidden size {hidden}"
        raise ArtifactError(message, where, "correct the file or give head_dim")
    config = ModelConfig(
        architecture="llama",
        # A path of the machine that wrote the file must not reach the bundle: its last part will do.
        name=Path(str(data.get("_name_or_path") or folder.resolve())).name,
        vocab_size=_integer(data, "vocab_size", where),
        hidden=hidden,
        ffn=_integer(data, "intermediate_size", where),
        num_layers=_integer(data, "num_hidden_layers", where),
        num_heads=heads,
        num_kv_heads=_integer(data, "num_key_value_heads", where, heads),
        head_dim=hidden // heads if head_dim is None else _integer(data, "head_dim", where),
        rope_theta=_rope_theta(data, where),
        norm_eps=_number(data, "rms_norm_eps", where, 1e-6),
        context=_integer(data, "max_position_embeddings", where, 2048),
        tied_embedding=data.get("tie_word_embeddings", False) is True,
        head_ids=_integer(data, "draft_vocabulary_size", where, 0),
    )
    if not 0 <= config.head_ids <= config.vocab_size:
        message = f"draft_vocabulary_size is {config.head_ids}, the vocabulary has {config.vocab_size} ids"
        raise ArtifactError(message, where, "correct the file")
    return check_config(config, where)


def _rope_theta(data: dict[str, Any], where: str) -> float:
    """The rope base: a key of its own, or (newer files) inside rope_parameters; scaling of any kind is
    refused."""
    for key in ("rope_scaling", "rope_parameters"):
        rope = data.get(key)
        if rope is None:
            continue
        kind = rope.get("rope_type", rope.get("type")) if isinstance(rope, dict) else rope
        if kind != "default" or not set(rope) <= {"rope_type", "type", "rope_theta"}:
            action = "use a model with plain rotary positions"
            raise ArtifactError(f"{key} = {rope!r} is not supported", where, action)
        if "rope_theta" in rope:
            return _number(rope, "rope_theta", where)
    return _number(data, "rope_theta", where, 10000.0)


def _integer(data: dict[str, Any], key: str, where: str, default: int | None = None) -> int:
    value = data.get(key)
    value = default if value is None else value
    if type(value) is not int:
        raise ArtifactError(f"{key} = {value!r} is not an integer", where, "correct or get the file again")
    return value


def _number(data: dict[str, Any], key: str, where: str, default: float | None = None) -> float:
    value = data.get(key, default)
    if type(value) not in (int, float):
        raise ArtifactError(f"{key} = {value!r} is not a number", where, "correct or get the file again")
    return float(value)


def stored_name(name: str) -> str:
    """The Hugging Face name of a tensor of ModelSpec.names()."""
    if name in _TOP_NAMES:
        return _TOP_NAMES[name]
    _, layer, part = name.split(".")
    return f"model.layers.{layer}.{_LAYER_NAMES[part]}.weight"


def _check_tensors(
    tensors: dict[str, FloatTensor], config: ModelConfig, packed: Formats | None, folder: Path
) -> None:
    # A tied head may be stored again; old files store the rope frequencies, which follow from the base.
    known = {"lm_head.weight"} if config.tied_embedding and config.own_embedding else set()
    for name in config.tensor_names():
        stored, shape = stored_name(name), tensor_shape(config, name)
        if len(shape) == 2:
            check_groups(shape, f"{folder}: tensor {stored}")
        if len(shape) == 2 and packed is not None:
            check_packed(tensors, stored, shape, packed.of(stored), str(folder))
            known |= set(stored_parts(stored, packed.of(stored)).values())
        else:
            _check_float(tensors, stored, shape, folder)
            known.add(stored)
    for stored, found in tensors.items():
        if stored not in known and not stored.endswith("rotary_emb.inv_freq"):
            raise ArtifactError(
                "the tensor has no place in a plain Llama model", found.where, "use a model without it"
            )


def _check_float(tensors: dict[str, FloatTensor], stored: str, shape: tuple[int, ...], folder: Path) -> None:
    if stored not in tensors:
        action = "use the whole folder of a Llama model"
        raise ArtifactError("the tensor is missing", f"{folder}: tensor {stored}", action)
    found = tensors[stored]
    if found.shape != shape:
        message = f"the tensor has shape {list(found.shape)}, config.json says {list(shape)}"
        raise ArtifactError(message, found.where, "correct config.json or get the model again")


def _read(
    tensors: dict[str, FloatTensor], packed: Formats | None, quantization: Quantization, name: str
) -> Weight:
    stored = stored_name(name)
    if name == "vocabulary":
        return _read_ids(tensors[stored])
    if packed is not None and not name.endswith("norm"):
        return read_packed(tensors, stored, packed.of(stored))
    values = tensors[stored].read()
    if values.ndim == 1:
        check_finite(values, tensors[stored].where)
        return values
    return quantize(values, quantization.for_tensor(name), tensors[stored].where)


def _read_ids(tensor: FloatTensor) -> np.ndarray:
    """The ids of a draft's head: int32, ascending, from 0 on."""
    if tensor.dtype != "I32":
        raise ArtifactError(f"the tensor is {tensor.dtype}, not I32", tensor.where, _WRITE_AGAIN)
    ids = tensor.raw.view("<i4").astype(np.int32)
    if ids[0] < 0 or (np.diff(ids) <= 0).any():
        raise ArtifactError("the ids do not ascend from 0 on", tensor.where, _WRITE_AGAIN)
    return ids
