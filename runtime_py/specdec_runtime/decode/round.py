"""The round: propose -> verify -> commit -> roll back, until the answer ends. The file to read first.

`decode` is a generator without I/O. It yields effects (effects.py) and is sent a `Readback` for every
`Submit`. The same code runs under a scripted table, natively, and in the browser. Promise (greedy, coupled): the
committed ids are the ones the target alone would give, whatever the drafter, k, or drafter faults. Above temperature 0
the target's rows hold sampled ids, and the draft model draws with the same noise: the rule stays equality. In `reject` and `block`
the promise is the target's distribution: the draft model draws for itself, and a verdict of the device (kernels/judge.py) takes
the place of equality; drafts that were not drawn (n-gram) are compared with the target's own draw there too, and so is every draft
under a grammar (docs/sampling.md).
Invariants: a round is ONE target pass over the last committed token and the drafts, and commits at least one
token unless its first row was not finite; the target's KV is one short of the committed tokens after every
submit, because the last token is row 0 of the next pass. A submit holds one round, or several: the device then
accepts each but the last by the same rule and goes on (kernels/accept.py), and what it said in all of them is
judged and committed here, round by round. Where nothing ever drafts, a submit may hold several plain steps.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, cast

from specdec_runtime.decode.choice import ANY as ANY_DRAFTER
from specdec_runtime.decode.choice import MODEL, Choice, Schedule, Stepwise, stepwise
from specdec_runtime.decode.commit import commit_run
from specdec_runtime.decode.constrain import Constraint, constrain
from specdec_runtime.decode.effects import (
    Cancelled,
    Effect,
    Effects,
    Emit,
    Finish,
    Progress,
    Readback,
    Submit,
    check_readback,
)
from specdec_runtime.decode.interfaces import Drafter, Outcome, Proposal, Steps, StepwiseDrafter
from specdec_runtime.decode.logprobs import TOP, rows_of
from specdec_runtime.decode.prefill import prefill_chunk
from specdec_runtime.decode.programs import ANY, Programs
from specdec_runtime.decode.request import Request, check_request
from specdec_runtime.decode.sampling_state import Held
from specdec_runtime.decode.session import Memory
from specdec_runtime.decode.state import STEPS, Generation
from specdec_runtime.decode.text import TokenBytes
from specdec_runtime.decode.verify import Verdict, accept_greedy, accept_judged, fell_back
from specdec_runtime.faults import ContractError, DeviceFault
from specdec_runtime.plan.schema import VERDICT_FIELDS, Plan


def decode(
    plan: Plan,
    request: Request,
    drafter: Drafter,
    programs: Programs = ANY,
    schedule: Schedule | None = None,
    held: Held | None = None,
    tokens: TokenBytes | None = None,
    memory: Memory | None = None,
) -> Effects:
    """Serve one request. A bad one is refused here, before the first effect. Without a schedule k is fixed.

    held: what earlier requests left on the device of their sampling, where it is not the memory's. tokens: what each token shows;
    of need where stop strings are asked for. memory: what the device keeps between requests, made for the same plan and programs;
    without it nothing is kept.
    """
    check_request(plan, request)
    memory = memory or Memory(plan, programs)
    return memory.serve(
        request.session,
        request.prompt_ids,
        lambda lease: _decode(
            Generation(plan, request, drafter, programs, schedule, lease, held or memory.held, tokens)
        ),
    )


def _decode(run: Generation) -> Effects:
    run.drafter.begin(run.sequence, run.draft_kind, run.lease.draft)
    try:
        if run.constraint:
            yield run.constraint.begin()
        if run.finish_reason is None:
            yield from _prefill(run)
        while run.finish_reason is None:
            yield from _turn(run)
    except Cancelled:
        run.finish_reason = "cancelled"
    yield Finish(run.result())


def _prefill(run: Generation) -> Effects:
    """All of the prompt but its last token, which is row 0 of the first cycle."""
    to_len = len(run.sequence) - 1
    while run.target.cached_len < to_len:
        yield from prefill_chunk(run.sequence, run.target, to_len, "prefill")
        yield Progress(run.target.cached_len, to_len)


Judged = tuple[list[int], Verdict]  # one round: what was drafted, and how far the target agrees


def _turn(run: Generation) -> Effects:
    """One submit with the target in it: the whole algorithm."""
    choice = run.choose()
    proposal = None
    if choice.source is None and choice.steps > 1:
        judged = yield from _plain_steps(run, choice.steps)
        outcomes = [outcome.as_plain() for outcome in _commit(run, judged)]
    else:
        proposal = yield from _propose(run, choice)
        if run.constraint:
            proposal = yield from _constrain(run, run.constraint, proposal)
        judged, proposal = yield from _verify(run, proposal)
        outcomes = _commit(run, judged)
    run.settle(outcomes)
    if run.constraint:
        run.constraint.settle(outcomes[-1])
    for outcome in outcomes:
        run.drafter.observe(outcome)
    run.tell(choice, proposal, outcomes)
    for outcome in outcomes:
        if outcome.ids:
            counts = (outcome.num_drafted, outcome.num_accepted)
            yield Emit(outcome.ids, *counts, outcome.pieces, outcome.logprobs)


def _commit(run: Generation, judged: list[Judged]) -> list[Outcome]:
    """Round by round, up to the first terminal event: what the device did after it is nobody's."""
    outcomes: list[Outcome] = []
    for drafted, verdict in judged:
        _check_verdict(run, drafted, verdict)
        outcomes.append(commit_run(run.sequence, drafted, verdict, run.limits))
        if outcomes[-1].finish_reason:
            break
    return outcomes


def _propose(run: Generation, choice: Choice) -> Generator[Effect, Readback, Proposal | None]:
    if choice.source is None:
        return None
    drafter = run.drafter if choice.source == ANY_DRAFTER else run.drafter.part(choice.source)
    decider = stepwise(run.schedule) if choice.source == MODEL else None
    if decider:
        proposal = yield from _stepwise(run, cast(StepwiseDrafter, drafter), choice.k, decider)
    else:
        proposal = yield from drafter.propose(run.sequence, choice.k, choice.rounds)
    if proposal is None or (0 < proposal.num_drafted <= choice.k and 0 < proposal.rounds <= choice.rounds):
        return proposal
    message = f"{proposal.source.name} proposed {proposal.num_drafted} drafts of {choice.k}"
    raise ContractError(f"{message} in {proposal.rounds} rounds of {choice.rounds}", "decode/round.py")


def _stepwise(run: Generation, drafter: StepwiseDrafter, k: int, decider: Stepwise) -> Steps:
    """Its steps are counted whatever comes of them: a proposal, a fault, a cancel."""
    before = drafter.num_steps
    try:
        return (yield from drafter.propose_stepwise(run.sequence, k, decider))
    finally:
        run.stepped(drafter.num_steps - before)


def _constrain(
    run: Generation, constraint: Constraint, proposal: Proposal | None
) -> Generator[Effect, Any, Proposal | None]:
    """As the grammar leaves it. A model's drafts come in a submit of their own: the host must know them to make the masks."""
    if proposal is not None and proposal.calls:
        proposal = yield from _known(run, proposal)
    return (yield from constrain(constraint, run.sequence, proposal, run.draft_budget()))


def _known(run: Generation, proposal: Proposal) -> Generator[Effect, Readback, Proposal | None]:
    batch = run.draft_submit(proposal)
    try:
        readback = yield batch
    except DeviceFault:
        proposal.source.failed("device_fault")
        return None
    check_readback(batch, readback)
    run.drafted()
    run.stepped(sum(call.startswith(STEPS) for call in batch.calls))
    ids = proposal.source.drafted(readback.values, 0)
    return Proposal(proposal.source, len(ids), ids) if ids else None


def _verify(
    run: Generation, proposal: Proposal | None
) -> Generator[Effect, Readback, tuple[list[Judged], Proposal | None]]:
    """Run the target over the last token and the drafts, once a round; the judged rounds that are of use; the proposal, if run."""
    batch = run.masked(run.verify_submit(proposal))
    try:
        readback = yield batch
    except DeviceFault:
        if proposal is None or not proposal.calls:
            raise
        proposal.source.failed("device_fault")  # it shared the submit with the target: try that alone
        proposal = None
        batch = run.verify_submit(None)
        readback = yield batch
    check_readback(batch, readback)
    run.took(readback)
    num_rows, rounds = (1 + proposal.num_drafted, proposal.rounds) if proposal else (1, 1)
    judged = _judge_drawn(run, proposal, readback) if run.judges(proposal) else _judge(proposal, readback)
    judged = _with_tops(batch, readback, judged, num_rows)
    if rounds > 1:
        _check_start(run, judged[: rounds - 1], num_rows, readback.values[-1][0])
    run.passed(batch, num_rows * rounds)
    return judged, proposal


def _plain_steps(run: Generation, steps: int) -> Generator[Effect, Readback, list[Judged]]:
    """The target's own steps: each but the last is a draft that cannot be wrong."""
    batch = run.steps_submit(steps)
    readback = yield batch
    check_readback(batch, readback)
    run.took(readback)
    run.passed(batch, steps)
    out = readback.values[0]
    drafted = out[0:-2:2]
    return _with_tops(batch, readback, [(drafted, accept_greedy(drafted, out))], steps)


def _judge(proposal: Proposal | None, readback: Readback) -> list[Judged]:
    """Each round by its own rows of `out`, up to one that is undecided (the device stopped there) or lacks drafts."""
    if proposal is None:
        return [([], accept_greedy([], readback.values[0]))]
    num_reads, num_numbers = len(proposal.reads), 2 * (1 + proposal.num_drafted)
    judged: list[Judged] = []
    for number in range(proposal.rounds):
        ids = list(proposal.ids) or proposal.source.drafted(readback.values[:num_reads], number)
        out = readback.values[num_reads][number * num_numbers : (number + 1) * num_numbers]
        judged.append((ids, accept_greedy(ids, out)))
        if judged[-1][1].next_id is None or len(ids) < proposal.num_drafted:
            break
    return judged


def _judge_drawn(run: Generation, proposal: Proposal | None, readback: Readback) -> list[Judged]:
    """The same, where the device applied the rule: each round by its row of `target.verdict`."""
    assert proposal is not None
    num_reads = len(proposal.reads)
    judged: list[Judged] = []
    for number in range(proposal.rounds):
        ids = proposal.source.drafted(readback.values[:num_reads], number)
        row = readback.values[num_reads][number * VERDICT_FIELDS : (number + 1) * VERDICT_FIELDS]
        judged.append((ids, accept_judged(ids, row)))
        run.fell_back(fell_back(row))
        if judged[-1][1].next_id is None or len(ids) < proposal.num_drafted:
            break
    return judged


def _with_tops(batch: Submit, readback: Readback, judged: list[Judged], num_rows: int) -> list[Judged]:
    """The rounds, of num_rows rows each, with the log-probabilities of those where they were read."""
    reads = [name for name, _, _ in batch.reads]
    if TOP not in reads:
        return judged
    tops = readback.values[reads.index(TOP)]
    return [
        (ids, verdict._replace(tops=rows_of(tops, number * num_rows, num_rows)))
        for number, (ids, verdict) in enumerate(judged)
    ]


def _check_start(run: Generation, judged: list[Judged], num_rows: int, start: int) -> None:
    """Where the device stands must be where its rows lead to, or the rows of its later rounds are those of other tokens."""
    if any(len(ids) + 1 < num_rows for ids, _ in judged):
        return  # it went on with a draft that is of no use, and nothing after that is used
    moved = sum(verdict.num_accepted + 1 for _, verdict in judged if verdict.next_id is not None)
    if start != len(run.sequence) - 1 + moved:
        message = (
            f"the device stands at position {start}, {moved} after {len(run.sequence) - 1} were accepted"
        )
        raise DeviceFault(message, "target.args", "Use another backend, or rounds 1")


def _check_verdict(run: Generation, drafted: list[int], verdict: Verdict) -> None:
    if verdict.next_id is None and run.must_be_plain:
        action = "Reload the page or use another backend"
        raise DeviceFault("the target's logits are not finite, twice", "target.out", action)
    given = [*drafted[: verdict.num_accepted], verdict.next_id or 0]  # what the target said, or agreed to
    for token_id in given:
        if not 0 <= token_id < run.vocab_size:
            raise DeviceFault(f"the target gave token id {token_id}", "target.out", "Use another backend")
