"""Commit: the one place where a token becomes part of the answer.

Knows the sequence and the limits; does not know how a token was chosen. Invariants: one token at a time, by
`commit_token` alone; the first terminal event ends the run and nothing after it is committed, counted or
emitted; on the same token "stop" beats "length". What is shown and what is told of log-probabilities ends with the same token.
"""

from __future__ import annotations

from collections.abc import Sequence as Ids
from dataclasses import dataclass
from typing import Any

from specdec_runtime.decode.interfaces import Outcome
from specdec_runtime.decode.logprobs import entry
from specdec_runtime.decode.sequence import Sequence
from specdec_runtime.decode.text import StopText
from specdec_runtime.decode.verify import Verdict


@dataclass(frozen=True, slots=True)
class Limits:
    """What ends an answer, and what is kept of its tokens."""

    eos_ids: frozenset[int]
    max_len: int  # prompt and answer together: the smaller of max_tokens and the context
    text: StopText | None = None  # where stop strings were asked for
    logprobs: int = 0  # the likeliest tokens told with each; 0: nothing is


def commit_token(sequence: Sequence, token_id: int, limits: Limits) -> str | None:
    """Append one token; the finish reason if it is the last."""
    sequence.ids.append(token_id)
    ended = limits.text is not None and limits.text.push(token_id)
    if ended or token_id in limits.eos_ids:
        return "stop"
    if len(sequence.ids) >= limits.max_len:
        return "length"
    return None


def commit_run(sequence: Sequence, drafted: Ids[int], verdict: Verdict, limits: Limits) -> Outcome:
    """Commit the accepted drafts and the target's next token, up to the first terminal event."""
    num_accepted = 0
    finish_reason = None
    for token_id in drafted[: verdict.num_accepted]:
        finish_reason = commit_token(sequence, token_id, limits)
        num_accepted += 1
        if finish_reason:
            break
    ids = list(drafted[:num_accepted])
    num_evaluated = num_accepted
    if finish_reason is None and verdict.next_id is not None:
        finish_reason = commit_token(sequence, verdict.next_id, limits)
        ids.append(verdict.next_id)
        num_evaluated += num_accepted < len(drafted)  # the first rejected row; a bonus row judges no draft
    undecided = finish_reason is None and verdict.next_id is None
    pieces = limits.text.take() if limits.text else None
    logprobs = _told(ids, verdict, limits.logprobs) if limits.logprobs else None
    counts = (len(drafted), num_accepted, num_evaluated)
    return Outcome(ids, *counts, finish_reason, undecided, pieces, logprobs)


def _told(ids: list[int], verdict: Verdict, num_top: int) -> list[dict[str, Any]]:
    """Row i is that of the i-th token of the run, draft or the target's own."""
    rows = verdict.tops[: len(ids)]
    return [entry(token_id, row, num_top) for token_id, row in zip(ids, rows, strict=True)]
