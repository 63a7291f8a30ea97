"""Sampling in mode coupled: the equality suite at temperatures, with biases, over every way to draft.

Expected ids come from sampled_models.py. Invariant: as exactness_suite.py; the first submits of a run are the prefills.
"""

from dataclasses import replace
from itertools import product

from exactness_suite import Case, check_case, expected_ids
from specdec_runtime.decode.programs import Programs
from specdec_runtime.decode.sampling import Sampling

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


def run_sampled_suite() -> None:
    for case in suite():
        check_case(case)
