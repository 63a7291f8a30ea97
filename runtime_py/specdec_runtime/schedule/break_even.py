"""The default: speculate only while it is faster here, for this text (F5).

For every action it knows the expected tokens (survival.py) and the time (costs.py), and takes the best rate. A source is turned on
when the lower bound of its rate beats plain decoding by MARGIN, stays on while its mean does, and no action is taken whose worst
outcome the allowance does not cover. A source that is off is tried again with the action that loses least, after a wait that
doubles with every failure; one that could not pay at any acceptance is never tried. What the draft's KV lacks is read only when the
model is to draft, and its time counts against coming back. Knows counts and times, no token. Deterministic.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from specdec_runtime.decode.choice import MODEL, NATURAL_KS, NGRAM, Choice, Done, View
from specdec_runtime.schedule.allowance import Allowance
from specdec_runtime.schedule.costs import PULL, Costs, LiveCosts
from specdec_runtime.schedule.policy import Policy
from specdec_runtime.schedule.survival import Belief

MARGIN = 0.02  # by which the lower bound must beat plain decoding to turn a source on
STICKY = 0.02  # by which another action must beat the one before, so that noise does not swap them
FIRST_WAIT, MAX_WAIT = 4, 24  # committed tokens between two trials of a source that is off
HORIZON = 64  # tokens over which reading a stale draft KV, or a trial, must pay for itself
CHANCE = 0.25  # that a source tried again is as good as its high quantile
ROUNDS = (1, 2, 4)
BASELINE = 64  # committed tokens after which a plain step shows again what plain decoding takes
BASELINE_PULL = 0.5
OFFER_PULL = 0.05


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

    @property
    def rate(self) -> float:
        return self.tokens / self.ms


class BreakEven:
    """Measured costs, believed acceptance, the best rate."""

    name = "break_even"
    version = 1
    looks = True

    def __init__(self, costs: Costs, policy: Policy, k: int) -> None:
        self._costs = LiveCosts(costs)
        self._sources = {(MODEL, 0): Source(Belief(policy.model, policy.strength))}
        for length, acceptance in policy.ngram.items():
            self._sources[NGRAM, length] = Source(Belief([acceptance], policy.strength))
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
        self._plain_ms, self._max_rounds = 1 / plain.rate, view.max_rounds
        self._trial = None
        if self._allowance is None:
            chunks = -(-view.prompt_len // self._costs.costs.target_chunk)
            self._allowance = Allowance(chunks * self._costs.costs.target_read / self._plain_ms)
            return (
                plain.choice
            )  # the first token waits for no draft, nor for the draft's reading of the prompt
        choice = self._best(view, plain) or self._try(view, plain) or plain.choice
        if choice.source is not None and self._unseen >= BASELINE:
            self._trial, choice = None, Choice()
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
            rate = self._mean_rate(source, choice.source)
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
        lengths = [known for name, known in self._sources if name == NGRAM]
        return self._sources[NGRAM, max([known for known in lengths if known <= length] or [min(lengths)])]

    def _plain(self, view: View) -> Action:
        """As many steps as a submit may hold; one, where looking for n-grams after each is worth more than S."""
        self._seen_len = view.ngram_len
        steps = max(1, min(view.max_steps, view.remaining))
        if self._offers * self._saving_ms > self._costs.costs.sync:
            choice = Choice(steps=1)
        else:
            choice = Choice(steps=steps)
        full = Choice(steps=steps)
        return Action(choice, steps, self._costs.time(full))

    def _ks(self, most: int) -> list[int]:
        """The natural widths, and what is left where a budget ends between them."""
        ks = [k for k in NATURAL_KS if k <= most]
        return ks if most in ks or most < 1 else [*ks, most]

    def _rounds(self, most: int, kind: str | None) -> list[int]:
        """Rounds that a submit may hold: lookups need the host between two."""
        return [rounds for rounds in ROUNDS if rounds <= most and (rounds == 1 or kind == MODEL)]

    def _mean_rate(self, source: Source, kind: str | None) -> float:
        """The best of any action, by the mean."""
        return max(
            rounds * source.belief.mean(k) / self._costs.time(Choice(kind, k, rounds))
            for k in self._ks(self._k)
            for rounds in self._rounds(self._max_rounds, kind)
        )

    def _actions(self, view: View, kind: str, lower: bool) -> list[Action]:
        """Every action of a source, by its mean or its lower bound."""
        source = self._of(kind, view.ngram_len)
        value = source.belief.lower if lower else source.belief.mean
        most = min(self._k, view.max_drafts, view.ngram_ids if kind == NGRAM else self._k)
        found = []
        for k in self._ks(most):
            for rounds in self._rounds(view.max_rounds, kind):
                choice = Choice(kind, k, rounds)
                tokens = min(rounds * value(k), float(view.remaining))
                found.append(Action(choice, tokens, self._costs.time(choice)))
        return found

    def _kinds(self, view: View) -> list[str]:
        has_model = view.model_ready and self._costs.costs.draft_step is not None
        return [
            kind for kind, can in ((NGRAM, view.ngram_ids > 0), (MODEL, has_model)) if can and view.max_drafts
        ]

    def _best(self, view: View, plain: Action) -> Choice | None:
        """The best action of the sources that are on. The model's is the better rate; a lookup must save time beside it."""
        best, standing = None, plain.rate
        for kind in reversed(self._kinds(view)):
            action = self._usable(view, kind, plain)
            if kind == MODEL and action:
                best, standing = action.choice, action.rate
            if kind == NGRAM:
                saving = action.tokens / standing - action.ms if action else 0.0
                if action and saving > 0:
                    best = action.choice
                self._offered(saving)
        if NGRAM not in self._kinds(view):
            self._offered(0.0)
        return best

    def _offered(self, saving_ms: float) -> None:
        self._offers += OFFER_PULL * ((saving_ms > 0) - self._offers)
        if saving_ms > 0:
            self._saving_ms += 0.2 * (saving_ms - self._saving_ms)

    def _usable(self, view: View, kind: str, plain: Action) -> Action | None:
        """The best action of a source that pays, within the allowance; turns the source on and off."""
        source = self._of(kind, view.ngram_len)
        reading = self._costs.reading(view.model_lag) if kind == MODEL else 0.0
        means = self._allowed(self._actions(view, kind, lower=False), reading, view.remaining)
        if not source.on:
            lowers = self._allowed(self._actions(view, kind, lower=True), reading, view.remaining)
            source.on = any(action.rate > (1 + MARGIN) * plain.rate for action in lowers)
        if not source.on or not means:
            return None
        best = max(means, key=lambda action: action.rate * (1 + STICKY * (action.choice == self._last)))
        gained = (1 / plain.rate - 1 / best.rate) * min(view.remaining, HORIZON)
        if best.rate <= plain.rate:
            source.on, source.wait, source.next_wait = False, FIRST_WAIT, 2 * FIRST_WAIT
            return None
        return best if gained > reading else None

    def _allowed(self, actions: list[Action], reading: float, remaining: int) -> list[Action]:
        """Those whose worst outcome, one token a round, the allowance covers."""
        return [
            action
            for action in actions
            if self._bucket.allows(
                (action.ms + reading) / self._plain_ms - min(action.choice.rounds, remaining)
            )
        ]

    def _try(self, view: View, plain: Action) -> Choice | None:
        """A trial of a source that is off and whose wait is over: the action that is expected to lose least."""
        for kind in self._kinds(view):
            source = self._of(kind, view.ngram_len)
            if source.on or source.wait > 0:
                continue
            reading = self._costs.reading(view.model_lag) if kind == MODEL else 0.0
            hopeful = [
                action
                for action in self._allowed(self._actions(view, kind, lower=False), reading, view.remaining)
                if self._hopeful(source, action, reading, plain, view.remaining)
            ]
            if hopeful:
                self._trial = source
                return min(hopeful, key=lambda action: action.ms - action.tokens / plain.rate).choice
        return None

    def _hopeful(self, source: Source, action: Action, reading: float, plain: Action, remaining: int) -> bool:
        """Whether what the source may turn out to be worth is more than finding out costs: the draft's reading, and what is lost."""
        best_tokens = action.choice.rounds * source.belief.high[action.choice.k]
        gain = (1 / plain.rate - action.ms / best_tokens) * min(remaining, HORIZON)
        loss = max(0.0, action.ms - action.tokens / plain.rate)
        return CHANCE * gain > reading + loss
