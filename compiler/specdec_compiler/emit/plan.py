"""Assemble the plan: buffers, tensors and indices from what was lowered and where the weights lie."""

from __future__ import annotations

from typing import Any

from specdec_models import RuntimeConfig
from specdec_runtime.faults import ContractError
from specdec_runtime.plan.schema import DTYPE_BYTES, MAX_ROWS, OUT_ROWS, sampling_tensors

from ..targets import GPU_FEATURES, GUARANTEED_LIMITS, WASM_FEATURES
from .lowered import PREFILL_WIDTH, WIDTHS, Lowered, Part
from .rows import num_bytes
from .weights import Arena, StoredTensor


def build_plan(
    name: str,
    ids: dict[str, Any],
    text: dict[str, Any],
    parts: tuple[Part, ...],
    names: dict[str, str],
    lowered: Lowered,
    arenas: list[Arena],
    stored: list[StoredTensor],
) -> dict[str, Any]:
    """plan.json as plain data; `names` gives each role's model name."""
    targets = [
        _Assembler("cpu", "kernels.wasm", lowered, parts, arenas, stored).build(),
        _Assembler("gpu", "kernels.wgsl", lowered, parts, arenas, stored).build(),
    ]
    models = [_model(part.role, names[part.role], part.config) for part in parts]
    head = {"format": "specdec-plan", "version": 1, "name": name, "ids": ids, "text": text}
    return {**head, "models": models, "targets": targets}


def _model(role: str, name: str, c: RuntimeConfig) -> dict[str, Any]:
    return {
        "role": role,
        "name": name,
        "architecture": c.architecture,
        "vocab_size": c.vocab_size,
        "padded_vocab": c.padded_vocab,
        "max_context": c.max_context,
        "num_layers": c.num_layers,
        "hidden": c.hidden,
        "ffn": c.ffn,
        "num_heads": c.num_heads,
        "num_kv_heads": c.num_kv_heads,
        "head_dim": c.head_dim,
        "page_size": c.page_size,
        "num_pages": c.num_pages,
        "prefill_width": PREFILL_WIDTH,
        "widths": list(WIDTHS[role]),
    }


class _Assembler:
    """Buffers and tensors of one target; tensors get an index on first use."""

    def __init__(self, target: str, module: str, lowered: Lowered, parts, arenas: list[Arena], stored):
        self.target, self.module, self.lowered = target, module, lowered.targets[target]
        self.buffers: list[dict[str, Any]] = []
        self.arenas = [self.arena(arena) for arena in arenas]
        self.tensors: list[dict[str, Any]] = []
        self.index: dict[str, int] = {}
        self.stored = {tensor.name: tensor for tensor in stored}
        self.state: dict[str, tuple[str, str, tuple[int, ...]]] = {}
        for part in parts:
            self.state |= state_tensors(part, target)
        self.scratch = [
            self.buffer(f"scratch.{i}", size, "scratch")
            for i, size in enumerate(self.lowered["scratch_bytes"])
        ]

    def build(self) -> dict[str, Any]:
        for name in self.state:  # every state tensor exists, whether a program uses it or not
            self.place(name)
        programs = [self.program(program) for program in self.lowered["programs"]]
        gpu = self.target == "gpu"
        return {
            "name": self.target,
            "module": self.module,
            "features": list(GPU_FEATURES if gpu else WASM_FEATURES),
            "limits": self.limits() if gpu else {},
            "buffers": self.buffers,
            "tensors": self.tensors,
            "kernels": self.lowered["kernels"],
            "programs": programs,
        }

    def program(self, program: dict[str, Any]) -> dict[str, Any]:
        dispatches = [
            {"kernel": d["kernel"], "tensors": [self.place(p) for p in d["places"]], "grid": d["grid"]}
            for d in program["dispatches"]
        ]
        return {
            "name": program["name"],
            "model": program["model"],
            "width": program["width"],
            "dispatches": dispatches,
        }

    def buffer(self, name: str, size: int, lifetime: str) -> int:
        self.buffers.append({"name": name, "bytes": -(-size // 16) * 16, "lifetime": lifetime, "files": []})
        return len(self.buffers) - 1

    def arena(self, arena: Arena) -> list[tuple[int, int]]:
        """(buffer, first byte in the arena) of each buffer of an arena: one, but one a shard of rows where the GPU binds it by rows."""
        buffers, at = [], 0
        for piece in (self.target == "gpu" and arena.shards) or [arena]:
            files = piece.all_files()
            self.buffers.append(
                {"name": piece.name, "bytes": piece.bytes, "lifetime": "weight", "files": files}
            )
            buffers.append((len(self.buffers) - 1, at))
            at += piece.bytes
        return buffers

    def weight(self, name: str, tensor: StoredTensor, first: int, shape) -> int:
        """The tensor of a stored weight from its element `first` on."""
        at = tensor.offset + first * DTYPE_BYTES[tensor.dtype]
        buffer, start = next(each for each in reversed(self.arenas[tensor.arena]) if each[1] <= at)
        if at - start + num_bytes(tensor.dtype, shape) > self.buffers[buffer]["bytes"]:
            action = "cut it by the same rows in emit/weights.py and emit/rows.py"
            raise ContractError(f"{name} is bound across buffers", "emit/plan.py", action)
        return self.tensor(name, buffer, at - start, tensor.dtype, shape)

    def window(self, place: dict[str, Any]) -> int:
        """The tensor index of a shard's part of another tensor."""
        of, first, shape = place["of"], place["first"], place["shape"]
        whole = of if isinstance(of, str) else scratch_name(of)
        name = f"{whole}@{first}:{'x'.join(map(str, shape))}"
        if name in self.index:
            return self.index[name]
        if isinstance(of, str) and of in self.stored:
            return self.weight(name, self.stored[of], first, shape)
        tensor = self.tensors[self.place(of)]
        offset = tensor["offset"] + first * DTYPE_BYTES[tensor["dtype"]]
        return self.tensor(name, tensor["buffer"], offset, tensor["dtype"], shape)

    def tensor(self, name: str, buffer: int, offset: int, dtype: str, shape) -> int:
        self.tensors.append(
            {"name": name, "buffer": buffer, "offset": offset, "dtype": dtype, "shape": list(shape)}
        )
        self.index[name] = len(self.tensors) - 1
        return self.index[name]

    def place(self, place: str | list | dict) -> int:
        """The tensor index of a place of lowered.py."""
        if isinstance(place, dict):
            return self.window(place)
        if not isinstance(place, str):
            storage, dtype, shape = place
            name = scratch_name(place)
            if name not in self.index:
                self.tensor(name, self.scratch[storage], 0, dtype, shape)
            return self.index[name]
        if place in self.index:
            return self.index[place]
        if place in self.stored:
            t = self.stored[place]
            return self.weight(place, t, 0, t.shape)
        lifetime, dtype, shape = self.state[place]
        buffer = self.buffer(place, num_bytes(dtype, shape), lifetime)
        return self.tensor(place, buffer, 0, dtype, shape)

    def limits(self) -> dict[str, int]:
        """What a device must offer: the guaranteed limits, raised where this plan's buffers or bindings are larger."""
        limits = dict(GUARANTEED_LIMITS)
        largest = max(b["bytes"] for b in self.buffers)
        binding = max(num_bytes(t["dtype"], t["shape"]) for t in self.tensors)
        limits["maxBufferSize"] = max(limits["maxBufferSize"], largest)
        limits["maxStorageBufferBindingSize"] = max(limits["maxStorageBufferBindingSize"], binding)
        return limits


def scratch_name(place: list) -> str:
    """The name of a window of a scratch storage."""
    storage, dtype, shape = place
    return f"scratch.{storage}:{dtype}:{'x'.join(map(str, shape))}"


def state_tensors(part: Part, target: str) -> dict[str, tuple[str, str, tuple[int, ...]]]:
    """Name -> (lifetime, dtype, shape) of everything of a model that is neither weight nor scratch."""
    c, role = part.config, part.role
    state = {
        "tokens": ("state", "int32", (c.num_tokens,)),
        f"{role}.args": ("state", "int32", (4,)),
        f"{role}.page_table": ("state", "int32", (c.num_pages,)),
        f"{role}.out": ("state", "int32", (OUT_ROWS, 2)),
        f"{role}.done": ("state", "int32", (1,)),
        f"{role}.logits": ("state", "float32", (MAX_ROWS, c.logits[1])),
    }
    if role == "target":
        state["target.score_ids"] = ("state", "int32", (MAX_ROWS,))
        state["target.score"] = ("state", "float32", (MAX_ROWS, 3))
        sampling = sampling_tensors(c.logits[1])
        state |= {name: ("state", dtype, shape) for name, (dtype, shape) in sampling.items()}
        state["target.z"] = ("state", "float32", (MAX_ROWS, c.logits[1]))
    else:
        state["draft.stats"] = ("state", "float32", (OUT_ROWS, 2))
        state["draft.q"] = ("state", "float32", (MAX_ROWS, c.padded_vocab))
    for i in range(c.num_layers):
        block = (c.num_pages, c.num_kv_heads)
        if target == "cpu":
            state[f"{role}.k.{i}"] = ("kv", "float32", (*block, c.head_dim, c.page_size))
            state[f"{role}.v.{i}"] = ("kv", "float32", (*block, c.page_size, c.head_dim))
        else:  # K, then V, in words of two f16 (kernels/rope.py)
            state[f"{role}.kv.{i}"] = ("kv", "uint32", (2, *block, c.head_dim * c.page_size // 2))
    return state
