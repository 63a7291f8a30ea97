"""ModelSpec: what a source (a GGUF file, a Hugging Face folder) hands to the pipeline.

Knows no file format. Invariants: tensors are read one at a time, on demand, and never kept; q and k rows are
in Hugging Face order (rotate-half rope); every matrix is a QuantWeight [N = out, K = in]; every norm is f32
[hidden]; nothing that a source can check about a tensor (shape, finiteness) is left to its user.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from specdec_runtime.faults import ArtifactError, ContractError

from ..quantize import Format, QuantWeight

__all__ = [
    "Format",
    "ModelConfig",
    "ModelSpec",
    "QuantWeight",
    "Quantization",
    "TextConfig",
    "Weight",
    "first_layers",
]

Weight = QuantWeight | np.ndarray

_LAYER_PARTS = ("attn_norm", "q", "k", "v", "o", "mlp_norm", "gate", "up", "down")


@dataclass(frozen=True)
class ModelConfig:
    """Sizes and constants of a model; rope_theta and norm_eps as the file states them.

    own_embedding: False for a draft that stores no embedding and no head, because it uses the champion's. head_ids: how many ids
    the head of such a draft covers, those of the tensor "vocabulary"; 0 means all.
    """

    architecture: str
    name: str
    vocab_size: int
    hidden: int
    ffn: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope_theta: float
    norm_eps: float
    context: int
    tied_embedding: bool
    own_embedding: bool = True
    head_ids: int = 0

    def tensor_names(self) -> list[str]:
        """The stored tensors, in the order of use; "head" only when it is not tied to the embedding."""
        layers = [f"layers.{i}.{part}" for i in range(self.num_layers) for part in _LAYER_PARTS]
        if not self.own_embedding:
            return [*layers, "norm", *(["vocabulary"] if self.head_ids else [])]
        return ["embed", *layers, "norm", *([] if self.tied_embedding else ["head"])]


@dataclass(frozen=True)
class TextConfig:
    """Everything about text: the tokenizer file's bytes, the chat template, and the ids with a meaning."""

    tokenizer_json: bytes
    chat_template: str | None
    bos_id: int | None
    add_bos: bool
    eos_ids: tuple[int, ...]
    special_ids: tuple[int, ...]


@dataclass(frozen=True)
class Quantization:
    """The formats that f16, bf16 and f32 matrices get; matrices already in groups of 32 keep their codes."""

    matrices: Format = "q4"
    embedding: Format = "q8"  # the embedding and an untied head

    def for_tensor(self, name: str) -> Format:
        """The format for the matrix called name."""
        return self.embedding if name in ("embed", "head") else self.matrices


@dataclass(frozen=True)
class ModelSpec:
    """A model ready to compile: config, text, license (None where the source names none) and its tensors.

    Names: embed, layers.{i}.attn_norm|q|k|v|o|mlp_norm|gate|up|down, norm, head.
    """

    config: ModelConfig
    text: TextConfig
    license: str | None
    read: Callable[[str], Weight]

    def names(self) -> list[str]:
        """The stored tensors, in the order of use; "head" only when it is not tied to the embedding."""
        return self.config.tensor_names()

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape tensor(name) has: (N, K) of a matrix, (hidden,) of a norm. "head" works when tied too."""
        return tensor_shape(self.config, name)

    def tensor(self, name: str) -> Weight:
        """Read one tensor: QuantWeight for a matrix, f32 [hidden] for a norm; "head" is "embed" when tied; "vocabulary" int32.

        Raises ArtifactError (damaged or unsuitable data) and ContractError (no such name).
        """
        stored = "embed" if name == "head" and self.config.tied_embedding else name
        tensor_shape(self.config, stored)
        return self.read(stored)


def tensor_shape(config: ModelConfig, name: str) -> tuple[int, ...]:
    """The shape a tensor must have by the config. Raises ContractError for a name no model has."""
    hidden, rows_q, rows_kv = (
        config.hidden,
        config.num_heads * config.head_dim,
        config.num_kv_heads * config.head_dim,
    )
    if name == "norm":
        return (hidden,)
    if name in ("embed", "head"):
        return (config.head_ids if name == "head" and config.head_ids else config.vocab_size, hidden)
    if name == "vocabulary":
        return (config.head_ids,)
    shapes: dict[str, tuple[int, ...]] = {
        "attn_norm": (hidden,),
        "q": (rows_q, hidden),
        "k": (rows_kv, hidden),
        "v": (rows_kv, hidden),
        "o": (hidden, rows_q),
        "mlp_norm": (hidden,),
        "gate": (config.ffn, hidden),
        "up": (config.ffn, hidden),
        "down": (hidden, config.ffn),
    }
    prefix, _, rest = name.partition(".")
    layer, _, part = rest.partition(".")
    if prefix == "layers" and layer.isdecimal() and int(layer) < config.num_layers and part in shapes:
        return shapes[part]
    raise ContractError(
        f"no tensor is called {name!r}", "ModelSpec.tensor", "use a name of ModelSpec.names()"
    )


def first_layers(spec: ModelSpec, num_layers: int) -> ModelSpec:
    """The model made of the first num_layers layers, with the same embedding, final norm and head.

    Raises ArtifactError unless 1 <= num_layers <= the model's number of layers.
    """
    if not 1 <= num_layers <= spec.config.num_layers:
        raise ArtifactError(
            f"from_layers = {num_layers}, but the champion has {spec.config.num_layers} layers",
            "recipe: draft.from_layers",
            f"give a number from 1 to {spec.config.num_layers}",
        )
    name = f"{spec.config.name}-first-{num_layers}"
    return replace(spec, config=replace(spec.config, name=name, num_layers=num_layers))


def check_config(config: ModelConfig, where: str) -> ModelConfig:
    """Return config, or raise ArtifactError for the first size that no kernel could serve."""
    for name in (
        "vocab_size",
        "hidden",
        "ffn",
        "num_layers",
        "num_heads",
        "num_kv_heads",
        "head_dim",
        "context",
    ):
        # The limits only keep a damaged number from costing hours or all memory.
        limit = 1000 if name == "num_layers" else 1 << 24
        if not 0 < getattr(config, name) <= limit:
            message = f"{name} is {getattr(config, name)}"
            raise ArtifactError(message, where, f"use a model with a {name} from 1 to {limit}")
    if config.num_heads % config.num_kv_heads:
        message = f"{config.num_heads} query heads do not share {config.num_kv_heads} key/value heads evenly"
        raise ArtifactError(message, where, "use a model whose head counts divide")
    if config.head_dim % 2:
        raise ArtifactError(
            f"the head size {config.head_dim} is odd", where, "rotary positions need an even size"
        )
    for name, value in (("rope_theta", config.rope_theta), ("norm_eps", config.norm_eps)):
        if not np.isfinite(value) or value <= 0:
            raise ArtifactError(f"{name} is {value}", where, "give a positive number")
    return config
