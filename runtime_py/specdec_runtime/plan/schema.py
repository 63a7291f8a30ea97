"""The plan as frozen data: every field of plan.json, with its meaning.

Knows neither JSON nor devices. The annotations are the format: codec.py derives the strict reader from
them, so a field added here is a field of the file. Mind the two uses of one word: role "target" is the big
model; a `Target` in `Plan.targets` is a kind of device ("cpu", "gpu") that the plan was compiled for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MAX_ROWS = 8  # rows of logits and score: the widest verify pass
OUT_ROWS = 32  # rows of out and stats: those of all passes of a submit
SAMPLING_INTS = 64  # elements of sampling.ints; docs/plan.md names them
SAMPLING_FLOATS = 16
MAX_BANNED = 32  # rows of sampling.banned: a length, then up to BANNED_FIELDS - 1 ids
BANNED_FIELDS = 8
VERDICT_ROWS = 8  # of target.verdict: one a round of a submit
VERDICT_FIELDS = 4  # drafts that stand, the next id, flags (1 decided, 2 drawn from p since the residual was empty), one unused
TOP_FIELDS = 12  # of a row of target.top: the emitted id's log-probability, one unused, then five times an id and its log-probability
TOKENS_SLACK = 64  # elements of `tokens` past the context, so that a full-width pass may start near its end

DTYPE_BYTES = {"int8": 1, "uint8": 1, "int16": 2, "int32": 4, "uint32": 4, "float32": 4}


@dataclass(frozen=True, slots=True)
class PlanIds:
    """SHA-256 (64 hex digits) of what the bundle was made from."""

    recipe: str
    weights: str
    tokenizer: str
    chat_template: str | None
    kernels: str


@dataclass(frozen=True, slots=True)
class PlanText:
    """Ids the decode loop and the text layer must know."""

    bos_id: int | None
    add_bos: bool
    eos_ids: tuple[int, ...]
    special_ids: tuple[int, ...]  # never shown as text


@dataclass(frozen=True, slots=True)
class Model:
    """One model: the sizes the decode core and the memory view need."""

    role: Literal["target", "draft"]
    name: str
    architecture: str
    vocab_size: int
    padded_vocab: int
    max_context: int
    num_layers: int
    hidden: int
    ffn: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    page_size: int
    num_pages: int
    prefill_width: int
    widths: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Buffer:
    """One device allocation."""

    name: str
    bytes: int
    lifetime: Literal["weight", "kv", "state", "scratch"]
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Tensor:
    """A typed window into a buffer."""

    name: str
    buffer: int
    offset: int
    dtype: Literal["int8", "uint8", "int16", "int32", "uint32", "float32"]
    shape: tuple[int, ...]

    @property
    def num_elements(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def num_bytes(self) -> int:
        return self.num_elements * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class KernelArg:
    """One pointer (cpu) or storage binding (gpu) of a kernel."""

    name: str
    access: Literal["read", "write", "read_write"]


@dataclass(frozen=True, slots=True)
class Kernel:
    """One compiled function, and where its code lies in the target's module."""

    name: str
    op: str
    entry: str
    args: tuple[KernelArg, ...]
    params: dict[str, int | str]
    row_invariant: bool
    workgroup: tuple[int, int, int]
    source: tuple[int, int]
    bindings: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One run of a kernel."""

    kernel: int
    tensors: tuple[int, ...]
    grid: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Program:
    """A flat list of dispatches: one pass of one model over up to `width` rows."""

    name: str
    model: str
    width: int
    dispatches: tuple[Dispatch, ...]


@dataclass(frozen=True, slots=True)
class Target:
    """Everything one kind of device needs."""

    name: str
    module: str
    features: tuple[str, ...]
    limits: dict[str, int]
    buffers: tuple[Buffer, ...]
    tensors: tuple[Tensor, ...]
    kernels: tuple[Kernel, ...]
    programs: tuple[Program, ...]

    def program(self, name: str) -> Program:
        """The program of that name; KeyError when the plan has none."""
        return _named(self.programs, name)

    def tensor(self, name: str) -> Tensor:
        """The tensor of that name; KeyError when the plan has none."""
        return _named(self.tensors, name)


@dataclass(frozen=True, slots=True)
class Plan:
    """The whole plan."""

    format: Literal["specdec-plan"]
    version: Literal[1]
    name: str
    ids: PlanIds
    text: PlanText
    models: tuple[Model, ...]
    targets: tuple[Target, ...]

    @property
    def target_model(self) -> Model:
        """The big model."""
        return self.models[0]

    @property
    def draft_model(self) -> Model | None:
        """The draft model, where the recipe has one."""
        return self.models[1] if len(self.models) > 1 else None

    def target(self, name: str) -> Target:
        """The device target of that name; KeyError when the plan has none."""
        return _named(self.targets, name)


def _named(items, name):
    for item in items:
        if item.name == name:
            return item
    raise KeyError(name)


def program_widths(model: Model) -> dict[str, int]:
    """Names and widths of the programs the decode core calls for this model."""
    target = ("verify", "sample", "filter", "score", "logprobs")
    passes = target if model.role == "target" else ("step", "sample", "measure")
    names = {f"{model.role}.prefill": model.prefill_width}
    names |= {f"{model.role}.{kind}_{width}": width for kind in passes for width in model.widths}
    if model.role == "target":
        return names
    names |= {"draft.accept": MAX_ROWS} | {f"draft.draw_{width}": width for width in model.widths}
    return names | dict.fromkeys(("draft.judge", "draft.judge_filter", "draft.follow"), MAX_ROWS)


def host_tensors(models: tuple[Model, ...]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Name -> (dtype, shape) of the tensors the decode core writes and reads."""
    target = models[0]
    named: dict[str, tuple[str, tuple[int, ...]]] = {
        "tokens": ("int32", (target.max_context + TOKENS_SLACK,)),
        "target.score_ids": ("int32", (MAX_ROWS,)),
        "target.score": ("float32", (MAX_ROWS, 3)),
        **sampling_tensors(target.padded_vocab),
    }
    for model in models:
        named[f"{model.role}.args"] = ("int32", (4,))
        named[f"{model.role}.page_table"] = ("int32", (model.num_pages,))
        named[f"{model.role}.out"] = ("int32", (OUT_ROWS, 2))
        if model.role == "draft":
            named["draft.stats"] = ("float32", (OUT_ROWS, 2))
    return named


def sampling_tensors(padded_vocab: int) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The part of these that says how a token is chosen; both models read them."""
    return {
        "sampling.ints": ("int32", (SAMPLING_INTS,)),
        "sampling.floats": ("float32", (SAMPLING_FLOATS,)),
        "sampling.bias": ("float32", (padded_vocab,)),
        "sampling.mask": ("uint32", (OUT_ROWS, -(-padded_vocab // 32))),
        "sampling.banned": ("int32", (MAX_BANNED, BANNED_FIELDS)),
        "target.top": ("float32", (OUT_ROWS, TOP_FIELDS)),
        "target.verdict": ("int32", (VERDICT_ROWS, VERDICT_FIELDS)),
    }
