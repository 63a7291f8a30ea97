"""Drafts that use their champion's embedding and head: a Hugging Face folder without those tables and without a tokenizer.

Knows the champion as a ModelSpec. Invariant: the spec's "embed" and "head" are the champion's own tensors, its text is the
champion's; everything else is the folder's.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from specdec_runtime.faults import ArtifactError

from .hf import open_tensors, read_config
from .locate import locate
from .packed import declared_format
from .safetensors_file import read_json
from .spec import ModelSpec, Quantization, Weight

FLOATS = Quantization("q8", "q8")  # a small draft's floats: 4 bits would cost it more agreement than bytes


def open_draft(source: str, folder: Path, champion: ModelSpec) -> ModelSpec:
    """Open the draft at `source` (as open_source) over the champion's embedding and head.

    Raises ArtifactError: no folder, whatever open_hf refuses, a vocabulary or hidden size other than the champion's.
    """
    path = locate(source, folder)
    if not path.is_dir():
        message = f"{path.name} is no folder, but a draft with the champion's embedding is one"
        raise ArtifactError(
            message, f"source {source!r}", 'name a draft folder, or leave out embedding = "champion"'
        )
    data = read_json(path / "config.json")
    where = str(path / "config.json")
    own = replace(read_config(data, path), own_embedding=False, tied_embedding=champion.config.tied_embedding)
    for what, mine, theirs in (
        ("vocab_size", own.vocab_size, champion.config.vocab_size),
        ("hidden_size", own.hidden, champion.config.hidden),
    ):
        if mine != theirs:
            message = f"{what} is {mine}, the champion's is {theirs}: its embedding does not fit"
            raise ArtifactError(message, where, "use a draft made for this champion")
    read_own = open_tensors(path, own, declared_format(data, where), FLOATS)

    def read(name: str) -> Weight:
        return champion.read(name) if name in ("embed", "head") else read_own(name)

    return ModelSpec(own, champion.text, None, read)
