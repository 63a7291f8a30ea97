"""Log-probabilities of committed tokens: where the device writes them, and what results say of them.

Knows one tensor, `target.top`, that has a row beside each row of `out`: the log-probability of that row's id, a zero, then five
times an id and its log-probability, the likeliest first (an id below 0: there are fewer); all of the target's own distribution,
before any processor. Invariant: a row is read for a token only where `out` named that token, so that drafting changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from specdec_runtime.decode.effects import Read
from specdec_runtime.faults import DeviceFault
from specdec_runtime.plan.schema import TOP_FIELDS as ROW

TOP = "target.top"
MAX_LOGPROBS = 5
PAIRS = 2  # element of a row where they begin

Row = Sequence[float]


def top_read(num_rows: int) -> Read:
    """The read of the first rows, those of all passes of a submit."""
    return (TOP, 0, ROW * num_rows)


def rows_of(values: Sequence[float], first: int, count: int) -> list[Row]:
    """`count` rows of what was read, from row `first` on."""
    return [values[ROW * row : ROW * (row + 1)] for row in range(first, first + count)]


def entry(token_id: int, row: Row, num_top: int) -> dict[str, Any]:
    """What a result says of one committed token: {"id", "logprob", "top": [{"id", "logprob"}]}."""
    used = row[: PAIRS + 2 * num_top]
    if not all(type(number) in (int, float) and math.isfinite(number) for number in used):
        raise DeviceFault("a log-probability is not finite", TOP, "Use another backend, or logprobs 0")
    top = [{"id": int(used[i]), "logprob": used[i + 1]} for i in range(PAIRS, len(used), 2) if used[i] >= 0]
    return {"id": token_id, "logprob": used[0], "top": top}
