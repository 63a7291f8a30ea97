"""Weights into arenas and shards: read one tensor at a time, packed for the device, written as files of at most 32 MiB.

An arena is one device buffer (at most 128 MiB unless a single tensor is larger); its files are consecutive slices of it. Tensor
offsets are multiples of 256, WebGPU's binding alignment. Nothing is kept in memory but the tensor at hand. An embedding or head too
large for one binding of the GPU has arenas to itself, which are there a buffer a shard of rows; no file has bytes of two shards.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from specdec_runtime.faults import ArtifactError

from ..quantize import QuantWeight, pack_q4, pack_q8
from ..sources.spec import ModelSpec
from .rows import MAX_BINDING, num_bytes, shard_bytes

SHARD_BYTES = 32 << 20
ARENA_BYTES = 128 << 20
ALIGN = 256
VOCAB_PAD = 32  # rows the embedding and head are padded to


@dataclass
class Arena:
    """One weight buffer being filled. `shards`: the buffers that the GPU has in its place, where it binds the arena's tensor by rows;
    then the files are theirs."""

    name: str
    bytes: int = 0
    files: list[str] = field(default_factory=list)
    shards: list[Arena] = field(default_factory=list)

    def all_files(self) -> list[str]:
        """The files that make its bytes."""
        return [*self.files, *(path for shard in self.shards for path in shard.files)]


@dataclass(frozen=True)
class StoredTensor:
    """Where a weight tensor lies."""

    name: str
    arena: int
    offset: int
    dtype: str
    shape: tuple[int, ...]


class Layout:
    """Which arena each tensor goes to, in the order given."""

    def __init__(self) -> None:
        self.arenas: list[Arena] = []
        self.tensors: list[StoredTensor] = []

    def place(self, name: str, dtype: str, shape: tuple[int, ...], cuts: list[int]) -> list[Arena]:
        """Put a tensor at the end of an arena; a cut one (rows.shard_bytes) has its own. Returns the arena, or its shards."""
        size = num_bytes(dtype, shape)
        last = self.arenas[-1] if self.arenas else None
        if last is None or last.shards or cuts or last.bytes + size > ARENA_BYTES:
            last = Arena(f"weights.{len(self.arenas)}")
            self.arenas.append(last)
        self.tensors.append(StoredTensor(name, len(self.arenas) - 1, last.bytes, dtype, shape))
        last.bytes += -(-size // ALIGN) * ALIGN
        last.shards = [Arena(f"{last.name}.{i}", each) for i, each in enumerate(cuts)]
        if cuts:
            last.shards[-1].bytes += last.bytes - size
        return last.shards or [last]


class ShardWriter(Layout):
    """Writes tensors in the order given; `shards` maps each file to (bytes, sha256) when done."""

    def __init__(self, folder: Path, max_binding: int = MAX_BINDING):
        super().__init__()
        self.folder, self.max_binding = folder, max_binding
        self.shards: dict[str, tuple[int, str]] = {}
        self.pending = bytearray()
        self.filled = Arena("")  # whose bytes are pending
        (folder / "weights").mkdir()

    def add(self, name: str, array: np.ndarray, cuts: list[int] | None = None) -> None:
        """Append one tensor (little-endian, C order); `cuts`: the bytes of its shards of rows."""
        array = np.ascontiguousarray(array)
        buffers = self.place(name, str(array.dtype), array.shape, cuts or [])
        data = array.reshape(-1).view(np.uint8).data
        for buffer in buffers:
            if buffer is not self.filled:
                self._flush()
                self.filled = buffer
            size = buffer.bytes if cuts else len(data)
            self._write(data[:size])
            data = data[size:]
        self._write(bytes(-array.nbytes % ALIGN))

    def add_matrix(self, name: str, weight: QuantWeight, vocab: bool) -> None:
        """Pack and append the parts of one matrix. `vocab`: its rows are ids, and the GPU binds it by rows where it is too large."""
        parts = packed_matrix(weight, VOCAB_PAD if vocab else 4)
        for part, array in parts.items():
            cuts = shard_bytes(parts["w"].shape, array.shape, self.max_binding) if vocab else []
            self.add(f"{name}.{part}", array, cuts)

    def close(self) -> None:
        """Write what is left."""
        self._flush()

    def _write(self, data: bytes | memoryview) -> None:
        while len(data):
            room = SHARD_BYTES - len(self.pending)
            self.pending += data[:room]
            data = data[room:]
            if len(self.pending) == SHARD_BYTES:
                self._flush()

    def _flush(self) -> None:
        if not self.pending:
            return
        path = f"weights/{len(self.shards):04}.bin"
        (self.folder / path).write_bytes(self.pending)
        self.shards[path] = (len(self.pending), hashlib.sha256(self.pending).hexdigest())
        self.filled.files.append(path)
        self.pending = bytearray()


class NullWriter:
    """Takes tensors and drops them: for the formats alone."""

    def add(self, name: str, array: np.ndarray) -> None:
        """Drop it."""

    def add_matrix(self, name: str, weight: QuantWeight, vocab: bool) -> None:
        """Drop it."""


def packed_matrix(weight: QuantWeight, pad_to: int = 4) -> dict[str, np.ndarray]:
    """The tensors of one matrix: w uint32 [N/4, c, K/32, 4]; ws f32 [N/4, 2 (scale, minimum) or 1, K/32, 4].

    The groups of one chunk lie side by side: neighbouring GPU threads, one group each, read neighbouring 16 bytes.
    """
    if weight.format == "q4":
        parts = pack_q4(weight, pad_to)
        return {"w": parts["w"].swapaxes(1, 2), "ws": np.stack([parts["s"], parts["m"]], axis=1)}
    parts = pack_q8(weight, pad_to)
    return {"w": _device_order(parts["w"]).swapaxes(1, 2), "ws": parts["s"][:, None]}


def _device_order(w: np.ndarray) -> np.ndarray:
    """int8 [N/4, K/32, 8, 4, 4] in natural k -> uint32 [N/4, K/32, 8, 4] whose bytes go 0 4 1 5 | 2 6 3 7 in every eight k.

    That is how 4-bit words unpack too, so both formats meet activations in one order.
    """
    blocks, groups = w.shape[:2]
    eights = w.reshape(blocks, groups, 4, 2, 4, 4).swapaxes(3, 4).reshape(blocks, groups, 4, 4, 8)
    ordered = eights[..., [0, 4, 1, 5, 2, 6, 3, 7]].reshape(blocks, groups, 4, 4, 2, 4).swapaxes(3, 4)
    return np.ascontiguousarray(ordered).view(np.uint32).reshape(blocks, groups, 8, 4)


def rope_table(theta: float, context: int, head_dim: int) -> np.ndarray:
    """f32 [context, head_dim]: cosines, then sines, of position * theta^(-2 i / head_dim) (Su et al. 2021), rounded from f64."""
    inverse = theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    angles = np.arange(context, dtype=np.float64)[:, None] * inverse
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


def write_model(
    spec: ModelSpec,
    prefix: str,
    context: int,
    writer: ShardWriter | NullWriter,
    progress: Callable[[str], None],
    borrowed: tuple[str, ...] = (),
) -> dict[str, str]:
    """Pack and write every tensor of a model under "<prefix>."; returns the format of each stored matrix by name.

    borrowed: of "embed", "head" and "rope", those that another model has stored already.
    """
    formats: dict[str, str] = {}

    def put(name: str, weight: QuantWeight, vocab: bool = False) -> None:
        formats[name] = weight.format
        writer.add_matrix(f"{prefix}.{name}", weight, vocab)

    def matrix(name: str) -> QuantWeight:
        weight = spec.tensor(name)
        progress(name)
        if not isinstance(weight, QuantWeight):
            raise ArtifactError(f"{name} is not a matrix", spec.config.name, "convert the model again")
        return weight

    def norm(name: str) -> None:
        progress(name)
        writer.add(f"{prefix}.{name}.weight", np.asarray(spec.tensor(name), dtype=np.float32))

    def fused(name: str, layer: str, parts: tuple[str, ...]) -> None:
        weights = [matrix(layer + part) for part in parts]
        if len({weight.format for weight in weights}) == 1:
            put(layer + name, _stack(weights))
        else:
            for part, weight in zip(parts, weights, strict=True):
                put(layer + part, weight)

    if "rope" not in borrowed:
        writer.add(f"{prefix}.rope", rope_table(spec.config.rope_theta, context, spec.config.head_dim))
    if "embed" not in borrowed:
        put("embed", matrix("embed"), vocab=True)
    for i in range(spec.config.num_layers):
        layer = f"layers.{i}."
        norm(layer + "attn_norm")
        fused("qkv", layer, ("q", "k", "v"))
        put(layer + "o", matrix(layer + "o"))
        norm(layer + "mlp_norm")
        fused("gate_up", layer, ("gate", "up"))
        put(layer + "down", matrix(layer + "down"))
    norm("norm")
    if not spec.config.tied_embedding and "head" not in borrowed:
        put("head", matrix("head"), vocab=True)
    if spec.config.head_ids:  # the progress counts it with the head
        writer.add(f"{prefix}.vocabulary", np.asarray(spec.tensor("vocabulary"), dtype=np.int32))
    return formats


def _stack(weights: list[QuantWeight]) -> QuantWeight:
    minimums = [weight.minimum for weight in weights if weight.minimum is not None]
    return QuantWeight(
        weights[0].format,
        np.concatenate([weight.codes for weight in weights]),
        np.concatenate([weight.scale for weight in weights]),
        np.concatenate(minimums) if minimums else None,
    )
