"""What a request may ask of the sampler: every bad value is named, and the cheapest programs are chosen."""

from typing import Any

import pytest
from plan_factory import load_made
from specdec_runtime.decode.request import Request, check_request
from specdec_runtime.decode.sampling import Sampling, check_sampling
from specdec_runtime.faults import RequestError

PLAN = load_made()
VOCAB = PLAN.target_model.vocab_size
BAD = [
    ("temperature", -0.1),
    ("temperature", float("nan")),
    ("temperature", True),
    ("mode", "lenient"),
    ("seed", -1),
    ("seed", 2**64),
    ("repetition_penalty", 0.0),
    ("frequency_penalty", 2.5),
    ("presence_penalty", float("inf")),
    ("min_tokens", 1.5),
    ("top_k", -1),
    ("top_p", 0.0),
    ("top_p", 1.1),
    ("min_p", -0.2),
    ("logit_bias", {10**9: 1.0}),
    ("logit_bias", {1: 101.0}),
    ("bad_words", ((),)),
    ("bad_words", ((1,) * 8,)),
    ("bad_words", ((1, 2),) * 33),
    ("allowed_ids", ()),
    ("allowed_ids", (-1,)),
]


@pytest.mark.parametrize("name, value", BAD)
def test_a_bad_value_is_named(name: str, value: Any) -> None:
    with pytest.raises(RequestError) as caught:
        check_sampling(load_made(), Sampling(**{name: value}))
    assert caught.value.where.startswith(name)


@pytest.mark.parametrize(
    "where, sampling, eos_ids",
    [
        ("allowed_ids", Sampling(allowed_ids=[5], bad_words=[[5]]), None),
        ("allowed_ids", Sampling(allowed_ids=[5, 6], bad_words=[[5], [6], [1, 2]]), ()),
        ("allowed_ids", Sampling(allowed_ids=[2], min_tokens=5), (2,)),
        ("allowed_ids", Sampling(allowed_ids=[2, 5], bad_words=[[5]], min_tokens=1), (2,)),
        ("bad_words", Sampling(bad_words=[[token_id] for token_id in range(VOCAB)]), None),
        (None, Sampling(allowed_ids=[5], bad_words=[[5, 5]]), None),
        (None, Sampling(allowed_ids=[2, 5], min_tokens=5), (2,)),
        (None, Sampling(allowed_ids=[2]), (2,)),
        (None, Sampling(bad_words=[[token_id] for token_id in range(VOCAB - 1)]), None),
    ],
)
def test_something_must_be_left_to_choose(where: str | None, sampling: Sampling, eos_ids: Any) -> None:
    request = Request([1], 4, sampling=sampling, eos_ids=eos_ids)
    if where is None:
        check_request(PLAN, request)
        return
    with pytest.raises(RequestError) as caught:
        check_request(PLAN, request)
    assert caught.value.where == where


def test_defaults_pass() -> None:
    check_sampling(load_made(), Sampling())


@pytest.mark.parametrize(
    "kind, asked",
    [
        ("verify", {}),
        ("verify", {"top_k": 5, "top_p": 0.5, "seed": 3}),  # at temperature 0 these change nothing
        ("sample", {"temperature": 0.7}),
        ("sample", {"logit_bias": {1: 2.0}}),
        ("sample", {"bad_words": ((3,),)}),
        ("sample", {"allowed_ids": (1, 2)}),
        ("filter", {"temperature": 0.7, "top_k": 5}),
        ("filter", {"presence_penalty": 0.5}),
        ("filter", {"min_tokens": 3}),
        ("filter", {"bad_words": ((3, 4),)}),
    ],
)
def test_the_cheapest_programs(kind: str, asked: dict) -> None:
    assert Sampling(**asked).kind == kind
