"""Float tensors in files: f32, f16 and bf16 bytes widened to f32, without torch."""

from __future__ import annotations

import numpy as np

FLOAT_TYPES = ("F32", "F16", "BF16")


def widen(raw: np.ndarray, type: str, shape: tuple[int, ...]) -> np.ndarray:
    """uint8 bytes of a tensor of one of FLOAT_TYPES -> f32 of the shape, exactly."""
    if type == "BF16":
        # bf16 is the upper half of an f32.
        return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32).reshape(shape)
    return raw.view({"F32": "<f4", "F16": "<f2"}[type]).astype(np.float32).reshape(shape)


def to_bf16(values: np.ndarray) -> np.ndarray:
    """f32 (finite) -> bf16 bits, uint16 of the same shape, rounded to nearest, ties to even."""
    bits = np.ascontiguousarray(values, "<f4").view("<u4")
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
