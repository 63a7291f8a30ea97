"""The synchronous pump: order of effects, times, cancel, and that generators are closed."""

import time

import pytest
from exactness_suite import VOCAB
from plan_factory import load_made
from simulate import seeded
from specdec_runtime import drive
from specdec_runtime.backends.base import Backend
from specdec_runtime.backends.scripted import Script, ScriptedBackend, table
from specdec_runtime.decode.effects import Emit, Finish, Progress, Readback
from specdec_runtime.decode.request import Request
from specdec_runtime.decode.round import decode
from specdec_runtime.drafters.registry import make_drafter

PLAN = load_made(vocab_size=VOCAB, prefill_width=4, draft={})
TARGET = seeded(31, VOCAB)
PROMPT = list(range(1, 11))


class Slow(ScriptedBackend):
    """Claims and takes 2 ms a call."""

    def submit(self, batch):
        values, _ = super().submit(batch)
        time.sleep(0.002 * len(batch.calls))
        return Readback(values, [2.0] * len(batch.calls))


def effects(drafter="model", max_tokens=8):
    return decode(PLAN, Request(PROMPT, max_tokens, 3, ()), make_drafter(drafter, PLAN))


def test_effects_in_order():
    seen = []
    result = drive.run(effects(), ScriptedBackend(PLAN, TARGET), seen.append)
    kinds = [type(effect) for effect in seen]
    assert kinds[:3] == [Progress] * 3 and set(kinds[3:-1]) == {Emit} and kinds[-1] is Finish
    assert [(step.done, step.total) for step in seen[:3]] == [(4, 9), (8, 9), (9, 9)]
    assert [token_id for emit in seen[3:-1] for token_id in emit.ids] == result["token_ids"]


def test_times_add_up():
    backend = Slow(PLAN, TARGET)
    timing = drive.run(effects(), backend)["timing_ms"]
    calls = [call for batch in backend.submits for call in batch.calls]
    assert set(timing) == {"first_token", "prefill", "decode", "draft", "verify", "other"}
    assert timing["draft"] == 2.0 * sum(call.startswith("draft.") for call in calls)
    assert timing["verify"] == 2.0 * sum(call.startswith("target.verify") for call in calls)
    assert timing["other"] == pytest.approx(timing["decode"] - timing["draft"] - timing["verify"])
    assert timing["prefill"] >= 6.0 and timing["other"] >= 0.0
    assert timing["prefill"] < timing["first_token"] < timing["prefill"] + timing["decode"]


def test_times_of_a_run_without_tokens():
    timing = drive.run(effects(max_tokens=0), ScriptedBackend(PLAN, TARGET))["timing_ms"]
    assert timing["first_token"] is None
    assert timing["decode"] == timing["draft"] == timing["verify"] == 0.0


def test_a_failing_listener_closes_the_generator():
    running = effects()

    def listener(effect):
        raise KeyError("listener")

    with pytest.raises(KeyError):
        drive.run(running, ScriptedBackend(PLAN, TARGET), listener)
    assert running.gi_frame is None  # pyright: ignore[reportAttributeAccessIssue]


def test_should_cancel_is_asked_before_every_submit():
    asked = []
    backend = ScriptedBackend(PLAN, TARGET)
    drive.run(effects(), backend, None, lambda: bool(asked.append(len(backend.submits))))
    assert asked == list(range(len(backend.submits)))


def test_the_scripted_backend_is_a_backend():
    backend = ScriptedBackend(PLAN, table({(1, 2): 3}, default=4), script=Script())
    assert isinstance(backend, Backend)
    assert backend.info["backend"] == "scripted"
    result = drive.run(decode(PLAN, Request([1, 2], 3, 0, ()), make_drafter("off", PLAN)), backend)
    assert result["token_ids"] == [3, 4, 4]
    backend.close()
    backend.close()
