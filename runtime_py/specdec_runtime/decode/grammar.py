"""Grammars: the one rule by which a matcher judges drafts, and what it and the core know of each other.

Knows no grammar engine and no device. A matcher follows one answer; `walk` is what a pump does for a `Walk` (its twin is
web/worker/grammar.js). Invariants: the matcher stands at the committed ids between walks; row i of the masks is what may
follow the committed ids and i drafts; where a mask leaves one id, that id is the draft, at no cost (a point mass, verified
like any other, since it must enter the KV). A draft that the grammar forbids is cut, with all after it: its value
may decide that, since every draft under a grammar is compared with the target's own choice, in every mode.
"""

from __future__ import annotations

from array import array
from typing import Protocol

from specdec_runtime.decode.effects import Walk, Walked
from specdec_runtime.faults import DeviceFault, RequestError

Words = array  # of typecode "I": bit v % 32 of word v // 32 set: id v may follow


class Matcher(Protocol):
    """Follows one answer through a grammar."""

    stop_ids: frozenset[int]

    def accept(self, token_id: int) -> bool:
        """Go on by one id; False, and nothing changes, where the grammar forbids it."""
        ...

    def mask(self) -> Words:
        """What may follow now; stop ids where the grammar may end."""
        ...

    def rollback(self, num_ids: int) -> None:
        """Forget the last ids."""
        ...


def walk(matcher: Matcher, asked: Walk) -> tuple[Walked, list[Words]]:
    """Commit, then walk the drafts and come back: the drafts to verify, and the masks of 1 + that many rows."""
    for token_id in asked.accepted:
        if not matcher.accept(token_id):
            message = f"the device chose token {token_id}, which the grammar forbids"
            raise DeviceFault(message, "sampling.mask", "Use another backend")
    rows, ids, forced = [matcher.mask()], [], []
    if not any(rows[0]):
        raise RequestError("no token of this model goes on from here", "grammar", "Change the grammar")
    drafted, num_walked = list(asked.drafted[: asked.budget]), 0
    while len(ids) < asked.budget:
        only = only_id(rows[-1])
        token_id = _draft(drafted, len(ids), only)
        if token_id is None or not allows(rows[-1], token_id):
            break
        if drafted[len(ids) : len(ids) + 1] != [token_id]:
            del drafted[len(ids) :]  # guessed after another id
        goes_on = token_id not in matcher.stop_ids and matcher.accept(token_id)
        num_walked += goes_on
        row = matcher.mask() if goes_on else _everything(rows[0])  # of that row nothing is used
        if not any(row):
            break  # a dead end: for the next walk to tell, if the target goes there
        if token_id == only:
            forced.append(len(ids))
        ids.append(token_id)
        rows.append(row)
        if not goes_on:
            break
    matcher.rollback(num_walked)
    return Walked(ids, forced), rows


def _draft(drafted: list[int], place: int, only: int | None) -> int | None:
    if only is not None:
        return only
    return drafted[place] if place < len(drafted) else None


def allows(words: Words, token_id: int) -> bool:
    return 0 <= token_id < 32 * len(words) and bool(words[token_id >> 5] >> (token_id & 31) & 1)


def only_id(words: Words) -> int | None:
    """The id, where there is exactly one."""
    bits = int.from_bytes(words.tobytes(), "little")
    return bits.bit_length() - 1 if bits.bit_count() == 1 else None


def _everything(words: Words) -> Words:
    return array("I", [0xFFFFFFFF]) * len(words)
