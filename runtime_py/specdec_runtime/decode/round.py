"""The round: propose -> verify -> commit -> roll back, until the answer ends. The file to read first.

`decode` is a generator without I/O. It yields effects (effects.py) and is sent a `Readback` for every
`Submit`. The same code runs under a scripted table, natively, and in the browser. Promise (greedy): the
committed ids are the ones the target alone would give, whatever the drafter, k, or drafter faults.
Invariants: a cycle is ONE target pass over the last committed token and the drafts (where nothing ever
drafts it may be several plain steps in one submit), and commits at least one token unless its first row was
not finite; the target's KV is one short of the committed tokens after every cycle, because the last token is
row 0 of the next pass.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import cast

from specdec_runtime.decode.choice import ANY as ANY_DRAFTER
from specdec_runtime.decode.choice import MODEL, Choice, Schedule, stepwise
from specdec_runtime.decode.commit import commit_run
from specdec_runtime.decode.effects import (
    Cancelled,
    Effect,
    Effects,
    Emit,
    Finish,
    Progress,
    Readback,
    check_readback,
)
from specdec_runtime.decode.interfaces import Drafter, Proposal, StepwiseDrafter
from specdec_runtime.decode.prefill import prefill_chunk
from specdec_runtime.decode.programs import ANY, Programs
from specdec_runtime.decode.request import Request, check_request
from specdec_runtime.decode.state import Generation
from specdec_runtime.decode.verify import Verdict, accept_greedy
from specdec_runtime.faults import ContractError, DeviceFault
from specdec_runtime.plan.schema import Plan


def decode(
    plan: Plan, request: Request, drafter: Drafter, programs: Programs = ANY, schedule: Schedule | None = None
) -> Effects:
    """Serve one request. A bad one is refused here, before the first effect. Without a schedule k is fixed."""
    check_request(plan, request)
    return _decode(Generation(plan, request, drafter, programs, schedule))


def _decode(run: Generation) -> Effects:
    run.drafter.begin(run.sequence)
    try:
        if run.finish_reason is None:
            yield from _prefill(run)
        while run.finish_reason is None:
            yield from _cycle(run)
    except Cancelled:
        run.finish_reason = "cancelled"
    yield Finish(run.result())


def _prefill(run: Generation) -> Effects:
    """All of the prompt but its last token, which is row 0 of the first cycle."""
    to_len = len(run.sequence) - 1
    while run.target.cached_len < to_len:
        yield from prefill_chunk(run.sequence, run.target, to_len, "prefill")
        yield Progress(run.target.cached_len, to_len)


def _cycle(run: Generation) -> Effects:
    """One round: the whole algorithm."""
    choice = run.choose()
    proposal, steps = None, choice.steps
    if choice.source is None and steps > 1:
        drafted, out = yield from _plain_steps(run, steps)
    else:
        proposal = yield from _propose(run, choice)
        drafted, out = yield from _verify(run, proposal)
    verdict = accept_greedy(drafted, out)
    _check_verdict(run, drafted, verdict)
    outcome = commit_run(run.sequence, drafted, verdict, run.limits)
    if steps > 1:
        outcome = outcome.as_plain()
    run.settle(outcome)
    run.drafter.observe(outcome)
    run.tell(choice, proposal, outcome)
    if outcome.ids:
        yield Emit(outcome.ids, outcome.num_drafted, outcome.num_accepted)


def _propose(run: Generation, choice: Choice) -> Generator[Effect, Readback, Proposal | None]:
    if choice.source is None:
        return None
    drafter = run.drafter if choice.source == ANY_DRAFTER else run.drafter.part(choice.source)
    decider = stepwise(run.schedule) if choice.source == MODEL else None
    if decider:
        proposal = yield from cast(StepwiseDrafter, drafter).propose_stepwise(run.sequence, choice.k, decider)
        run.stepped(proposal.num_drafted if proposal else 0)
    else:
        proposal = yield from drafter.propose(run.sequence, choice.k)
    if proposal is not None and not 0 < proposal.num_drafted <= choice.k:
        message = f"{proposal.source.name} proposed {proposal.num_drafted} drafts of {choice.k}"
        raise ContractError(message, "decode/round.py")
    return proposal


def _verify(
    run: Generation, proposal: Proposal | None
) -> Generator[Effect, Readback, tuple[list[int], list[int]]]:
    """Run the target over the last token and the drafts; the drafted ids and the target's rows."""
    batch = run.verify_submit(proposal)
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
    run.passed(1 + proposal.num_drafted if proposal else 1, 1, len(proposal.calls) if proposal else 0)
    return _drafted_ids(proposal, readback), readback.values[-1]


def _plain_steps(run: Generation, steps: int) -> Generator[Effect, Readback, tuple[list[int], list[int]]]:
    """The target's own steps: each but the last is a draft that cannot be wrong; and all their rows."""
    batch = run.steps_submit(steps)
    readback = yield batch
    check_readback(batch, readback)
    run.took(readback)
    run.passed(steps, steps)
    (out,) = readback.values
    return out[0:-2:2], out


def _drafted_ids(proposal: Proposal | None, readback: Readback) -> list[int]:
    if proposal is None:
        return []
    return list(proposal.ids) or proposal.source.drafted(readback.values[:-1])


def _check_verdict(run: Generation, drafted: list[int], verdict: Verdict) -> None:
    if verdict.next_id is None and run.must_be_plain:
        action = "Reload the page or use another backend"
        raise DeviceFault("the target's logits are not finite, twice", "target.out", action)
    given = [*drafted[: verdict.num_accepted], verdict.next_id or 0]  # what the target said, or agreed to
    for token_id in given:
        if not 0 <= token_id < run.vocab_size:
            raise DeviceFault(f"the target gave token id {token_id}", "target.out", "Use another backend")
