"""Sessions: what is kept, what is shared, what is given up, and that none of it shows in an answer."""

from itertools import product

import pytest
from exactness_suite import VOCAB
from hypothesis import settings
from plan_factory import load_made
from session_machine import Conversations
from simulate import generate, mostly, plain_ids, seeded
from specdec_runtime.backends.scripted import Script, ScriptedBackend
from specdec_runtime.decode.programs import Programs
from specdec_runtime.decode.request import Request
from specdec_runtime.decode.round import decode
from specdec_runtime.decode.session import Memory
from specdec_runtime.drafters.registry import make_drafter
from specdec_runtime.faults import ContractError, DeviceFault, RequestError

TestConversations = Conversations.TestCase
TestConversations.settings = settings(stateful_step_count=20)

SIZES = {"max_context": 48, "page_size": 4, "prefill_width": 4}
PLAN = load_made(vocab_size=VOCAB, draft=SIZES, **SIZES)
TARGET = seeded(3, VOCAB)
DRAFT = mostly(TARGET, seeded(4, VOCAB), 70)
PROMPT = [1, 5, 6, 7, 5, 6, 2, 2, 8]
SETTINGS = [
    ("off", 0, 1, 4),
    ("ngram", 4, 1, 1),
    *product(("model",), (1, 3, 7), (1, 2, 4), (1,)),
    ("chain", 4, 2, 1),
]


class Device:
    """One device with its memory."""

    def __init__(self, plan=PLAN, programs=None, script=None):
        self.plan, self.programs = plan, programs or Programs()
        self.memory = Memory(plan, self.programs)
        self.backend = ScriptedBackend(plan, TARGET, DRAFT, script)

    def ask(self, prompt, session: str | None = "chat", max_tokens=8, drafter="off", k=4, **more):
        more = {"eos_ids": (), **more}
        return generate(
            self.plan, TARGET, prompt, max_tokens, drafter, k, backend=self.backend, memory=self.memory,
            session=session, programs=self.programs, **more,
        )  # fmt: skip

    def session(self, name="chat"):
        return next(one for one in self.memory.report()["sessions"] if one["name"] == name)


@pytest.mark.parametrize(("drafter", "k", "rounds", "steps"), SETTINGS)
def test_edited_histories_equal_cold_runs(drafter, k, rounds, steps):
    """Follow-up, regenerate, and an edit at every place."""
    device, how = Device(), {"drafter": drafter, "k": k, "rounds": rounds, "steps": steps}
    first = device.ask(PROMPT, **how)
    history = PROMPT + first.ids
    prompts = [[*history, 9, 4, 4, 1], PROMPT, history]
    prompts += [[*history[:at], (history[at] + 1) % VOCAB, 3, 3] for at in range(len(history))]
    for prompt in prompts:
        run = device.ask(prompt, **how)
        assert run.ids == plain_ids(TARGET, prompt, 8, 48)
        device.memory.drop("chat")
        assert device.ask(PROMPT, **how).ids == first.ids, "the same conversation again, cold"


def test_a_follow_up_prefills_only_what_is_new():
    """Of both models; and it writes only tokens and table entries that differ."""
    device = Device()
    first = device.ask(PROMPT, drafter="model", k=3)
    history, before = PROMPT + first.ids, len(device.backend.submits)
    run = device.ask([*history, 9, 4, 4, 1, 1], drafter="model", k=3)
    assert run.result["usage"]["cached_tokens"] == len(history) - 1
    batches = device.backend.submits[before:]
    starts = {
        role: [values[0] for batch in batches for name, _, values in batch.writes if name == f"{role}.args"]
        for role in ("target", "draft")
    }
    assert min(starts["target"]) == len(history) - 1
    assert len(history) - 3 <= min(starts["draft"]) <= len(history) - 1
    tokens = [first for batch in batches for name, first, _ in batch.writes if name == "tokens"]
    assert min(tokens) >= len(history) - 1
    tables = [first for batch in batches for name, first, _ in batch.writes if name.endswith("page_table")]
    assert min(tables) >= (len(history) - 1) // 4


def test_the_same_prompt_again_needs_no_prefill():
    device = Device()
    first = device.ask(PROMPT)
    before = len(device.backend.submits)
    again = device.ask(PROMPT)
    assert again.ids == first.ids and again.result["usage"]["cached_tokens"] == len(PROMPT) - 1
    assert {batch.kind for batch in device.backend.submits[before:]} == {"verify"}


def test_without_a_session_nothing_is_reused_or_kept():
    device = Device()
    device.ask(PROMPT, session=None)
    again = device.ask(PROMPT, session=None)
    assert again.result["usage"]["cached_tokens"] == 0
    report = device.memory.report()
    assert report["sessions"] == [] and report["pages"]["target"] == {"held": 0, "total": 12}


def test_sessions_share_whole_pages_and_leave_them_alone():
    """Two that begin alike: one set of pages for what is common, then each its own."""
    device = Device()
    device.ask(PROMPT, session="one")
    two = device.ask([*PROMPT[:8], 3, 3, 3], session="two")
    assert two.result["usage"]["cached_tokens"] == 8, "two whole pages of four"
    pages = device.memory.report()["pages"]["target"]["held"]
    each = [device.session(name)["pages"]["target"] for name in ("one", "two")]
    assert pages == sum(each) - 2
    edited = device.ask([*PROMPT[:6], 9, 9], session="one")
    assert edited.result["usage"]["cached_tokens"] == 4, "the second page is shared: it is not written"
    assert edited.ids == plain_ids(TARGET, [*PROMPT[:6], 9, 9], 8, 48)
    again = device.ask([*PROMPT[:8], 3, 3, 3], session="two")
    assert again.ids == two.ids and again.result["usage"]["cached_tokens"] == 10


def test_a_draft_sent_back_by_two_does_not_write_a_shared_page():
    """Its rounds end with the last two tokens, and the first one commits nothing: the target's row is not finite."""
    device = Device(script=Script())
    device.ask(PROMPT, session="one", drafter="model", k=3)
    first = len(device.backend.submits)  # this or the next one, where the draft has to catch up
    device.backend._script.not_finite = {(first + number, "target.verify_4", 0) for number in range(2)}
    two = device.ask(PROMPT, session="two", drafter="model", k=3, rounds=2)
    assert two.ids == plain_ids(TARGET, PROMPT, 8, 48)
    assert not two.emits[0].num_drafted, "the plain retry"
    assert device.ask(PROMPT, session="one", drafter="model", k=3).ids == two.ids


def test_the_session_used_longest_ago_is_evicted():
    device = Device()
    for start, name in enumerate(("one", "two", "three")):
        device.ask([start, *PROMPT[1:]], session=name)  # 16 positions each: 4 pages of 12
    device.ask([0, *PROMPT[1:]], session="one")
    device.ask([7, *PROMPT[1:]], session="four")
    report = device.memory.report()
    assert [one["name"] for one in report["sessions"]] == ["three", "one", "four"]
    assert report["num_evicted"] == 1
    whole = device.ask([5] * 47, session=None, max_tokens=1)
    assert whole.ids == plain_ids(TARGET, [5] * 47, 1, 48)
    assert device.memory.report()["num_evicted"] == 4, "also for a request without a session"
    assert device.ask([0, *PROMPT[1:]], session="one").result["usage"]["cached_tokens"] == 0


def test_a_running_session_may_fill_the_whole_pool():
    device = Device()
    device.ask(PROMPT, session="one")
    run = device.ask(PROMPT, session="two", max_tokens=60, drafter="model", k=7, rounds=4)
    assert run.ids == plain_ids(TARGET, PROMPT, 60, 48)
    assert device.session("two")["pages"]["target"] == 12
    assert [one["name"] for one in device.memory.report()["sessions"]] == ["two"]


@pytest.mark.parametrize("at", range(12))
def test_a_cancelled_request_keeps_what_is_valid(at):
    device = Device()
    cut = device.ask(PROMPT * 2, drafter="model", k=3, cancel_at=at)
    whole = device.ask(PROMPT * 2, drafter="model", k=3)
    assert whole.ids == plain_ids(TARGET, PROMPT * 2, 8, 48)
    assert whole.result["usage"]["cached_tokens"] == min(4 * at, 17)
    assert cut.ids == whole.ids[: len(cut.ids)]


def test_a_fault_of_the_device_forgets_every_session():
    device = Device(script=Script())
    device.ask(PROMPT, session="one")
    device.backend._script.fail_after[len(device.backend.submits)] = DeviceFault("lost", "submit", "reload")
    with pytest.raises(DeviceFault):
        device.ask(PROMPT, session="two")
    report = device.memory.report()
    assert report["sessions"] == [] and report["pages"]["target"]["held"] == 0
    assert device.ask(PROMPT, session="one").result["usage"]["cached_tokens"] == 0


def test_a_fault_that_the_answer_survives_is_not_trusted_after_it():
    device = Device(script=Script())
    clean = device.ask(PROMPT, drafter="model", k=3)
    rounds = [number for number, batch in enumerate(device.backend.submits) if batch.kind == "round"]
    device.memory.drop("chat")
    fault = DeviceFault("lost", "submit", "reload")
    device.backend._script.fail_before[len(device.backend.submits) + rounds[1]] = fault
    run = device.ask(PROMPT, drafter="model", k=3)
    assert run.ids == clean.ids and run.result["speculation"]["fallbacks"] == {"device_fault": 1}
    assert device.memory.report()["sessions"] == []


@pytest.mark.parametrize("error", [ZeroDivisionError(), ContractError("bug", "here")])
def test_any_other_end_forgets_too(error):
    device = Device(script=Script())
    device.ask(PROMPT, session="one")
    device.backend._script.fail_before[len(device.backend.submits)] = error
    with pytest.raises(type(error)):
        device.ask(PROMPT, session="one")
    assert device.memory.report()["sessions"] == []


def test_a_run_that_is_let_go_forgets_and_frees_the_memory():
    device = Device()
    device.ask(PROMPT, session="one")
    request = Request(PROMPT, 5, session="one")
    effects = decode(PLAN, request, make_drafter("off", PLAN), memory=device.memory)
    next(effects)
    other = decode(PLAN, request, make_drafter("off", PLAN), memory=device.memory)
    with pytest.raises(ContractError, match="another request"):
        next(other)
    with pytest.raises(RequestError, match="in use"):
        device.memory.drop("one")
    with pytest.raises(ContractError, match="still"):
        device.memory.forget()
    effects.close()
    assert device.memory.report()["sessions"] == []
    assert device.ask(PROMPT, session="one").result["usage"]["cached_tokens"] == 0


def test_a_run_that_never_starts_takes_nothing():
    device = Device()
    device.ask(PROMPT)
    decode(PLAN, Request(PROMPT, 5, session="chat"), make_drafter("off", PLAN), memory=device.memory)
    assert device.ask(PROMPT).result["usage"]["cached_tokens"] == len(PROMPT) - 1


def test_drop():
    device = Device()
    device.ask(PROMPT)
    assert device.memory.drop("chat") and not device.memory.drop("chat")
    assert device.ask(PROMPT).result["usage"]["cached_tokens"] == 0


@pytest.mark.parametrize("name", ["", "x" * 65, 7, True, b"x", ["x"]])
def test_names_that_are_none(name):
    with pytest.raises(RequestError) as caught:
        decode(PLAN, Request(PROMPT, 5, session=name), make_drafter("off", PLAN))
    assert caught.value.where == "session" and caught.value.action


@pytest.mark.parametrize(("policy", "unit"), [
    (("any", True), 1), (("any", False), 1), (("widest", True), 4), (("plain", True), 4), (("widest", False), 1),
    (("plain", False), 1),
])  # fmt: skip
def test_what_is_kept_ends_where_the_policy_allows(policy, unit):
    device = Device(programs=Programs(*policy))
    first = device.ask(PROMPT, drafter="model", k=3)
    for at in range(1, len(PROMPT)):
        prompt = [*PROMPT[:at], (PROMPT[at] + 1) % VOCAB, 3]
        run = device.ask(prompt, drafter="model", k=3)
        assert run.result["usage"]["cached_tokens"] == at // unit * unit
        assert run.ids == plain_ids(TARGET, prompt, 8, 48)
        assert device.ask(PROMPT, drafter="model", k=3).ids == first.ids
