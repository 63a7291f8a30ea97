"""A Llama model in plain NumPy float32: the slow, obvious oracle of the whole repository.

Weights are the dequantized ones of a ModelSpec; activations stay float32 (no int8 groups). It knows no plan,
no kernels and no pages. Compared once with transformers' logits: the same to a few 1e-6 relative.
"""

from __future__ import annotations

import numpy as np
from specdec_compiler.quantize import QuantWeight, dequantize
from specdec_compiler.sources import ModelSpec


class LlamaNumpy:
    """A model with a growing KV cache: extend(ids) appends tokens, rollback(length) forgets the last ones."""

    def __init__(self, spec: ModelSpec) -> None:
        self.config = spec.config
        # A draft may store no embedding and no head of its own: the spec gives them all the same.
        self.weights = {name: _floats(spec.tensor(name)) for name in ("embed", "head", *spec.names())}
        heads, size = spec.config.num_kv_heads, spec.config.head_dim
        # [kv heads, positions, head size] per layer
        self.keys = [np.zeros((heads, 0, size), np.float32) for _ in range(spec.config.num_layers)]
        self.values = [np.zeros((heads, 0, size), np.float32) for _ in range(spec.config.num_layers)]

    @property
    def length(self) -> int:
        return self.keys[0].shape[1]

    def rollback(self, length: int) -> None:
        self.keys = [k[:, :length] for k in self.keys]
        self.values = [v[:, :length] for v in self.values]

    def extend(self, ids: list[int]) -> np.ndarray:
        """Append tokens; -> logits f32 [len(ids), vocab], row i predicting the token after ids[i]."""
        positions = np.arange(self.length, self.length + len(ids))
        x = self.weights["embed"][np.asarray(ids, np.int64)]  # [rows, hidden]
        for layer in range(self.config.num_layers):
            x = x + self._attention(layer, self._norm(x, f"layers.{layer}.attn_norm"), positions)
            x = x + self._mlp(layer, self._norm(x, f"layers.{layer}.mlp_norm"))
        return self._norm(x, "norm") @ self.weights["head"].T

    def greedy(
        self,
        prompt: list[int],
        num_tokens: int,
        eos_ids: tuple[int, ...] = (),
        names: list[int] | None = None,
    ) -> list[int]:
        """Start afresh and decode: the argmax, the lowest id on ties, until an end id or num_tokens.

        names: the id of each logit, where the head covers some ids only.
        """
        self.rollback(0)
        logits, out = self.extend(prompt)[-1], []
        while len(out) < num_tokens:
            best = int(np.argmax(logits))
            out.append(best if names is None else names[best])
            if out[-1] in eos_ids or len(out) == num_tokens:
                break
            logits = self.extend(out[-1:])[-1]
        return out

    def _norm(self, x: np.ndarray, name: str) -> np.ndarray:
        mean_square = np.mean(x * x, axis=-1, keepdims=True)
        return x / np.sqrt(mean_square + np.float32(self.config.norm_eps)) * self.weights[name]

    def _attention(self, layer: int, x: np.ndarray, positions: np.ndarray) -> np.ndarray:
        c = self.config
        q = rotate(self._heads(layer, "q", x, c.num_heads), positions, c.rope_theta)
        k = rotate(self._heads(layer, "k", x, c.num_kv_heads), positions, c.rope_theta)
        v = self._heads(layer, "v", x, c.num_kv_heads)
        self.keys[layer] = np.concatenate([self.keys[layer], k], axis=1)
        self.values[layer] = np.concatenate([self.values[layer], v], axis=1)
        # Query head h reads key/value head h // (heads per kv head).
        shared = np.arange(c.num_heads) // (c.num_heads // c.num_kv_heads)
        keys, values = self.keys[layer][shared], self.values[layer][shared]
        scores = q @ keys.swapaxes(1, 2) / np.float32(np.sqrt(c.head_dim))  # [heads, rows, positions]
        future = np.arange(keys.shape[1])[None, :] > positions[:, None]
        out = _softmax(np.where(future, np.float32(-np.inf), scores)) @ values  # [heads, rows, head size]
        return out.swapaxes(0, 1).reshape(len(x), -1) @ self.weights[f"layers.{layer}.o"].T

    def _heads(self, layer: int, part: str, x: np.ndarray, num_heads: int) -> np.ndarray:
        rows = x @ self.weights[f"layers.{layer}.{part}"].T
        return rows.reshape(len(x), num_heads, self.config.head_dim).swapaxes(0, 1)

    def _mlp(self, layer: int, x: np.ndarray) -> np.ndarray:
        gate = x @ self.weights[f"layers.{layer}.gate"].T
        up = x @ self.weights[f"layers.{layer}.up"].T
        return (gate / (1 + np.exp(-gate)) * up) @ self.weights[f"layers.{layer}.down"].T


def rotate(x: np.ndarray, positions: np.ndarray, theta: float) -> np.ndarray:
    """Rotate-half rope. x: f32 [heads, rows, size]; element i < size/2 turns with element i + size/2."""
    half = x.shape[-1] // 2
    frequencies = 1.0 / theta ** (np.arange(half) / half)
    angles = positions[:, None] * frequencies[None, :]  # [rows, size/2]
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    low, high = x[..., :half], x[..., half:]
    return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)


def _softmax(x: np.ndarray) -> np.ndarray:
    weights = np.exp(x - x.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def _floats(weight: QuantWeight | np.ndarray) -> np.ndarray:
    return dequantize(weight) if isinstance(weight, QuantWeight) else weight
