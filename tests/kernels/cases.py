"""The table of cases: each row is one kernel call whose result is compared with its twin on every device.

A row names op, parameters, first position, valid rows and, for hard inputs, an edit of the random arguments. A new kernel is a few rows
here, its twin, and an entry in inputs.py and invariance.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from specdec_compiler.kernels import Params
from specdec_compiler.kernels.base import MAX_ROWS, OUT_ROWS
from specdec_compiler.kernels.twins import pack_activations, pack_groups, readable
from specdec_runtime.plan.schema import VERDICT_FIELDS

from .filter_cases import HARD, SETTINGS, raised, settings
from .forms import Arrays, kinds
from .inputs import NAMED_OF, make_inputs
from .jobs import Work

Edit = Callable[[Arrays, Params, int], None]  # (arguments, params, levels), in place
EPS = "9.999999747378752e-06"


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    name: str
    op: str
    params: dict[str, int | str]
    start: int = 0
    rows: int | None = None  # valid rows; None: the whole width
    edit: Edit | None = None

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of device that have the op."""
        return kinds(self.op)

    def work(self, levels: int) -> Work:
        """The call, with its arguments."""
        rng = np.random.default_rng([*self.name.encode()])
        rows = int(self.params.get("m", 1)) if self.rows is None else self.rows
        arrays = make_inputs(self.op, self.params, levels, rng, self.start, rows)
        if self.edit:
            self.edit(arrays, self.params, levels)
        return Work(self.op, self.params, arrays)


# --- edits: hard inputs ------------------------------------------------------------------------------------------------


def rows_of(argument: str, **values: Callable[[np.ndarray], None]) -> Edit:
    """Row i of an argument is edited by the i-th function, given in order."""

    def edit(a: Arrays, p: Params, levels: int) -> None:
        by_row = a[argument].reshape(int(p["m"]), -1)
        for row, change in zip(by_row, values.values(), strict=False):
            change(row)

    return edit


def put(index, value) -> Callable[[np.ndarray], None]:
    def change(row: np.ndarray) -> None:
        row[index] = value

    return change


def scaled(factor: float) -> Callable[[np.ndarray], None]:
    def change(row: np.ndarray) -> None:
        row *= np.float32(factor)

    return change


def edge_tokens(a: Arrays, p: Params, levels: int) -> None:
    """First and last id, and ids outside the vocabulary, which are clamped."""
    start = int(a["args"][0])
    a["tokens"][start : start + 4] = 0, int(p["n"]) - 1, int(p["n"]), -1


def shard_edges(a: Arrays, p: Params, levels: int) -> None:
    """The ids beside and at both ends of a shard, and outside the vocabulary."""
    start, first, last = int(a["args"][0]), int(p["first_row"]), int(p["first_row"]) + int(p["rows"]) - 1
    a["tokens"][start : start + 7] = first - 1, first, last, last + 1, int(p["n"]), -1, first + 1


def extreme_codes(a: Arrays, p: Params, levels: int) -> None:
    """Activations and weights at the ends of their ranges: the largest integer sums there are."""
    codes = np.full((int(p["m"]), int(p["k"])), levels)
    codes[1::2] = -levels
    xq = pack_activations(codes, levels)
    if levels > 127:
        a["xq"] = xq
    else:
        parts = readable(p, a)
        a["codes"] = pack_groups(xq, parts["xs"], parts["squares"].reshape(int(p["m"]), -1))
    a["w"] = np.full_like(a["w"], 0xFFFFFFFF if p["fmt"] == "q4" else 0x80808080)


def nan_scale(a: Arrays, p: Params, levels: int) -> None:
    """Row 1 is not finite: its outputs must all say so, and no other row's."""
    if levels > 127:
        a["xs"].reshape(int(p["m"]), -1)[1, 0] = np.nan
    else:
        _numbers(a, p)[1, 0, 0] = np.nan


def nan_square(a: Arrays, p: Params, levels: int) -> None:
    """The GPU's mark of a residual row that is not finite."""
    _numbers(a, p)[1, 0, 3] = np.nan


def _numbers(a: Arrays, p: Params) -> np.ndarray:
    """[M, K/32, 4], a view: both scales, sum, squares of each of the GPU's groups."""
    return a["codes"].view(np.float32).reshape(int(p["m"]), 3, -1, 4)[:, 2]


def feedback(a: Arrays, p: Params, levels: int) -> None:
    a["args"][2] = 1


def fed_back_later(a: Arrays, p: Params, levels: int) -> None:
    """The last pass of a submit: its rows end where out ends."""
    a["args"][2:] = 1, OUT_ROWS - int(a["args"][1])


def judged(agreed: int, first: int = 0, **changes: int) -> Edit:
    """The first `agreed` drafts are what the target says, of rows from `first` on; row_finite_N and row_id_N change row N's."""

    def edit(a: Arrays, p: Params, levels: int) -> None:
        out, start = a["out"].reshape(OUT_ROWS, 2), int(a["args"][0])
        a["args"][3] = first
        a["tokens"][start + 1 : start + 1 + agreed] = out[first : first + agreed, 0]
        for name, value in changes.items():
            _, field, row = name.split("_")
            out[first + int(row), ("id", "finite").index(field)] = value

    return edit


def _hot(value: float, *ids: int) -> Callable[[np.ndarray], None]:
    """All logits lower than `value` but those at ids."""

    def change(row: np.ndarray) -> None:
        row[:] = value - 1 - np.abs(row)
        row[list(ids)] = value

    return change


def _zeros(minus: int, plus: int) -> Callable[[np.ndarray], None]:
    """-0.0 and 0.0 tie for the largest."""

    def change(row: np.ndarray) -> None:
        row[:] = -1
        row[minus], row[plus] = -0.0, 0.0

    return change


LAST = 300  # the last id of the vocabulary of 301
_TINY = 1.0e-38  # near the least normal f32: scales are subnormal

HARD_FLOATS = {
    "zero": put(slice(None), 0),
    "spike": put(7, 1e4),
    "small": scaled(1e-12),
    "large": scaled(1e12),
    "minus_zero": put(slice(0, 32), -0.0),
    "one_group": put(slice(32, None), 0),
}
TINY = {"tiny": scaled(_TINY), "tinier": scaled(_TINY / 4096)}
NOT_FINITE = {
    "nan": put(33, np.nan),
    "fine": scaled(1),
    "inf": put(0, np.inf),
    "minus_inf": put(63, -np.inf),
    "last_nan": put(-1, np.nan),
    "first_nan": put(0, np.nan),
    "all_nan": put(slice(None), np.nan),
}
HARD_GATES = {
    "far_negative": put(slice(0, 8), -100),
    "farther": put(slice(0, 8), -1e4),
    "far_positive": put(slice(0, 8), 100),
    "farther_positive": put(slice(0, 8), 1e4),
    "zero_gate": put(slice(0, 32), 0),
    "zero_up": put(slice(64, 96), 0),
}
TIES = {
    "two": _hot(5, 17, 250),
    "first_and_last": _hot(5, 0, LAST),
    "last_two": _hot(5, LAST - 1, LAST),
    "last": _hot(5, LAST),
    "minus_zero_first": _zeros(40, 41),
    "zero_first": _zeros(300, 3),
    "all_equal": put(slice(None), 2.5),
    "far_apart": scaled(1e8),
}
NOT_FINITE_LOGITS = {
    "nan": put(5, np.nan),
    "nan_last": put(LAST, np.nan),
    "inf": put(6, np.inf),
    "minus_inf": put(7, -np.inf),
    "all_nan": put(slice(None), np.nan),
    "all_minus_inf": put(slice(None), -np.inf),
    "fine": scaled(1),
    "all_inf": put(slice(None), np.inf),
}


SURE = {  # one id alone, all alike, two ids alone, and logits as far apart as they go
    "sure": put(17, 1e3),
    "unsure": put(slice(None), 2.5),
    "two": put([3, LAST], 300.0),
    "apart": put(slice(1, None), -3e38),
}


# --- the table ---------------------------------------------------------------------------------------------------------


def _shard_rows() -> list[Case]:
    """A table's and a matrix' shards: ids at both ends of each and outside the vocabulary; out with the stride of the whole."""
    rows = []
    for first, count, fmt in ((0, 64, "q8"), (64, 192, "q8"), (256, 45, "q8"), (128, 64, "q4")):
        params: dict[str, int | str] = {"m": 8, "n": 301, "k": 64, "fmt": fmt, "tokens": 600}
        params |= {"first_row": first, "rows": count}
        name = f"embed {fmt} rows {first} to {first + count}"
        rows.append(Case(name, "embed_rows", params, 250))
        rows.append(Case(name + " edges", "embed_rows", params, 250, 7, shard_edges))
    for m, valid, count, fmt in ((1, 1, 64, "q8"), (8, 5, 64, "q4"), (4, 4, 44, "q8"), (32, 30, 64, "q4")):
        params = {"m": m, "n": 300, "rows": count, "k": 576, "fmt": fmt, "eps": EPS}
        rows.append(Case(f"linear {fmt} {count} of 300 rows {valid} of {m}", "linear_rows", params, 0, valid))
    return rows


def _linear_rows() -> list[Case]:
    shapes = [
        # op, n, k, fmt, width, valid rows; many share their kernel with a row of invariance.py, which saves compiling
        ("linear", 4, 32, "q4", 1, 1),
        ("linear", 20, 64, "q4", 2, 1),
        ("linear", 20, 64, "q8", 4, 3),
        ("linear", 20, 576, "q8", 8, 8),
        ("linear", 320, 576, "q8", 8, 5),
        ("linear", 20, 1536, "q4", 32, 21),
        ("linear", 132, 1024, "q4", 4, 4),
        ("linear", 131076, 32, "q4", 1, 1),  # more blocks of rows than one grid dimension takes
        ("linear_add", 64, 64, "q8", 1, 1),
        ("linear_add", 20, 576, "q4", 2, 2),
        ("linear_add", 20, 576, "q4", 8, 7),
        ("linear_add", 20, 1536, "q8", 32, 32),
    ]
    rows = []
    for op, n, k, fmt, m, valid in shapes:
        params = {"m": m, "n": n, "k": k, "fmt": fmt}
        rows.append(Case(f"{op} {n}x{k} {fmt} rows {valid} of {m}", op, params, 0, valid))
    rows += _gpu_linear_rows()
    for fmt in ("q4", "q8"):
        params = {"m": 4, "n": 20, "k": 64, "fmt": fmt}
        rows.append(Case(f"linear {fmt} extreme codes", "linear", params, 0, None, extreme_codes))
        rows.append(Case(f"linear {fmt} one NaN row", "linear", params, 0, None, nan_scale))
    return rows


def _gpu_linear_rows() -> list[Case]:
    """The GPU's linears with what surrounds them."""
    rows = []
    for n, k, fmt, m, valid in (
        (64, 32, "q4", 1, 1),
        (64, 64, "q8", 4, 3),
        (192, 576, "q4", 8, 5),
        (128, 1536, "q4", 2, 2),
        (64, 1056, "q4", 32, 29),
    ):
        params: dict[str, int | str] = {"m": m, "n": n, "k": k, "fmt": fmt}
        end = f"{n}x{k} {fmt} rows {valid} of {m}"
        normed = params | {"eps": EPS}
        rows.append(Case(f"normed linear {end}", "normed_linear", normed, 0, valid))
        rows.append(Case(f"linear add quantize {end}", "linear_add_quantize", params, 0, valid))
        rows.append(Case(f"gate up {end}", "gate_up_quantize", normed, 0, valid))
    bad = {"m": 4, "n": 64, "k": 64, "fmt": "q4"}
    rows.append(Case("linear add quantize NaN", "linear_add_quantize", bad, 0, None, nan_scale))
    rows.append(Case("normed linear NaN square", "normed_linear", bad | {"eps": EPS}, 0, None, nan_square))
    rows.append(Case("gate up NaN", "gate_up_quantize", bad | {"eps": EPS}, 0, None, nan_scale))
    return rows


def _quantize_rows() -> list[Case]:
    rows = []
    for k, m, valid in ((64, 8, 8), (576, 8, 3), (1536, 2, 2), (32, 1, 1), (9216, 1, 1)):
        end = f"k {k} rows {valid} of {m}"
        rows.append(Case(f"quantize {end}", "quantize", {"m": m, "k": k}, 0, valid))
        rows.append(Case(f"norm {end}", "norm_quantize", {"m": m, "k": k, "eps": EPS}, 0, valid))
        rows.append(Case(f"scale {end}", "scale_quantize", {"m": m, "k": k}, 0, valid))
        rows.append(Case(f"silu {end}", "silu_mul_quantize", {"m": m, "k": k}, 0, valid))
    wide = {"m": 8, "k": 64}
    for name, edits in (("hard", HARD_FLOATS), ("not finite", NOT_FINITE), ("tiny", TINY)):
        rows.append(Case(f"quantize {name}", "quantize", wide, 0, None, rows_of("x", **edits)))
        norm = wide | {"eps": EPS}
        rows.append(Case(f"norm {name}", "norm_quantize", norm, 0, None, rows_of("x", **edits)))
        rows.append(Case(f"scale {name}", "scale_quantize", wide, 0, None, rows_of("x", **edits)))
    for name, edits in (("hard", HARD_GATES), ("not finite", NOT_FINITE)):
        edit = rows_of("gate_up", **edits)
        rows.append(Case(f"silu {name}", "silu_mul_quantize", wide, 0, None, edit))
    return rows


def _cache_rows() -> list[Case]:
    shapes = [
        # h, kv, d, s, first position, width, valid rows
        (2, 2, 16, 16, 0, 1, 1),
        (2, 2, 16, 16, 0, 8, 3),
        (4, 2, 16, 64, 60, 8, 8),
        (3, 1, 64, 64, 254, 4, 4),
        (3, 1, 16, 16, 255, 1, 1),
        (3, 1, 16, 16, 256, 1, 1),
        (2, 1, 64, 16, 257, 2, 2),
        (9, 3, 64, 64, 253, 8, 5),
        (4, 2, 16, 16, 508, 8, 8),
        (2, 1, 16, 256, 511, 2, 2),
        (6, 2, 32, 64, 512, 1, 1),
        (2, 1, 16, 16, 224, 32, 32),
        (2, 1, 16, 16, 0, 32, 17),
        (2, 1, 128, 64, 300, 2, 1),
        (8, 1, 128, 64, 380, 4, 4),
        (10, 1, 48, 64, 127, 8, 6),
        (2, 1, 256, 64, 130, 1, 1),
        (2, 1, 160, 64, 130, 2, 2),
        (1, 1, 192, 64, 140, 1, 1),
    ]
    rows = []
    for h, kv, d, s, start, m, valid in shapes:
        params = {"m": m, "h": h, "kv": kv, "d": d, "s": s, "ctx": 768, "pages": 768 // s}
        end = f"{h}/{kv} heads of {d} page {s} at {start} rows {valid} of {m}"
        rows.append(Case(f"rope {end}", "rope_append", params, start, valid))
        rows.append(Case(f"attention {end}", "attention", params, start, valid))
        if h * d % 32 == 0:
            rows.append(Case(f"attend {end}", "attend", params | {"k": h * d}, start, valid))
        if m < 32:
            projection = {"n": (h + 2 * kv) * d, "k": 64, "fmt": "q4", "eps": EPS}
            rows.append(Case(f"qkv rope {end}", "qkv_rope", params | projection, start, valid))
    return rows


def _token_rows() -> list[Case]:
    rows = []
    for k, fmt, m, valid in ((64, "q4", 8, 5), (576, "q8", 8, 8), (1536, "q4", 1, 1), (96, "q8", 32, 9)):
        params = {"m": m, "n": 301, "k": k, "fmt": fmt, "tokens": 600}
        name = f"embed {fmt} k {k} rows {valid} of {m}"
        rows.append(Case(name, "embed", params, 250, valid))
        if m == 8:
            rows.append(Case(name + " edges", "embed", params, 250, valid, edge_tokens))
    for m, valid in ((1, 1), (8, 5), (32, 31)):
        rows.append(Case(f"concat2 {valid} of {m}", "concat2", {"m": m, "parts": "4x64"}, 0, valid))
        rows.append(Case(f"concat3 {valid} of {m}", "concat3", {"m": m, "parts": "64x4x36"}, 0, valid))
    return rows


def _logit_rows() -> list[Case]:
    rows = []
    shapes = [
        # n, padded, width, valid rows, first position
        (301, 320, 8, 5, 0),
        (301, 320, 1, 1, 255),
        (300, 320, 2, 2, 511),
        (2, 32, 4, 4, 3),
        (49152, 49152, 2, 2, 17),
        (262144, 262144, 1, 1, 17),
    ]
    for n, padded, m, valid, start in shapes:
        params = {"m": m, "n": n, "padded": padded, "tokens": 600}
        end = f"{n} rows {valid} of {m}"
        rows.append(Case(f"choose {end}", "choose", params, start, valid))
        rows.append(Case(f"choose {end} fed back", "choose", params, start, valid, feedback))
        rows.append(Case(f"choose {end} fed back later", "choose", params, start, valid, fed_back_later))
        for kind in ("measured", "named", "measured named"):
            op = "choose_" + kind.replace(" ", "_")
            rows.append(Case(f"{kind} {end}", op, params, start, valid))
            rows.append(Case(f"{kind} {end} fed back later", op, params, start, valid, fed_back_later))
        rows.append(Case(f"score {end}", "score", params, start, valid))
    wide = {"m": 8, "n": 301, "padded": 320, "tokens": 600}
    big = wide | {"n": 16301, "padded": 16320}  # the ties of several workgroups
    far = {
        name: _hot(5, *ids) for name, ids in (("a", (4095, 4096)), ("b", (16300, 8191)), ("c", (0, 12288)))
    }
    rows.append(Case("choose far ties", "choose", big, 0, 3, rows_of("logits", **far)))
    rows.append(Case("named far ties", "choose_named", big, 0, 3, rows_of("logits", **far)))
    rows.append(Case("choose ties", "choose", wide, 0, None, rows_of("logits", **TIES)))
    bad = rows_of("logits", **NOT_FINITE_LOGITS)
    rows.append(Case("choose not finite", "choose", wide, 0, None, bad))
    rows.append(Case("measured not finite", "choose_measured", wide, 0, None, bad))
    rows.append(Case("named not finite", "choose_named", wide, 0, None, bad))
    rows.append(Case("measured named not finite", "choose_measured_named", wide, 0, None, bad))
    for kind in ("measured", "measured named"):
        op = "choose_" + kind.replace(" ", "_")
        rows.append(Case(f"{kind} sure and unsure", op, wide, 0, 4, rows_of("logits", **SURE)))
        rows.append(Case(f"{kind} far", op, big, 0, 3, rows_of("logits", **far)))
    ties = {name: edit for name, edit in TIES.items() if name != "far_apart"}
    rows.append(Case("score ties", "score", wide, 0, 7, rows_of("logits", **ties)))
    return rows


def sampled(flags: int, temperature: float = 0.7, seed: int | None = None, bias=None) -> Edit:
    """bias(ids with a logit, by the number of the place) -> their biases; every other id has one that would win."""

    def edit(a: Arrays, p: Params, levels: int) -> None:
        a["ints"][6], a["floats"][0] = flags, 1 / temperature
        if seed is not None:
            a["ints"][:2] = np.array([seed & 0xFFFFFFFF, seed >> 32], np.uint32).view(np.int32)
        if bias is not None:
            ids = a["ids"] if "ids" in a else np.arange(int(p["n"]))
            a["bias"][:] = 1e6
            a["bias"][ids] = bias(np.arange(len(ids)))

    return edit


def both(*edits: Edit) -> Edit:
    def edit(a: Arrays, p: Params, levels: int) -> None:
        for each in edits:
            each(a, p, levels)

    return edit


def _sampled_rows() -> list[Case]:
    """Every flag; hot and cold; ids that are banned, all but one and all; ties without noise; the ends of seeds."""
    rows = []
    shapes = [
        (301, 320, 8, 5, 0),
        (303, 320, 1, 1, 255),
        (2, 32, 4, 4, 3),
        (49152, 49152, 2, 2, 17),
        (16300, 16320, 8, 8, 500),
    ]

    def waves(at):
        return np.where(at % 7 == 3, -3e38, 4 * np.sin(at))

    edits = {
        "noise": sampled(1),
        "noise fed back later": both(sampled(1), fed_back_later),
        "bias alone": sampled(2, 1.0, bias=waves),
        "noise and bias": sampled(3, 1.3, bias=waves),
        "neither": sampled(0, 1.0),
        "cold": sampled(1, 0.01),
        "hot": sampled(1, 100.0, seed=2**64 - 1),
        "seed 0": sampled(1, 2.0, seed=0),
        "all but one banned": sampled(3, 1.0, bias=lambda at: np.where(at == len(at) - 1, -100, -3e38)),
        "all banned": sampled(3, 1.0, bias=lambda at: np.full(len(at), -3e38)),
        "all banned, no noise": sampled(2, 1.0, bias=lambda at: np.full(len(at), -3e38)),
    }
    for n, padded, m, valid, start in shapes:
        for named in ("", "_named"):
            params = {
                "m": m,
                "n": n,
                "padded": padded,
                "tokens": 600,
                "bias": (NAMED_OF if named else 1) * padded,
            }
            for name, edit in edits.items():
                title = f"sampled{named} {n} rows {valid} of {m}, {name}"
                rows.append(Case(title, "choose_sampled" + named, params, start, valid, edit))
    wide = {"m": 8, "n": 301, "padded": 320, "tokens": 600, "bias": 960}
    for op in ("choose_sampled", "choose_sampled_named"):
        ties = both(rows_of("logits", **TIES), sampled(0, 1.0))
        rows.append(Case(f"{op} ties", op, wide, 0, None, ties))
        bad = both(rows_of("logits", **NOT_FINITE_LOGITS), sampled(1))
        rows.append(Case(f"{op} not finite", op, wide, 0, None, bad))
    return rows


def _filter_rows() -> list[Case]:
    """Every setting over a small vocabulary; several of them over large ones, hard logits, and rows that are not finite."""
    rows = []

    def add(name: str, params: dict[str, int | str], start: int, valid: int | None, edit: Edit) -> None:
        rows.append(Case(f"filtered {name}", "filtered", params, start, valid, edit))
        rows.append(Case(f"filter and choose {name}", "choose_filtered", params, start, valid, edit))

    small = {"m": 8, "n": 301, "padded": 320, "tokens": 600}
    for name, edit in SETTINGS.items():
        add(f"301 {name}", small, 9, 5, edit)
    for name in ("everything", "banned", "all penalties, prompt only"):
        add(f"301 at the start, {name}", small, 0, 2, SETTINGS[name])
    shapes: list[tuple[dict[str, int | str], int, int]] = [
        ({"m": 8, "n": 5001, "padded": 5024, "tokens": 600}, 300, 8),
        ({"m": 2, "n": 49152, "padded": 49152, "tokens": 600}, 500, 2),
        ({"m": 1, "n": 262144, "padded": 262144, "tokens": 600}, 77, 1),
    ]
    large = (
        "repetition",
        "banned",
        "stops too early",
        "top 40",
        "top 290",
        "top of more than all",
        "mass .9",
    )
    large = (*large, "mass .97", "mask of few, mass .9", "top 100, mass .8", "everything")
    for params, start, valid in shapes:
        for name in large:
            add(f"{params['n']} {name}", params, start, valid, SETTINGS[name])
    hard = {
        "top 5": settings(top_k=5, temperature=1),
        "top 700": settings(top_k=700, temperature=1),
        "mass .5": settings(top_p=0.5, temperature=1),
        "top 700, mass .7": settings(top_k=700, top_p=0.7, temperature=1),
        "least .3": settings(min_p=0.3, temperature=1),
    }
    for name, edit in hard.items():
        both_of = both(rows_of("logits", **HARD), edit)
        add(f"301 hard, {name}", small, 9, None, both_of)
        add(f"5001 hard, {name}", shapes[0][0], 9, None, both_of)
    dropped = (7, 9, 299)
    for name, kind in {"top 5": {"top_k": 5}, "mass .5": {"top_p": 0.5}, "least .3": {"min_p": 0.3}}.items():
        edit = both(raised(*dropped), settings(stops=dropped, min_len=1000, **kind))
        for params in (small, shapes[0][0]):
            add(f"{params['n']} the best are dropped, {name}", params, 9, None, edit)
    for name in ("nothing", "top 40", "mass .9", "mask of few, mass .9"):
        add(
            f"not finite, {name}",
            small,
            9,
            None,
            both(rows_of("logits", **NOT_FINITE_LOGITS), SETTINGS[name]),
        )
    rows.append(
        Case(
            "filter and choose fed back",
            "choose_filtered",
            small,
            9,
            3,
            both(SETTINGS["everything"], feedback),
        )
    )
    return rows


def _logprob_rows() -> list[Case]:
    rows = []
    for n, padded, m, valid, first in ((301, 320, 8, 5, 3), (5001, 5024, 1, 1, 31), (49152, 49152, 2, 2, 0)):
        params: dict[str, int | str] = {"m": m, "n": n, "padded": padded}
        end = f"{n} rows {valid} of {m}"
        rows.append(Case(f"logprobs {end}", "logprobs", params, 5, valid, first_row(first)))
    small: dict[str, int | str] = {"m": 8, "n": 301, "padded": 320}
    ties = {name: edit for name, edit in TIES.items() if name != "far_apart"}
    rows.append(Case("logprobs ties", "logprobs", small, 0, 7, rows_of("logits", **ties)))
    rows.append(Case("logprobs after feedback", "logprobs", small, 0, 1, both(first_row(4), feedback)))
    few: dict[str, int | str] = {"m": 1, "n": 4, "padded": 32}
    rows.append(Case("logprobs of four ids", "logprobs", few, 0, 1))
    return rows


def first_row(row: int) -> Edit:
    def edit(a: Arrays, p: Params, levels: int) -> None:
        a["args"][3] = row

    return edit


def _accept_rows() -> list[Case]:
    """Every number of rows and of drafts that stand; rows that are no token, where they matter and where they do not."""
    params: dict[str, int | str] = {"n": 301, "tokens": 600}
    rows = [
        Case(
            f"accept {agreed} of {valid - 1} from row {first}",
            "accept",
            params,
            start,
            valid,
            judged(agreed, first),
        )
        for valid in (1, 2, 4, 8)
        for agreed in range(valid)
        for start, first in ((0, 0), (511, OUT_ROWS - valid))
    ]
    hard = {
        "the row that decides is not finite": judged(2, 4, row_finite_2=0),
        "a row before it is not finite": judged(2, 4, row_finite_0=0),
        "a row after it is not finite": judged(1, 4, row_finite_2=0),
        "the last row is not finite": judged(3, 4, row_finite_3=0),
        "an id past the vocabulary": judged(1, 4, row_id_1=301),
        "the last id": judged(1, 4, row_id_1=300),
        "a negative id": judged(0, 4, row_id_0=-1),
        "the least id": judged(0, 4, row_id_0=-(2**31)),
        "the first row past the end agrees": judged(4, 4),
    }
    rows += [Case(f"accept {name}", "accept", params, 7, 4, edit) for name, edit in hard.items()]
    rows.append(Case("accept after a stop", "accept", params, 7, 0, judged(0, 4)))
    return rows


def bad_rows(argument: str, *numbers: int) -> Edit:
    """Those rows, of MAX_ROWS, have one id that is not finite."""

    def edit(a: Arrays, p: Params, levels: int) -> None:
        for row in numbers:
            a[argument].reshape(MAX_ROWS, -1)[row, 5] = np.inf

    return edit


def flags_down(*numbers: int) -> Edit:
    def edit(a: Arrays, p: Params, levels: int) -> None:
        a["out"].reshape(OUT_ROWS, 2)[[int(a["args"][3]) + row for row in numbers], 1] = 0

    return edit


def same_rows(a: Arrays, p: Params, levels: int) -> None:
    """q is p: all is accepted."""
    z = a["logits"].reshape(MAX_ROWS, -1)[:, : int(p["vocab"])]
    a["q"].reshape(MAX_ROWS, -1)[:, : int(p["vocab"])] = z * np.float32(a["floats"][0])


def far_rows(a: Arrays, p: Params, levels: int) -> None:
    """The draft is sure of what the target bans: nothing is accepted."""
    a["ints"][6] |= 2
    a["bias"][:] = 0
    a["q"].reshape(MAX_ROWS, -1)[:, : int(p["vocab"])] = -3.4e38
    for row in range(MAX_ROWS - 1):
        drafted = a["tokens"][int(a["args"][0]) + 1 + row] = 7 + row
        a["q"].reshape(MAX_ROWS, -1)[row, drafted], a["bias"][drafted] = 3, -3e38


def impossible_draft(a: Arrays, p: Params, levels: int) -> None:
    """q is p, and the second draft is banned in both: what is left of p is empty."""
    a["ints"][6] |= 2
    a["bias"][:] = 0
    a["bias"][a["tokens"][int(a["args"][0]) + 2]] = -3e38
    same_rows(a, p, levels)
    a["q"].reshape(MAX_ROWS, -1)[:, a["tokens"][int(a["args"][0]) + 2]] = -3.4e38


def seeded(seed: int, flags: int = 1, first: int = 0) -> Edit:
    def edit(a: Arrays, p: Params, levels: int) -> None:
        a["ints"][:2], a["ints"][6], a["args"][3] = (seed, 0), flags, first

    return edit


def _judge_rows() -> list[Case]:
    """Both rules over many seeds, so that each number of drafts stands in some; rows of no use; every round of a submit."""
    small: dict[str, int | str] = {"columns": 320, "vocab": 301, "tokens": 600}
    rows = []
    for rule, flags in (("reject", 1), ("block", 33)):
        for seed in range(12):
            name = f"judge {rule} seed {seed}"
            rows.append(Case(name, "judge", small, 17, 1 + seed % 8, seeded(seed, flags, 1 + seed % 8)))
        for seed in range(6):
            rows.append(
                Case(f"judge {rule} wide seed {seed}", "judge", small, 255, 8, seeded(99 + seed, flags, 24))
            )
        hard = {
            "q is p": same_rows,
            "q is p, the bonus row not finite": both(same_rows, flags_down(3)),
            "nothing stands": far_rows,
            "an empty residual": impossible_draft,
            "a draft that is not finite": both(same_rows, bad_rows("q", 1)),
            "a row that is not finite": both(same_rows, bad_rows("logits", 2)),
            "the first row is not finite": bad_rows("logits", 0),
            "a row without a flag": both(same_rows, flags_down(1)),
        }
        for name, edit in hard.items():
            rows.append(Case(f"judge {rule} {name}", "judge", small, 40, 4, both(seeded(5, flags), edit)))
        rows.append(Case(f"judge {rule} after a stop", "judge", small, 40, 0, seeded(5, flags)))
        big: dict[str, int | str] = {"columns": 49152, "vocab": 49152, "tokens": 600}
        rows.append(Case(f"judge {rule} 49152", "judge", big, 40, 4, seeded(6, flags)))
    return rows


def _draw_rows() -> list[Case]:
    rows = []
    for n, padded, vocab, columns in ((301, 320, 301, 320), (3, 32, 3, 32), (49152, 49152, 49152, 49152)):
        for m, valid, edit in ((1, 1, feedback), (2, 2, fed_back_later), (2, 1, sampled(1))):
            params: dict[str, int | str] = {"m": m, "n": n, "padded": padded, "tokens": 600}
            params |= {"columns": columns, "vocab": vocab}
            rows.append(Case(f"draw {n} rows {valid} of {m}", "draw", params, 30, valid, edit))
            named = params | {"columns": 3 * columns, "vocab": 3 * vocab - 1}
            rows.append(Case(f"draw named {n} rows {valid} of {m}", "draw_named", named, 30, valid, edit))
    for op in ("draw", "draw_named"):
        small = {
            "m": 2,
            "n": 301,
            "padded": 320,
            "tokens": 600,
            "columns": 960,
            "vocab": 901 if "named" in op else 301,
        }
        waves = sampled(3, 1.3, bias=lambda at: np.where(at % 7 == 3, -3e38, 4 * np.sin(at)))
        rows.append(Case(f"{op} biased", op, small, 30, 2, waves))
        bad = rows_of("logits", fine=scaled(1), nan=put(5, np.nan))
        rows.append(Case(f"{op} not finite", op, small, 30, 2, bad))
        rows.append(Case(f"{op} after a stop", op, small, 30, 0))
    return rows


def _follow_rows() -> list[Case]:
    params: dict[str, int | str] = {"n": 301, "tokens": 600}

    def verdict(row: int, *values: int) -> Edit:
        def edit(a: Arrays, p: Params, levels: int) -> None:
            a["args"][3] = row * int(a["args"][1])
            a["verdict"].reshape(-1, VERDICT_FIELDS)[row] = values

        return edit

    edits = {
        "none": verdict(0, 0, 7, 1, 0),
        "all, the last round": verdict(7, 3, 300, 3, 0),
        "undecided": verdict(1, 2, 7, 0, 0),
        "an id past the vocabulary": verdict(1, 2, 301, 1, 0),
        "a negative id": verdict(1, 2, -1, 1, 0),
    }
    rows = [Case(f"follow {name}", "follow", params, 17, 4, edit) for name, edit in edits.items()]
    return [*rows, Case("follow after a stop", "follow", params, 17, 0)]


CASES = [
    *_token_rows(),
    *_shard_rows(),
    *_quantize_rows(),
    *_linear_rows(),
    *_cache_rows(),
    *_logit_rows(),
    *_sampled_rows(),
    *_filter_rows(),
    *_logprob_rows(),
    *_accept_rows(),
    *_judge_rows(),
    *_draw_rows(),
    *_follow_rows(),
]
