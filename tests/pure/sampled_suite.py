"""Sampling in mode coupled: the equality suite at temperatures, with biases, over every way to draft.

Expected ids come from sampled_models.py. Invariant: as exactness_suite.py; the first submits of a run are the prefills.
"""

from dataclasses import replace
from itertools import product

from exactness_suite import VOCAB, Case, check_case, expected_ids, models, plan_of, prompt_of
from sampled_models import sampled
from simulate import generate, plain_ids
from specdec_runtime.backends.scripted import Script, ScriptedBackend
from specdec_runtime.decode.programs import Programs
from specdec_runtime.decode.sampling import Sampling
from specdec_runtime.decode.sampling_state import Held
from specdec_runtime.faults import DeviceFault

BIASES = {
    "bias": Sampling(logit_bias={3: 4.0, 7: -4.0, 8: -4.0}),
    "bad words": Sampling(bad_words=[[1], [5]]),
    "allowed": Sampling(allowed_ids=[2, 4, 6], logit_bias={4: 1.5, 9: 100.0}),
    "noise and bias": Sampling(temperature=1.5, seed=3, logit_bias={0: 3.0}, bad_words=[[2]]),
}


def suite() -> list[Case]:
    """Seeds and temperatures with every drafter and k; every ending; rounds, plain steps, policies, schedules and bad rows."""
    drafters = ("off", "ngram", "model", "chain")
    cases = []
    ways = product(drafters, (1, 3, 7), (0.2, 1.0, 3.0), (0, 70, 100))
    for seed, (drafter, k, temperature, quality) in enumerate(ways):
        sampling = Sampling(temperature=temperature, seed=seed * 0x1234567_89ABCDEF % 2**64)
        cases.append(Case(seed, drafter, k, quality, memory=seed % 3, sampling=sampling))
    base = Case(7, "model", 4, quality=80, sampling=Sampling(temperature=0.8, seed=11))
    for drafter, sampling in product(drafters, BIASES.values()):
        cases.append(replace(base, drafter=drafter, sampling=sampling, rounds=2, steps=3))
    cold = replace(base, sampling=Sampling(temperature=1e-6))
    cases += [
        cold,
        replace(cold, sampling=Sampling(temperature=1e-300)),
        replace(cold, sampling=Sampling(100.0)),
    ]
    answer = expected_ids(base)
    for drafter, at in product(drafters, range(0, len(answer), 3)):
        cases.append(replace(base, drafter=drafter, eos_ids=(answer[at],), steps=4, rounds=3))
        cases.append(replace(base, drafter=drafter, max_tokens=at, page_size=2, steps=7, rounds=2))
    for rounds, k, prompt_len in product((2, 4), (1, 3, 7), (1, 5, 16, 22)):
        ends = replace(base, k=k, rounds=rounds, prompt_len=prompt_len, max_context=24)
        cases.append(replace(ends, max_tokens=30))
    for verify, prefill, drafter in product(("any", "widest", "plain"), (True, False), drafters):
        cases.append(replace(base, drafter=drafter, programs=Programs(verify, prefill), steps=4, rounds=3))
    for schedule, costs in product(("heuristic", "break_even"), ("gpu", "free", "linear")):
        cases.append(replace(base, schedule=schedule, costs=costs, k=7, rounds=1, max_tokens=30))
    for submit, row in product(range(3, 6), range(3)):
        cases.append(replace(base, not_finite=((submit, "target.sample_8", row),)))
        cases.append(replace(base, rounds=4, max_tokens=30, not_finite_calls=((submit, 4 + row),)))
    return cases


TURNS = [  # requests one after the other on one device
    Sampling(),
    Sampling(temperature=1.0, seed=5),
    Sampling(temperature=1.0, seed=5),
    Sampling(temperature=1.0, seed=5, logit_bias={3: 2.0, 4: 2.0, 9: -1.0}),
    Sampling(),
    Sampling(logit_bias={3: 2.0, 5: 6.0}),
    Sampling(temperature=2.0, seed=2**64 - 1, allowed_ids=[1, 2, 3]),
    Sampling(bad_words=[[1], [2]], allowed_ids=[1, 2, 3, 4]),
    Sampling(logit_bias={3: 2.0}),
    Sampling(temperature=1.0, seed=5),
]
WRITTEN = {  # numbers: 8 ints, 6 floats, and biases: of 16 columns, or of the ids that differ
    True: [0, 14, 0, 8 + 16, 0, 8 + 3, 14 + 16, 14 + 3, 16, 8],
    False: [0, 14, 14, 14 + 16, 0, 14 + 16, 14 + 16, 14 + 16, 14 + 16, 14],
}


def check_turns(known: bool) -> None:
    """Each request finds what those before it left, and writes only what differs; with nothing known, everything it needs."""
    case = Case(5, "model", 3, 90)
    (target, draft), plan, held = models(case), plan_of(case), Held()
    backend = ScriptedBackend(plan, target, draft)
    written = []
    for sampling in TURNS:
        before = len(backend.submits)
        ways = {"backend": backend, "eos_ids": (), "sampling": sampling, "held": held if known else None}
        run = generate(plan, target, prompt_of(case), 6, "model", 3, **ways)
        model = target if sampling.kind == "verify" else sampled(target, sampling, VOCAB)
        assert run.ids == plain_ids(model, prompt_of(case), 6, case.max_context), sampling
        writes = [write for batch in backend.submits[before:] for write in batch.writes]
        written.append(sum(len(values) for name, _, values in writes if name.startswith("sampling.")))
    assert written == WRITTEN[known], f"{written} numbers written"


def check_failed_submits() -> None:
    """One whose writes were lost, before any landed: the target alone tries again, with the writes."""
    case = Case(5, "model", 3, 90, sampling=TURNS[3])
    target, draft = models(case)
    backend = ScriptedBackend(
        plan_of(case), target, draft, Script(fail_before={3: DeviceFault("lost", "here")})
    )
    ways = {"backend": backend, "eos_ids": (), "sampling": case.sampling}
    run = generate(plan_of(case), target, prompt_of(case), 9, "model", 3, **ways)
    before = [batch.kind for batch in backend.submits[:4]]
    assert before == ["prefill", "draft", "draft", "round"], "the first submit that writes is lost"
    assert run.result["speculation"]["fallbacks"] == {"device_fault": 1}, "the draft's fault"
    model = sampled(target, case.sampling, VOCAB)
    assert run.ids == plain_ids(model, prompt_of(case), 9, case.max_context), "after a lost submit"


def run_sampled_suite() -> None:
    for known in (True, False):
        check_turns(known)
    check_failed_submits()
    for case in suite():
        check_case(case)
