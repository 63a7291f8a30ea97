"""Where models come from: GGUF files and Hugging Face folders, each read into a ModelSpec.

A further format is one more file here and one more line in open_source.
"""

from __future__ import annotations

from pathlib import Path

from specdec_runtime.faults import ArtifactError

from .draft import open_draft
from .gguf import open_gguf
from .hf import open_hf
from .locate import locate
from .spec import (
    ModelConfig,
    ModelSpec,
    Quantization,
    QuantWeight,
    TextConfig,
    Weight,
    first_layers,
)

__all__ = [
    "ModelConfig",
    "ModelSpec",
    "QuantWeight",
    "Quantization",
    "TextConfig",
    "Weight",
    "first_layers",
    "locate",
    "open_draft",
    "open_source",
]


def open_source(source: str, folder: Path, quantization: Quantization | None = None) -> ModelSpec:
    """Open the model that a recipe's source names ("package:NAME/FILE", or a path relative to folder).

    Float matrices get the formats of `quantization` (default: q4, the embedding and head q8). Tensors are
    read on demand. Raises ArtifactError for everything that is wrong with the source.
    """
    path = locate(source, folder)
    quantization = quantization or Quantization()
    if path.is_dir():
        return open_hf(path, quantization)
    if path.suffix.lower() == ".gguf":
        return open_gguf(path, quantization)
    raise ArtifactError(
        f"{path.name} is neither a folder nor a .gguf file",
        f"source {source!r}",
        "name a GGUF file or a folder",
    )
