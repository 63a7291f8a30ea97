"""Accept rules: pure functions from drafted ids and the target's rows to a verdict.

Know no device, no sequence and no limit. A new mode is a new function with this signature; what a verdict
does to the sequence is commit.py's business. Where drafts are judged by probabilities (`reject`, `block`: rules.py) the device applies
the rule, since only it has them, and the verdict is read. `out` is [num_drafted + 1, 2] i32, flat: per row the target's
own id for the position after it (lowest id on ties), and 1 where all its logits were finite.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from specdec_runtime.decode.logprobs import Row
from specdec_runtime.faults import DeviceFault

DECIDED, FELL_BACK = 1, 2  # flags of a row of `target.verdict`


class Verdict(NamedTuple):
    """How far the target agrees, and what it says next."""

    num_accepted: int  # drafts that stand, counted from the first
    next_id: int | None  # correction (some draft fell) or bonus (none did); None: that row was not finite
    tops: Sequence[Row] = ()  # log-probabilities of the rows judged, where they were asked for


def accept_greedy(drafted: Sequence[int], out: Sequence[int]) -> Verdict:
    """Accept while the draft is the target's argmax; a row that is not finite ends the run undecided."""
    for row, draft_id in enumerate(drafted):
        if not out[2 * row + 1]:
            return Verdict(row, None)
        target_id = out[2 * row]
        if target_id != draft_id:
            return Verdict(row, target_id)
    row = len(drafted)
    return Verdict(row, out[2 * row] if out[2 * row + 1] else None)


def accept_judged(drafted: Sequence[int], row: Sequence[int]) -> Verdict:
    """What the device decided: a row of `target.verdict`. It may stop before drafts that are of no use, never behind."""
    num_accepted, next_id, flags, _ = row
    if not 0 <= num_accepted <= len(drafted):
        message = f"the device accepted {num_accepted} of {len(drafted)} drafts"
        raise DeviceFault(message, "target.verdict", "Use another backend, or mode coupled")
    return Verdict(num_accepted, next_id if flags & DECIDED else None)


def fell_back(row: Sequence[int]) -> bool:
    """The residual's sum was not positive, and the next token was drawn from p: rounding alone can do that."""
    return row[2] & (DECIDED | FELL_BACK) == DECIDED | FELL_BACK
