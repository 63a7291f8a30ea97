"""Modes `reject` and `block` through the decode core: every committed id against a second opinion, cycle by cycle.

The second opinion is made of the request, the models' functions and what was submitted (where a cycle began, how many drafts it had):
it draws the drafts, judges them by decode/rules.py and draws what follows, with softmax and keys of its own. No tensor is read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from math import exp, inf, log

from exactness_suite import VOCAB, Case, models, prompt_of, run_case
from filtered_models import filtered
from sampled_models import sampled
from simulate import Run
from specdec_runtime.backends.scripted_sampling import logits_of
from specdec_runtime.decode import rules
from specdec_runtime.decode.pipeline import Processors, process
from specdec_runtime.decode.rng import ACCEPT, DRAFT, RESIDUAL, gumbel, uniform
from specdec_runtime.decode.sampling import Sampling


def shares(model, prefix: tuple[int, ...], sampling: Sampling, model_is_target: bool = True) -> list[float]:
    """Of the target after its processors; a draft leaves the truncations out."""
    logits = logits_of(model, prefix, VOCAB)
    if model_is_target and sampling.truncates:
        z = process(
            logits,
            prefix,
            Processors(True, 1 / sampling.temperature, top_k=sampling.top_k, top_p=sampling.top_p),
        )
        assert z is not None
        return [exp(value - max(z)) / sum(exp(other - max(z)) for other in z) for value in z]
    banned = {word[0] for word in sampling.bad_words}
    allowed = set(range(VOCAB) if sampling.allowed_ids is None else sampling.allowed_ids) - banned
    biased = [
        (z + sampling.logit_bias.get(v, 0.0)) / sampling.temperature if v in allowed else -inf
        for v, z in enumerate(logits)
    ]
    parts = [exp(z - max(biased)) for z in biased]
    return [part / sum(parts) for part in parts]


def drawn(weights: list[float], seed: int, position: int, offset: int, stream: int) -> int:
    place = position + offset * 2**24
    values = [log(w) + gumbel(seed, place, v, stream) if w > 0 else -inf for v, w in enumerate(weights)]
    return values.index(max(values))


@dataclass
class Opinion:
    """What should be committed, and how much of it is accepted drafts."""

    ids: list[int]
    accepted: int = 0
    drafted: int = 0


def cycle(case: Case, ids: list[int], k: int) -> tuple[list[int], int]:
    """(ids that a cycle of k drawn drafts commits after `ids`, how many of them are drafts)."""
    target, draft = models(case)
    seed, drafted = case.sampling.seed, []
    for i in range(k):
        q = shares(draft, (*ids, *drafted), case.sampling, False)
        drafted.append(drawn(q, seed, len(ids) + i, i, DRAFT))
    prefixes = [(*ids, *drafted[:i]) for i in range(k + 1)]
    p = [shares(target, prefix, case.sampling) for prefix in prefixes]
    q = [shares(draft, prefix, case.sampling, False) for prefix in prefixes[:k]]
    uniforms = [uniform(seed, len(ids) + i + i * 2**24, 0, ACCEPT) for i in range(k)]
    judged = rules.judge(case.sampling.mode, p, q, drafted, uniforms)
    count = judged.num_accepted
    following = drawn(judged.next.weights, seed, len(ids) + count, count, RESIDUAL)
    return [*drafted[:count], following], count


def opinion(case: Case, run: Run) -> Opinion:
    """Of the whole run: its cycles' places and widths are those that were submitted."""
    target, _ = models(case)
    prompt = prompt_of(case)
    alone = sampled(target, case.sampling, VOCAB)
    if case.sampling.truncates:
        alone = filtered(target, case.sampling, len(prompt), case.eos_ids or (), VOCAB)
    found = Opinion(list(prompt))
    max_len = min(len(prompt) + case.max_tokens, case.max_context)
    ended = False
    for batch, readback in zip(run.backend.submits, run.backend.readbacks, strict=True):
        if batch.kind not in ("round", "verify") or readback is None:
            continue
        rounds = sum(call.startswith("draft.judge") for call in batch.calls)
        rows = next(values[1] for name, _, values in batch.writes if name == "target.args")
        plain = len(batch.calls) if not rounds and rows == 1 else 1
        for _ in range(rounds or plain):
            if ended:
                break
            if rounds:
                gained, accepted = cycle(case, found.ids, rows - 1)
                found.drafted += rows - 1
            else:
                gained, accepted = compared(batch, found.ids, rows, alone)
                found.drafted += rows - 1
            for i, token_id in enumerate(gained):
                found.ids.append(token_id)
                found.accepted += i < accepted
                ended = token_id in (case.eos_ids or ()) or len(found.ids) >= max_len
                if ended:
                    break
    assert ended, case
    found.ids = found.ids[len(prompt) :]
    return found


def compared(batch, ids: list[int], rows: int, alone) -> tuple[list[int], int]:
    """The target's own draws after `ids`, while the drafts that were written are those."""
    drafts = []
    for name, first, values in batch.writes:
        if name == "tokens":
            drafts = values[len(ids) - first :]
    gained: list[int] = []
    for draft in [*drafts[: rows - 1], None]:
        gained.append(alone((*ids, *gained)))
        if gained[-1] != draft:
            break
    return gained, len(gained) - 1


def check_judged(case: Case) -> Opinion:
    run = run_case(case)
    wanted = opinion(case, run)
    counts = run.result["speculation"]
    assert run.ids == wanted.ids, case
    assert counts["mode"] == case.sampling.mode, case
    assert counts["num_accepted"] == wanted.accepted, case
    assert counts["num_drafted"] == wanted.drafted, case
    assert counts["num_accepted"] <= counts["num_evaluated"] <= counts["num_drafted"], case
    assert counts["fallbacks"] == {}, case
    called = {call.rsplit("_", 1)[0] for batch in run.backend.submits for call in batch.calls}
    assert not called & {"draft.step", "draft.sample", "draft.accept"}, case
    return wanted


def suite() -> list[Case]:
    """Both rules with every drafter, k, likeness and temperature; rounds, endings, page sizes, biases, schedules."""
    cases = []
    ways = product(("reject", "block"), ("model", "chain", "ngram"), (1, 3, 7), (0.3, 1.0, 3.0), (0, 70, 100))
    for seed, (mode, drafter, k, temperature, quality) in enumerate(ways):
        sampling = Sampling(temperature, mode, seed=seed * 0x1234567_89ABCDEF % 2**64)
        cases.append(Case(seed, drafter, k, quality, memory=seed % 3, eos_ids=(), sampling=sampling))
    for mode in ("reject", "block"):
        base = Case(
            7, "model", 4, quality=80, eos_ids=(), sampling=Sampling(0.8, mode, seed=11), max_tokens=30
        )
        for rounds, k, page_size in product((2, 3, 4), (1, 2, 3, 7), (2, 4)):
            cases.append(replace(base, rounds=rounds, k=k, page_size=page_size))
        for eos, rounds in product(range(VOCAB), (1, 4)):
            cases.append(replace(base, eos_ids=(eos,), rounds=rounds))
        for prompt_len in (1, 5, 16, 22):
            cases.append(replace(base, prompt_len=prompt_len, max_context=24, rounds=2))
        biased = Sampling(1.5, mode, seed=3, logit_bias={0: 3.0}, bad_words=[[2]])
        cases += [replace(base, sampling=biased, k=k, rounds=2) for k in (1, 4)]
        for schedule, costs in product(("heuristic", "break_even"), ("gpu", "free", "linear")):
            cases.append(replace(base, schedule=schedule, costs=costs, k=7))
        cases.append(replace(base, drafter="off", steps=4))
        cases += [
            replace(base, sampling=Sampling(2.0, mode, seed=5, top_k=top_k, top_p=top_p), rounds=rounds)
            for (top_k, top_p), rounds in product(((3, 1.0), (0, 0.7), (1, 1.0)), (1, 3))
        ]
    return cases


def run_judged_suite() -> None:
    for case in suite():
        check_judged(case)
