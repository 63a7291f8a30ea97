"""Drafts that use their champion's embedding and head: a Hugging Face folder without those tables and without a tokenizer.

Knows the champion as a ModelSpec. Invariant: the spec's "embed" and "head" are the champion's own tensors, its text is the
champion's; everything else is the folder's. Where the draft has a vocabulary of its own, its "head" is those rows of the champion's.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from specdec_runtime.faults import ArtifactError

from .hf import open_tensors, read_config
from .locate import locate
from .packed import declared_formats
from .safetensors_file import read_json
from .spec import ModelSpec, Quantization, QuantWeight, Weight

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
    own = replace(read_config(data, path), own_embedding=False)
    own = replace(own, tied_embedding=champion.config.tied_embedding and not own.head_ids)
    for what, mine, theirs in (
        ("vocab_size", own.vocab_size, champion.config.vocab_size),
        ("hidden_size", own.hidden, champion.config.hidden),
    ):
        if mine != theirs:
            message = f"{what} is {mine}, the champion's is {theirs}: its embedding does not fit"
            raise ArtifactError(message, where, "use a draft made for this champion")
    read_own = open_tensors(path, own, declared_formats(data, where), FLOATS)

    def read(name: str) -> Weight:
        if name == "head" and own.head_ids:
            return _rows(champion.tensor("head"), _ids())
        return champion.tensor(name) if name in ("embed", "head") else read_own(name)

    def _ids() -> np.ndarray:
        ids = read_own("vocabulary")
        assert isinstance(ids, np.ndarray)
        if int(ids[-1]) >= own.vocab_size:
            message = f"the id {int(ids[-1])} is outside the vocabulary of {own.vocab_size}"
            raise ArtifactError(
                message, f"{path}: tensor draft_vocabulary", "use a draft made for this champion"
            )
        return ids

    return ModelSpec(own, champion.text, None, read)


def _rows(weight: Weight, ids: np.ndarray) -> QuantWeight:
    """Those rows of a matrix, to the bit."""
    assert isinstance(weight, QuantWeight)
    minimum = None if weight.minimum is None else weight.minimum[ids]
    return QuantWeight(weight.format, weight.codes[ids], weight.scale[ids], minimum)
