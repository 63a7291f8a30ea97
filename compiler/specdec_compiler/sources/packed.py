"""Matrices that a safetensors file holds already in groups of 32, for small files that keep their values to the bit.

Knows the layout, no model. config.json says {"specdec_format": {"version": 1, "matrices": "q8" | "q4"}}, and, where the matrices of
the feed-forward part have another format, "feed_forward" beside it; then the matrix [N, K] called BASE.weight is stored as
  q8  BASE.q8 I8 [N, K]; BASE.scale F16 [N, K/32]                                          weight = scale * code
  q4  BASE.q4 U8 [N, K/2]; BASE.scale, BASE.minimum F16 [N, K/32]                weight = scale * code + minimum
(q4: the even k of a pair is the low half of its byte). Norms stay floats. Invariants: scales are rounded to f16 before the
codes are chosen, so what is written is what is read, and nothing is ever quantized twice.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from specdec_runtime.faults import ArtifactError

from ..quantize import GROUP, Format, QuantWeight, check_finite, dequantize, quantize
from .safetensors_file import FloatTensor

KEY = "specdec_format"
VERSION = 1
_AGAIN = "write the folder again with write_draft_folder"
_PARTS = {"q8": {"q8": "I8", "scale": "F16"}, "q4": {"q4": "U8", "scale": "F16", "minimum": "F16"}}
_HALF_MAX = np.float32(65504)


@dataclass(frozen=True)
class Formats:
    """The formats of a folder's matrices; feed_forward None: as the others."""

    matrices: Format = "q8"
    feed_forward: Format | None = None

    def of(self, stored: str) -> Format:
        """The format of the matrix that the file calls `stored`."""
        return self.feed_forward if self.feed_forward is not None and ".mlp." in stored else self.matrices


EIGHT_BITS = Formats()


def declaration(formats: Formats) -> dict[str, Any]:
    """What config.json says under KEY."""
    return {"version": VERSION, **{key: value for key, value in asdict(formats).items() if value is not None}}


def declared_formats(config: dict[str, Any], where: str) -> Formats | None:
    """The formats that config.json declares; None for a folder of floats. Raises ArtifactError for any other."""
    if KEY not in config:
        return None
    value = config[KEY]
    if not isinstance(value, dict) or set(value) - {"feed_forward"} != {"version", "matrices"}:
        message = f"{KEY} = {value!r} is not of the keys version, matrices and, if it differs, feed_forward"
    elif type(value["version"]) is not int or value["version"] != VERSION:
        message = f"{KEY}.version = {value['version']!r} is not one that this compiler reads ({VERSION})"
    elif wrong := [key for key in ("matrices", "feed_forward") if value.get(key, "q8") not in _PARTS]:
        message = f"{KEY}.{wrong[0]} = {value[wrong[0]]!r} is no known format: q8 or q4"
    else:
        return Formats(value["matrices"], value.get("feed_forward"))
    raise ArtifactError(message, where, _AGAIN)


def stored_parts(stored: str, format: Format) -> dict[str, str]:
    """The tensors in the file that make up the matrix BASE.weight: part -> name."""
    base = stored.removesuffix(".weight")
    return {part: f"{base}.{part}" for part in _PARTS[format]}


def check_packed(
    tensors: dict[str, FloatTensor], stored: str, shape: tuple[int, ...], format: Format, where: str
) -> None:
    """Raise ArtifactError unless every part of the matrix is there with its dtype and shape."""
    rows, columns = shape
    widths = {"q8": columns, "q4": columns // 2, "scale": columns // GROUP, "minimum": columns // GROUP}
    for part, name in stored_parts(stored, format).items():
        if name not in tensors:
            message = f"the {part} part of {stored} is missing"
            raise ArtifactError(message, f"{where}: tensor {name}", _AGAIN)
        found, dtype, wanted = tensors[name], _PARTS[format][part], (rows, widths[part])
        if found.dtype != dtype or found.shape != wanted:
            message = (
                f"the tensor is {found.dtype} {list(found.shape)}, {stored} needs {dtype} {list(wanted)}"
            )
            raise ArtifactError(message, found.where, _AGAIN)


def read_packed(tensors: dict[str, FloatTensor], stored: str, format: Format) -> QuantWeight:
    """The matrix with its codes and scales as they are. Raises ArtifactError for a scale that is no number."""
    parts = {part: tensors[name] for part, name in stored_parts(stored, format).items()}
    scales = {}
    for part in ("scale", "minimum"):
        if part in parts:
            scales[part] = parts[part].read()
            check_finite(scales[part], parts[part].where, part)
    raw = parts[format].raw.reshape(parts[format].shape)
    if format == "q8":
        return QuantWeight("q8", raw.view(np.int8), scales["scale"], None)
    codes = np.stack([raw & 15, raw >> 4], axis=-1).reshape(len(raw), -1)
    return QuantWeight("q4", codes, scales["scale"], scales["minimum"])


def pack_floats(values: np.ndarray, format: Format, where: str) -> QuantWeight:
    """f32 [N, K] -> a QuantWeight whose scales and minimums are f16 numbers.

    Raises ArtifactError for a weight that is not finite or out of f16's reach, and K that is no multiple of 32.
    """
    fine = quantize(values, format, where)
    groups = values.astype(np.float32).reshape(len(values), -1, GROUP)
    if format == "q8":
        scale = _half(fine.scale, where)
        largest = np.abs(groups).max(axis=2)
        # A tiny scale loses digits in f16: it must not become so small that the largest weight is cut off.
        short = scale * np.float32(127.5) < largest
        scale[short] = np.nextafter(scale[short].astype(np.float16), np.float16(np.inf))
        codes = np.clip(np.rint(_divided(groups, scale)), -127, 127).astype(np.int8)
        return QuantWeight("q8", codes.reshape(values.shape), scale, None)
    assert fine.minimum is not None
    scale, minimum = _half(fine.scale, where), _half(fine.minimum, where)
    codes = np.clip(np.rint(_divided(groups - minimum[:, :, None], scale)), 0, 15).astype(np.uint8)
    return QuantWeight("q4", codes.reshape(values.shape), scale, minimum)


def packed_values(values: np.ndarray, format: Format) -> np.ndarray:
    """f32 [N, K] -> what a draft of that format computes with, f32: for a trainer that measures its own draft."""
    return dequantize(pack_floats(values, format, "weights"))


def packed_tensors(stored: str, weight: QuantWeight) -> dict[str, np.ndarray]:
    """The arrays of a file for one matrix, by tensor name."""
    parts = {"scale": weight.scale.astype("<f2")}
    if weight.minimum is None:
        parts["q8"] = weight.codes
    else:
        parts["minimum"] = weight.minimum.astype("<f2")
        parts["q4"] = weight.codes[:, 0::2] | (weight.codes[:, 1::2] << 4)
    return {name: parts[part] for part, name in stored_parts(stored, weight.format).items()}


def _half(values: np.ndarray, where: str) -> np.ndarray:
    if float(np.abs(values).max()) > _HALF_MAX:
        raise ArtifactError("a group's scale or minimum is beyond f16", where, "train with smaller weights")
    return values.astype(np.float16).astype(np.float32)


def _divided(groups: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """groups / scale; 0 where the scale is 0."""
    divisor = np.where(scale == 0, np.float32(1), scale)[:, :, None]
    return np.where(scale[:, :, None] == 0, np.float32(0), groups / divisor)
