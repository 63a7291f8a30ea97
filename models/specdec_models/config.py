"""What a model definition needs to know: sizes, weight formats, and the shape of one program."""

from __future__ import annotations

from dataclasses import dataclass, field

GROUP = 32
MAX_ROWS = 8  # of the widest verify pass
OUT_ROWS = 32  # rows of a model's ids and flags: those of all passes of a submit
SAMPLING_INTS, SAMPLING_FLOATS = 64, 16  # elements of the plan's tensors sampling.ints and sampling.floats
BANNED = (32, 8)  # shape of sampling.banned
TOP_FIELDS = 12  # of a row of target.top


@dataclass(frozen=True)
class WeightFormats:
    """Format ("q4" | "q8") of every packed matrix, by its name in the model (layers.0.qkv, head, ...).

    A matrix that would be fused (qkv, gate_up) but whose parts differ in format appears by its parts (layers.0.q, ...).
    """

    by_name: dict[str, str] = field(default_factory=dict)

    def parts(self, fused: str, names: tuple[str, ...], prefix: str) -> tuple[str, ...]:
        """The stored names that make up `fused`: itself, or its parts."""
        return (prefix + fused,) if prefix + fused in self.by_name else tuple(prefix + name for name in names)


@dataclass(frozen=True)
class RuntimeConfig:
    """Sizes of one model as it runs: the config of its source plus context, pages and padding."""

    architecture: str
    vocab_size: int
    padded_vocab: int
    hidden: int
    ffn: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    max_context: int
    page_size: int
    num_pages: int
    tied_embedding: bool
    num_tokens: int  # elements of the token history
    formats: WeightFormats
    head_ids: int = (
        0  # a draft whose head covers so many ids only, in padded_head rows; 0: the whole vocabulary
    )
    padded_head: int = 0

    @property
    def logits(self) -> tuple[int, int]:
        """(ids that have a logit, columns of the logits)."""
        return (self.head_ids, self.padded_head) if self.head_ids else (self.vocab_size, self.padded_vocab)


@dataclass(frozen=True)
class ProgramShape:
    """One program: its rows, whether it ends in logits and ids or only fills the KV, how an id is chosen ("argmax" | "sample" |
    "filter", of the target alone, | "draw", of a draft alone), and whether it says how sure each row is."""

    width: int
    head: bool
    measured: bool = False
    choice: str = "argmax"
