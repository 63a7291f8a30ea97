"""The GGUF container: metadata and tensor records of a file, strictly read, and the raw bytes of each tensor.

Knows no architecture. The gguf package reads the same layout, but takes seconds for a vocabulary, loops on a
damaged count and does not name the tensor at fault; tests compare the two. Invariants: every length is
checked against the file before it is used; a GgufFile that exists has all its tensors inside the file, of
supported types.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np
from specdec_runtime.faults import ArtifactError

T = TypeVar("T")

_GET_AGAIN = "download or convert the file again"
# GGUF value type -> numpy type of a scalar; 8 is a string, 9 an array.
_SCALARS = {
    0: "u1",
    1: "i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "?",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
_STRING, _ARRAY = 8, 9
# ggml type -> (name, weights a block, bytes a block)
_TYPES = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    8: ("Q8_0", 32, 34),
    30: ("BF16", 1, 2),
}


@dataclass(frozen=True)
class TensorRecord:
    """One tensor: its type's name, its shape (rows first), and where its bytes lie in the file."""

    name: str
    type: str
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


class GgufFile:
    """An opened GGUF file. metadata: key -> int, float, bool, str or list of those; tensors: name ->
    record."""

    def __init__(self, path: Path) -> None:
        """Read the header. Raises ArtifactError: not readable, not GGUF, truncated, an unsupported tensor
        type."""
        self.path = path
        self._bytes = _map(path)
        cursor = _Cursor(self._bytes, path)
        num_tensors = _read_start(cursor)
        self.metadata: dict[str, Any] = {}
        for _ in range(cursor.scalar("<u8")):
            key = cursor.string("a metadata key")
            if key in self.metadata:
                cursor.fail(f"the metadata key {key!r} occurs twice")
            self.metadata[key] = cursor.value(key)
        records = [_read_record(cursor) for _ in range(num_tensors)]
        alignment = self.get("general.alignment", int, 32)
        if alignment <= 0 or alignment & (alignment - 1):
            cursor.fail(f"general.alignment is {alignment}, not a power of two")
        start = -(-cursor.at // alignment) * alignment
        self.tensors = self._place(records, start, alignment, cursor)

    def get(self, key: str, kind: type[T], default: T | None = None) -> T:
        """The metadata value of a key. Raises ArtifactError when it is missing (without default) or not of
        the kind."""
        value = self.metadata.get(key, default)
        if value is None:
            raise ArtifactError(f"the metadata key {key} is missing", str(self.path), _GET_AGAIN)
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            message = f"the metadata key {key} holds a {type(value).__name__}, not a {kind.__name__}"
            raise ArtifactError(
                message, str(self.path), "use a file of a model with one value for all layers"
            )
        return value  # type: ignore[return-value]

    def raw(self, name: str) -> np.ndarray:
        """The bytes of a tensor: uint8 [num_bytes], a view of the mapped file."""
        record = self.tensors[name]
        return np.frombuffer(self._bytes, np.uint8, record.num_bytes, record.offset)

    def _place(
        self,
        records: list[tuple[str, int, tuple[int, ...], int]],
        start: int,
        alignment: int,
        cursor: _Cursor,
    ) -> dict[str, TensorRecord]:
        tensors: dict[str, TensorRecord] = {}
        for name, type_id, shape, offset in records:
            where = f"{self.path}: tensor {name}"
            if name in tensors:
                cursor.fail(f"the tensor {name!r} occurs twice")
            if type_id not in _TYPES:
                known = ", ".join(kind for kind, _, _ in _TYPES.values())
                action = f"use a file with the types {known} only"
                raise ArtifactError(f"the tensor type {_type_name(type_id)} is not supported", where, action)
            kind, block, block_bytes = _TYPES[type_id]
            if not shape or 0 in shape or shape[-1] % block:
                raise ArtifactError(f"the shape {list(shape)} does not suit {kind}", where, _GET_AGAIN)
            num_bytes = int(np.prod(shape, dtype=object)) // block * block_bytes
            end = start + offset + num_bytes
            if end > len(self._bytes):
                message = (
                    f"the file is truncated: the tensor ends at byte {end}, the file at {len(self._bytes)}"
                )
                raise ArtifactError(message, where, "download the file again")
            if offset % alignment:
                raise ArtifactError(f"the offset {offset} is not aligned to {alignment}", where, _GET_AGAIN)
            tensors[name] = TensorRecord(name, kind, shape, start + offset, num_bytes)
        return tensors


class _Cursor:
    """Reads the header in order; no read passes the end of the file."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self.at = 0
        self._data, self._path = data, path

    def fail(self, message: str) -> NoReturn:
        raise ArtifactError(message, f"{self._path}: byte {self.at}", _GET_AGAIN)

    def take(self, num_bytes: int, what: str) -> bytes:
        if num_bytes > len(self._data) - self.at:
            self.fail(f"the file is truncated or damaged: {what} of {num_bytes} bytes passes its end")
        self.at += num_bytes
        return self._data[self.at - num_bytes : self.at]

    def scalar(self, dtype: str) -> Any:
        kind = np.dtype(dtype)
        return np.frombuffer(self.take(kind.itemsize, "a number"), kind)[0].item()

    def string(self, what: str) -> str:
        (length,) = struct.unpack("<Q", self.take(8, "a length"))
        try:
            return self.take(length, what).decode()
        except UnicodeDecodeError:
            self.fail(f"{what} is not UTF-8")

    def value(self, key: str) -> Any:
        kind = self.scalar("<u4")
        if kind == _STRING:
            return self.string(f"the value of {key}")
        if kind == _ARRAY:
            return self._array(key)
        if kind not in _SCALARS:
            self.fail(f"the metadata key {key} has the unknown value type {kind}")
        return self.scalar(_SCALARS[kind])

    def _array(self, key: str) -> list[Any]:
        kind, length = self.scalar("<u4"), self.scalar("<u8")
        if kind == _STRING:
            return [self.string(f"an entry of {key}") for _ in range(length)]
        if kind not in _SCALARS:
            self.fail(f"the metadata key {key} is an array of the unsupported value type {kind}")
        dtype = np.dtype(_SCALARS[kind])
        return np.frombuffer(self.take(length * dtype.itemsize, f"the array {key}"), dtype).tolist()


def _map(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError:
        raise ArtifactError("the file is empty", str(path), _GET_AGAIN) from None
    except OSError as error:
        raise ArtifactError(
            f"the file cannot be read: {error.strerror}", str(path), "check the path"
        ) from error


def _read_start(cursor: _Cursor) -> int:
    if cursor.take(4, "the magic number") != b"GGUF":
        cursor.fail("this is not a GGUF file")
    version = cursor.scalar("<u4")
    if version & 0xFFFF == 0:
        cursor.fail("this is a big-endian GGUF file, which is not supported")
    if version not in (2, 3):
        cursor.fail(f"GGUF version {version} is not supported (2 and 3 are)")
    return cursor.scalar("<u8")


def _read_record(cursor: _Cursor) -> tuple[str, int, tuple[int, ...], int]:
    name = cursor.string("a tensor name")
    num_dims = cursor.scalar("<u4")
    if num_dims > 4:
        cursor.fail(f"the tensor {name!r} has {num_dims} dimensions")
    dims = [cursor.scalar("<u8") for _ in range(num_dims)]
    type_id, offset = cursor.scalar("<u4"), cursor.scalar("<u8")
    return name, type_id, tuple(reversed(dims)), offset


def _type_name(type_id: int) -> str:
    from gguf.constants import GGMLQuantizationType  # half a second to import, and only an error needs it

    try:
        return GGMLQuantizationType(type_id).name
    except ValueError:
        return f"number {type_id} (unknown)"
