"""NumPy twins of draw.py, judge.py and follow: decode/rules.py over float64 rows, with the noise of noise_twin.py."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from specdec_runtime.decode import rules
from specdec_runtime.decode.rng import ACCEPT, DRAFT, RESIDUAL, cycle_position
from specdec_runtime.plan.schema import MAX_ROWS, OUT_ROWS, VERDICT_FIELDS, VERDICT_ROWS

from .base import Params
from .noise_twin import gumbel, random_bits

Arrays = Mapping[str, np.ndarray]
LOWEST = float(np.float32(-3.4e38))


def _weighed(a: Arrays, logits: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """In float32, rounded where the kernel rounds: where q is p, the residual must be empty here too."""
    raw = logits.astype(np.float32)
    if a["ints"][6] & 2:
        raw = raw + a["bias"][ids]
    with np.errstate(over="ignore"):
        z = np.where(raw < -1e30, np.float32(LOWEST), raw * a["floats"][0])
    return np.where(np.isfinite(logits), z, logits).astype(np.float64)


def _slot(a: Arrays) -> int:
    return int(np.clip(a["args"][0] + a["args"][1] - a["target_args"][0] - 1, 0, MAX_ROWS - 2))


def _argmax(weights: np.ndarray, a: Arrays, position: int, stream: int) -> int:
    """Of log weight + noise."""
    with np.errstate(divide="ignore"):
        return int(np.argmax(np.log(weights) + gumbel(a["ints"], position, np.arange(len(weights)), stream)))


def _shares(z: np.ndarray) -> np.ndarray:
    """exp(z - largest), 0 of what is banned."""
    return np.where(z > -1e30, np.exp(np.maximum(z - z.max(), -700)), 0)


def draw(p: Params, a: Arrays, levels: int) -> dict[str, np.ndarray]:
    columns, vocab = int(p["columns"]), int(p["vocab"])
    args, tokens, out = (a[name].astype(np.int64) for name in ("args", "tokens", "out"))
    out, q = out.reshape(OUT_ROWS, 2), a["q"].astype(np.float64).reshape(MAX_ROWS, columns)
    start, rows, feedback, first = (int(x) for x in args)
    if rows:
        ids = a["ids"] if "ids" in a else np.arange(vocab)
        logits = a["logits"].astype(np.float64).reshape(int(p["m"]), -1)[rows - 1, : len(ids)]
        row = np.full(vocab, LOWEST)
        row[ids] = _weighed(a, logits, ids)
        q[_slot(a), :vocab] = row
        good = np.isfinite(logits).all() and row.max() > -1e30
        position = cycle_position(start + rows, _slot(a))
        out[first + rows - 1] = (_argmax(_shares(row), a, position, DRAFT), 1) if good else (0, 0)
        if feedback:
            tokens[start + rows] = out[first + rows - 1, 0]
            args[:] = start + rows, 1, 1, first + rows
    return {"q": q, "out": out, "args": args, "tokens": tokens, "done": np.array([1])}


def judge(p: Params, a: Arrays, levels: int) -> dict[str, np.ndarray]:
    """The verdict, and the ids in `out` of what is committed by it."""
    start, rows, _, first = (int(x) for x in a["args"])
    verdict, out = _verdict(p, a), a["out"].astype(np.int64).reshape(OUT_ROWS, 2)
    if rows:
        count, token_id, flags, _ = verdict[first // rows]
        out[first : first + count, 0] = a["tokens"][start + 1 : start + 1 + count]
        if flags:
            out[first + count, 0] = token_id
    return {"verdict": verdict, "out": out, "done": np.array([1])}


def _verdict(p: Params, a: Arrays) -> np.ndarray:
    columns, vocab = int(p["columns"]), int(p["vocab"])
    start, rows, _, first = (int(x) for x in a["args"])
    verdict = a["verdict"].astype(np.int64).reshape(VERDICT_ROWS, VERDICT_FIELDS)
    if not rows:
        return verdict
    every = np.arange(vocab)
    logits = a["logits"].astype(np.float64).reshape(MAX_ROWS, columns)[:rows, :vocab]
    z, q = (
        [_weighed(a, row, every) for row in logits],
        a["q"].astype(np.float64).reshape(MAX_ROWS, columns)[:, :vocab],
    )
    out = a["out"].reshape(OUT_ROWS, 2)[first : first + rows]
    fine = [bool(out[i, 1] == 1 and np.isfinite(z[i]).all() and z[i].max() > -1e30) for i in range(rows)]
    judged = 0
    while judged < rows - 1 and fine[judged] and np.isfinite(q[judged]).all() and q[judged].max() > -1e30:
        judged += 1
    known = judged + fine[judged]  # rows of the target that are of use
    drafted = [int(x) for x in a["tokens"][start + 1 : start + 1 + judged]]
    p_rows = [_shares(row) / _shares(row).sum() for row in z[:known]]
    q_rows = [_shares(row) / _shares(row).sum() for row in q[:judged]]
    mode = rules.BLOCK if a["ints"][6] & 32 else rules.REJECT
    counting = (rules.block_bounds, rules.block_count), (rules.reject_bounds, rules.reject_count)
    bounds, count_of = counting[mode == rules.REJECT]
    count = count_of(bounds(p_rows, q_rows, drafted), [_uniform(a, start + 1 + i, i) for i in range(judged)])
    to = first // rows
    if count == known:
        verdict[to] = count, 0, 0, 0
        return verdict
    following = rules.draw_after(mode, p_rows, q_rows, drafted, count)
    position = cycle_position(start + 1 + count, count)
    token_id = _argmax(np.array(following.weights, np.float64), a, position, RESIDUAL)
    verdict[to] = count, token_id, 1 + 2 * following.fell_back, 0
    return verdict


def _uniform(a: Arrays, position: int, offset: int) -> float:
    bits = random_bits(a["ints"], cycle_position(position, offset), np.zeros(1, np.int64), ACCEPT)
    return min(float((bits[0] + 0.5) * 2.0**-32), 1 - 2.0**-24)


def follow(p: Params, a: Arrays, levels: int) -> dict[str, np.ndarray]:
    args, draft_args, tokens = (a[name].astype(np.int64) for name in ("args", "draft_args", "tokens"))
    start, rows, _, first = (int(x) for x in args)
    if rows:
        count, said, flags, _ = (
            int(x) for x in a["verdict"].reshape(VERDICT_ROWS, VERDICT_FIELDS)[first // rows]
        )
        if flags & 1 and 0 <= said < int(p["n"]):
            tokens[start + count + 1] = said
            args[0], args[3] = start + count + 1, first + rows
            draft_args[:3] = start + count, 2, 1
        else:
            args[1], draft_args[1:3] = 0, 0
    return {"args": args, "tokens": tokens, "draft_args": draft_args, "done": np.array([1])}
