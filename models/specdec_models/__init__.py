"""Model definitions in TVM's relax.frontend.nn: abstract ops only, no kernels, no weights."""

from .config import ProgramShape, RuntimeConfig, WeightFormats
from .registry import (
    ARCHITECTURES,
    build_accept,
    build_follow,
    build_judge,
    build_logprobs,
    build_program,
    build_score,
)

__all__ = [
    "ARCHITECTURES",
    "ProgramShape",
    "RuntimeConfig",
    "WeightFormats",
    "build_accept",
    "build_follow",
    "build_judge",
    "build_logprobs",
    "build_program",
    "build_score",
]
