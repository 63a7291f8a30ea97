"""How a scripted model's ids are sampled: the rule of the kernels (docs/sampling.md), read from the tensors sampling.* alone.

Knows neither requests nor programs' names: what the decode core did not write cannot act here. Randomness is decode/rng.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import exp, inf, log
from typing import Any

from specdec_runtime.decode.pipeline import Processors, process
from specdec_runtime.decode.rng import RESIDUAL, cycle_position, gumbel, uniform
from specdec_runtime.decode.rules import (
    BLOCK,
    REJECT,
    block_bounds,
    block_count,
    draw_after,
    reject_bounds,
    reject_count,
)
from specdec_runtime.decode.verify import DECIDED, FELL_BACK
from specdec_runtime.plan.sampling_layout import (
    BANNED,
    BIAS,
    BLOCK_RULE,
    FIRST_STOP,
    FLAGS,
    FREQUENCY,
    INVERSE_T,
    LEAST,
    MASK,
    MIN_LEN,
    MIN_P,
    NOISE,
    NUM_BANNED,
    NUM_STOPS,
    PENALTIES,
    PRESENCE,
    PROMPT_LEN,
    REPETITION,
    SEED_HIGH,
    SEED_LOW,
    TOP_K,
    TOP_P,
)
from specdec_runtime.plan.schema import BANNED_FIELDS, OUT_ROWS

NextId = Callable[[tuple[int, ...]], int]
WORD = 0xFFFFFFFF


def logits_of(next_id: NextId, prefix: tuple[int, ...], vocab: int) -> list[float]:
    """The logits of a model of a table: a fixed random function of the prefix, the same for all models but for its own first choice."""
    logits = [hash((*prefix, token_id)) % 1000 / 250.0 for token_id in range(vocab)]
    logits[next_id(prefix)] += 4.0
    return logits


def sampled_id(logits: list[float], position: int, tensors: dict[str, list[Any]]) -> int | None:
    """The largest of (logit + bias) / T + noise, the lowest id of equals; None where every id is banned."""
    ints, floats, bias = (tensors[f"sampling.{name}"] for name in ("ints", "floats", "bias"))
    flags, seed = ints[FLAGS], seed_of(tensors)
    best, best_id = LEAST, None
    for token_id, logit in enumerate(logits):
        raw = logit + (bias[token_id] if flags & BIAS else 0.0)
        if raw < LEAST:
            continue
        value = raw * floats[INVERSE_T] + (gumbel(seed, position, token_id) if flags & NOISE else 0.0)
        if best_id is None or value > best:
            best, best_id = value, token_id
    return best_id


def filtered_id(
    logits: list[float], history: Sequence[int], out_row: int, tensors: dict[str, list[Any]]
) -> int | None:
    """The same after every processor; what `history` holds is what the device's `tokens` hold."""
    z = process(logits, history, processors_of(tensors, out_row))
    if z is None:
        return None
    if tensors["sampling.ints"][FLAGS] & NOISE:
        seed = seed_of(tensors)
        z = [value + gumbel(seed, len(history), token_id) for token_id, value in enumerate(z)]
    return z.index(max(z))


def processors_of(tensors: dict[str, list[Any]], out_row: int) -> Processors:
    """What the tensors say of the row that goes to `out_row`; of what no flag names, nothing."""
    ints, floats = tensors["sampling.ints"], tensors["sampling.floats"]
    flags, mask = ints[FLAGS], tensors["sampling.mask"]
    penalties = (
        [floats[i] for i in (REPETITION, FREQUENCY, PRESENCE)] if flags & PENALTIES else (1.0, 0.0, 0.0)
    )
    words = len(mask) // OUT_ROWS
    banned = [
        tensors["sampling.banned"][i * BANNED_FIELDS :]
        for i in range(ints[NUM_BANNED] if flags & BANNED else 0)
    ]
    return Processors(
        noise=bool(flags & NOISE),
        inverse_t=floats[INVERSE_T],
        prompt_len=ints[PROMPT_LEN],
        repetition=penalties[0],
        frequency=penalties[1],
        presence=penalties[2],
        bias=tensors["sampling.bias"] if flags & BIAS else None,
        mask=(lambda v: bool(mask[out_row * words + v // 32] >> v % 32 & 1)) if flags & MASK else None,
        banned=[row[1 : 1 + row[0]] for row in banned],
        stops=ints[FIRST_STOP : FIRST_STOP + ints[NUM_STOPS]] if ints[NUM_STOPS] else (),
        min_len=ints[MIN_LEN],
        top_k=ints[TOP_K],
        top_p=floats[TOP_P],
        min_p=floats[MIN_P],
    )


def filtered_shares(
    logits: list[float], history: Sequence[int], out_row: int, tensors: dict[str, list[Any]]
) -> list[float] | None:
    """The distribution that filtered_id draws from."""
    z = process(logits, history, processors_of(tensors, out_row))
    if z is None:
        return None
    top = max(z)
    return _normalised([exp(value - top) for value in z])


# --- the draws and the judge of `reject` and `block` ------------------------------------------------------------------------


def seed_of(tensors: dict[str, list[Any]]) -> int:
    ints = tensors["sampling.ints"]
    return (ints[SEED_HIGH] & WORD) << 32 | ints[SEED_LOW] & WORD


def shares_of(logits: list[float], tensors: dict[str, list[Any]]) -> list[float] | None:
    """softmax((logit + bias) / T); None where every id is banned."""
    flags, scale = tensors["sampling.ints"][FLAGS], tensors["sampling.floats"][INVERSE_T]
    raw = [z + (tensors["sampling.bias"][v] if flags & BIAS else 0.0) for v, z in enumerate(logits)]
    top = max(raw)
    if top < LEAST:
        return None
    return _normalised([exp((z - top) * scale) if z >= LEAST else 0.0 for z in raw])


def _normalised(parts: list[float]) -> list[float]:
    total = sum(parts)
    return [part / total for part in parts]


def draw(weights: list[float], seed: int, position: int, offset: int, stream: int) -> int:
    """The largest of log weight + noise; `offset` from the first undecided token of its cycle."""
    place = cycle_position(position, offset)
    values = [log(w) + gumbel(seed, place, v, stream) if w > 0 else -inf for v, w in enumerate(weights)]
    return values.index(max(values))


def judged(
    tensors: dict[str, list[Any]], start: int, p: list[list[float] | None], q: list[list[float] | None]
) -> list[int]:
    """A row of target.verdict: p of the rows from position `start` on, q of the drafts between them; None is of no use."""
    seed, mode = seed_of(tensors), BLOCK if tensors["sampling.ints"][FLAGS] & BLOCK_RULE else REJECT
    num = next((i for i, rows in enumerate(zip(p, q, strict=False)) if None in rows), len(q))
    known = [row for row in p[: num + 1] if row is not None]
    drawn = [row for row in q[:num] if row is not None]
    drafted = tensors["tokens"][start + 1 : start + 1 + num]
    uniforms = [uniform(seed, cycle_position(start + 1 + i, i)) for i in range(num)]
    bounds = (block_bounds if mode == BLOCK else reject_bounds)(known, drawn, drafted)
    count = (block_count if mode == BLOCK else reject_count)(bounds, uniforms)
    if count == len(known):
        return [count, 0, 0, 0]
    following = draw_after(mode, known, drawn, drafted, count)
    token_id = draw(following.weights, seed, start + 1 + count, count, RESIDUAL)
    return [count, token_id, DECIDED + FELL_BACK * following.fell_back, 0]
