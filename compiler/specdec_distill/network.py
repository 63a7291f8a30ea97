"""A Llama network in PyTorch, as far as distillation needs it: hidden states of whole texts, and steps with a KV cache.

Knows no training. Shapes: B texts, T positions, D hidden, H query heads, G key/value heads, d head size, V vocabulary. Names of the
weights are those of ModelSpec (specdec_compiler.sources.spec). Rotary embedding: halves rotated, as in the compiler
(RoFormer, Su et al. 2021, in the form of Llama).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from specdec_compiler.quantize import QuantWeight, dequantize
from specdec_compiler.sources import ModelConfig, ModelSpec

Weights = dict[str, torch.Tensor]


def read_weights(spec: ModelSpec, device: str, dtype: torch.dtype) -> Weights:
    """All stored tensors of a model, as floats on the device."""
    weights: Weights = {}
    for name in spec.names():
        tensor = spec.tensor(name)
        array = dequantize(tensor) if isinstance(tensor, QuantWeight) else tensor
        weights[name] = torch.from_numpy(array).to(device=device, dtype=dtype)
    return weights


class Rope(NamedTuple):
    """Cosines and sines of every position: [max_len, d/2] f32 each."""

    cos: torch.Tensor
    sin: torch.Tensor


def make_rope(config: ModelConfig, max_len: int, device: str) -> Rope:
    half = config.head_dim // 2
    frequencies = config.rope_theta ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = torch.arange(max_len, dtype=torch.float64)[:, None] * frequencies
    return Rope(angles.cos().float().to(device), angles.sin().float().to(device))


class Llama:
    """The network over a dict of weights; `embed` is also the head."""

    def __init__(self, config: ModelConfig, weights: Weights, rope: Rope) -> None:
        self.config = config
        self.weights = weights
        self.rope = rope

    def hidden(self, ids: torch.Tensor) -> torch.Tensor:
        """ids [B, T] -> hidden states after the final norm [B, T, D]; every text starts at position 0."""
        x = F.embedding(ids, self.weights["embed"])
        cos, sin = self.rope.cos[: ids.shape[1], None], self.rope.sin[: ids.shape[1], None]  # [T, 1, d/2]
        for layer in range(self.config.num_layers):
            q, k, v = self._qkv(layer, x, cos, sin)
            mixed = F.scaled_dot_product_attention(
                q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True, enable_gqa=True
            )
            x = self._rest(layer, x, mixed.transpose(1, 2).flatten(2))
        return self._norm(x, "norm")

    def prefill(self, ids: torch.Tensor, cache: KvCache, rows: torch.Tensor) -> torch.Tensor:
        """As `hidden`, and K and V of all positions go into the cache's rows [B]."""
        x = F.embedding(ids, self.weights["embed"])
        length = ids.shape[1]
        cos, sin = self.rope.cos[:length, None], self.rope.sin[:length, None]
        for layer in range(self.config.num_layers):
            q, k, v = (part.transpose(1, 2) for part in self._qkv(layer, x, cos, sin))
            cache.k[layer][rows, :, :length] = k
            cache.v[layer][rows, :, :length] = v
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            x = self._rest(layer, x, mixed.transpose(1, 2).flatten(2))
        return self._norm(x, "norm")

    def step(self, ids: torch.Tensor, positions: torch.Tensor, cache: KvCache, span: int) -> torch.Tensor:
        """One token a row: ids [B], positions [B] (all below span) -> hidden [B, D]."""
        c = self.config
        batch, shared = len(ids), c.num_heads // c.num_kv_heads
        x = F.embedding(ids, self.weights["embed"])[:, None]
        cos, sin = (
            self.rope.cos[positions][:, None, None],
            self.rope.sin[positions][:, None, None],
        )  # [B, 1, 1, d/2]
        unseen = torch.arange(span, device=ids.device)[None] > positions[:, None]  # [B, span]
        for layer in range(c.num_layers):
            q, k, v = self._qkv(layer, x, cos, sin)
            cache.put(layer, positions, k[:, 0], v[:, 0])
            q = q.view(batch * c.num_kv_heads, shared, c.head_dim)
            keys = cache.k[layer][:, :, :span].flatten(0, 1)  # [B * G, span, d]
            scores = torch.bmm(q, keys.transpose(1, 2)).float().view(batch, -1, span) / c.head_dim**0.5
            scores = scores.masked_fill(unseen[:, None], float("-inf")).softmax(-1).to(q.dtype)
            scores = scores.view(batch * c.num_kv_heads, shared, span)
            mixed = torch.bmm(scores, cache.v[layer][:, :, :span].flatten(0, 1))
            x = self._rest(layer, x, mixed.view(batch, 1, -1))
        return self._norm(x, "norm")[:, 0]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [.., D] -> [.., V]."""
        return hidden @ self.weights["embed"].T

    def _qkv(
        self, layer: int, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """x [B, T, D] -> q [B, T, H, d], k and v [B, T, G, d], q and k rotated."""
        normed = self._norm(x, f"layers.{layer}.attn_norm")
        q, k, v = (F.linear(normed, self.weights[f"layers.{layer}.{part}"]) for part in "qkv")
        q, k, v = (part.unflatten(-1, (-1, self.config.head_dim)) for part in (q, k, v))
        return _rotate(q, cos, sin), _rotate(k, cos, sin), v

    def _rest(self, layer: int, x: torch.Tensor, mixed: torch.Tensor) -> torch.Tensor:
        """The output projection and the feed-forward part."""
        w = self.weights
        x = x + F.linear(mixed, w[f"layers.{layer}.o"])
        normed = self._norm(x, f"layers.{layer}.mlp_norm")
        gate = F.silu(F.linear(normed, w[f"layers.{layer}.gate"])) * F.linear(normed, w[f"layers.{layer}.up"])
        return x + F.linear(gate, w[f"layers.{layer}.down"])

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        weight = self.weights[name]
        return F.rms_norm(x, (x.shape[-1],), weight, self.config.norm_eps)


class KvCache:
    """K and V of `rows` texts of up to `span` positions: per layer [rows, G, span, d]."""

    def __init__(self, config: ModelConfig, rows: int, span: int, device: str, dtype: torch.dtype) -> None:
        shape = (rows, config.num_kv_heads, span, config.head_dim)
        self.k = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(config.num_layers)]
        self.v = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(config.num_layers)]
        self._row = torch.arange(rows, device=device)

    def put(self, layer: int, positions: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        """k, v [rows, G, d] at each row's own position."""
        self.k[layer][self._row, :, positions] = k
        self.v[layer][self._row, :, positions] = v


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x [.., heads, d]; cos, sin broadcast to [.., 1, d/2]."""
    first, second = x.float().chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x.dtype)
