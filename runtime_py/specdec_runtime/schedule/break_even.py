"""The default: speculate only while it is faster here, for this text (F5).

For every action it knows the expected tokens (survival.py) and the time (costs.py), and takes the best rate. A source is turned on
when the lower bound of its rate beats plain decoding by MARGIN, stays on while its mean does, and no action is taken whose worst
outcome the allowance does not cover. A source that is off is tried again with the action that loses least, after a wait that
doubles with every failure; one that could not pay at any acceptance is never tried. What the draft's KV lacks is read only when the
model is to draft, and its time counts against coming back. Knows counts and times, no token. Deterministic.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from specdec_runtime.decode.choice import MODEL, NATURAL_KS, NGRAM, Choice, Done, View
from specdec_runtime.plan.schema import OUT_ROWS
from specdec_runtime.schedule.allowance import Allowance
from specdec_runtime.schedule.costs import PULL, Costs, LiveCosts
from specdec_runtime.schedule.policy import Policy
from specdec_runtime.schedule.survival import Belief

MARGIN = 0.02  # by which the lower bound must beat plain decoding to turn a source on
STICKY = 0.02  # by which another action must beat the one before, so that noise does not swap them
FIRST_WAIT, MAX_WAIT = 4, 24  # committed tokens between two trials of a source that is off
HORIZON = 64  # tokens over which reading a stale draft KV, or a trial, must pay for itself
CHANCE = 0.25  # that a source tried again is as good as its high quantile
STALE = 0.01  # by which a further round of a submit is worth less than the one before: nothing is learned between them
ROUNDS = (1, 2, 4, 6, 8)
BASELINE = 64  # committed tokens after which a plain step shows again what plain decoding takes
BASELINE_PULL = 0.5
OFFER_PULL = 0.2


class Source:
    """One kind of drafts: the model, or lookups of one match length."""

    def __init__(self, belief: Belief) -> None:
        self.belief = belief
        self.on = False
        self.wait = 0  # committed tokens to go to the next trial
        self.next_wait = FIRST_WAIT
        self.since = 0  # committed tokens since it last drafted

    def passed(self, num_tokens: int) -> None:
        self.since += num_tokens
        self.wait = max(0, self.wait - num_tokens)

    def tried(self, pays: bool) -> None:
        """After a trial of a source that is off: look again at once where it went well, else ever later."""
        self.wait = 0 if pays else self.next_wait
        self.next_wait = FIRST_WAIT if pays else min(MAX_WAIT, 2 * self.next_wait)


class Action(NamedTuple):
    """A choice with what it is expected to give."""

    choice: Choice
    tokens: float
    ms: float


@cache
def _choices(kind: str, most: int, max_rounds: int) -> tuple[Choice, ...]:
    """The natural widths, and what is left where a budget ends between them; lookups need the host between two rounds."""
    ks = [k for k in NATURAL_KS if k <= most]
    if most not in ks and most > 0:
        ks.append(most)
    rounds = [count for count in ROUNDS if count <= max_rounds and (count == 1 or kind == MODEL)]
    return tuple(Choice(kind, k, count) for k in ks for count in rounds if count * (k + 1) <= OUT_ROWS)


class BreakEven:
    """Measured costs, believed acceptance, the best rate."""

    name = "break_even"
    version = 1
    looks = True

    def __init__(self, costs: Costs, policy: Policy, k: int) -> None:
        self._first = costs
        self._costs = LiveCosts(costs)
        self._sources = {(MODEL, 0): Source(Belief(policy.model, policy.strength))}
        for length, acceptance in policy.ngram.items():
            self._sources[NGRAM, length] = Source(Belief([acceptance], policy.strength))
        self._lengths = sorted(policy.ngram)
        self._allowance: Allowance | None = None
        self._k = k
        self._last = Choice()
        self._trial: Source | None = None
        self._offers = 0.0  # share of cycles in which lookup matched and paid, and what it saved then
        self._saving_ms = 0.0
        self._unseen = 0  # committed tokens since the last plain step
        self._plain_ms = 1.0  # a token of plain decoding
        self._max_rounds = 1

    def choose(self, view: View) -> Choice:
        plain = self._plain(view)
        self._max_rounds = view.max_rounds
        self._trial = None
        if self._allowance is None:
            chunks = -(-view.prompt_len // self._first.target_chunk)
            self._allowance = Allowance(chunks * self._first.target_read / self._plain_ms)
            # the first token waits for no draft, nor for the draft's reading of the prompt, nor for further steps
            return Choice()
        kinds = self._kinds(view)
        choice = self._best(view, plain, kinds) or self._try(view, kinds) or plain.choice
        if choice.source is not None and self._unseen >= BASELINE:
            self._trial, choice = None, Choice() if self._may_step_once() else plain.choice
        if choice.source is not None:
            self._last = choice
        return choice

    def observe(self, done: Done) -> None:
        choice = done.choice
        self._costs.ran(choice, done.ms, done.lag, BASELINE_PULL if self._unseen >= BASELINE else PULL)
        self._unseen = self._unseen + done.num_committed if choice.source else 0
        spent = self._costs.time(choice, done.lag)
        self._bucket.settle(done.num_committed, spent / self._plain_ms)
        for source in self._sources.values():
            source.passed(done.num_committed)
        trial, self._trial = self._trial, None  # once: a plain retry is told without having been chosen
        if not done.rounds:
            if trial is not None:
                trial.tried(False)  # the drafter had nothing of use after all
            return
        source = self._of(choice.source, self._seen_len)
        for accepted, evaluated in done.rounds:
            source.belief.saw(accepted, evaluated, source.since)
            source.since = 0
        if trial is not None:
            rate = self._mean_rate(source, choice.source or MODEL)
            stood = all(accepted == evaluated for accepted, evaluated in done.rounds)
            trial.tried(stood or rate * self._plain_ms > 1)

    @property
    def _bucket(self) -> Allowance:
        return self._allowance or Allowance()

    def report(self) -> dict[str, Any]:
        acceptance = {
            f"{kind}{length or ''}": round(source.belief.acceptance, 3)
            for (kind, length), source in self._sources.items()
        }
        spent = round(self._bucket.spent, 2)
        return {"costs": self._costs.costs.json(), "acceptance": acceptance, "spent_tokens": spent}

    def _of(self, kind: str | None, length: int) -> Source:
        if kind == MODEL:
            return self._sources[MODEL, 0]
        known = [each for each in self._lengths if each <= length] or self._lengths[:1]
        return self._sources[NGRAM, known[-1]]

    def _plain(self, view: View) -> Action:
        """As many steps as a submit may hold; one, where looking for n-grams after each is worth more than S."""
        self._seen_len = view.ngram_len
        steps = max(1, min(view.max_steps, view.remaining))
        full = Choice(steps=steps)
        ms = self._costs.time(full)
        self._plain_ms = ms / steps
        one = self._offers * self._saving_ms > self._costs.sync and self._may_step_once()
        return Action(Choice() if one else full, steps, ms)

    def _may_step_once(self) -> bool:
        """A plain step that has a submit to itself costs more than its share of one that holds several: the allowance covers it."""
        return self._bucket.allows(self._costs.time(Choice()) / self._plain_ms - 1)

    def _mean_rate(self, source: Source, kind: str) -> float:
        """The best of any action, by the mean."""
        means = source.belief.means()
        return max(
            choice.rounds * means[choice.k] / self._costs.time(choice)
            for choice in _choices(kind, self._k, self._max_rounds)
        )

    def _choices(self, view: View, kind: str) -> tuple[Choice, ...]:
        most = min(self._k, view.max_drafts, view.ngram_ids if kind == NGRAM else self._k)
        return _choices(kind, most, view.max_rounds)

    def _kinds(self, view: View) -> list[str]:
        if not view.max_drafts:
            return []
        kinds = [NGRAM] if view.ngram_ids > 0 else []
        return [*kinds, MODEL] if view.model_ready and self._first.draft_step is not None else kinds

    def _best(self, view: View, plain: Action, kinds: list[str]) -> Choice | None:
        """The best action of the sources that are on. The model's is the better rate; a lookup must save time beside it."""
        best, standing, saving = None, plain, 0.0
        for kind in reversed(kinds):
            action = self._usable(view, kind, plain)
            if not action:
                continue
            if kind == MODEL:
                best, standing = action.choice, action
            else:
                saving = action.tokens * standing.ms / standing.tokens - action.ms
                best = action.choice if saving > 0 else best
        self._offered(saving)
        return best

    def _offered(self, saving_ms: float) -> None:
        self._offers += OFFER_PULL * ((saving_ms > 0) - self._offers)
        if saving_ms > 0:
            self._saving_ms += 0.2 * (saving_ms - self._saving_ms)

    def _usable(self, view: View, kind: str, plain: Action) -> Action | None:
        """The best action of a source that pays, within the allowance; turns the source on and off."""
        source = self._of(kind, view.ngram_len)
        if not source.on and source.wait > 0:
            return None
        reading = self._costs.reading(view.model_lag) if kind == MODEL else 0.0
        rate = plain.tokens / plain.ms
        if not source.on:
            lowers = self._allowed(view, kind, source.belief.lowers(), reading)
            source.on = any(action.tokens > (1 + MARGIN) * rate * action.ms for action in lowers)
            if not source.on:
                return None
        best, most = None, 0.0
        for action in self._allowed(view, kind, source.belief.means(), reading):
            further = action.choice.rounds - 1  # after each of them a lookup is forgone
            worth = action.tokens / (action.ms + further * self._offers * self._saving_ms)
            worth *= (1 - STALE * further / 2) * (1 + STICKY * (action.choice == self._last))
            if worth > most:
                best, most = action, worth
        if best is None:  # the allowance does not cover it: from now on trials show whether better text comes
            source.on, source.wait = False, FIRST_WAIT
            return None
        gained = (1 / rate - best.ms / best.tokens) * min(view.remaining, HORIZON)
        if gained <= 0:
            source.on, source.wait, source.next_wait = False, FIRST_WAIT, 2 * FIRST_WAIT
            return None
        return best if gained > reading else None

    def _allowed(self, view: View, kind: str, tokens: list[float], reading: float) -> list[Action]:
        """A source's actions whose worst outcome, one token a round, the allowance covers; tokens: of a round, by k."""
        found, remaining = [], view.remaining
        for choice in self._choices(view, kind):
            ms, rounds = self._costs.time(choice), choice.rounds
            if self._bucket.allows((ms + reading) / self._plain_ms - min(rounds, remaining)):
                found.append(Action(choice, min(rounds * tokens[choice.k], remaining), ms))
        return found

    def _try(self, view: View, kinds: list[str]) -> Choice | None:
        """A trial of a source that is off and whose wait is over: the action that is expected to lose least."""
        for kind in kinds:
            source = self._of(kind, view.ngram_len)
            if source.on or source.wait > 0:
                continue
            reading = self._costs.reading(view.model_lag) if kind == MODEL else 0.0
            hopeful = [
                action
                for action in self._allowed(view, kind, source.belief.means(), reading)
                if self._hopeful(source, action, reading, view.remaining)
            ]
            if hopeful:
                self._trial = source
                return min(hopeful, key=lambda action: action.ms - action.tokens * self._plain_ms).choice
            source.wait = FIRST_WAIT  # until then little can change
        return None

    def _hopeful(self, source: Source, action: Action, reading: float, remaining: int) -> bool:
        """Whether what the source may turn out to be worth is more than finding out costs: the draft's reading, and what is lost."""
        best_tokens = action.choice.rounds * source.belief.high[action.choice.k]
        gain = (self._plain_ms - action.ms / best_tokens) * min(remaining, HORIZON)
        loss = max(0.0, action.ms - action.tokens * self._plain_ms)
        return CHANCE * gain > reading + loss
