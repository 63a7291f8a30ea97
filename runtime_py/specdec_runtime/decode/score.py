"""Teacher forcing: what the target thinks of given ids, each after all before it.

A second generator of the kind of round.py: same effects, same KV rules, no drafter and nothing committed.
Invariant: every pass has the asked number of rows (the last one fewer) and is the verify program of that
width, so a result that depends on the width shows a kernel that is not row-invariant; where the device is
known for one, its policy (programs.py) chooses instead.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

from specdec_runtime.decode.cache import ModelCache
from specdec_runtime.decode.effects import (
    Cancelled,
    Effects,
    Finish,
    Progress,
    Readback,
    Submit,
    check_readback,
)
from specdec_runtime.decode.prefill import prefill_chunk
from specdec_runtime.decode.programs import ANY, Programs
from specdec_runtime.decode.request import check_score
from specdec_runtime.decode.sequence import Sequence as TokenSequence
from specdec_runtime.decode.session import Memory
from specdec_runtime.faults import DeviceFault
from specdec_runtime.plan.schema import Plan


def score(
    plan: Plan,
    prompt_ids: Sequence[int],
    score_ids: Sequence[int],
    width: int = 1,
    programs: Programs = ANY,
    memory: Memory | None = None,
) -> Effects:
    """Score score_ids after prompt_ids, `width` rows a pass; a bad request is refused here. memory: as in `decode`."""
    check_score(plan, prompt_ids, score_ids, width)
    model = plan.target_model
    num_rows = min(width, programs.max_rows(model))
    rows = _Rows(num_rows, programs.width(model, num_rows))
    memory = memory or Memory(plan, programs)
    return memory.serve(
        None,
        [*prompt_ids, *score_ids],
        lambda lease: _score(lease.sequence, lease.target, len(prompt_ids), rows),
    )


class _Rows(NamedTuple):
    """Rows of every pass, and the width of the programs that compute them."""

    num_rows: int
    width: int


def _score(sequence: TokenSequence, cache: ModelCache, num_prompt: int, rows: _Rows) -> Effects:
    total = len(sequence) - 1  # the last id is scored, never fed
    positions: list[dict[str, Any]] = []
    result: dict[str, Any] = {"positions": positions}
    try:
        while cache.cached_len < num_prompt - 1:
            yield from prefill_chunk(sequence, cache, num_prompt - 1, "prefill")
            yield Progress(cache.cached_len, total)
        while cache.cached_len < total:
            positions += yield from _pass(sequence, cache, rows)
            yield Progress(cache.cached_len, total)
    except Cancelled:
        result["finish_reason"] = "cancelled"
    yield Finish(result)


def _pass(
    sequence: TokenSequence, cache: ModelCache, rows: _Rows
) -> Generator[Submit, Readback, list[dict[str, Any]]]:
    """One pass; rows that are not finite get one retry."""
    start = cache.cached_len
    end = min(start + rows.num_rows, len(sequence) - 1)
    ids = sequence.ids[start + 1 : end + 1]  # row i predicts the id after its own position
    for _ in range(2):
        batch = _submit(sequence, cache, rows.width, ids)
        readback = yield batch
        check_readback(batch, readback)
        out, scores = readback.values
        if all(out[1::2]):
            sequence.landed(end)
            cache.landed(len(ids))
            return [_position(row, token_id, out, scores) for row, token_id in enumerate(ids)]
    raise DeviceFault("the target's logits are not finite, twice", "target.out", "Use another backend")


def _submit(sequence: TokenSequence, cache: ModelCache, width: int, ids: list[int]) -> Submit:
    num_rows = len(ids)
    writes = sequence.token_writes(cache.cached_len + num_rows) + cache.feed(num_rows)
    writes.append(("target.score_ids", 0, ids))
    calls = [f"target.verify_{width}", f"target.score_{width}"]
    return Submit(
        "score", writes, calls, [("target.out", 0, 2 * num_rows), ("target.score", 0, 3 * num_rows)]
    )


def _position(row: int, token_id: int, out: list[int], scores: list[float]) -> dict[str, Any]:
    margin, logprob, _ = scores[3 * row : 3 * row + 3]
    return {"id": token_id, "top_id": out[2 * row], "margin": margin, "logprob": logprob}
