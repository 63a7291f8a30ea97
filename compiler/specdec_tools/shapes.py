"""Known model sizes without their weights: plans of shapes, for measuring what nobody can download here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from specdec_compiler.build import canonical_json
from specdec_compiler.cache import compiler_hash
from specdec_compiler.emit.lowered import Part, lower
from specdec_compiler.emit.plan import build_plan
from specdec_compiler.emit.rows import MAX_BINDING, shard_bytes
from specdec_compiler.emit.weights import Arena, Layout, StoredTensor
from specdec_models import RuntimeConfig, WeightFormats
from specdec_runtime.faults import RequestError
from specdec_runtime.plan.schema import TOKENS_SLACK

# hidden, ffn, layers, heads, kv heads, head size, vocabulary, tied embedding
SHAPES: dict[str, tuple[int, int, int, int, int, int, int, bool]] = {
    "135M": (576, 1536, 30, 9, 3, 64, 49152, True),
    "1B": (2048, 8192, 16, 32, 8, 64, 128256, True),
    "3B": (3072, 8192, 28, 24, 8, 128, 128256, True),
    "8B": (4096, 14336, 32, 32, 8, 128, 128256, False),
}
DRAFTS = {"8B": "1B"}  # the draft a shape is paired with; others have a one-layer draft of their own width


def shape_config(name: str, context: int, layers: int | None = None) -> RuntimeConfig:
    """The runtime sizes of a shape: q4 matrices, q8 embedding and head, pages of 64."""
    if name not in SHAPES:
        raise RequestError(
            f"there is no shape {name!r}", "SHAPE", f"use a bundle folder or one of {', '.join(SHAPES)}"
        )
    hidden, ffn, num_layers, heads, kv, head_dim, vocab, tied = SHAPES[name]
    num_layers = layers or num_layers
    parts = ("qkv", "o", "gate_up", "down")
    formats = {f"layers.{i}.{part}": "q4" for i in range(num_layers) for part in parts}
    formats |= {"embed": "q8"} | ({} if tied else {"head": "q8"})
    return RuntimeConfig(
        architecture="llama",
        vocab_size=vocab,
        padded_vocab=vocab,
        hidden=hidden,
        ffn=ffn,
        num_layers=num_layers,
        num_heads=heads,
        num_kv_heads=kv,
        head_dim=head_dim,
        norm_eps=1e-5,
        max_context=context,
        page_size=64,
        num_pages=-(-context // 64),
        tied_embedding=tied,
        num_tokens=context + TOKENS_SLACK,
        formats=WeightFormats(formats),
    )


def shape_parts(name: str, context: int) -> tuple[Part, ...]:
    """Target and draft of a shape."""
    target = Part("target", "target", shape_config(name, context))
    draft = DRAFTS.get(name)
    config = shape_config(draft, context) if draft else shape_config(name, context, layers=1)
    return (target, Part("draft", "draft", config))


def weight_tensors(part: Part) -> list[tuple[str, str, tuple[int, ...]]]:
    """Name, dtype, shape of every weight tensor, in the order emit/weights.py writes them."""
    c = part.config
    q, kv = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
    tensors: list[tuple[str, str, tuple[int, ...]]] = [("rope", "float32", (c.max_context, c.head_dim))]

    def matrix(name: str, n: int, k: int) -> None:
        chunks, scales = (4, 2) if c.formats.by_name[name] == "q4" else (8, 1)
        tensors.append((f"{name}.w", "uint32", (n // 4, chunks, k // 32, 4)))
        tensors.append((f"{name}.ws", "float32", (n // 4, scales, k // 32, 4)))

    matrix("embed", c.padded_vocab, c.hidden)
    for i in range(c.num_layers):
        tensors.append((f"layers.{i}.attn_norm.weight", "float32", (c.hidden,)))
        matrix(f"layers.{i}.qkv", q + 2 * kv, c.hidden)
        matrix(f"layers.{i}.o", c.hidden, q)
        tensors.append((f"layers.{i}.mlp_norm.weight", "float32", (c.hidden,)))
        matrix(f"layers.{i}.gate_up", 2 * c.ffn, c.hidden)
        matrix(f"layers.{i}.down", c.hidden, c.ffn)
    tensors.append(("norm.weight", "float32", (c.hidden,)))
    if not c.tied_embedding:
        matrix("head", c.padded_vocab, c.hidden)
    return [(f"{part.weights}.{name}", dtype, shape) for name, dtype, shape in tensors]


def place_weights(parts: tuple[Part, ...]) -> tuple[list[Arena], list[StoredTensor]]:
    """Arenas and offsets as the shard writer would choose them; the files are never written."""
    layout = Layout()
    for part in parts:
        tensors = weight_tensors(part)
        shapes = {name: shape for name, _, shape in tensors}
        for name, dtype, shape in tensors:
            matrix, _, kind = name.rpartition(".")
            codes = shapes.get(f"{matrix}.w")
            vocab = kind in ("w", "ws") and matrix.split(".")[1] in ("embed", "head")
            cuts = shard_bytes(codes, shape, MAX_BINDING) if vocab and codes else []
            layout.place(name, dtype, shape, cuts)
    buffers = [buffer for arena in layout.arenas for buffer in arena.shards or [arena]]
    for i, buffer in enumerate(buffers):
        buffer.files.append(f"none/{i:04}.bin")
    return layout.arenas, layout.tensors


def write_shape(name: str, folder: Path, context: int = 4096) -> dict[str, Any]:
    """plan.json and kernels.wgsl of a shape, for the bench page; returns the plan."""
    parts = shape_parts(name, context)
    lowered = lower(parts)
    zero = "0" * 64
    ids = {
        "recipe": zero,
        "weights": zero,
        "tokenizer": zero,
        "chat_template": None,
        "kernels": compiler_hash(),
    }
    text = {"bos_id": None, "add_bos": False, "eos_ids": [], "special_ids": []}
    names = {"target": name, "draft": DRAFTS.get(name, f"{name}, one layer")}
    plan = build_plan(f"shape-{name.lower()}", ids, text, parts, names, lowered, *place_weights(parts))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "plan.json").write_bytes(canonical_json(plan))
    (folder / "kernels.wgsl").write_bytes(lowered.wgsl)
    return plan
