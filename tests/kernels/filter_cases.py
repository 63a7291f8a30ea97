"""What the processors of logits are tried with: settings, hard logits, hard prefixes (cases.py, invariance.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from specdec_compiler.kernels import Params
from specdec_runtime.plan.schema import BANNED_FIELDS, MAX_BANNED, OUT_ROWS

from .forms import Arrays

Edit = Callable[[Arrays, Params, int], None]
INTS = {"top_k": 2, "min_len": 4}
FLOATS = {"top_p": 1, "min_p": 2, "repetition": 3, "frequency": 4, "presence": 5}


def settings(
    noise: bool = True,
    temperature: float = 0.7,
    prompt_len: int | None = None,
    bias: Callable[[np.ndarray], np.ndarray] | None = None,
    mask: Callable[[np.ndarray, int], np.ndarray] | None = None,
    banned: Callable[[list[int]], Sequence[Sequence[int]]] | None = None,
    stops: Sequence[int] = (),
    **numbers: float,
) -> Edit:
    """numbers: of INTS and FLOATS. bias(ids); mask(ids, row of out) -> allowed; banned(prefix of the first row) -> sequences."""

    def edit(a: Arrays, p: Params, levels: int) -> None:
        ids, flags = np.arange(int(p["n"])), int(noise)
        a["floats"][0] = 1 / temperature
        for name, value in numbers.items():
            array, at = (a["ints"], INTS[name]) if name in INTS else (a["floats"], FLOATS[name])
            array[at] = value
        if prompt_len is not None:
            flags |= 8
            a["ints"][3] = prompt_len
            for name, value in {"repetition": 1, "frequency": 0, "presence": 0}.items():
                a["floats"][FLOATS[name]] = numbers.get(name, value)
        if bias:
            flags |= 2
            a["bias"][:], a["bias"][: len(ids)] = 1e6, bias(ids)
        if mask:
            flags |= 4
            rows = np.ones((OUT_ROWS, a["mask"].size // OUT_ROWS * 32), np.uint8)
            for row in range(OUT_ROWS):
                rows[row, : len(ids)] = mask(ids, row)
            a["mask"][:] = np.packbits(rows, bitorder="little").view(np.uint32)
        if banned:
            flags |= 16
            found = list(banned(a["tokens"][: int(a["args"][0]) + 1].tolist()))
            rows = a["banned"].reshape(MAX_BANNED, BANNED_FIELDS)
            for row, sequence in zip(rows, found, strict=False):
                row[: len(sequence) + 1] = len(sequence), *sequence
            a["ints"][7] = len(found)
        a["ints"][5], a["ints"][6] = len(stops), flags
        a["ints"][16 : 16 + len(stops)] = stops

    return edit


def endings(prefix: list[int]) -> list[list[int]]:
    """Sequences that end the prefix, of every length, each with an id behind; and some that nearly do."""
    found = [[*prefix[len(prefix) - size :], 10 + size] for size in range(1, 7) if size <= len(prefix)]
    wrong = [[(prefix[-1] + 1) % 20, 30], [*prefix[-2:-1], 31]]
    return [*found, *(sequence for sequence in wrong if len(sequence) > 1)]


def waves(at: np.ndarray) -> np.ndarray:
    return np.where(at % 7 == 3, -3e38, 4 * np.sin(at))


def one_in(count: int) -> Callable[[np.ndarray, int], np.ndarray]:
    """Of each `count` ids one is allowed; another one in the next row."""
    return lambda ids, row: (ids + row) % count == 0


def raised(*ids: int) -> Edit:
    """These are by far the likeliest, in every row."""

    def edit(a: Arrays, p: Params, levels: int) -> None:
        a["logits"].reshape(int(p["m"]), -1)[:, list(ids)] = 50

    return edit


EVERYTHING = settings(
    prompt_len=4,
    repetition=1.3,
    frequency=0.4,
    presence=0.2,
    bias=waves,
    mask=one_in(2),
    banned=endings,
    stops=(7, 9),
    min_len=1000,
    top_k=40,
    top_p=0.9,
    min_p=0.02,
)
SETTINGS: Mapping[str, Edit] = {
    "nothing": settings(),
    "greedy": settings(noise=False, temperature=1),
    "repetition": settings(prompt_len=2, repetition=1.3),
    "repetition below 1": settings(prompt_len=0, repetition=0.7, noise=False),
    "frequency": settings(prompt_len=3, frequency=0.3),
    "presence of an answer": settings(prompt_len=3, presence=0.9, frequency=-0.2),
    "all penalties, prompt only": settings(prompt_len=599, presence=0.9, frequency=0.4, repetition=1.2),
    "bias": settings(bias=waves),
    "all banned by bias": settings(bias=lambda ids: np.full(len(ids), -3e38)),
    "mask": settings(mask=one_in(3)),
    "mask of one": settings(mask=lambda ids, row: ids == row + 1, temperature=0.5),
    "mask of none": settings(mask=lambda ids, row: np.zeros(len(ids)), noise=False),
    "banned": settings(banned=endings),
    "banned, greedy": settings(banned=endings, noise=False),
    "stops too early": settings(stops=(0, 1, 2, 300), min_len=1000),
    "stops in time": settings(stops=(0, 1), min_len=2),
    "top 1": settings(top_k=1, temperature=3),
    "top 40": settings(top_k=40),
    "top 290": settings(top_k=290),
    "top of more than all": settings(top_k=10**6),
    "top 40 but greedy": settings(top_k=40, noise=False),
    "mass .9": settings(top_p=0.9),
    "mass .1": settings(top_p=0.1),
    "mass 1e-9": settings(top_p=1e-9),
    "mass .97": settings(top_p=0.97, temperature=2),
    "least .05": settings(min_p=0.05),
    "least 1": settings(min_p=1.0),
    "top 100, mass .8": settings(top_k=100, top_p=0.8),
    "top 20, mass .95, least .1": settings(top_k=20, top_p=0.95, min_p=0.1, temperature=1.5),
    "mask of few, mass .9": settings(mask=one_in(50), top_p=0.9),
    "mask of few, top 40": settings(mask=one_in(20), top_k=40),
    "frozen": settings(temperature=1e-30, top_k=5, top_p=0.9),
    "everything": EVERYTHING,
}


def flat(row: np.ndarray) -> None:
    """All nearly equal: the candidates do not suffice."""
    row *= np.float32(0.01)


def steps_of(size: float) -> Callable[[np.ndarray], None]:
    """Many ties everywhere; -0.0 and 0.0 among them."""

    def change(row: np.ndarray) -> None:
        finite = np.abs(row) < 1e20
        row[finite] = np.round(row[finite] / np.float32(size)) * np.float32(size)

    return change


def equal(row: np.ndarray) -> None:
    row[:] = 2.5


def around_zero(row: np.ndarray) -> None:
    """The threshold is at zero, of both signs."""
    row[:] = -5 - np.abs(row)
    row[10:30], row[10:30:2], row[40:45] = 0.0, -0.0, 1.0


HARD = {
    "flat": flat,
    "ties": steps_of(0.5),
    "coarse": steps_of(4.0),
    "equal": equal,
    "zero": around_zero,
    "far": lambda row: np.multiply(row, 1e8, out=row, where=np.abs(row) < 1e20),
    "small": lambda row: np.multiply(row, 1e-6, out=row, where=np.abs(row) < 1e20),
    "plain": lambda row: None,
}
