"""Every mutant of the decode core must make the equality suite fail: a check that cannot fail is no check.

A mutant breaks one rule by a monkeypatch, and disables no check of the core itself unless that check is
the mutated rule's only guard inside the core: the suite must notice by the answer or the books.
"""

import pytest
from exactness_suite import run_suite
from schedule_suite import run_schedule_suite
from specdec_runtime.backends.scripted import ScriptedBackend
from specdec_runtime.decode import commit, prefill, round
from specdec_runtime.decode.cache import ModelCache
from specdec_runtime.decode.choice import Choice
from specdec_runtime.decode.commit import Limits, commit_token
from specdec_runtime.decode.effects import Submit
from specdec_runtime.decode.interfaces import Outcome
from specdec_runtime.decode.pages import PageTable
from specdec_runtime.decode.programs import ANY, Programs
from specdec_runtime.decode.sequence import Sequence
from specdec_runtime.decode.state import Generation
from specdec_runtime.decode.verify import Verdict, accept_greedy
from specdec_runtime.drafters.draft_model import ModelDrafter
from specdec_runtime.faults import SpecdecError
from specdec_runtime.schedule import break_even, survival
from specdec_runtime.schedule.allowance import Allowance
from specdec_runtime.schedule.break_even import Action, BreakEven
from specdec_runtime.schedule.confidence import Confidence
from specdec_runtime.schedule.costs import LiveCosts
from specdec_runtime.schedule.survival import Belief

MUTANTS = {}


def mutant(function):
    MUTANTS[function.__name__] = function
    return function


def settle_with(target_len):
    """Generation.settle with another rollback length, and without its own check of that length."""

    def settle(self, outcomes):
        committed, last = len(self.sequence), outcomes[-1]
        self.sequence.landed(committed - len(last.ids) + last.num_accepted)
        self.target.rollback(target_len(committed))
        self.finish_reason = last.finish_reason
        self.must_be_plain = last.undecided
        self._counts["num_cycles"] += len(outcomes)
        for name in ("num_drafted", "num_accepted", "num_evaluated"):
            self._counts[name] += sum(getattr(outcome, name) for outcome in outcomes)

    return settle


@mutant
def rollback_one_too_few(patch):
    patch.setattr(Generation, "settle", settle_with(lambda committed: committed))


@mutant
def rollback_one_too_many(patch):
    patch.setattr(Generation, "settle", settle_with(lambda committed: committed - 2))


@mutant
def no_rollback(patch):
    patch.setattr(Generation, "settle", settle_with(lambda committed: committed + 99))


@mutant
def draft_rollback_one_too_few(patch):
    def observe(self, outcome):
        if self._num_appended:
            self._cache.landed(self._num_appended)
            self._num_appended = 0
        self._cache.rollback(len(self._sequence))

    patch.setattr(ModelDrafter, "observe", observe)


@mutant
def draft_rolled_back_like_the_target(patch):
    """After full acceptance the draft never saw its own last token; this one thinks it did."""
    honest = ModelDrafter.observe

    def observe(self, outcome):
        honest(self, outcome)
        missing = len(self._sequence) - 1 - self._cache.cached_len
        if missing == 1 and outcome.num_drafted:
            self._cache._table.reserve(self._cache.cached_len + 1)
            self._cache._table.advance(self._cache.cached_len + 1)

    patch.setattr(ModelDrafter, "observe", observe)


@mutant
def draft_never_rolled_back(patch):
    def observe(self, outcome):
        if self._num_appended:
            self._cache.landed(self._num_appended)
            self._num_appended = 0

    patch.setattr(ModelDrafter, "observe", observe)


@mutant
def draft_without_feedback(patch):
    feed = ModelCache.feed
    patch.setattr(ModelCache, "feed", lambda self, rows, more=0, feedback=0: feed(self, rows, more, 0))


@mutant
def output_rows_shifted_by_one(patch):
    patch.setattr(round, "accept_greedy", lambda drafted, out: accept_greedy(drafted, out[2:] + out[:2]))


def shift_start(by):
    feed = ModelCache.feed

    def shifted(self, rows, more=0, feedback=0):
        writes = feed(self, rows, more, feedback)
        name, first, (start, *rest) = writes[0]
        return [(name, first, [max(0, start + by), *rest]), *writes[1:]]

    return shifted


@mutant
def input_rows_one_late(patch):
    patch.setattr(ModelCache, "feed", shift_start(1))


@mutant
def input_rows_one_early(patch):
    patch.setattr(ModelCache, "feed", shift_start(-1))


@mutant
def one_row_too_few(patch):
    passed = Generation.verify_submit

    def narrower(self, proposal):
        batch = passed(self, proposal)
        writes = [
            (
                name,
                first,
                [values[0], max(1, values[1] - 1), *values[2:]] if name == "target.args" else values,
            )
            for name, first, values in batch.writes
        ]
        return Submit(batch.kind, writes, batch.calls, batch.reads)

    patch.setattr(Generation, "verify_submit", narrower)


@mutant
def accept_without_compare(patch):
    patch.setattr(round, "accept_greedy", lambda drafted, out: Verdict(len(drafted), out[2 * len(drafted)]))


@mutant
def accept_after_the_first_rejection(patch):
    def skip(drafted, out):
        agreed = sum(draft_id == out[2 * row] for row, draft_id in enumerate(drafted))
        return Verdict(agreed, out[2 * agreed])

    patch.setattr(round, "accept_greedy", skip)


@mutant
def correction_is_the_draft(patch):
    def keep(drafted, out):
        verdict = accept_greedy(drafted, out)
        if verdict.num_accepted < len(drafted):
            return Verdict(verdict.num_accepted, drafted[verdict.num_accepted])
        return verdict

    patch.setattr(round, "accept_greedy", keep)


@mutant
def bonus_dropped(patch):
    def without_bonus(sequence, drafted, verdict, limits):
        if drafted and verdict.num_accepted == len(drafted):
            verdict = Verdict(verdict.num_accepted, None)
        outcome = commit.commit_run(sequence, drafted, verdict, limits)
        return outcome._replace(undecided=False)

    patch.setattr(round, "commit_run", without_bonus)


@mutant
def bonus_from_the_row_before(patch):
    def early(drafted, out):
        verdict = accept_greedy(drafted, out)
        if drafted and verdict.num_accepted == len(drafted):
            return Verdict(verdict.num_accepted, out[2 * len(drafted) - 2])
        return verdict

    patch.setattr(round, "accept_greedy", early)


@mutant
def finite_flag_ignored(patch):
    def blind(drafted, out):
        return accept_greedy(drafted, [1 if index % 2 else value for index, value in enumerate(out)])

    patch.setattr(round, "accept_greedy", blind)


@mutant
def commit_past_eos(patch):
    """The whole run is committed, and only then is EOS looked for."""

    def all_at_once(sequence, drafted, verdict, limits):
        ids = [*drafted[: verdict.num_accepted], *([verdict.next_id] if verdict.next_id is not None else [])]
        reasons = [commit_token(sequence, token_id, limits) for token_id in ids]
        reason = next(filter(None, reasons), None)
        accepted = verdict.num_accepted
        evaluated = accepted + (accepted < len(drafted))
        return Outcome(ids, len(drafted), accepted, evaluated, reason, verdict.next_id is None)

    patch.setattr(round, "commit_run", all_at_once)


@mutant
def eos_seen_only_in_the_last_token(patch):
    def late(sequence, token_id, limits):
        return commit_token(sequence, token_id, Limits(frozenset(), limits.max_len))

    patch.setattr(commit, "commit_token", late)


@mutant
def length_beats_stop(patch):
    def swapped(sequence, token_id, limits):
        sequence.ids.append(token_id)
        if len(sequence.ids) >= limits.max_len:
            return "length"
        return "stop" if token_id in limits.eos_ids else None

    patch.setattr(commit, "commit_token", swapped)


@mutant
def one_token_past_the_limit(patch):
    def lenient(sequence, token_id, limits):
        return commit_token(sequence, token_id, Limits(limits.eos_ids, limits.max_len + 1))

    patch.setattr(commit, "commit_token", lenient)


@mutant
def budget_without_the_bonus(patch):
    def budget(self):
        return min(self._max_drafts, self.limits.max_len - len(self.sequence))

    patch.setattr(Generation, "draft_budget", budget)


@mutant
def unaccepted_drafts_counted_as_accepted(patch):
    run = commit.commit_run

    def generous(sequence, drafted, verdict, limits):
        return run(sequence, drafted, verdict, limits)._replace(num_evaluated=len(drafted))

    patch.setattr(round, "commit_run", generous)


@mutant
def page_table_never_sent(patch):
    patch.setattr(PageTable, "pending", lambda self: [])


@mutant
def page_table_sent_once(patch):
    """Later pages are thought to be on the device already."""
    pending = PageTable.pending
    patch.setattr(PageTable, "pending", lambda self: pending(self) if self.length == 0 else [])


@mutant
def one_page_for_all(patch):
    reserve = PageTable.reserve

    def same(self, to_len):
        reserve(self, to_len)
        self.pages[:] = [self.pages[0]] * len(self.pages)

    patch.setattr(PageTable, "reserve", same)


@mutant
def correction_not_written_to_the_device(patch):
    writes = Sequence.token_writes

    def stale(self, to_len, drafted_ids=()):
        self.on_device_len = max(self.on_device_len, to_len - 1 + (to_len > self.prompt_len))
        return writes(self, to_len, drafted_ids)

    patch.setattr(Sequence, "token_writes", stale)


@mutant
def prompt_prefilled_to_its_end(patch):
    chunk = prefill.prefill_chunk

    def longer(sequence, cache, to_len, kind):
        return chunk(sequence, cache, to_len + (kind == "prefill"), kind)

    patch.setattr(round, "prefill_chunk", longer)


@mutant
def prompt_prefilled_one_short(patch):
    """The first pass then starts where the KV has a hole."""
    chunk = prefill.prefill_chunk

    def skip_first(sequence, cache, to_len, kind):
        if kind == "prefill" and cache.cached_len == 0 and to_len > 1:
            cache._table.reserve(1)
            cache._table.advance(1)
        return chunk(sequence, cache, to_len, kind)

    patch.setattr(round, "prefill_chunk", skip_first)


@mutant
def plain_steps_only(patch):
    """Exact, but speculation that never speculates is not what was asked for."""
    patch.setattr(Generation, "draft_budget", lambda self: 0)


@mutant
def two_target_passes_a_cycle(patch):
    submit = Generation.verify_submit

    def twice(self, proposal):
        batch = submit(self, proposal)
        return batch._replace(calls=[batch.calls[-1], *batch.calls])

    patch.setattr(Generation, "verify_submit", twice)


@mutant
def wrong_width(patch):
    """The program one narrower than the rows."""
    width = Programs.width
    patch.setattr(Programs, "width", lambda self, model, rows: width(self, model, max(1, rows - 1)))


@mutant
def steps_rolled_back_one_too_few_after_eos(patch):
    """Where an end-of-text cuts the steps of a submit, the KV of the step after it stays: the core's own guard sees it."""
    settle, rollback = Generation.settle, ModelCache.rollback

    def settle_stopped(self, outcomes):
        outcome = outcomes[-1]
        keep = outcome.finish_reason == "stop" and not outcome.num_drafted and len(outcome.ids) < self._steps
        patch.setattr(ModelCache, "rollback", lambda cache, to_len: rollback(cache, to_len + keep))
        settle(self, outcomes)

    patch.setattr(Generation, "settle", settle_stopped)


@mutant
def steps_rolled_back_one_too_few(patch):
    """The same without the guard, for steps cut by a row that is not finite: the answer shows it."""

    def settle(self, outcomes):
        cut = self._steps > 1 and outcomes[-1].undecided
        settle_with(lambda committed: committed - 1 + cut)(self, outcomes)

    patch.setattr(Generation, "settle", settle)


@mutant
def steps_never_cut(patch):
    """Plain steps run past the token limit and the context."""
    patch.setattr(Generation, "plain_steps", lambda self: 1 if self.must_be_plain else self._steps)


def first_row_of_out(role, value):
    """`feed` of one model with another first row of `out`: what a step of the submit before left, or never 0."""
    feed = ModelCache.feed

    def wrong(self, rows, more=0, feedback=0):
        writes = feed(self, rows, more, feedback)
        if self.model.role != role or not feedback:
            return writes
        name, first, args = writes[0]
        return [(name, first, value(args)), *writes[1:]]

    return wrong


@mutant
def first_row_of_out_not_reset(patch):
    """The rows go where the submit before stopped."""
    patch.setattr(ModelCache, "feed", first_row_of_out("target", lambda args: args[:3]))


@mutant
def first_row_of_the_drafts_not_reset(patch):
    patch.setattr(ModelCache, "feed", first_row_of_out("draft", lambda args: args[:3]))


@mutant
def first_row_of_out_one_late(patch):
    patch.setattr(ModelCache, "feed", first_row_of_out("target", lambda args: [*args[:3], 1]))


@mutant
def rows_of_steps_over_each_other(patch):
    """A pass that does not advance the first row of `out`: every step's row is written over the one before."""

    def stay(self, lane, position, next_row):
        self._write("tokens", position, [lane.tensor("out")[2 * (next_row - 1)]])
        lane.tensor("args")[:2] = [position, 1]

    patch.setattr(ScriptedBackend, "_feed_back", stay)


@mutant
def out_row_of_steps_advanced_by_one_too_few(patch):
    """After a pass of two rows the next one writes over its second."""
    honest = ScriptedBackend._feed_back

    def short(self, lane, position, next_row):
        rows = lane.tensor("args")[1]
        honest(self, lane, position, next_row)
        lane.tensor("args")[3] -= rows - 1

    patch.setattr(ScriptedBackend, "_feed_back", short)


@mutant
def drafts_read_from_the_first_row_on(patch):
    """Where the first step has two rows, its first row is no draft."""
    steps = ModelDrafter._steps

    def early(self, committed, num_drafted, rounds):
        proposal = steps(self, committed, num_drafted, rounds)
        ((name, _, count),) = proposal.reads
        return proposal._replace(reads=[(name, 0, count)])

    patch.setattr(ModelDrafter, "_steps", early)


@mutant
def steps_without_feedback(patch):
    submit = Generation.steps_submit

    def deaf(self, steps):
        batch = submit(self, steps)
        writes = [
            (name, first, [*values[:2], 0, 0] if name == "target.args" else values)
            for name, first, values in batch.writes
        ]
        return batch._replace(writes=writes)

    patch.setattr(Generation, "steps_submit", deaf)


@mutant
def steps_kv_counted_as_one(patch):
    passed = Generation.passed

    def one_row(self, batch, num_rows):
        passed(self, batch, 1 if batch.calls[1:] == batch.calls[:-1] else num_rows)

    patch.setattr(Generation, "passed", one_row)


@mutant
def one_step_only(patch):
    """Exact, but not what was asked for."""
    patch.setattr(Generation, "plain_steps", lambda self: 1)


def accept_with(change):
    """The device's accept, and then a change of its args or tokens; the core must not trust where they lead."""
    honest = ScriptedBackend._accept

    def wrong(self):
        honest(self)
        if not self._stopped:
            change(self.tensors["target.args"], self.tensors["draft.args"], self.tensors["tokens"])

    return wrong


@mutant
def device_accepts_one_too_many(patch):
    def change(target, draft, tokens):
        target[0] += 1
        draft[0] += 1

    patch.setattr(ScriptedBackend, "_accept", accept_with(change))


@mutant
def device_accepts_one_too_few(patch):
    def change(target, draft, tokens):
        target[0] -= 1

    patch.setattr(ScriptedBackend, "_accept", accept_with(change))


@mutant
def device_moves_unseen(patch):
    """Without the core's own check of where the device stands, the answer shows it."""

    def change(target, draft, tokens):
        target[0] += 1

    patch.setattr(ScriptedBackend, "_accept", accept_with(change))
    patch.setattr(round, "_check_start", lambda *_: None)


@mutant
def device_feeds_another_token(patch):
    """The last row's token after a round is the rejected draft, not what the target says."""

    def change(target, draft, tokens):
        tokens[target[0]] = (tokens[target[0]] + 1) % 13

    patch.setattr(ScriptedBackend, "_accept", accept_with(change))


@mutant
def draft_goes_on_one_early(patch):
    """Exact, and useless: its drafts are for the position before."""

    def change(target, draft, tokens):
        draft[0] -= 1

    patch.setattr(ScriptedBackend, "_accept", accept_with(change))


@mutant
def draft_goes_on_with_one_row(patch):
    """After full acceptance its KV then has a hole."""

    def change(target, draft, tokens):
        draft[:2] = [draft[0] + 1, 1]

    patch.setattr(ScriptedBackend, "_accept", accept_with(change))


@mutant
def rounds_over_each_other_in_out(patch):
    def change(target, draft, tokens):
        target[3] = 0

    patch.setattr(ScriptedBackend, "_accept", accept_with(change))


@mutant
def device_goes_on_after_a_row_that_is_no_token(patch):
    honest = ScriptedBackend._accept

    def wrong(self):
        before = list(self.tensors["target.args"]), list(self.tensors["draft.args"])
        honest(self)
        if self._stopped:
            self._stopped = False
            (start, rows, _, first), draft = before
            self.tensors["target.args"][:] = [start + 1, rows, 0, first + rows]
            self.tensors["draft.args"][:] = [start, 2, 1, draft[3]]

    patch.setattr(ScriptedBackend, "_accept", wrong)


@mutant
def rounds_after_the_end_are_committed(patch):
    def all_of_them(run, judged):
        return [round.commit_run(run.sequence, drafted, verdict, run.limits) for drafted, verdict in judged]

    patch.setattr(round, "_commit", all_of_them)


@mutant
def rounds_judged_by_the_first_ones_rows(patch):
    judge = round._judge

    def first_rows(proposal, readback):
        if proposal and proposal.rounds > 1:
            drafted, out, start = readback.values
            out = out[: 2 * (1 + proposal.num_drafted)] * proposal.rounds
            readback = readback._replace(values=[drafted, out, start])
        return judge(proposal, readback)

    patch.setattr(round, "_judge", first_rows)


@mutant
def rounds_never_cut(patch):
    patch.setattr(Generation, "draft_rounds", lambda self, budget: self._rounds)


@mutant
def one_round_only(patch):
    """Exact, but not what was asked for."""
    patch.setattr(Generation, "draft_rounds", lambda self, budget: 1)


@mutant
def only_the_first_round_is_committed(patch):
    commit_all = round._commit
    patch.setattr(round, "_commit", lambda run, judged: commit_all(run, judged[:1]))


@mutant
def kv_of_one_round_counted(patch):
    passed = Generation.passed
    patch.setattr(
        Generation,
        "passed",
        lambda self, batch, rows: passed(self, batch, rows // max(1, batch.calls.count("draft.accept") + 1)),
    )


@mutant
def widest_policy_ignored(patch):
    width = Programs.width
    patch.setattr(Programs, "width", lambda self, model, rows: width(ANY, model, rows))


@mutant
def drafting_where_rows_differ(patch):
    patch.setattr(Programs, "max_rows", lambda self, model: model.widths[-1])


@mutant
def prompt_through_a_prefill_that_disagrees(patch):
    patch.setattr(Programs, "feeding", lambda self, model: (f"{model.role}.prefill", model.prefill_width))


@mutant
def outcomes_told_of_the_wrong_source(patch):
    """The schedule hears of the model's rounds as if lookup had made them."""
    tell = Generation.tell

    def swapped(self, choice, proposal, outcome):
        observe = self.schedule.observe
        if proposal is not None and proposal.source.name == "model":
            self.schedule.observe = lambda done: observe(
                done._replace(choice=done.choice._replace(source="ngram")) if done.rounds else done
            )
        tell(self, choice, proposal, outcome)
        self.schedule.observe = observe

    patch.setattr(Generation, "tell", swapped)


@mutant
def schedule_not_heeded(patch):
    """Exact, but k and source are not the schedule's."""
    choose = Generation.choose
    patch.setattr(Generation, "choose", lambda self: choose(self)._replace(source=None, steps=1))


@mutant
def chosen_plain_steps_past_the_end(patch):
    """The schedule's number of plain steps is taken as it is."""
    patch.setattr(BreakEven, "_plain", lambda self, view: Action(Choice(steps=4), 4, 1.0))
    patch.setattr(Generation, "plain_steps", lambda self: 1 if self.must_be_plain else self._steps)


SCHEDULE_MUTANTS = {}


def schedule_mutant(function):
    SCHEDULE_MUTANTS[function.__name__] = function
    return function


@schedule_mutant
def drawn_token_dropped_for_its_own_confidence(patch):
    """Legal for ids in greedy mode, biased in others (F10): the unsure token is thrown away instead of verified."""
    honest = ModelDrafter.propose_stepwise

    def picky(self, sequence, budget, decider):
        proposal = yield from honest(self, sequence, budget, decider)
        if proposal and proposal.num_drafted > 1 and proposal.num_drafted < budget:
            ids = proposal.ids[:-1]
            proposal = proposal._replace(ids=ids, num_drafted=len(ids))
        return proposal

    patch.setattr(ModelDrafter, "propose_stepwise", picky)


@schedule_mutant
def confidence_of_the_token_before(patch):
    """Stops one token late: survival without the last token's own part."""
    goes_on = Confidence.goes_on
    patch.setattr(Confidence, "goes_on", lambda self, confidences: goes_on(self, confidences[:-1]))


@schedule_mutant
def no_budget_of_losses(patch):
    patch.setattr(Allowance, "allows", lambda self, worst_loss: True)


@schedule_mutant
def losses_never_counted(patch):
    patch.setattr(Allowance, "settle", lambda self, num_tokens, plain_tokens: None)


@schedule_mutant
def beliefs_that_never_forget(patch):
    patch.setattr(survival, "HAZARD", 0.0)


@schedule_mutant
def belief_deaf_to_rejections(patch):
    saw = Belief.saw
    patch.setattr(Belief, "saw", lambda self, accepted, evaluated, n: saw(self, accepted, accepted, n))


@schedule_mutant
def sources_share_a_record(patch):
    patch.setattr(BreakEven, "_of", lambda self, kind, length: self._sources["model", 0])


@schedule_mutant
def rounds_pinned_to_one(patch):
    choices = break_even._choices
    patch.setattr(break_even, "_choices", lambda kind, most, rounds: choices(kind, most, 1))


@schedule_mutant
def first_round_alone_is_told(patch):
    tell = Generation.tell
    patch.setattr(
        Generation,
        "tell",
        lambda self, choice, proposal, outcomes: tell(self, choice, proposal, outcomes[:1]),
    )


@schedule_mutant
def going_on_costs_nothing(patch):
    """The device's acceptance between two rounds is left out of the costs."""
    time = LiveCosts.time

    def without(self, choice, lag=0):
        return time(self, choice, lag) - max(0, choice.rounds - 1) * self.costs.accept

    patch.setattr(LiveCosts, "time", without)


@schedule_mutant
def never_tried_again(patch):
    patch.setattr(BreakEven, "_try", lambda self, view, kinds: None)


def test_the_schedules_pass_unchanged():
    run_schedule_suite()


@pytest.mark.parametrize("name", SCHEDULE_MUTANTS)
def test_schedule_mutant_is_killed(name, monkeypatch):
    SCHEDULE_MUTANTS[name](monkeypatch)
    with pytest.raises(AssertionError) as caught:
        run_schedule_suite()
    print(f"{name}: {str(caught.value).splitlines()[0]}")


def test_the_suite_passes_unchanged():
    run_suite()


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_killed(name, monkeypatch):
    MUTANTS[name](monkeypatch)
    with pytest.raises((AssertionError, SpecdecError)) as caught:  # a TypeError would be a broken mutant
        run_suite()
    print(f"{name}: {str(caught.value).splitlines()[0]}")
