"""NumPy twin of filter.py, logprobs.py and pick.py: sorts, cumulative sums and loops over ids. Knows no thresholds' search.

A dropped id is -inf here; a row with a logit that is not finite, or in which nothing survives, is NaN throughout.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
from specdec_runtime.decode.rng import NOISE
from specdec_runtime.plan.schema import BANNED_FIELDS, MAX_BANNED, OUT_ROWS, TOP_FIELDS

from .base import Params
from .noise_twin import gumbel

Arrays = Mapping[str, np.ndarray]
LARGEST, LEAST = 1e37, -1e30


def _raw(p: Params, a: Arrays, row: int) -> np.ndarray:
    return a["logits"].astype(np.float64).reshape(int(p["m"]), -1)[row, : int(p["n"])]


def _penalized(z: np.ndarray, a: Arrays, prefix: np.ndarray) -> np.ndarray:
    prompt_len, (r, frequency, presence) = int(a["ints"][3]), a["floats"][3:6].astype(np.float64)
    prefix = np.clip(prefix, 0, len(z) - 1)
    for token in {int(token) for token in prefix}:
        z[token] = z[token] / r if z[token] > 0 else z[token] * r
    for token, count in Counter(int(token) for token in prefix[prompt_len:]).items():
        z[token] -= frequency * count + presence
    return z


def _banned(a: Arrays, prefix: np.ndarray) -> list[int]:
    """Ids that banned sequences and min_len forbid after this prefix."""
    ints, ids = a["ints"], []
    if ints[6] & 16:
        for size, *sequence in a["banned"].reshape(MAX_BANNED, BANNED_FIELDS)[: ints[7]].tolist():
            *before, last = sequence[:size]
            if len(before) <= len(prefix) and prefix[len(prefix) - len(before) :].tolist() == before:
                ids.append(last)
    return ids + (ints[16 : 16 + ints[5]].tolist() if len(prefix) < ints[4] else [])


def _processed(p: Params, a: Arrays, row: int) -> np.ndarray:
    """Everything up to the temperature."""
    z, flags = _raw(p, a, row).copy(), int(a["ints"][6])
    prefix = a["tokens"][: int(a["args"][0]) + row + 1]
    if flags & 8:
        z = _penalized(z, a, prefix)
    if flags & 2:
        z = z + a["bias"][: len(z)]
    if flags & 4:
        words = a["mask"].reshape(OUT_ROWS, -1)[int(a["args"][3]) + row]
        bits = np.unpackbits(words.view(np.uint8), bitorder="little")[: len(z)]
        z[bits == 0] = -np.inf
    z[_banned(a, prefix)] = -np.inf
    z[z <= LEAST] = -np.inf
    bounded = np.clip(z * float(a["floats"][0]), -LARGEST, LARGEST)
    return np.where(np.isfinite(z), bounded, -np.inf)


def _truncated(z: np.ndarray, a: Arrays) -> np.ndarray:
    """Top-k, top-p and min-p, by sorting."""
    top_k, (top_p, min_p) = int(a["ints"][2]), a["floats"][1:3].astype(np.float64)
    if not a["ints"][6] & 1:
        return z
    if 0 < top_k < len(z):
        z = np.where(z >= np.sort(z)[-top_k], z, -np.inf)
    if top_p < 1:
        shares = np.rint(np.exp(z - z.max()) * 2**26)
        order = np.argsort(-z, kind="stable")
        reached = np.cumsum(shares[order]) >= top_p * shares.sum()
        z = np.where(z >= z[order[np.argmax(reached)]], z, -np.inf)
    if min_p > 0:
        z = np.where(z >= z.max() + np.log(min_p), z, -np.inf)
    return z


def filtered(p: Params, a: Arrays, levels: int) -> dict[str, np.ndarray]:
    """kept [rows, padded]."""
    rows = int(a["args"][1])
    kept = np.full((rows, int(p["padded"])), -np.inf)
    for row in range(rows):
        z = _processed(p, a, row)
        if not np.isfinite(_raw(p, a, row)).all() or not np.isfinite(z).any():
            kept[row] = np.nan
            continue
        kept[row, : len(z)] = _truncated(z, a)
    return {"kept": kept}


def picked(p: Params, a: Arrays, levels: int) -> np.ndarray:
    """`out` [OUT_ROWS, 2]; (-1, 0) where a row is NaN: any id."""
    out, first = a["out"].reshape(OUT_ROWS, 2).astype(np.int64), int(a["args"][3])
    ids = np.arange(int(p["n"]))
    for row, kept in enumerate(filtered(p, a, levels)["kept"]):
        if np.isnan(kept).any():
            out[first + row] = -1, 0
            continue
        noise = gumbel(a["ints"], int(a["args"][0]) + row + 1, ids, NOISE) if a["ints"][6] & 1 else 0
        out[first + row] = np.argmax(kept[: len(ids)] + noise), 1
    return out


def logprobs(p: Params, a: Arrays, levels: int) -> dict[str, np.ndarray]:
    """After a pass that feeds back, of the one row before."""
    top, back = a["top"].astype(np.float64).reshape(OUT_ROWS, TOP_FIELDS), int(a["args"][2] == 1)
    for row in range(int(a["args"][1])):
        logits, at = _raw(p, a, row), int(a["args"][3]) + row - back
        logprob = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
        order = np.argsort(-logits, kind="stable")[:5]
        given = np.clip(a["out"].reshape(OUT_ROWS, 2)[at, 0], 0, len(logits) - 1)
        pairs = np.full((5, 2), (-1, -3.4e38))
        pairs[: len(order)] = np.stack([order, logprob[order]], axis=1)
        top[at] = [logprob[given], 0, *pairs.ravel()]
    return {"top": top}
