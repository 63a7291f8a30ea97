"""Trained drafts: the folder a trainer writes, where it comes from, and whether the compiler may admit it.

folder.py writes weights, ngrams.py fingerprints prompts, provenance.py is the manifest; strata.py reads the evaluation
prompts and gate.py compares: the compiler's side. Needs NumPy and the standard library.
"""

from __future__ import annotations

from .folder import write_draft_folder
from .gate import champion_sha256
from .ngrams import fingerprints, overlap, pack
from .prompts import write_prompts
from .provenance import (
    Champion,
    Generator,
    PromptsDigest,
    PromptSource,
    Provenance,
    SampleCounts,
    Training,
    write_provenance,
)
from .strata import evaluation_prompts

__all__ = [
    "Champion",
    "Generator",
    "PromptSource",
    "PromptsDigest",
    "Provenance",
    "SampleCounts",
    "Training",
    "champion_sha256",
    "evaluation_prompts",
    "fingerprints",
    "overlap",
    "pack",
    "write_draft_folder",
    "write_prompts",
    "write_provenance",
]
