"""The Pyodide entry, driven as JavaScript does it: strings in, strings out, nothing thrown."""

import json

import pytest
from exactness_suite import VOCAB
from plan_factory import make_plan
from simulate import generate, mostly, seeded
from specdec_runtime.backends.scripted import Script, ScriptedBackend
from specdec_runtime.decode.effects import Submit
from specdec_runtime.faults import DeviceFault, SpecdecError, error_json
from specdec_runtime.plan import load_plan
from specdec_runtime.worker import Engine

PLAN_JSON = json.dumps(make_plan(vocab_size=VOCAB, prefill_width=4, draft={}, eos_ids=()))
PLAN = load_plan(PLAN_JSON)
TARGET = seeded(41, VOCAB)
DRAFT = mostly(TARGET, seeded(42, VOCAB), 70)
PROMPT = [5, 6, 7, 8, 5, 6]
REQUEST = {
    "op": "generate",
    "prompt_ids": PROMPT,
    "max_tokens": 15,
    "drafter": "chain",
    "k": 4,
    "plain_steps": 1,
    "rounds": 1,
    "schedule": "fixed",
}


def pump(engine, request, backend=None, cancel_at=None):
    """All effects of a request but its submits."""
    backend = backend or ScriptedBackend(PLAN, TARGET, DRAFT)
    seen = []
    effects = json.loads(engine.start(json.dumps(request)))
    while True:
        *told, last = effects
        seen += told
        assert all(effect["type"] in ("progress", "emit") for effect in told)
        if last["type"] != "submit":
            assert last["type"] in ("finish", "error")
            return [*seen, last]
        if cancel_at == len(backend.submits):
            engine.cancel()
        batch = Submit(last["kind"], last["writes"], last["calls"], last["reads"])
        try:
            effects = json.loads(engine.send(json.dumps(backend.submit(batch)._asdict())))
        except SpecdecError as error:
            effects = json.loads(engine.fail(json.dumps(error_json(error))))


def test_the_same_as_the_synchronous_pump():
    direct = generate(PLAN, TARGET, PROMPT, 15, "chain", 4, DRAFT).result
    direct.pop("timing_ms")
    seen = pump(Engine(PLAN_JSON), REQUEST)
    assert seen[-1] == {"type": "finish", "result": direct}
    ids = [token_id for effect in seen if effect["type"] == "emit" for token_id in effect["ids"]]
    assert ids == direct["token_ids"]


def test_the_same_request_again_on_the_same_engine():
    engine = Engine(PLAN_JSON)
    assert pump(engine, REQUEST) == pump(engine, REQUEST)


def test_score():
    request = {"op": "score", "prompt_ids": PROMPT, "score_ids": [1, 2, 3], "width": 2}
    seen = pump(Engine(PLAN_JSON), request)
    assert [row["id"] for row in seen[-1]["result"]["positions"]] == [1, 2, 3]


def test_cancel():
    whole = pump(Engine(PLAN_JSON), REQUEST)[-1]["result"]["token_ids"]
    for at in range(5):
        engine = Engine(PLAN_JSON)
        result = pump(engine, REQUEST, cancel_at=at)[-1]["result"]
        assert result["finish_reason"] == "cancelled"
        assert result["token_ids"] == whole[: len(result["token_ids"])]
        assert pump(engine, REQUEST)[-1]["result"]["token_ids"] == whole


def test_a_start_drops_the_run_before():
    engine = Engine(PLAN_JSON)
    engine.start(json.dumps(REQUEST))
    assert pump(engine, REQUEST)[-1]["type"] == "finish"


def test_a_device_fault_goes_into_the_run():
    """In a draft's catch-up or a round the run goes on; in a plain pass it ends typed."""
    whole = pump(Engine(PLAN_JSON), {**REQUEST, "drafter": "model"})[-1]["result"]
    for at, survives in ((0, False), (2, True), (3, True)):
        lost = ScriptedBackend(
            PLAN, TARGET, DRAFT, Script(fail_before={at: DeviceFault("lost", "submit", "reload")})
        )
        last = pump(Engine(PLAN_JSON), {**REQUEST, "drafter": "model"}, lost)[-1]
        if survives:
            assert last["result"]["token_ids"] == whole["token_ids"]
            assert last["result"]["speculation"]["fallbacks"] == {"device_fault": 1}
        else:
            error = {"type": "DeviceFault", "message": "lost", "where": "submit", "action": "reload"}
            assert last == {"type": "error", "error": error}


def error_of(text):
    *_, last = json.loads(text)
    assert last["type"] == "error"
    return last["error"]


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"prompt_ids": []}, "RequestError"),
        ({"prompt_ids": [VOCAB]}, "RequestError"),
        ({"prompt_ids": [1] * 48}, "RequestError"),
        ({"max_tokens": -1}, "RequestError"),
        ({"max_tokens": "9"}, "RequestError"),
        ({"k": 8}, "RequestError"),
        ({"rounds": 9}, "RequestError"),
        ({"rounds": 0}, "RequestError"),
        ({"rounds": True}, "RequestError"),
        ({"session": ""}, "RequestError"),
        ({"session": 7}, "RequestError"),
        ({"drafter": "eagle"}, "RequestError"),
        ({"drafter": ["off"]}, "RequestError"),
        ({"op": "train"}, "ContractError"),
        ({"op": None}, "ContractError"),
        ({"temprature": 1}, "ContractError"),
    ],
)
def test_bad_requests_are_error_effects(change, kind):
    assert error_of(Engine(PLAN_JSON).start(json.dumps({**REQUEST, **change})))["type"] == kind


@pytest.mark.parametrize("text", ["", "null", "[]", "{}", '"x"', "12"])
def test_requests_that_are_no_request(text):
    assert error_of(Engine(PLAN_JSON).start(text))["type"] == "ContractError"


@pytest.mark.parametrize("text", ["", "null", "{}", '{"values":[],"ms":[]}', '{"values":[[1]],"ms":[0]}'])
def test_readbacks_that_are_no_answer(text):
    engine = Engine(PLAN_JSON)
    engine.start(json.dumps({**REQUEST, "prompt_ids": [5]}))
    assert error_of(engine.send(text))["type"] == "ContractError"
    assert error_of(engine.send(text))["message"] == "no request is running"


def test_scores_that_json_made_null():
    """JavaScript writes a NaN as null; the finite flag says so first."""
    engine = Engine(PLAN_JSON)
    request = {"op": "score", "prompt_ids": [5], "score_ids": [1], "width": 1}
    engine.start(json.dumps(request))
    bad = json.dumps({"values": [[0, 0], [None, None, None]], "ms": [0, 0]})
    assert json.loads(engine.send(bad))[-1]["type"] == "submit", "one retry"
    assert error_of(engine.send(bad))["type"] == "DeviceFault"


def test_send_without_a_run():
    assert error_of(Engine(PLAN_JSON).send("{}"))["message"] == "no request is running"
    assert error_of(Engine(PLAN_JSON).fail("{}"))["message"] == "no request is running"


def test_ready():
    ready = json.loads(Engine(PLAN_JSON).ready())
    costs = ready.pop("costs")
    assert costs["how"] == "assumed" and set(costs["verify"]) == {"1", "2", "4", "8"}
    assert ready == {
        "type": "ready",
        "name": "tiny",
        "drafters": ["off", "model", "ngram", "chain"],
        "schedules": ["fixed", "heuristic", "confidence", "break_even"],
        "schedule": "break_even",
    }


def test_a_bad_plan_is_reported_by_every_call():
    engine = Engine(PLAN_JSON.replace('"version": 1', '"version": 9'))
    assert json.loads(engine.ready())["error"]["where"] == "$.version"
    assert error_of(engine.start(json.dumps(REQUEST)))["where"] == "$.version"
    engine.cancel()


def test_an_error_without_a_type_is_still_an_error():
    engine = Engine(PLAN_JSON)
    engine.start(json.dumps(REQUEST))
    assert error_of(engine.fail('"boom"'))["type"] == "ContractError"


def test_sessions_of_the_engine():
    """A follow-up prefills only what is new; a list, a drop, and other work on the device."""
    engine, backend = Engine(PLAN_JSON), ScriptedBackend(PLAN, TARGET, DRAFT)
    first = pump(engine, {**REQUEST, "session": "chat"}, backend)[-1]["result"]
    assert first["usage"]["cached_tokens"] == 0
    prompt = [*PROMPT, *first["token_ids"], 3, 3]
    follow = pump(engine, {**REQUEST, "session": "chat", "prompt_ids": prompt}, backend)[-1]["result"]
    assert follow["usage"]["cached_tokens"] == len(prompt) - 3
    cold = pump(Engine(PLAN_JSON), {**REQUEST, "prompt_ids": prompt})[-1]["result"]
    assert follow["token_ids"] == cold["token_ids"]
    told = json.loads(engine.sessions())
    assert told["type"] == "sessions" and [one["name"] for one in told["sessions"]] == ["chat"]
    assert json.loads(engine.drop_session('"chat"')) == {"type": "dropped", "found": True}
    assert json.loads(engine.drop_session('"chat"')) == {"type": "dropped", "found": False}
    assert json.loads(engine.drop_session("null"))["error"]["type"] == "RequestError"
    assert json.loads(engine.sessions())["sessions"] == []
    for forget in (engine.forget, lambda: engine.probes(True)):
        pump(engine, {**REQUEST, "session": "chat"}, backend)
        assert json.loads(engine.sessions())["sessions"]
        forget()
        assert json.loads(engine.sessions())["sessions"] == []
    bad = Engine(PLAN_JSON.replace('"version": 1', '"version": 9'))
    assert json.loads(bad.sessions())["error"]["where"] == "$.version"


@pytest.mark.parametrize("end", [lambda engine: None, lambda engine: engine.fail('"boom"')])
def test_a_run_that_did_not_finish_leaves_no_session(end):
    engine, backend = Engine(PLAN_JSON), ScriptedBackend(PLAN, TARGET, DRAFT)
    pump(engine, {**REQUEST, "session": "chat"}, backend)
    engine.start(json.dumps({**REQUEST, "session": "chat"}))
    end(engine)
    result = pump(engine, {**REQUEST, "session": "chat"}, backend)[-1]["result"]
    assert result["usage"]["cached_tokens"] == 0


def test_a_request_nested_too_deep_is_refused():
    request = json.dumps(REQUEST)[:-1] + ', "grammar": ' + 200_000 * "[" + 200_000 * "]" + "}"
    (error,) = json.loads(Engine(PLAN_JSON).start(request))
    assert (error["error"]["type"], error["error"]["where"]) == ("RequestError", "request")
