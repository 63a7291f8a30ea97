"""Greedy promise: with any drafter and any k, the committed ids are the target's own."""

import pytest
from exactness_suite import COSTS, VOCAB, Case, check_case, suite
from hypothesis import given
from hypothesis import strategies as st
from specdec_runtime.decode import pages
from specdec_runtime.decode.programs import VERIFY, Programs
from specdec_runtime.decode.request import MAX_ROUNDS, MAX_STEPS

CASES = suite()


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_suite(case):
    check_case(case)


def test_the_suite_reaches_what_it_is_for():
    """Runs that accept all, some, none; that end in EOS as a draft, a correction and a bonus."""
    runs = [(case, check_case(case)) for case in CASES]
    endings = set()
    shares = set()
    for case, run in runs:
        if run.result["finish_reason"] == "stop":
            last = run.emits[-1]
            as_draft = last.num_accepted == len(last.ids)
            endings.add(
                "draft" if as_draft else "bonus" if last.num_accepted == last.num_drafted else "correction"
            )
        counts = run.result["speculation"]
        if counts["num_evaluated"]:
            shares.add(
                (
                    case.drafter,
                    0
                    if not counts["num_accepted"]
                    else 1
                    if counts["num_accepted"] == counts["num_evaluated"]
                    else 0.5,
                )
            )
    assert endings == {"draft", "correction", "bonus"}
    assert {("model", 0), ("model", 0.5), ("model", 1), ("ngram", 0.5), ("chain", 0.5)} <= shares


@given(
    case=st.builds(
        Case,
        seed=st.integers(0, 10**6),
        drafter=st.sampled_from(["off", "ngram", "model", "chain"]),
        k=st.integers(0, 7),
        quality=st.sampled_from([0, 30, 60, 90, 100]),
        memory=st.integers(0, 3),
        prompt_len=st.integers(1, 39),
        max_tokens=st.integers(0, 40),
        eos_ids=st.sets(st.integers(0, VOCAB - 1), max_size=2).map(tuple),
        max_context=st.integers(40, 60),
        page_size=st.sampled_from([1, 2, 4, 8, 16]),
        steps=st.integers(1, MAX_STEPS),
        programs=st.builds(Programs, st.sampled_from(VERIFY), st.booleans()),
        rounds=st.integers(1, MAX_ROUNDS),
        not_finite_calls=st.sets(st.tuples(st.integers(0, 9), st.integers(0, 35)), max_size=2).map(tuple),
        schedule=st.sampled_from(["fixed", "heuristic", "break_even"]),
        costs=st.sampled_from(list(COSTS)),
    ),
    shuffle=st.randoms(use_true_random=False),
)
def test_any_request_on_any_models_with_pages_in_any_order(case, shuffle):
    def any_order(num_pages):
        order = list(range(num_pages))
        shuffle.shuffle(order)
        return order

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "first_order", any_order)
        check_case(case)
