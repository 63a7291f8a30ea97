"""How a scripted model's ids are sampled: the rule of the kernels (docs/sampling.md), read from the tensors sampling.* alone.

Knows neither requests nor programs' names: what the decode core did not write cannot act here. Randomness is decode/rng.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from specdec_runtime.decode.rng import gumbel
from specdec_runtime.decode.sampling_state import BIAS, FLAGS, NOISE

NextId = Callable[[tuple[int, ...]], int]
WORD = 0xFFFFFFFF
BANNED = -1e30  # logits below: no chance


def logits_of(next_id: NextId, prefix: tuple[int, ...], vocab: int) -> list[float]:
    """The logits of a model of a table: a fixed random function of the prefix, the same for all models but for its own first choice."""
    logits = [hash((*prefix, token_id)) % 1000 / 250.0 for token_id in range(vocab)]
    logits[next_id(prefix)] += 4.0
    return logits


def sampled_id(logits: list[float], position: int, tensors: dict[str, list[Any]]) -> int | None:
    """The largest of (logit + bias) / T + noise, the lowest id of equals; None where every id is banned."""
    ints, floats, bias = (tensors[f"sampling.{name}"] for name in ("ints", "floats", "bias"))
    flags, seed = ints[FLAGS], (ints[1] & WORD) << 32 | ints[0] & WORD
    best, best_id = BANNED, None
    for token_id, logit in enumerate(logits):
        raw = logit + (bias[token_id] if flags & BIAS else 0.0)
        if raw < BANNED:
            continue
        value = raw * floats[0] + (gumbel(seed, position, token_id) if flags & NOISE else 0.0)
        if best_id is None or value > best:
            best, best_id = value, token_id
    return best_id
