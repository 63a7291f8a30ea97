"""Write a trained draft as a Hugging Face folder: config.json and model.safetensors, its matrices in groups of 32.

The writer's side of sources/draft.py and sources/packed.py. Needs NumPy, no torch. Invariants: what is written is what the
compiler reads back, to the bit; the same tensors give the same bytes.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from specdec_runtime.faults import ArtifactError

from ..quantize import Format, check_finite
from ..sources.hf import read_config, stored_name
from ..sources.packed import EIGHT_BITS, KEY, Formats, declaration, pack_floats, packed_tensors
from ..sources.safetensors_file import safetensors_bytes
from ..sources.spec import ModelConfig, tensor_shape

FILES = ("config.json", "model.safetensors")
_DTYPES = {"int8": "I8", "uint8": "U8", "float16": "F16", "float32": "F32"}
_EMBEDDING = "model.embed_tokens.weight"
_VOCABULARY, _SIZE = "draft_vocabulary", "draft_vocabulary_size"


def write_draft_folder(
    folder: Path | str,
    config: dict[str, Any],
    tensors: dict[str, np.ndarray],
    formats: Formats = EIGHT_BITS,
    vocabulary: np.ndarray | None = None,
) -> dict[str, str]:
    """Write config.json and model.safetensors into `folder` (made if absent); -> {file: SHA-256} for the provenance.

    config: the keys of a LlamaForCausalLM config.json; `architectures`, `model_type` and `specdec_format` are added here.
    tensors: float32 by Hugging Face name ("model.layers.0.self_attn.q_proj.weight" ..., "model.norm.weight"), all that the
    config asks for; without model.embed_tokens.weight (and lm_head.weight) the draft uses the champion's tables, and the recipe
    says embedding = "champion". vocabulary: ids, ascending, that such a draft's head covers; None for all.
    Raises ArtifactError: an unsuitable config, a missing, unexpected, misshapen or non-finite tensor, ids that do not ascend.
    """
    folder = Path(folder)
    whole = {
        **config,
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        KEY: declaration(formats),
    }
    if vocabulary is not None:
        whole[_SIZE] = len(vocabulary)
    sizes = replace(read_config(whole, folder), own_embedding=_EMBEDDING in tensors)
    wanted = {stored_name(name): tensor_shape(sizes, name) for name in sizes.tensor_names()}
    for name in tensors:
        if name not in wanted or name == _VOCABULARY:
            message = "the tensor has no place in the model that the config describes"
            raise ArtifactError(message, f"tensor {name}", "leave it out, or correct the config")
    records: dict[str, tuple[str, np.ndarray]] = {}
    if vocabulary is not None:
        records[_VOCABULARY] = ("I32", _checked_ids(vocabulary, sizes))
        wanted.pop(_VOCABULARY, None)
    for name, shape in wanted.items():
        for stored, values in _stored(name, shape, tensors, formats.of(name)).items():
            records[stored] = (_DTYPES[values.dtype.name], values)
    data = {
        "config.json": (json.dumps(whole, indent=2, sort_keys=True) + "\n").encode(),
        "model.safetensors": safetensors_bytes(records),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, content in data.items():
            (folder / file).write_bytes(content)
    except OSError as error:
        raise ArtifactError(
            f"cannot write: {error.strerror}", str(folder), "give a writable folder"
        ) from error
    return {file: hashlib.sha256(content).hexdigest() for file, content in data.items()}


def _checked_ids(vocabulary: np.ndarray, sizes: ModelConfig) -> np.ndarray:
    ids = np.asarray(vocabulary)
    where = f"tensor {_VOCABULARY}"
    if sizes.own_embedding:
        raise ArtifactError("the draft has a head of its own", where, "leave out its embedding and head")
    fine = ids.ndim == 1 and ids.dtype.kind in "iu" and len(ids) > 0
    if not fine or (np.diff(ids.astype(np.int64)) <= 0).any() or ids[0] < 0 or ids[-1] >= sizes.vocab_size:
        message = f"the ids do not ascend within 0 to {sizes.vocab_size - 1}"
        raise ArtifactError(message, where, "give each id once, in ascending order")
    return ids.astype("<i4")


def _stored(
    name: str, shape: tuple[int, ...], tensors: dict[str, np.ndarray], format: Format
) -> dict[str, np.ndarray]:
    where = f"tensor {name}"
    if name not in tensors:
        raise ArtifactError("the tensor is missing", where, "give every tensor of the config")
    values = tensors[name]
    if values.dtype != np.float32 or values.shape != shape:
        message = f"the tensor is {values.dtype} {list(values.shape)}, the config needs float32 {list(shape)}"
        raise ArtifactError(message, where, "correct the tensor or the config")
    if len(shape) == 1:
        check_finite(values, where)
        return {name: values.astype("<f4")}
    return packed_tensors(name, pack_floats(values, format, where))
