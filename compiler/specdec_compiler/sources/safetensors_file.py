"""The safetensors container: one file, or several with an index; records and raw bytes of each tensor; the bytes of a new file.

Knows no model. Read without torch and without the safetensors package, which has no numpy type for bf16.
Invariants: every offset is checked against the file before it is used; dtypes are F32, F16 or BF16, and I8, U8 or I32
where packed.py says what they hold.
"""

from __future__ import annotations

import json
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from specdec_runtime.faults import ArtifactError

from .floats import FLOAT_TYPES, widen

_GET_AGAIN = "download or write the file again"
_MAX_HEADER_BYTES = 100_000_000  # the format's own limit
_ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "I32": 4, "I8": 1, "U8": 1}


@dataclass(frozen=True)
class FloatTensor:
    """One tensor of a file: its dtype, its shape, and its bytes (uint8, a view of the mapped file)."""

    where: str
    dtype: str
    shape: tuple[int, ...]
    raw: np.ndarray

    def read(self) -> np.ndarray:
        """The values, f32 of the shape. Raises ArtifactError for a dtype that is not a supported float."""
        if self.dtype not in FLOAT_TYPES:
            message = f"the dtype {self.dtype} is not supported"
            raise ArtifactError(message, self.where, f"save the model with one of {', '.join(FLOAT_TYPES)}")
        return widen(self.raw, self.dtype, self.shape)


def open_safetensors(folder: Path) -> dict[str, FloatTensor]:
    """All tensors of a folder: model.safetensors, or the shards named by model.safetensors.index.json.

    Raises ArtifactError: no weights, a missing or damaged file, a tensor absent from the shard the index
    names.
    """
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.exists():
        return read_safetensors(single)
    if index.exists():
        return _read_sharded(folder, index)
    message = "the folder has neither model.safetensors nor model.safetensors.index.json"
    raise ArtifactError(message, str(folder), "save the model in the safetensors format")


def read_safetensors(path: Path) -> dict[str, FloatTensor]:
    """The tensors of one file. Raises ArtifactError when it is unreadable, truncated or inconsistent."""
    data = _map(path)
    header, start = _header(data, path)
    header.pop("__metadata__", None)
    return {name: _record(name, entry, data, start, path) for name, entry in header.items()}


def safetensors_bytes(tensors: dict[str, tuple[str, np.ndarray]]) -> bytes:
    """The bytes of a file: name -> (dtype of the format, array of its little-endian items). Largest items first, then by name."""
    header, data, at = {}, [], 0
    for name in sorted(tensors, key=lambda name: (-_ITEM_BYTES[tensors[name][0]], name)):
        dtype, values = tensors[name]
        raw = values.tobytes()
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": [at, at + len(raw)]}
        data.append(raw)
        at += len(raw)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the data starts at a multiple of 8
    return b"".join([struct.pack("<Q", len(text)), text, *data])


def _read_sharded(folder: Path, index: Path) -> dict[str, FloatTensor]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(v, str) for v in weight_map.values()):
        raise ArtifactError("weight_map is missing or no map of names", str(index), _GET_AGAIN)
    shards = {name: read_safetensors(folder / name) for name in sorted(set(weight_map.values()))}
    tensors: dict[str, FloatTensor] = {}
    for name, shard in weight_map.items():
        if name not in shards[shard]:
            where = f"{folder / shard}: tensor {name}"
            raise ArtifactError(
                "the tensor is missing from the shard that the index names", where, _GET_AGAIN
            )
        tensors[name] = shards[shard][name]
    return tensors


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file that holds an object. Raises ArtifactError naming the file."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        message = f"the folder has no {path.name}"
        raise ArtifactError(message, str(path.parent), "use a complete Hugging Face folder") from None
    except (OSError, ValueError) as error:
        raise ArtifactError(f"the file is not JSON: {error}", str(path), _GET_AGAIN) from error
    if not isinstance(data, dict):
        raise ArtifactError("the file holds no JSON object", str(path), _GET_AGAIN)
    return data


def _map(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError:
        raise ArtifactError("the file is empty", str(path), _GET_AGAIN) from None
    except OSError as error:
        raise ArtifactError(f"the file cannot be read: {error.strerror}", str(path), _GET_AGAIN) from error


def _header(data: mmap.mmap, path: Path) -> tuple[dict[str, Any], int]:
    if len(data) < 8:
        raise ArtifactError("the file is truncated: it has no header", str(path), _GET_AGAIN)
    (length,) = struct.unpack("<Q", data[:8])
    if length > min(_MAX_HEADER_BYTES, len(data) - 8):
        message = f"the file is truncated or no safetensors file: its header would have {length} bytes"
        raise ArtifactError(message, str(path), _GET_AGAIN)
    try:
        header = json.loads(data[8 : 8 + length])
    except ValueError as error:
        raise ArtifactError(f"the header is not JSON: {error}", str(path), _GET_AGAIN) from error
    if not isinstance(header, dict):
        raise ArtifactError("the header is no JSON object", str(path), _GET_AGAIN)
    return header, 8 + length


def _record(name: str, entry: Any, data: mmap.mmap, start: int, path: Path) -> FloatTensor:
    where = f"{path}: tensor {name}"
    try:
        dtype, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    except (TypeError, KeyError, ValueError):
        raise ArtifactError("the tensor's record is damaged", where, _GET_AGAIN) from None
    if not all(type(n) is int and n >= 0 for n in (*shape, begin, end)):
        raise ArtifactError("the tensor's record holds a number that is no size", where, _GET_AGAIN)
    if begin > end or start + end > len(data):
        message = f"the file is truncated: the tensor ends at byte {start + end}, the file at {len(data)}"
        raise ArtifactError(message, where, _GET_AGAIN)
    num_elements = int(np.prod(shape, dtype=object))
    if dtype in _ITEM_BYTES and end - begin != num_elements * _ITEM_BYTES[dtype]:
        message = f"{end - begin} bytes do not hold {dtype} of shape {list(shape)}"
        raise ArtifactError(message, where, _GET_AGAIN)
    return FloatTensor(where, dtype, shape, np.frombuffer(data, np.uint8, end - begin, start + begin))
