"""Requests as JSON: what each field becomes, what is refused by its name, and stop strings through the Pyodide entry."""

import json
from typing import Any

import pytest
from specdec_runtime.backends.scripted import ScriptedBackend
from specdec_runtime.decode.options import MAX_SEED, OPTIONS, read_request
from specdec_runtime.decode.request import Request
from specdec_runtime.decode.sampling import Sampling
from specdec_runtime.decode.text import REPLACEMENT
from specdec_runtime.faults import RequestError
from specdec_runtime.worker import Engine
from test_worker import PLAN, PLAN_JSON, PROMPT, REQUEST, TARGET, error_of, pump

FIELDS = {"prompt_ids": [1, 2], "max_tokens": 9, "k": 3}
SHOWN = ["", *"abcdefghijkl"]  # of ids 0 to 12
TABLE = json.dumps({"strips_first_space": False, "bytes": SHOWN})


def test_nothing_given_is_the_default() -> None:
    assert read_request(FIELDS, 2, 3) == Request([1, 2], 9, 3, steps=2, rounds=3)


def test_every_field() -> None:
    given = {
        "temperature": 0.5, "mode": "block", "seed": MAX_SEED, "top_k": 4, "top_p": 0.9, "min_p": 0.1, "repetition_penalty": 1.5,
        "frequency_penalty": 0.5, "presence_penalty": -0.5, "min_tokens": 2, "logit_bias": {"7": 1.5, "8": -2},
        "bad_words": [[1], [2, 3]], "allowed_ids": [4, 5], "stop": ["x"], "ignore_eos": True, "logprobs": 2,
        "grammar": {"type": "json"},
    }  # fmt: skip
    assert set(given) == OPTIONS
    asked = read_request(FIELDS | given, 1, 1)
    assert asked.sampling == Sampling(
        0.5, "block", MAX_SEED, 1.5, 0.5, -0.5, {7: 1.5, 8: -2}, [[1], [2, 3]], 2, 4, 0.9, 0.1, [4, 5]
    )
    assert (asked.stop, asked.eos_ids, asked.logprobs) == (["x"], (), 2)
    assert asked.grammar == {"type": "json"}
    assert read_request(FIELDS | {"stop": "xy"}, 1, 1).stop == ["xy"], "one may stand alone"
    assert read_request(FIELDS | {"allowed_ids": None}, 1, 1).sampling.allowed_ids is None


@pytest.mark.parametrize(
    ("name", "value", "where"),
    [
        ("ignore_eos", 1, "ignore_eos"),
        ("seed", MAX_SEED + 1, "seed"),
        ("seed", 1.0, "seed"),
        ("seed", True, "seed"),
        ("logit_bias", [1], "logit_bias"),
        ("logit_bias", {"x": 1}, "logit_bias"),
        ("logit_bias", {"-1": 1}, "logit_bias"),
        ("logit_bias", {"\u0661": 1}, "logit_bias"),
        ("bad_words", 5, "bad_words"),
        ("bad_words", ["the"], "bad_words[0]"),
        ("allowed_ids", {}, "allowed_ids"),
    ],
)
def test_another_shape_is_named(name: str, value: Any, where: str) -> None:
    with pytest.raises(RequestError) as caught:
        read_request(FIELDS | {name: value}, 1, 1)
    assert caught.value.where == where and caught.value.action


@pytest.mark.parametrize("name", sorted(OPTIONS))
@pytest.mark.parametrize(
    "value", [None, "x", [], {}, [None], {"a": None}, -1, 1e999, True, [[None]], {"1": None}]
)
def test_nothing_gets_through_untyped(name: str, value: Any) -> None:
    """Whatever stands in a field, the entry answers with a pass to run or a RequestError that names a field."""
    engine = Engine(PLAN_JSON)
    assert engine.tokens(TABLE) == ""
    answer = json.loads(engine.start(json.dumps({**REQUEST, name: value})))[-1]
    if answer["type"] == "error":
        assert answer["error"]["type"] == "RequestError" and answer["error"]["where"].startswith(name)
    else:
        assert answer["type"] == "submit"


def test_stop_strings_through_the_entry() -> None:
    engine = Engine(PLAN_JSON)
    whole = pump(engine, REQUEST)[-1]["result"]
    assert whole["stop"] is None and "text" not in whole
    text = "".join(SHOWN[token_id] for token_id in whole["token_ids"])
    stop = text[4:7]
    assert error_of(engine.start(json.dumps({**REQUEST, "stop": [stop]})))["type"] == "ContractError", (
        "no table yet"
    )
    assert engine.tokens(TABLE) == ""
    seen = pump(engine, {**REQUEST, "stop": [stop], "logprobs": 1})
    result = seen[-1]["result"]
    assert (result["text"], result["stop"]) == (text[: text.index(stop)], stop)
    emits = [effect for effect in seen if effect["type"] == "emit"]
    assert "".join(piece for emit in emits for piece in emit["pieces"]) == result["text"]
    assert [one for emit in emits for one in emit["logprobs"]] == result["logprobs"]
    assert all(not {"pieces", "logprobs"} & set(effect) for effect in pump(engine, REQUEST)), "nobody asked"


def test_a_bad_table_is_an_error() -> None:
    assert json.loads(Engine(PLAN_JSON).tokens("{}"))["error"]["type"] == "ContractError"


def test_cancelled_text_is_all_that_was_committed() -> None:
    engine = Engine(PLAN_JSON)
    engine.tokens(TABLE)
    for at in range(2, 6):
        backend = ScriptedBackend(PLAN, TARGET)
        request = {**REQUEST, "drafter": "off", "stop": ["".join(SHOWN[token_id] for token_id in PROMPT) * 3]}
        result = pump(engine, request, backend, cancel_at=at)[-1]["result"]
        assert result["finish_reason"] == "cancelled" and REPLACEMENT not in result["text"]
        assert result["text"] == "".join(SHOWN[token_id] for token_id in result["token_ids"])
