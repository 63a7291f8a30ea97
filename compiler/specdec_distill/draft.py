"""The draft: its sizes, its first weights (taken from the champion's layers) and what of it is trained.

Knows no objective. The draft has the champion's hidden size and shares its embedding and head, which stay as they are. Layer i starts
as the champion's layer `copy[i]`; a wider feed-forward part takes in those of the layers after it: two side by side add up to the
sum of both, once the norm's weights are folded into them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from specdec_compiler.sources import ModelConfig
from specdec_runtime.faults import ArtifactError

from .network import Llama, Weights


@dataclass(frozen=True)
class DraftShape:
    """copy: the champion's layers to start from, one a layer of the draft; ffn: width of the feed-forward part."""

    copy: tuple[int, ...]
    ffn: int

    def config(self, champion: ModelConfig, name: str) -> ModelConfig:
        """The draft's config. Raises ArtifactError for a layer the champion has not."""
        wrong = [layer for layer in self.copy if not 0 <= layer < champion.num_layers]
        if wrong or not self.copy:
            message = f"layers {list(self.copy)} of a champion with {champion.num_layers}"
            raise ArtifactError(message, "draft.copy", f"give layers 0 to {champion.num_layers - 1}")
        return replace(champion, name=name, ffn=self.ffn, num_layers=len(self.copy), tied_embedding=True)


def first_weights(shape: DraftShape, champion: Llama) -> Weights:
    """f32 weights of every tensor but `embed`."""
    source = {name: tensor.float() for name, tensor in champion.weights.items()}
    weights: Weights = {"norm": source["norm"].clone()}
    for layer, start in enumerate(shape.copy):
        for part in ("attn_norm", "q", "k", "v", "o", "mlp_norm"):
            weights[f"layers.{layer}.{part}"] = source[f"layers.{start}.{part}"].clone()
        gate, up, down = _feed_forward(shape.ffn, start, champion.config, source)
        weights |= {f"layers.{layer}.gate": gate, f"layers.{layer}.up": up, f"layers.{layer}.down": down}
    return weights


def _feed_forward(
    ffn: int, start: int, champion: ModelConfig, source: Weights
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """gate and up [ffn, D], down [D, ffn] out of the layers from `start` on (before it, at the end)."""
    count = -(-ffn // champion.ffn)
    first = min(start, champion.num_layers - count)
    layers = [start, *(layer for layer in range(first, first + count + 1) if layer != start)][:count]
    norm = source[f"layers.{start}.mlp_norm"]
    norm = torch.where(norm.abs() < 1e-3, torch.full_like(norm, 1e-3), norm)
    gates, ups, downs = [], [], []
    for layer in layers:
        fold = source[f"layers.{layer}.mlp_norm"] / norm if layer != start else torch.ones_like(norm)
        gates.append(source[f"layers.{layer}.gate"] * fold)
        ups.append(source[f"layers.{layer}.up"] * fold)
        downs.append(source[f"layers.{layer}.down"])
    return torch.cat(gates)[:ffn], torch.cat(ups)[:ffn], torch.cat(downs, 1)[:, :ffn].contiguous()


class Draft:
    """A draft in training: f32 weights that learn, and a network that runs in the champion's type."""

    def __init__(self, shape: DraftShape, champion: Llama, name: str) -> None:
        self.shape = shape
        self.config = shape.config(champion.config, name)
        self.trained = {
            key: tensor.requires_grad_() for key, tensor in first_weights(shape, champion).items()
        }
        self._champion = champion

    def network(self) -> Llama:
        """The network with the weights as they are now; gradients flow through it."""
        embed = self._champion.weights["embed"]
        weights = {name: tensor.to(embed.dtype) for name, tensor in self.trained.items()}
        return Llama(self.config, {**weights, "embed": embed}, self._champion.rope)

    @property
    def num_trained(self) -> int:
        return sum(tensor.numel() for tensor in self.trained.values())
