"""The equality suite: speculative ids = plain ids, and the books balance; tests/meta runs it on mutants.

`run_suite` raises at the first case that fails. The plain answer is computed by definition, from the
model function alone, never by the code under test. Invariant: deterministic, a few seconds at most, and
bounded even when a mutant never ends.
"""

from collections import Counter
from dataclasses import dataclass, replace
from itertools import product

from filtered_models import filtered
from plan_factory import load_made
from sampled_models import sampled
from simulate import Pass, Run, generate, mostly, passes, plain_ids, recount, seeded
from specdec_runtime.backends.scripted import Script, ScriptedBackend
from specdec_runtime.decode.programs import ANY, Programs
from specdec_runtime.decode.sampling import PLAIN, Sampling
from specdec_runtime.plan import Plan
from specdec_runtime.schedule.costs import Costs
from specdec_runtime.schedule.policy import Policy
from specdec_runtime.schedule.registry import make_schedule

VOCAB = 13
MAX_SUBMITS = 400
COSTS = {
    "gpu": Costs(1.0, {1: 1.05, 2: 1.15, 4: 1.26, 8: 1.3}, 0.1, 0.25, 3.0),
    "free": Costs(1.0, {1: 1.0, 2: 1.0, 4: 1.0, 8: 1.0}, 0.01, 0.01, 3.0),
    "far": Costs(12.0, {1: 1.05, 2: 1.15, 4: 1.26, 8: 1.3}, 0.1, 0.25, 3.0),  # a submit costs much
    "linear": Costs(0.1, {1: 1.0, 2: 2.0, 4: 4.0, 8: 8.0}, 0.3, 2.0, 30.0),
}


class BoundedBackend(ScriptedBackend):
    """Fails instead of serving a loop that never ends."""

    def submit(self, batch):
        assert len(self.submits) < MAX_SUBMITS, "the run does not end"
        return super().submit(batch)


@dataclass(frozen=True)
class Case:
    """One request on one pair of models."""

    seed: int
    drafter: str
    k: int
    quality: int = 60  # percent of prefixes on which the draft model agrees
    memory: int = 0  # tokens the target looks at; few make it repeat itself, which n-grams like
    prompt_len: int = 9
    max_tokens: int = 16
    eos_ids: tuple[int, ...] = ()
    max_context: int = 48
    page_size: int = 4
    not_finite: tuple[tuple[int, str, int], ...] = ()
    steps: int = 1
    not_finite_calls: tuple[tuple[int, int], ...] = ()
    programs: Programs = ANY
    rounds: int = 1
    schedule: str = "fixed"
    costs: str = "gpu"  # a key of COSTS
    sampling: Sampling = PLAIN


def models(case: Case):
    target = seeded(case.seed, VOCAB, case.memory)
    draft = target if case.quality == 100 else mostly(target, seeded(case.seed + 500, VOCAB), case.quality)
    return target, draft


def plan_of(case: Case) -> Plan:
    sizes = {"max_context": case.max_context, "page_size": case.page_size}
    return load_made(vocab_size=VOCAB, draft={**sizes, "prefill_width": 4}, **sizes)


def prompt_of(case: Case) -> list[int]:
    choose = seeded(case.seed + 900, VOCAB, memory=2)
    return [choose((case.seed, position % 5)) for position in range(case.prompt_len)]


def run_case(case: Case) -> Run:
    target, draft = models(case)
    script = Script(not_finite=set(case.not_finite), not_finite_calls=set(case.not_finite_calls))
    backend = BoundedBackend(plan_of(case), target, draft, script)
    return generate(
        plan_of(case),
        target,
        prompt_of(case),
        case.max_tokens,
        case.drafter,
        case.k,
        eos_ids=case.eos_ids,
        backend=backend,
        steps=case.steps,
        programs=case.programs,
        rounds=case.rounds,
        schedule=make_schedule(case.schedule, COSTS[case.costs], Policy(), case.k),
        sampling=case.sampling,
    )


def expected_ids(case: Case) -> list[int]:
    target, _ = models(case)
    if case.sampling.kind == "filter":
        eos_ids = plan_of(case).text.eos_ids if case.eos_ids is None else case.eos_ids
        target = filtered(target, case.sampling, len(prompt_of(case)), eos_ids, VOCAB)
    elif case.sampling.kind == "sample":
        target = sampled(target, case.sampling, VOCAB)
    return plain_ids(target, prompt_of(case), case.max_tokens, case.max_context, case.eos_ids)


def check_case(case: Case) -> Run:
    run, expected = run_case(case), expected_ids(case)
    assert run.ids == expected, f"{case}: {run.ids} is not {expected}"
    assert [token_id for emit in run.emits for token_id in emit.ids] == expected, (
        "what is streamed is what is committed"
    )
    stopped = bool(expected) and expected[-1] in case.eos_ids
    assert run.result["finish_reason"] == ("stop" if stopped else "length"), case
    assert run.result["usage"] == {"prompt_tokens": case.prompt_len, "completion_tokens": len(expected)}
    if not case.not_finite and not case.not_finite_calls:
        check_books(case, run)
    return run


def check_books(case: Case, run: Run) -> None:
    """Counts, rows and starts of every pass, for a run without faults."""
    speculation = run.result["speculation"]
    counted = recount(run)
    assert {name: speculation[name] for name in counted} == counted, case
    assert speculation["num_accepted"] <= speculation["num_evaluated"] <= speculation["num_drafted"]
    drafts = case.drafter != "off" and case.k > 0
    barred = drafts and case.programs.verify == "plain"
    assert speculation["fallbacks"] == ({"rows_differ": 1} if barred else {})
    k = 0 if barred else case.k
    free = case.schedule != "fixed" and drafts and not barred  # to draft less than asked, or not at all
    steps = 1 if drafts and not barred and case.schedule != "break_even" else case.steps
    assert speculation["plain_steps"] == steps
    assert speculation["rounds"] == (case.rounds if drafts and not barred else 1)
    check_programs(case, run)
    assert sum(emit.num_drafted for emit in run.emits) == speculation["num_drafted"]
    assert sum(emit.num_accepted for emit in run.emits) == speculation["num_accepted"]
    max_len = min(case.prompt_len + case.max_tokens, case.max_context)
    committed = case.prompt_len
    for number, (one, emit) in enumerate(zip(passes(run), run.emits, strict=True)):
        assert one.start == committed - 1, "row 0 is the last committed token"
        if one.number == 0:
            assert one.rows - 1 <= min(k, max_len - committed - 1), "no draft that could not be committed"
            fitting = rounds_fitting(case, one.rows, committed, max_len)
            assert one.rounds <= fitting, "no more rounds than asked, none that cannot be needed"
        if case.drafter == "model" and one.number == 0 and not free:
            assert one.rows - 1 == min(k, max_len - committed - 1), "a draft model uses its whole budget"
            assert one.rounds == fitting, "as many rounds as asked"
        if free:
            assert one.steps <= min(steps, max_len - committed), "no step past the end"
        else:
            assert one.steps == min(steps, max_len - committed), "as many plain steps as asked, none too many"
        last = number == len(run.emits) - 1
        gained = emit.num_accepted + one.steps
        assert last or len(emit.ids) == gained, "a cycle commits its drafts and one token more, or its steps"
        committed += len(emit.ids)
    if case.drafter == "model" and case.quality == 100 and k:
        assert speculation["num_accepted"] == speculation["num_evaluated"], "the target agrees with itself"
    check_choices(case, run)
    prefills = [batch for batch in run.backend.submits if batch.kind == "draft"]
    if case.drafter == "model" and k and not free:
        assert len(prefills) <= -(-case.prompt_len // 4), "the draft model reads the prompt once"


def rounds_fitting(case: Case, rows: int, committed: int, max_len: int) -> int:
    """As many as asked; none that would not be needed if all drafts stood, and no row past the context."""
    rounds = 1
    while (
        rounds < case.rounds
        and rows > 1
        and committed + rounds * rows < max_len
        and committed - 1 + (rounds + 1) * rows <= case.max_context
    ):
        rounds += 1
    return rounds


def check_choices(case: Case, run: Run) -> None:
    """What the run says it chose is what was submitted."""
    told = run.result["speculation"]["schedule"]
    assert told["name"] == case.schedule
    submitted = Counter(label_of(one) for one in passes(run) if one.number == 0)
    assert told["choices"] == submitted, f"{case}: {told['choices']} is not {submitted}"
    if case.schedule == "break_even":
        untouched = make_schedule(case.schedule, COSTS[case.costs], Policy(), case.k).report()["acceptance"]
        for source in ("model", "ngram"):
            moved = any(
                told["acceptance"][key] != prior for key, prior in untouched.items() if key.startswith(source)
            )
            assert not moved or any(label.startswith(source) for label in told["choices"]), (
                f"{source} never drafted"
            )


def label_of(one: Pass) -> str:
    """Of the submit that this round is the first of; where the device made the drafts, they are the model's."""
    if not one.drafts:
        return f"plain {one.steps}"
    several = f" ({one.rounds} rounds)" if one.rounds > 1 else ""
    return f"{'model' if one.on_device else 'ngram'} {len(one.drafts)}{several}"


def check_programs(case: Case, run: Run) -> None:
    """Every row of the target comes from programs that the policy trusts."""
    used = {call for batch in run.backend.submits for call in batch.calls if call.startswith("target.")}
    rows = {"any": (1, 2, 4, 8), "widest": (8,), "plain": (1,)}[case.programs.verify]
    trusted = {f"target.{case.sampling.kind}_{width}" for width in rows}
    reading = {"target.prefill"} if case.programs.prefill else {f"target.verify_{width}" for width in rows}
    assert used <= trusted | reading, case
    drafting = {call.rsplit("_", 1)[0] for batch in run.backend.submits for call in batch.calls}
    if case.schedule != "confidence":  # its drafts are first choices
        kind = "step" if case.sampling.kind == "verify" else "sample"
        assert drafting & {"draft.step", "draft.sample", "draft.measure"} <= {f"draft.{kind}"}, case


def suite() -> list[Case]:
    """Every kind of drafter, k and ending, with pages and chunks that end in different places."""
    drafters = ("off", "ngram", "model", "chain")
    cases = [
        Case(seed, drafter, k, quality=quality, memory=memory)
        for seed, (drafter, k, quality, memory) in enumerate(
            product(drafters, (1, 2, 3, 4, 7), (0, 60, 100), (0, 2))
        )
    ]
    base = Case(7, "model", 4, quality=100)
    answer = expected_ids(base)
    for drafter, k, at in product(drafters, (1, 4, 7), range(len(answer))):
        cases.append(replace(base, drafter=drafter, k=k, eos_ids=(answer[at],)))
    for drafter, max_tokens in product(drafters, (0, 1, 2, 3, 8, 9)):
        cases.append(replace(base, drafter=drafter, k=7, max_tokens=max_tokens))
        cases.append(
            replace(
                base,
                drafter=drafter,
                k=7,
                max_tokens=max(1, max_tokens),
                eos_ids=tuple(answer[max_tokens - 1 : max_tokens]),
            )
        )
    for drafter, prompt_len in product(drafters, (1, 2, 4, 5, 8, 9, 16, 17, 22, 23)):
        cases.append(
            replace(base, drafter=drafter, prompt_len=prompt_len, max_context=24, max_tokens=30, quality=70)
        )
    for page_size, k in product((1, 2, 8, 64), (2, 7)):
        cases.append(replace(base, page_size=page_size, k=k, quality=50))
    for submit in range(2, 7):
        for row in range(3):
            cases.append(replace(base, quality=80, not_finite=((submit, "target.verify_8", row),)))
    several = rounds_suite(answer) + schedule_suite(answer)
    return cases + steps_suite(answer) + programs_suite() + several


def schedule_suite(answer: list[int]) -> list[Case]:
    """Schedules that move k and rounds, where speculation pays always, sometimes and never: ends, repetition, bad rows."""
    cases = []
    for schedule, costs, drafter, quality, rounds in product(
        ("heuristic", "break_even"), COSTS, ("ngram", "model", "chain"), (0, 60, 100), (1, 4)
    ):
        if drafter == "ngram" and rounds > 1:
            continue
        base = Case(5, drafter, 7, quality=quality, steps=4, schedule=schedule, costs=costs, rounds=rounds)
        cases += [
            replace(base, memory=2, max_tokens=38),
            replace(base, k=4, eos_ids=(answer[9],)),
            replace(base, page_size=2, max_context=24, prompt_len=17, max_tokens=30),
            replace(base, not_finite=((3, "target.verify_8", 1),), not_finite_calls=((4, 2), (5, 1))),
            replace(base, max_tokens=30, not_finite_calls=((5, 9), (6, 14))),
        ]
    return cases


def steps_suite(answer: list[int]) -> list[Case]:
    """Several plain steps in one submit: every ending, context ends, and rows that are not finite."""
    base = Case(7, "off", 4, quality=100)
    all_steps = (1, 2, 3, 4, 7, 8)
    cases = []
    for steps, at in product(all_steps, range(len(answer))):
        cases.append(replace(base, steps=steps, eos_ids=(answer[at],)))
        cases.append(replace(base, steps=steps, max_tokens=at, page_size=2))
    for steps, prompt_len in product(all_steps, (1, 4, 5, 16, 17, 20, 22, 23)):
        cases.append(replace(base, steps=steps, prompt_len=prompt_len, max_context=24, max_tokens=30))
    for steps, submit, call in product((2, 4, 8), range(2, 5), range(8)):
        cases.append(replace(base, steps=steps, not_finite_calls=((submit, call),)))
    for drafter, k in product(("ngram", "model", "chain"), (0, 3)):
        cases.append(replace(base, drafter=drafter, k=k, steps=4, quality=60, memory=2))
    return cases


def rounds_suite(answer: list[int]) -> list[Case]:
    """Several rounds in one submit: every k and quality, every ending, context ends, and rows that are not finite."""
    base = Case(7, "model", 3, quality=100, rounds=4)
    several = (2, 3, 4)
    cases = []
    for seed, (rounds, k, quality) in enumerate(product(several, (1, 2, 3, 4, 7), (0, 60, 90, 100))):
        cases.append(Case(seed, "model", k, quality, rounds=rounds, max_tokens=30))
    for rounds, k, at in product((2, 4), (1, 3, 7), range(len(answer))):
        cases.append(replace(base, rounds=rounds, k=k, quality=80, eos_ids=(answer[at],)))
        cases.append(replace(base, rounds=rounds, k=k, max_tokens=at, page_size=2))
    for rounds, k, prompt_len in product(several, (1, 3, 7), (1, 4, 5, 8, 12, 16, 20, 22, 23)):
        ends = replace(base, k=k, rounds=rounds, quality=70, prompt_len=prompt_len, max_context=24)
        cases.append(replace(ends, max_tokens=30))
    for submit, call in product(
        range(4, 7), range(20)
    ):  # the calls of a submit of 4 rounds, drafts and accepts among them
        cases.append(replace(base, max_tokens=30, not_finite_calls=((submit, call),)))
        cases.append(replace(base, max_tokens=30, not_finite_calls=((submit, call), (submit, call + 5))))
    for submit, row, quality in product(range(3, 7), range(4), (60, 100)):
        cases.append(replace(base, quality=quality, not_finite=((submit, "target.verify_4", row),)))
    for drafter, memory in product(("off", "ngram", "chain"), (0, 2)):
        cases.append(replace(base, drafter=drafter, quality=60, memory=memory, max_tokens=30))
    return cases


def programs_suite() -> list[Case]:
    """What a self-test may leave: the same ids from every policy, by trusted programs only."""
    cases = []
    policies = [Programs(*policy) for policy in product(("any", "widest", "plain"), (True, False))]
    for programs, drafter, k in product(policies, ("off", "ngram", "model", "chain"), (1, 4, 7)):
        base = Case(11, drafter, k, memory=2, programs=programs, steps=4, rounds=3)
        cases += [base, replace(base, prompt_len=23, max_context=24, max_tokens=9)]
        cases.append(replace(base, eos_ids=tuple(expected_ids(base)[5:6])))
    return cases


def run_suite() -> None:
    for case in suite():
        check_case(case)
