"""The pump's half of a grammar: the matcher of the running request, and the masks of its last walk.

Knows matchers by their protocol, no engine. Invariants: masks never enter the decode core; a submit that asks for n rows gets
the first n of the last walk, at the beginning of `sampling.mask`. Its twin is web/worker/grammar.js.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import cast

from specdec_runtime.decode.effects import Constrain, Submit, Walk, Walked
from specdec_runtime.decode.grammar import Matcher, walk
from specdec_runtime.faults import ContractError, RequestError

OpenMatcher = Callable[[Constrain], Matcher]  # RequestError where the grammar cannot be read


def no_matchers(asked: Constrain) -> Matcher:
    raise RequestError("this run has no grammar engine", "grammar", "Leave the grammar out")


class Masks:
    """One request's."""

    def __init__(self, opener: OpenMatcher = no_matchers) -> None:
        self._open = opener
        self._matcher: Matcher | None = None
        self._row_words = 0
        self._rows: list[array] = []

    def constrain(self, asked: Constrain) -> None:
        self._matcher, self._row_words, self._rows = self._open(asked), asked.row_words, []

    def walk(self, asked: Walk) -> Walked:
        if self._matcher is None:
            raise ContractError("a walk before its grammar", "masks.py")
        walked, self._rows = walk(self._matcher, asked)
        return walked

    def into(self, batch: Submit) -> Submit:
        """The submit with its masks among the writes."""
        if not batch.masks:
            return batch
        if batch.masks > len(self._rows):
            raise ContractError(f"{batch.masks} masks of {len(self._rows)}", "Submit.masks")
        words = array("I")
        for row in self._rows[: batch.masks]:
            words += row
            words.extend([0] * (self._row_words - len(row)))
        return batch._replace(writes=[*batch.writes, ("sampling.mask", 0, cast("list[int]", words))])
