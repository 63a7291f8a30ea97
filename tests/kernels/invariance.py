"""Row invariance: one probe row, put in every slot of every width among random neighbours, must give the bits it gives alone.

A Spec names an op, its shape and the probe's position; `runs` lists the calls, `mismatches` compares them. Knows no device.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from specdec_compiler.kernels.base import MAX_ROWS, OUT_ROWS
from specdec_compiler.kernels.twins import page_index, readable

from .cases import EPS, Edit
from .filter_cases import EVERYTHING, SETTINGS, settings
from .forms import CHOOSING, Arrays, arguments, kinds, real
from .inputs import blank, make_inputs
from .jobs import Work

WIDTHS = (1, 2, 4, 8, 32)
VERIFY_WIDTHS = (
    1,
    2,
    4,
    8,
)  # ops on logits: prefill has no head; and positions too many to try in 1,100 rows each
_ACTIVATIONS = ("xq", "xs", "codes")
ROW_INPUTS = {
    "embed": (),
    "embed_rows": (),
    "norm_quantize": ("x",),
    "scale_quantize": ("x",),
    "linear": _ACTIVATIONS,
    "normed_linear": _ACTIVATIONS,
    "linear_rows": _ACTIVATIONS,
    "linear_add": (*_ACTIVATIONS, "residual"),
    "linear_add_quantize": (*_ACTIVATIONS, "residual"),
    "gate_up_quantize": _ACTIVATIONS,
    "qkv_rope": _ACTIVATIONS,
    "rope_append": ("qkv",),
    "attention": ("q",),
    "attend": ("q",),
    "quantize": ("x",),
    "silu_mul_quantize": ("gate_up",),
    "concat2": ("x0", "x1"),
    "concat3": ("x0", "x1", "x2"),
    **dict.fromkeys(CHOOSING, ("logits",)),
    "choose_filtered": ("logits", "mask"),
    "filtered": ("logits", "mask"),
    "logprobs": ("logits", "out"),
    "score": ("logits", "score_ids"),
}
EMBED = ("embed", "embed_rows")
SAMPLED = ("choose_sampled", "choose_sampled_named")
FILTERING = ("filtered", "choose_filtered")
POSITIONAL = (*EMBED, "rope_append", "qkv_rope", "attention", "attend", *SAMPLED, *FILTERING)
FIXED_ROWS = {  # as many rows at every width
    **{(op, name): OUT_ROWS for op in CHOOSING for name in ("out", "stats")},
    **{(op, "mask"): OUT_ROWS for op in FILTERING},
    **{("logprobs", name): OUT_ROWS for name in ("out", "top")},
    ("score", "score"): MAX_ROWS,
    ("score", "score_ids"): MAX_ROWS,
}
PAGES = ("k_pages", "v_pages", "pages")
STATE = ("args", "tokens", "done")  # written, but not by rows


@dataclass(frozen=True)
class Spec:
    """`op` may name a mutant ("mutant_linear"): `like` is the op whose arguments it takes."""

    op: str
    params: dict[str, int | str]
    position: int = 0
    widths: tuple[int, ...] = WIDTHS
    label: str = ""
    edit: Edit | None = None  # of the probe's arguments

    @property
    def like(self) -> str:
        return real(self.op)

    @property
    def name(self) -> str:
        shape = " ".join(f"{key}={value}" for key, value in self.params.items() if key not in ("ctx", "eps"))
        return f"{self.op} {shape}" + (f" at {self.position}" if self.like in POSITIONAL else "") + self.label


@dataclass(frozen=True)
class Run:
    """The probe in `slot` of `width` rows, `rows` of them valid."""

    width: int
    slot: int
    rows: int


def runs(spec: Spec) -> list[Run]:
    """Every slot of every width, all rows valid; and with the probe as the last valid row."""
    found = [Run(width, slot, width) for width in spec.widths for slot in range(width)]
    found += [replace(run, rows=run.slot + 1) for run in found if run.slot + 1 < run.width <= 8]
    return [run for run in found if spec.like not in POSITIONAL or run.slot <= spec.position]


def _noise(rng: np.random.Generator, like: np.ndarray, size: int) -> np.ndarray:
    if like.dtype.kind == "f":
        return (rng.standard_normal(size) * 3).astype(np.float32)
    limits = np.iinfo(like.dtype)
    return rng.integers(limits.min + 1, limits.max, size, like.dtype)


def works(spec: Spec, levels: int) -> list[Work]:
    """The calls of runs(spec), in order."""
    rng = np.random.default_rng([*spec.name.encode()])
    start = spec.position if spec.like in POSITIONAL else 0
    probe = make_inputs(spec.like, spec.params | {"m": 1}, levels, rng, start, max(WIDTHS))
    if spec.edit:
        spec.edit(probe, spec.params | {"m": 1}, levels)
    kind = "cpu" if levels > 127 else "gpu"
    return [_work(spec, run, probe, rng, kind) for run in runs(spec)]


def _work(spec: Spec, run: Run, probe: Arrays, rng: np.random.Generator, kind: str) -> Work:
    arrays = dict(probe)
    for name, access in arguments(spec.like, kind).items():
        if (spec.like, name) in FIXED_ROWS or name in PAGES:
            width = 1
        else:
            width = run.width
        if name in ROW_INPUTS[spec.like]:
            arrays[name] = _placed(spec, run, name, probe[name], rng)
        elif access == "write" and name not in STATE:
            arrays[name] = blank(probe[name].size * width, probe[name].dtype)
    start = spec.position - run.slot if spec.like in POSITIONAL else 0
    arrays["args"] = np.array([start, run.rows, 0, 0], np.int32)
    if spec.like in EMBED:
        arrays["tokens"] = _noise(rng, probe["tokens"], probe["tokens"].size)
        arrays["tokens"][spec.position] = probe["tokens"][spec.position]
    return Work(spec.op, spec.params | {"m": run.width}, arrays)


def _placed(spec: Spec, run: Run, name: str, row: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The probe's row at its slot, noise around it."""
    rows = FIXED_ROWS.get((spec.like, name), run.width)
    row = row.reshape(rows, -1)[0] if (spec.like, name) in FIXED_ROWS else row
    block = _noise(rng, row, rows * row.size).reshape(rows, row.size)
    block[run.slot] = row
    return block.ravel()


def _position(spec: Spec, work: Work, name: str, found: Arrays) -> list[np.ndarray]:
    """What pages hold of the probe's position, every head."""
    parts = ("k_pages", "v_pages") if name == "pages" else (name,)
    heads = range(int(work.params["kv"]))
    at = [page_index(work.params, work.arrays, spec.position, head) for head in heads]
    return [found[part][places[PAGES.index(part)]] for part in parts for places in at]


def _probe_bits(spec: Spec, run: Run, work: Work, result: Arrays) -> dict[str, bytes]:
    """What the probe's row left in each written argument."""
    bits = {}
    for name, value in result.items():
        if name in STATE:
            continue
        if name in PAGES:
            bits[name] = b"".join(
                value_of.tobytes()
                for value_of in _position(spec, work, name, readable(work.params, {name: value}))
            )
        else:
            rows = FIXED_ROWS.get((spec.like, name), run.width)
            bits[name] = value.reshape(rows, -1)[run.slot].tobytes()
    return bits


def mismatches(spec: Spec, called: list[Work], results: list[Arrays]) -> list[str]:
    """The runs whose probe row differs from the first run's: the probe alone at width 1."""
    listed = runs(spec)
    assert listed[0] == Run(1, 0, 1)
    bits = [_probe_bits(spec, *each) for each in zip(listed, called, results, strict=True)]
    wrong = []
    for run, found in zip(listed, bits, strict=True):
        differing = [name for name in found if found[name] != bits[0][name]]
        if differing:
            wrong.append(f"{spec.name}: {', '.join(differing)} differ at {run}")
    return wrong


def heads(h: int, kv: int, d: int, s: int) -> dict[str, int | str]:
    return {"h": h, "kv": kv, "d": d, "s": s, "ctx": 576, "pages": 576 // s}


def specs(kind: str) -> list[Spec]:
    """The specs of ops that a kind of device has."""
    return [spec for spec in SPECS if kind in kinds(spec.op)]


FILTER_SHAPE: dict[str, int | str] = {"n": 2101, "padded": 2112, "tokens": 600}
FILTER_EDITS: dict[str, Edit] = {
    "penalties": settings(prompt_len=20, frequency=0.5, repetition=1.2, noise=False),
    "mass": SETTINGS["mass .97"],
    "the whole row": settings(top_k=1800, top_p=0.9, temperature=5, prompt_len=20, frequency=0.5),
}
SMALL, GROUPED = heads(2, 1, 16, 16), heads(3, 1, 64, 64)
SPECS = [
    Spec("embed", {"n": 301, "k": 64, "fmt": "q4", "tokens": 600}, 40),
    Spec("embed", {"n": 301, "k": 576, "fmt": "q8", "tokens": 600}, 257),
    Spec("embed_rows", {"n": 301, "first_row": 64, "rows": 192, "k": 64, "fmt": "q8", "tokens": 600}, 40),
    Spec("linear_rows", {"n": 300, "rows": 20, "k": 576, "fmt": "q8", "eps": EPS}),
    *(Spec("norm_quantize", {"k": k, "eps": EPS}) for k in (64, 576, 1536)),
    *(Spec("scale_quantize", {"k": k}) for k in (64, 576)),
    *(Spec("linear", {"n": 20, "k": k, "fmt": fmt}) for k, fmt in ((64, "q4"), (576, "q8"), (1536, "q4"))),
    *(Spec("linear_add", {"n": 20, "k": k, "fmt": fmt}) for k, fmt in ((576, "q4"), (1536, "q8"))),
    *(
        Spec("normed_linear", {"n": 20, "k": k, "fmt": fmt, "eps": EPS})
        for k, fmt in ((576, "q8"), (1536, "q4"))
    ),
    *(Spec("linear_add_quantize", {"n": 64, "k": k, "fmt": "q4"}) for k in (64, 576, 1536)),
    *(Spec("gate_up_quantize", {"n": 128, "k": k, "fmt": "q4", "eps": EPS}) for k in (64, 576, 1056)),
    Spec("qkv_rope", SMALL | {"n": 64, "k": 64, "fmt": "q4", "eps": EPS}, 255),
    Spec("qkv_rope", GROUPED | {"n": 320, "k": 576, "fmt": "q4", "eps": EPS}, 257),
    *(Spec("rope_append", SMALL, position) for position in (0, 255, 256)),
    Spec("rope_append", GROUPED, 257),
    *(Spec("attention", shape, 256) for shape in (SMALL, GROUPED)),
    *(Spec("attention", SMALL, at, VERIFY_WIDTHS) for at in (0, 3, 254, 255, 257, 511, 512, 513)),
    *(Spec("attention", GROUPED, at, VERIFY_WIDTHS) for at in (255, 257)),
    *(
        Spec("attend", SMALL | {"k": 32}, at, VERIFY_WIDTHS)
        for at in (0, 3, 127, 128, 129, 255, 256, 257, 511, 512, 513)
    ),
    *(Spec("attend", GROUPED | {"k": 192}, at, VERIFY_WIDTHS) for at in (128, 255, 256)),
    Spec("attend", GROUPED | {"k": 192}, 257),
    Spec("attend", heads(8, 1, 128, 64) | {"k": 1024}, 258, VERIFY_WIDTHS),
    Spec("quantize", {"k": 576}),
    Spec("silu_mul_quantize", {"k": 1536}),
    Spec("concat2", {"parts": "4x64"}),
    Spec("concat3", {"parts": "64x4x36"}),
    Spec("choose", {"n": 5001, "padded": 5024, "tokens": 600}, widths=VERIFY_WIDTHS),
    *(
        Spec(op, {"n": 5001, "padded": 5024, "tokens": 600}, widths=VERIFY_WIDTHS)
        for op in ("choose_measured", "choose_named", "choose_measured_named")
    ),
    *(
        Spec(op, {"n": 5001, "padded": 5024, "tokens": 600, "bias": 15072}, 40, VERIFY_WIDTHS)
        for op in SAMPLED
    ),
    *(
        Spec("filtered", FILTER_SHAPE, 40, VERIFY_WIDTHS, f" {label}", edit)
        for label, edit in FILTER_EDITS.items()
    ),
    Spec("choose_filtered", FILTER_SHAPE, 41, VERIFY_WIDTHS, " everything", EVERYTHING),
    Spec("logprobs", {"n": 5001, "padded": 5024}, widths=VERIFY_WIDTHS),
    Spec("score", {"n": 301, "padded": 320}, widths=VERIFY_WIDTHS),
]
