"""The accept rule and the commit function alone: small tables, every branch."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from specdec_runtime.decode.commit import Limits, commit_run
from specdec_runtime.decode.interfaces import Outcome
from specdec_runtime.decode.sequence import Sequence
from specdec_runtime.decode.verify import Verdict, accept_greedy

IDS = st.integers(0, 3)


def rows(*ids, bad=()):
    return [number for row, token_id in enumerate(ids) for number in (token_id, int(row not in bad))]


@pytest.mark.parametrize(
    ("drafted", "out", "verdict"),
    [
        ([], rows(5), (0, 5)),
        ([5], rows(5, 6), (1, 6)),
        ([5], rows(4, 6), (0, 4)),
        ([5, 6, 7], rows(5, 6, 7, 8), (3, 8)),
        ([5, 6, 7], rows(5, 1, 7, 8), (1, 1)),
        ([], rows(0, bad=[0]), (0, None)),
        ([5, 6], rows(0, 6, 7, bad=[0]), (0, None)),
        ([5, 6], rows(5, 0, 7, bad=[1]), (1, None)),
        ([5, 6], rows(5, 6, 0, bad=[2]), (2, None)),
        ([5, 6], rows(4, 0, 0, bad=[1, 2]), (0, 4)),
        ([0], rows(0, 3, bad=[0]), (0, None)),
    ],
)
def test_accept_greedy(drafted, out, verdict):
    assert accept_greedy(drafted, out) == Verdict(*verdict)


@pytest.mark.parametrize(
    ("drafted", "verdict", "eos", "max_new", "outcome"),
    [
        ([], (0, 5), (), 9, ([5], 0, 0, 0, None, False)),
        ([5, 6], (2, 7), (), 9, ([5, 6, 7], 2, 2, 2, None, False)),
        ([5, 6], (1, 7), (), 9, ([5, 7], 2, 1, 2, None, False)),
        ([5, 6], (0, 7), (), 9, ([7], 2, 0, 1, None, False)),
        ([5, 6], (2, 7), (5,), 9, ([5], 2, 1, 1, "stop", False)),
        ([5, 6], (2, 7), (6,), 9, ([5, 6], 2, 2, 2, "stop", False)),
        ([5, 6], (2, 7), (7,), 9, ([5, 6, 7], 2, 2, 2, "stop", False)),
        ([5, 6], (1, 7), (7,), 9, ([5, 7], 2, 1, 2, "stop", False)),
        ([5, 6], (2, 7), (), 1, ([5], 2, 1, 1, "length", False)),
        ([5, 6], (2, 7), (), 2, ([5, 6], 2, 2, 2, "length", False)),
        ([5, 6], (2, 7), (), 3, ([5, 6, 7], 2, 2, 2, "length", False)),
        ([5, 6], (2, 7), (6,), 2, ([5, 6], 2, 2, 2, "stop", False)),
        ([5, 6], (1, None), (), 9, ([5], 2, 1, 1, None, True)),
        ([5, 6], (0, None), (), 9, ([], 2, 0, 0, None, True)),
        ([5, 6], (1, None), (5,), 9, ([5], 2, 1, 1, "stop", False)),
    ],
)
def test_commit_run(drafted, verdict, eos, max_new, outcome):
    sequence = Sequence([1, 2, 3])
    limits = Limits(frozenset(eos), 3 + max_new)
    assert commit_run(sequence, drafted, Verdict(*verdict), limits) == Outcome(*outcome)
    assert sequence.generated_ids == outcome[0]


@given(
    st.lists(IDS, max_size=7),
    st.lists(IDS, min_size=8, max_size=8),
    st.sets(IDS, max_size=2),
    st.integers(1, 9),
)
def test_a_run_commits_what_single_steps_would(drafted, target_ids, eos, max_new):
    """Whatever was drafted: the target's ids up to the first end, as long as drafts agree."""
    out = rows(*target_ids[: len(drafted) + 1])
    sequence = Sequence([9])
    outcome = commit_run(sequence, drafted, accept_greedy(drafted, out), Limits(frozenset(eos), 1 + max_new))
    expected = []
    for row, token_id in enumerate(target_ids[: len(drafted) + 1]):
        expected.append(token_id)
        ended = token_id in eos or len(expected) == max_new
        if ended or row == len(drafted) or drafted[row] != token_id:
            break
    assert sequence.generated_ids == outcome.ids == expected
    assert (outcome.finish_reason == "stop") == (expected[-1] in eos)
    assert outcome.num_accepted <= outcome.num_evaluated <= outcome.num_drafted == len(drafted)
