"""Prompt lookup against a slow obvious twin, and the cost of its index."""

from hypothesis import given
from hypothesis import strategies as st
from specdec_runtime.decode.sequence import Sequence
from specdec_runtime.drafters.ngram import MAX_LEN, MIN_LEN, NgramDrafter


def twin(ids: list[int], budget: int) -> list[int]:
    """Longest suffix that occurred before, latest occurrence; then copy, reading what was copied."""
    for length in range(min(MAX_LEN, len(ids)), MIN_LEN - 1, -1):
        for end in range(len(ids) - 1, length - 1, -1):
            if ids[end - length : end] == ids[-length:]:
                copied = list(ids)
                for step in range(budget):
                    copied.append(copied[end + step])
                return copied[len(ids) :]
    return []


def propose(drafter: NgramDrafter, sequence: Sequence, budget: int) -> list[int]:
    try:
        next(drafter.propose(sequence, budget))
    except StopIteration as end:
        return list(end.value.ids) if end.value else []
    raise AssertionError("an n-gram drafter needs no device")


@given(
    ids=st.lists(st.integers(0, 3), min_size=1, max_size=40),
    prompt_len=st.integers(1, 40),
    budget=st.integers(1, 7),
)
def test_equals_the_twin_however_the_ids_arrive(ids, prompt_len, budget):
    sequence = Sequence(ids[:prompt_len])
    drafter = NgramDrafter()
    drafter.begin(sequence)
    assert propose(drafter, sequence, budget) == twin(sequence.ids, budget)
    for token_id in ids[prompt_len:]:
        sequence.ids.append(token_id)
        if token_id:  # not every cycle asks it
            assert propose(drafter, sequence, budget) == twin(sequence.ids, budget)


def test_examples():
    def one(ids, budget):
        sequence = Sequence(ids)
        drafter = NgramDrafter()
        drafter.begin(sequence)
        return propose(drafter, sequence, budget)

    assert one([1, 2, 3, 4, 5, 1, 2], 3) == [3, 4, 5]
    assert one([1, 2, 8, 1, 2, 9, 1, 2], 1) == [9], "the latest occurrence"
    assert one([7, 1, 2, 8, 6, 1, 2, 9, 7, 1, 2], 1) == [8], "the longest suffix before the latest"
    assert one([5, 6, 5, 6], 5) == [5, 6, 5, 6, 5], "a cycle goes on round"
    assert one([1, 2, 3], 4) == []
    assert one([1], 4) == []
    assert one([1, 1], 4) == [], "one token alone is no n-gram"


def test_a_new_request_forgets_the_last():
    drafter = NgramDrafter()
    first = Sequence([1, 2, 3, 1, 2])
    drafter.begin(first)
    assert propose(drafter, first, 1) == [3]
    second = Sequence([9, 1, 2])
    drafter.begin(second)
    assert propose(drafter, second, 1) == []


class CountedList(list):
    """Counts the elements that slices and indices read."""

    read = 0

    def __getitem__(self, key):
        found = super().__getitem__(key)
        CountedList.read += len(found) if isinstance(key, slice) else 1
        return found


def test_the_work_of_a_cycle_does_not_grow_with_the_context():
    sequence = Sequence([])
    sequence.ids = CountedList(range(5000))
    drafter = NgramDrafter()
    drafter.begin(sequence)
    propose(drafter, sequence, 7)
    costs = []
    for token_id in range(5000, 5020):
        sequence.ids.append(token_id)
        CountedList.read = 0
        propose(drafter, sequence, 7)
        costs.append(CountedList.read)
    assert max(costs) <= 2 * sum(range(MIN_LEN, MAX_LEN + 1))
