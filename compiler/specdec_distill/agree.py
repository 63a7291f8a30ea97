"""How long runs of drafts are, and how far the draft's own confidence can be believed: from per-position agreement on the champion's
own greedy text to tokens a target pass and a calibrated table; and what lookups in that text are worth.

Pure. On the champion's text a draft that is right up to a position has seen the very tokens it would have drafted itself, so
agreement position by position, in the true context, is all that greedy verification looks at.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from specdec_runtime.decode.interfaces import Proposal
from specdec_runtime.decode.sequence import Sequence as Tokens
from specdec_runtime.drafters.ngram import NgramDrafter


class Runs(NamedTuple):
    """Counts over one or many texts."""

    tokens: int
    passes: int
    accepted: int
    evaluated: int

    @property
    def tokens_per_pass(self) -> float:
        return self.tokens / self.passes

    @property
    def acceptance(self) -> float:
        """accepted / evaluated (exactness.md F4)."""
        return self.accepted / self.evaluated if self.evaluated else 0.0


def runs(agreements: Sequence[Sequence[bool]], k: int) -> Runs:
    """agreements: per text, per written position, whether the draft's choice is the champion's; k drafts a pass."""
    tokens = passes = accepted = evaluated = 0
    for text in agreements:
        at = 0
        while at < len(text):
            drafted = min(k, len(text) - at - 1)  # the pass gives one token more than it accepts
            run = 0
            while run < drafted and text[at + run]:
                run += 1
            accepted += run
            evaluated += min(run + 1, drafted)
            passes += 1
            at += run + 1
        tokens += len(text)
    return Runs(tokens, passes, accepted, evaluated)


def lookups(texts: Iterable[tuple[Sequence[int], int]]) -> dict[int, float]:
    """How often the n-gram drafter's first draft stands, by the length of its match, in rounds of one draft each.

    texts: (ids, start) of greedy answers: the champion wrote ids[start:]. Lengths that never matched are left out.
    """
    stood: dict[int, list[bool]] = {}
    for ids, start in texts:
        drafter, known = NgramDrafter(), Tokens(ids[:start])
        drafter.begin(known)
        while (at := len(known)) < len(ids):
            right = False
            for offer in drafter.offers(known):
                right = _first_draft(drafter, known) == ids[at]
                stood.setdefault(offer.match_len, []).append(right)
            known.ids.extend(ids[at : at + 1 + right])  # the pass gives one token more than it accepts
    return {length: round(sum(each) / len(each), 4) for length, each in sorted(stood.items())}


def _first_draft(drafter: NgramDrafter, known: Tokens) -> int | None:
    """Lookups ask nothing of a device, so the generator ends at once."""
    try:
        next(drafter.propose(known, 1))
    except StopIteration as ended:
        proposal: Proposal | None = ended.value
        return proposal.ids[0] if proposal else None
    raise AssertionError("a lookup yielded an effect")


def calibration(judged: Sequence[tuple[float, bool]], bins: int = 10) -> list[list[float]]:
    """(log-probability of the draft's choice, whether it was the champion's) -> [[log-probability, P(right)], ...], both rising.

    Bins of equal counts, each at its mean log-probability; neighbours whose shares fall are pooled (pool adjacent violators: Ayer et
    al. 1955), so that a surer draft is never thought less right.
    """
    ordered = sorted(judged)
    pools: list[list[float]] = []  # count, sum of log-probabilities, right ones
    for i in range(bins):
        part = ordered[len(ordered) * i // bins : len(ordered) * (i + 1) // bins]
        if not part:
            continue
        pools.append([len(part), sum(sure for sure, _ in part), sum(right for _, right in part)])
        while len(pools) > 1 and pools[-2][2] * pools[-1][0] >= pools[-1][2] * pools[-2][0]:
            last = pools.pop()
            pools[-1] = [a + b for a, b in zip(pools[-1], last, strict=True)]
    return [[round(sure / count, 4), round(right / count, 4)] for count, sure, right in pools]
