"""The state of one generation: sequence, target KV, limits, counters, result.

Knows the plan and the request; does not know how a round goes (round.py does). Invariants after `settle`:
the target's cached length is committed - 1; every count agrees with the committed tokens.
"""

from __future__ import annotations

from typing import Any

from specdec_runtime.decode.choice import MODEL, NGRAM, Choice, Done, Fixed, Schedule, View
from specdec_runtime.decode.commit import Limits
from specdec_runtime.decode.constrain import FORCED, Constraint
from specdec_runtime.decode.effects import Read, Readback, Submit
from specdec_runtime.decode.interfaces import Drafter, Outcome, Proposal
from specdec_runtime.decode.logprobs import top_read
from specdec_runtime.decode.programs import Programs, is_pass
from specdec_runtime.decode.request import Request
from specdec_runtime.decode.sampling_state import Held, SamplingState
from specdec_runtime.decode.session import Lease
from specdec_runtime.decode.text import StopText, TokenBytes
from specdec_runtime.faults import ContractError
from specdec_runtime.plan.schema import OUT_ROWS, VERDICT_FIELDS, Plan


class Generation:
    """One request being served."""

    def __init__(
        self,
        plan: Plan,
        request: Request,
        drafter: Drafter,
        programs: Programs,
        schedule: Schedule | None,
        lease: Lease,
        held: Held,
        tokens: TokenBytes | None = None,
    ) -> None:
        model, sampling = plan.target_model, request.sampling
        self.lease = lease
        self.sequence = lease.sequence
        self.target = lease.target
        self.drafter = drafter
        self.vocab_size = model.vocab_size
        eos_ids = plan.text.eos_ids if request.eos_ids is None else request.eos_ids
        max_len = min(len(self.sequence) + request.max_tokens, model.max_context)
        self.limits = Limits(frozenset(eos_ids), max_len, _stop_text(request, tokens), request.logprobs)
        self._logprobs: list[dict[str, Any]] = []
        masked = request.grammar is not None
        # a grammar cuts and replaces drafts by their values, so they are judged by equality there, in every mode
        judges = sampling.judges and not masked
        self.draft_kind = "draw" if judges else "step" if sampling.kind == "verify" else "sample"
        self._kind, self._promise = "filter" if masked else sampling.kind, sampling.promise
        self._seed = sampling.seed if sampling.temperature > 0 else None
        columns = model.padded_vocab
        self._sampling = SamplingState(sampling, len(self.sequence), eos_ids, columns, held, masked)
        self.finish_reason: str | None = "length" if request.max_tokens == 0 else None
        self.must_be_plain = False  # the last row was not finite: the next cycle is its one plain retry
        self._programs = programs
        self._max_drafts = min(request.k, programs.max_rows(model) - 1)
        self.schedule = schedule or Fixed()
        self._never_drafts = drafter.idle or self._max_drafts == 0
        self._steps = request.steps if self._never_drafts or self.schedule.looks else 1
        self._rounds = 1 if self._never_drafts else request.rounds
        self.constraint: Constraint | None = None
        if request.grammar is not None:
            self.constraint = Constraint(plan, request.grammar, self.limits)
            self._steps = self._rounds = 1  # the host makes each row's mask
        barred = programs.verify == "plain" and request.k > 0 and not drafter.idle
        self._fallbacks = {"rows_differ": 1} if barred else {}
        self._counts = dict.fromkeys(_COUNTS, 0)
        self._choices: dict[str, int] = {}
        self._lag = 0  # of the draft's KV when the schedule looked
        self._ms = 0.0

    def choose(self) -> Choice:
        """What the next submit tries: the schedule's word, where anything may be drafted at all."""
        budget = self.draft_budget()
        if self._never_drafts or budget <= 0:
            return Choice(steps=self.plain_steps() if self._never_drafts else 1)
        choice = self.schedule.choose(self._view(budget))
        if choice.source is None:
            return Choice(steps=max(1, min(choice.steps, self.plain_steps())))
        k = max(1, min(choice.k, budget))
        return choice._replace(k=k, rounds=max(1, min(choice.rounds, self.draft_rounds(k))))

    def _view(self, budget: int) -> View:
        view = View(self.limits.max_len - len(self.sequence), budget, self.plain_steps(), self._rounds)
        if not self.schedule.looks:
            return view
        offers = {offer.source: offer for offer in self.drafter.offers(self.sequence)}
        ngram, model = offers.get(NGRAM), offers.get(MODEL)
        self._lag = model.lag if model else 0
        return view._replace(
            ngram_len=ngram.match_len if ngram else 0,
            ngram_ids=min(budget, ngram.num_ids) if ngram else 0,
            model_ready=model is not None,
            model_lag=self._lag,
            prompt_len=self.sequence.prompt_len,
        )

    def took(self, readback: Readback) -> None:
        """The time of the submit that had the target in it; none under a grammar, where drafting has its own."""
        self._ms = 0.0 if self.constraint else sum(readback.ms)

    def tell(self, choice: Choice, proposal: Proposal | None, outcomes: list[Outcome]) -> None:
        """Count what was run, and let the schedule know: all rounds of the submit, and its time. proposal: what was in it."""
        rounds = tuple((one.num_accepted, one.num_evaluated) for one in outcomes if one.num_drafted)
        if self.constraint:
            rounds = self.constraint.own(rounds)
        if proposal is not None:
            what = {"source": proposal.source.name, "k": proposal.num_drafted, "rounds": proposal.rounds}
            choice = choice._replace(**what)
        else:
            choice = Choice(steps=choice.steps if choice.source is None else 1)
        self._choices[choice.label] = self._choices.get(choice.label, 0) + 1
        if choice.source == FORCED.name:
            choice = Choice()  # no schedule can choose it, and none learns from it
        num_committed = sum(len(one.ids) for one in outcomes)
        self.schedule.observe(Done(choice, num_committed, rounds, self._ms, self._lag))

    def draft_budget(self) -> int:
        """Drafts the next cycle may verify: it commits one token more than it accepts."""
        if self.must_be_plain:
            return 0
        return min(self._max_drafts, self.limits.max_len - len(self.sequence) - 1)

    def draft_rounds(self, budget: int) -> int:
        """Rounds of that many drafts the next submit may hold: none that could not be needed, all inside the context and in `out`."""
        committed, num_rows = len(self.sequence), budget + 1
        needed = -(-(self.limits.max_len - committed) // num_rows)
        fitting = (self.target.model.max_context - committed + 1) // num_rows
        return max(1, min(self._rounds, OUT_ROWS // num_rows, needed, fitting))

    def plain_steps(self) -> int:
        """Steps the next submit may hold: more than one only where nothing ever drafts, or a schedule says when; the first token waits
        for no other."""
        alone = self.must_be_plain or len(self.sequence) == self.sequence.prompt_len
        return 1 if alone else min(self._steps, self.limits.max_len - len(self.sequence))

    def steps_submit(self, steps: int) -> Submit:
        """Plain steps in one submit: each writes its id to `tokens`, where the next one reads it, and its row to `out`. Never the first
        submit, which tells the device how to choose."""
        writes = self.sequence.token_writes(len(self.sequence))
        writes += self.target.feed(1, steps - 1, feedback=1)
        return Submit("verify", writes, self._pass(1) * steps, self._pass_reads(steps))

    def verify_submit(self, proposal: Proposal | None) -> Submit:
        """One target pass a round, after the proposal's own calls. Its reads follow the proposal's; with more rounds the last
        read is where the device stands at the last one."""
        num_rows, rounds = (1 + proposal.num_drafted, proposal.rounds) if proposal else (1, 1)
        writes = self.sequence.token_writes(len(self.sequence), proposal.ids if proposal else ())
        writes += self.target.feed(num_rows, (rounds - 1) * num_rows) + self._sampling.writes()
        judges = self.judges(proposal)
        verify, out = self._pass(num_rows, judges), self._pass_reads(num_rows, rounds, judges)
        if not proposal or not proposal.calls:
            return Submit("verify", writes, verify, out)
        calls = [*proposal.calls, *verify] + [*proposal.again, *verify] * (rounds - 1)
        reads = [*proposal.reads, *out] + ([("target.args", 0, 1)] if rounds > 1 else [])
        return Submit("round", [*writes, *proposal.writes], calls, reads)

    def judges(self, proposal: Proposal | None) -> bool:
        """Is it judged by probabilities? What the device did not draw is compared with the target's own draw, in every mode."""
        return self.draft_kind == "draw" and proposal is not None and bool(proposal.calls)

    def fell_back(self, did: bool) -> None:
        if did:
            self._fallbacks["empty_residual"] = self._fallbacks.get("empty_residual", 0) + 1

    def _pass(self, num_rows: int, judges: bool = False) -> list[str]:
        """The calls of one pass of the target. Where it is judged and nothing is filtered, its rows need no noise."""
        width = self._programs.width(self.target.model, num_rows)
        filters = self._kind == "filter"
        calls = [f"target.{'verify' if judges and not filters else self._kind}_{width}"]
        if judges:
            calls.append("draft.judge_filter" if filters else "draft.judge")
        return calls + ([f"target.logprobs_{width}"] if self.limits.logprobs else [])

    def _pass_reads(self, num_rows: int, rounds: int = 1, judges: bool = False) -> list[Read]:
        """What the passes of a submit left to read: `out`, or the verdicts, first."""
        said: Read = ("target.out", 0, 2 * num_rows * rounds)
        if judges:
            said = ("target.verdict", 0, VERDICT_FIELDS * rounds)
        return [said] + ([top_read(num_rows * rounds)] if self.limits.logprobs else [])

    def draft_submit(self, proposal: Proposal) -> Submit:
        """A proposal's own calls by themselves, for the host to know its ids before the pass."""
        writes = self.sequence.token_writes(len(self.sequence)) + self._sampling.writes()
        return Submit("draft", [*writes, *proposal.writes], list(proposal.calls), list(proposal.reads))

    def drafted(self) -> None:
        """That submit succeeded."""
        self.sequence.landed(len(self.sequence))
        self._sampling.landed()

    def masked(self, batch: Submit) -> Submit:
        """The pass with the masks of its rows, where there is a grammar."""
        return batch._replace(masks=self.constraint.num_rows) if self.constraint else batch

    def stepped(self, num_steps: int) -> None:
        """Draft steps that were submits of their own."""
        self._counts["num_draft_passes"] += num_steps

    def passed(self, batch: Submit, num_rows: int) -> None:
        """That submit succeeded: the device has the committed ids and the KV of every row, of num_rows at most."""
        self.sequence.landed(len(self.sequence))
        self.target.landed(num_rows)
        self._sampling.landed()
        self._counts["num_target_passes"] += sum(map(is_pass, batch.calls))
        self._counts["num_draft_passes"] += sum(call.startswith(STEPS) for call in batch.calls)

    def settle(self, outcomes: list[Outcome]) -> None:
        """After a submit's commits: roll the target back to committed - 1 and count."""
        committed, last = len(self.sequence), outcomes[-1]
        num_written = committed - len(last.ids) + last.num_accepted
        # accepted drafts are in `tokens` already, and rounds before the last whole
        self.sequence.landed(num_written)
        self.target.rollback(committed - 1)
        self.finish_reason = last.finish_reason
        self.must_be_plain = last.undecided
        self._counts["num_cycles"] += len(outcomes)
        for outcome in outcomes:
            for name in ("num_drafted", "num_accepted", "num_evaluated"):
                self._counts[name] += getattr(outcome, name)
            self._logprobs += outcome.logprobs or []
        if self.target.cached_len != committed - 1:
            raise ContractError("the target's KV is not one short of the committed tokens", "decode/state.py")

    def result(self) -> dict[str, Any]:
        """What `--json` prints, less device and times; the text only where stop strings were asked for."""
        sequence, text = self.sequence, self.limits.text
        token_ids = sequence.generated_ids
        return {
            "prompt_ids": sequence.ids[: sequence.prompt_len],
            "token_ids": token_ids,
            **({"text": text.finish()} if text else {}),
            "finish_reason": self.finish_reason,
            "stop": text.stop if text else None,
            "seed": self._seed,
            "logprobs": self._logprobs if self.limits.logprobs else None,
            "usage": {
                "prompt_tokens": sequence.prompt_len,
                "completion_tokens": len(token_ids),
                "cached_tokens": self.lease.num_cached,
            },
            "speculation": {
                "mode": self._promise,
                "drafter": self.drafter.name,
                "plain_steps": self._steps,
                "rounds": self._rounds,
                **self._counts,
                **(self.constraint.counts if self.constraint else {}),
                "fallbacks": {**self.drafter.fallbacks, **self._fallbacks},
                "schedule": {
                    "name": self.schedule.name,
                    "version": self.schedule.version,
                    "choices": dict(sorted(self._choices.items())),
                    **self.schedule.report(),
                },
            },
        }


def _stop_text(request: Request, tokens: TokenBytes | None) -> StopText | None:
    """Without stop strings no text is made here."""
    if not request.stop:
        return None
    if tokens is None:
        raise ContractError("stop strings, but no table of tokens", "decode/state.py", "Hand over `tokens`")
    return StopText(request.stop, tokens)


# programs that make a draft, in a submit with the target's
STEPS = (
    "draft.step_",
    "draft.sample_",
    "draft.draw_",
)
_COUNTS = (
    "num_cycles",
    "num_drafted",
    "num_accepted",
    "num_evaluated",
    "num_target_passes",
    "num_draft_passes",
)
