"""Chat completions in Python: objects, streams, every way to end one, the queue; and the reading of requests, twin of the page's."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_backend import FakeBackend
from fake_bundle import fake_greedy
from specdec_runtime.decode.effects import Readback, Submit
from specdec_runtime.faults import ContractError, DeviceFault, RequestError, SpecdecError
from specdec_tools.chat import AsyncClient, Client, Stream
from specdec_tools.chat_request import read_completion
from specdec_tools.chat_types import to_dict
from twins import ask

MESSAGES = [{"role": "user", "content": "Hi"}]
PLAIN = {"drafter": "off", "k": 0, "schedule": "fixed"}


SUBMIT_S = 0.003  # of a device: a request that is ended has many submits to go, however busy the machine is


class Backend(FakeBackend):
    """Notes its submits; may be held before each, and fails from one on."""

    def __init__(self, bundle) -> None:
        super().__init__(bundle)
        self.num_submits = 0
        self.gate = threading.Event()
        self.gate.set()
        self.fails_at: int | None = None
        self.fault: Exception = DeviceFault("lost", "device")

    def submit(self, batch: Submit) -> Readback:
        assert self.gate.wait(20)
        self.num_submits += 1
        time.sleep(SUBMIT_S)
        if self.fails_at is not None and self.num_submits >= self.fails_at:
            raise self.fault
        return super().submit(batch)


@pytest.fixture
def client(fake_bundle: Path) -> Iterator[Client]:
    with Client(fake_bundle, Backend) as client:
        yield client
    assert all(thread.name != "specdec" for thread in threading.enumerate())


def _backend(client: Client | AsyncClient) -> Backend:
    backend = client._engine.runner.backend
    assert isinstance(backend, Backend)
    return backend


def _expected(client: Client | AsyncClient, max_tokens: int, messages=MESSAGES) -> str:
    """The text that the fake model gives."""
    text = client._engine.runner.text
    return text.decode(fake_greedy(text.encode(text.render(messages)), max_tokens))


def _text(chunks) -> str:
    return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)


def _long(client: Client | AsyncClient) -> list[dict[str, str]]:
    """Messages whose answer does not end for long."""
    text = client._engine.runner.text
    for number in range(200):
        messages = [{"role": "user", "content": str(number)}]
        if len(fake_greedy(text.encode(text.render(messages)), 400)) == 400:
            return messages
    raise AssertionError("every answer is short")


def _create(client: Client, **body) -> Any:
    return client.chat.completions.create(**{"messages": MESSAGES, **PLAIN, **body})


def _until(held: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not held():
        assert time.monotonic() < end, "it never came to be"
        time.sleep(0.002)


def test_a_whole_completion(client: Client) -> None:
    done = _create(client, max_tokens=12, model="fake")
    plain = to_dict(done)
    assert plain.pop("id").startswith("chatcmpl-") and abs(plain.pop("created") - time.time()) < 60
    extra = plain.pop("specdec")
    content = _expected(client, 12)
    assert plain == {
        "object": "chat.completion",
        "model": "fake",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": content, "refusal": None},
                "logprobs": None,
                "finish_reason": "length",
            }
        ],
        "usage": {
            "prompt_tokens": len(extra["prompt_ids"]),
            "completion_tokens": 12,
            "total_tokens": len(extra["prompt_ids"]) + 12,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }
    for drafter in ("ngram", "model", "chain"):  # the answer is the same whatever drafts
        again = _create(client, max_tokens=12, drafter=drafter, k=4)
        assert (again.choices[0].message.content, again.id != done.id) == (content, True)
    turns = [*MESSAGES, done.choices[0].message, *MESSAGES]  # a message that was answered can be sent back
    assert _create(client, max_tokens=1, messages=turns).usage.prompt_tokens > plain["usage"]["total_tokens"]


def test_a_stream(client: Client) -> None:
    chunks = [
        to_dict(chunk)
        for chunk in _create(client, max_tokens=9, stream=True, stream_options={"include_usage": True})
    ]
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    assert deltas[0] == {"role": "assistant", "content": ""} and deltas[-1] == {}
    assert all(set(delta) == {"content"} for delta in deltas[1:-1]) and len(deltas) > 6
    assert "".join(delta.get("content", "") for delta in deltas) == _expected(client, 9)
    reasons = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]]
    assert reasons == [None] * (len(deltas) - 1) + ["length"]
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] == 9
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert chunks[-2]["specdec"]["speculation"]["drafter"] == "off"
    assert {(chunk["id"], chunk["model"], chunk["object"]) for chunk in chunks} == {
        (chunks[0]["id"], "fake", "chat.completion.chunk")
    }


def test_text_comes_while_the_answer_grows(client: Client) -> None:
    backend = _backend(client)
    stream = _create(client, messages=_long(client), max_tokens=400, stream=True)
    first = [next(stream), next(stream)]
    backend.gate.clear()
    assert first[1].choices[0].delta.content
    assert backend.num_submits < 400
    backend.gate.set()
    assert len(_text([*first, *stream])) > 300


def test_without_a_limit_the_answer_may_fill_the_context(client: Client) -> None:
    messages = _long(client)
    assert _create(client, messages=messages).usage.completion_tokens > 300


def test_leaving_a_stream_early_ends_its_request(client: Client) -> None:
    messages = _long(client)

    def broken(stream: Stream) -> None:
        for chunk in stream:
            if _text([chunk]):
                break

    def thrown(stream: Stream) -> None:
        with pytest.raises(KeyError):
            for chunk in stream:
                if _text([chunk]):
                    raise KeyError

    def closed(stream: Stream) -> None:
        assert next(stream).choices[0].delta.role == "assistant"
        stream.close()
        assert list(stream) == []
        with pytest.raises(StopIteration):
            next(stream)

    def with_block(stream: Stream) -> None:
        with stream:
            next(stream)

    for leave in (broken, thrown, closed, with_block):
        backend = _backend(client)
        before = backend.num_submits
        leave(_create(client, messages=messages, max_tokens=400, stream=True))
        gc.collect()
        assert _create(client, max_tokens=5).choices[0].message.content == _expected(client, 5)
        assert backend.num_submits - before < 300, leave.__name__


def test_one_that_waits_can_be_ended_and_costs_nothing(client: Client) -> None:
    backend = _backend(client)
    backend.gate.clear()
    first = _create(client, max_tokens=3, stream=True)
    second = _create(client, max_tokens=50, stream=True)
    third = _create(client, max_tokens=4, stream=True)
    second.cancel()
    with pytest.raises(RequestError, match="before it began"):
        list(second)
    _until(lambda: len(client._engine.turns) == 2)
    backend.gate.set()
    assert _text(third) == _expected(client, 4) and _text(first) == _expected(client, 3)
    prompt = to_dict(_create(client, max_tokens=0))["usage"]["prompt_tokens"]
    chunks = -(-(prompt - 1) // 32)
    assert backend.num_submits == 2 * chunks + 3 + 4  # nothing of the second


def test_cancel_in_the_middle_keeps_what_there_is(client: Client) -> None:
    messages = _long(client)
    stream = _create(client, messages=messages, max_tokens=400, stream=True)
    chunks = []
    for chunk in stream:
        chunks.append(chunk)
        if len(chunks) == 4:
            stream.cancel()
    assert chunks[-1].choices[0].finish_reason == "cancelled"
    text = _text(chunks)
    assert text and _expected(client, 400, messages).startswith(text)
    stream.cancel()  # over: nothing
    assert _create(client, max_tokens=5).choices[0].finish_reason == "length"


def test_a_stream_that_nobody_reads_blocks_nobody(client: Client) -> None:
    left = _create(client, max_tokens=20, stream=True)
    assert _create(client, max_tokens=5).choices[0].message.content == _expected(client, 5)
    assert _text(left) == _expected(client, 20)


def test_an_error_in_the_middle_comes_after_the_text(client: Client) -> None:
    backend = _backend(client)
    for fault, family in ((DeviceFault("lost", "device"), DeviceFault), (ValueError("odd"), ContractError)):
        backend.num_submits, backend.fails_at, backend.fault = 0, 5, fault
        heard = []
        with pytest.raises(family, match=r"lost|odd"):
            for chunk in _create(client, max_tokens=50, stream=True):
                heard.append(chunk)
        assert _text(heard) and _expected(client, 50).startswith(_text(heard))
        with pytest.raises(family):
            _create(client, max_tokens=50)
        backend.fails_at = None
        assert _create(client, max_tokens=5).choices[0].message.content == _expected(client, 5)


def test_the_queue_keeps_its_order_over_threads(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    backend, runner = _backend(client), client._engine.runner
    generate, order = runner.generate, []

    def noted(request, *args, **more):
        order.append(request["max_tokens"])
        return generate(request, *args, **more)

    monkeypatch.setattr(runner, "generate", noted)
    backend.gate.clear()
    threads = []
    for number in (7, 3, 5, 1):
        threads.append(threading.Thread(target=_create, args=(client,), kwargs={"max_tokens": number}))
        threads[-1].start()
        _until(lambda: len(client._engine.turns) == len(threads))
    backend.gate.set()
    for thread in threads:
        thread.join(20)
    assert order == [7, 3, 5, 1]


def test_many_threads_at_once(client: Client) -> None:
    wrong: list[str] = []
    expected = _expected(client, 6)

    def some() -> None:
        for _ in range(5):
            text = _text(_create(client, max_tokens=6, stream=True))
            if text != expected:
                wrong.append(text)

    threads = [threading.Thread(target=some) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []


def test_closing_refuses_those_that_wait(fake_bundle: Path) -> None:
    client = Client(fake_bundle, Backend)
    backend = _backend(client)
    backend.gate.clear()
    running = _create(client, messages=_long(client), max_tokens=400, stream=True)
    waiting = _create(client, max_tokens=4, stream=True)
    threading.Timer(0.05, backend.gate.set).start()
    client.close()
    assert list(running)[-1].choices[0].finish_reason == "cancelled"
    with pytest.raises(RequestError):
        list(waiting)
    with pytest.raises(RequestError, match="closed"):
        _create(client, max_tokens=1)


def test_another_model_is_refused(client: Client) -> None:
    with pytest.raises(RequestError) as caught:
        _create(client, model="gpt-x")
    assert caught.value.where == "model" and _backend(client).num_submits == 0


def test_asyncio(fake_bundle: Path) -> None:
    """Whole, streamed, left early, abandoned, with an error, and in the order of the queue."""

    async def use() -> None:
        async with AsyncClient(fake_bundle, Backend) as client:
            create = client.chat.completions.create
            backend, messages = _backend(client), _long(client)
            done = await create(messages=MESSAGES, max_tokens=5, **PLAIN)
            assert done.choices[0].message.content == _expected(client, 5)
            left = await create(messages=MESSAGES, max_tokens=20, stream=True, **PLAIN)
            before = backend.num_submits
            async for chunk in await create(messages=messages, max_tokens=400, stream=True, **PLAIN):
                if _text([chunk]):
                    break
            order: list[int] = []

            async def one(number: int) -> None:
                await create(messages=MESSAGES, max_tokens=number, **PLAIN)
                order.append(number)

            await asyncio.gather(one(6), one(2), one(4))
            assert order == [6, 2, 4]
            assert backend.num_submits - before < 350
            assert _text([chunk async for chunk in left]) == _expected(client, 20)
            backend.fails_at = backend.num_submits + 5
            heard = []
            with pytest.raises(DeviceFault, match="lost"):
                async for chunk in await create(messages=MESSAGES, max_tokens=50, stream=True, **PLAIN):
                    heard.append(chunk)
            assert _text(heard)

    asyncio.run(use())


def test_asyncio_cancellation(fake_bundle: Path) -> None:
    """A task that is cancelled ends its request: one that waits, one that runs whole, one that streams."""

    async def use() -> None:
        async with AsyncClient(fake_bundle, Backend) as client:
            backend, messages = _backend(client), _long(client)
            body = {"messages": messages, "max_tokens": 400, **PLAIN}

            async def whole() -> None:
                await client.chat.completions.create(**body)

            async def streamed() -> None:
                async for _ in await client.chat.completions.create(stream=True, **body):
                    pass

            for work in (whole, streamed):
                before = backend.num_submits
                running, waiting = asyncio.ensure_future(work()), asyncio.ensure_future(work())
                while backend.num_submits < before + 5:
                    await asyncio.sleep(0.001)
                waiting.cancel()
                running.cancel()
                for task in (running, waiting):
                    with pytest.raises(asyncio.CancelledError):
                        await task
                done = await client.chat.completions.create(messages=MESSAGES, max_tokens=5, **PLAIN)
                assert done.choices[0].message.content == _expected(client, 5)
                assert backend.num_submits - before < 300

    asyncio.run(use())


def test_on_a_tiny_model(tiny_bundle: Callable[..., Path]) -> None:
    """The native backend's own thread and kernels: streamed, left early, whole."""
    with Client(tiny_bundle(0, 384)) as client:
        body: dict[str, Any] = {"messages": MESSAGES, "max_tokens": 24, "drafter": "model", "k": 3}
        done = client.chat.completions.create(**body)
        assert done.usage.completion_tokens == len(done.specdec["token_ids"]) > 0
        assert done.specdec["speculation"]["drafter"] == "model"
        for chunk in client.chat.completions.create(stream=True, **body):
            if _text([chunk]):
                break
        assert _text(client.chat.completions.create(stream=True, **body)) == done.choices[0].message.content


SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "array"}}}
GOOD: list[dict[str, Any]] = [
    {},
    {"model": "m", "n": 1, "stream": False, "tools": None, "user": None},
    {"stream": True, "stream_options": {"include_usage": True}, "max_completion_tokens": 5},
    {"stream": True, "stream_options": {}},
    {"temperature": 0.5, "top_p": 0.9, "seed": 7, "frequency_penalty": 1, "presence_penalty": -1, "max_tokens": 3},
    {"top_k": 4, "min_p": 0.1, "repetition_penalty": 1.1, "mode": "reject", "drafter": "model", "session": "s"},
    {"min_tokens": 2, "bad_words": ["a"], "allowed_ids": [1], "ignore_eos": True, "rounds": 2, "plain_steps": 3},
    {"schedule": "fixed"}, {"schedule": "fixed", "k": 2}, {"schedule": "break_even"},
    {"stop": "a"}, {"stop": ["a", "b"]}, {"stop": []}, {"logit_bias": {"5": -100}}, {"logit_bias": {}},
    {"logprobs": True}, {"logprobs": True, "top_logprobs": 5}, {"logprobs": False},
    {"response_format": {"type": "text"}}, {"response_format": {"type": "json_object"}}, {"response_format": SCHEMA},
    {"messages": [{"role": role, "content": "x"} for role in ("system", "developer", "user", "assistant")]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": None}]},
    {"messages": [{"role": "assistant", "content": "", "refusal": None}]},
]  # fmt: skip
BAD: list[tuple[dict[str, Any], str]] = [
    *(({name: 1}, name) for name in ("tools", "functions", "user", "store", "audio", "oddity", "prompt", "raw")),
    ({"messages": None}, "messages"), ({"messages": []}, "messages"), ({"messages": "Hi"}, "messages"),
    ({"messages": ["Hi"]}, "messages[0]"),
    ({"messages": [*MESSAGES, {"role": "tool", "content": "x"}]}, "messages[1].role"),
    ({"messages": [{"content": "x"}]}, "messages[0].role"), ({"messages": [{"role": ["user"], "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"), ({"messages": [{"role": "user", "content": 1}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": "x", "name": "y"}]}, "messages[0].name"),
    ({"messages": [{"role": "assistant", "content": "x", "tool_calls": []}]}, "messages[0].tool_calls"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "text": "x"}]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
    ({"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "more": 1}]}]}, "messages[0].content[0].more"),
    ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]"),
    ({"model": 1}, "model"), ({"n": 2}, "n"), ({"n": True}, "n"), ({"stream": 1}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"), ({"stream": True, "stream_options": 1}, "stream_options"),
    ({"stream": True, "stream_options": {"odd": 1}}, "stream_options.odd"),
    ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ({"max_tokens": 1, "max_completion_tokens": 1}, "max_completion_tokens"),
    ({"stop": 1}, "stop"), ({"stop": ""}, "stop"), ({"stop": ["a", ""]}, "stop"), ({"stop": [1]}, "stop"),
    ({"logprobs": 1}, "logprobs"), ({"top_logprobs": 2}, "top_logprobs"), ({"logprobs": True, "top_logprobs": 6}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": "2"}, "top_logprobs"),
    ({"logit_bias": [1]}, "logit_bias"), ({"logit_bias": {"-1": 1}}, "logit_bias"), ({"logit_bias": {"a": 1}}, "logit_bias"),
    ({"response_format": "json"}, "response_format"), ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"response_format": {}}, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ({"response_format": {"type": "text", "json_schema": {}}}, "response_format.json_schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "response_format.json_schema.schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "odd": 1}}}, "response_format.json_schema.odd"),
]  # fmt: skip


def _read(body: dict[str, Any]) -> dict[str, Any]:
    try:
        read = read_completion(body)
    except SpecdecError as error:
        assert isinstance(error, RequestError)
        return {"where": error.where, "action": error.action}
    request = dict(read.request)
    if "logit_bias" in request:  # JSON has no other keys than strings
        request["logit_bias"] = {str(token_id): bias for token_id, bias in request["logit_bias"].items()}
    found = {"request": request, "stream": read.stream, "includeUsage": read.include_usage}
    found["topLogprobs"] = read.top_logprobs
    return found if read.model is None else {**found, "model": read.model}


def test_requests_are_read_as_the_page_reads_them() -> None:
    bodies = [{"messages": MESSAGES, **body} for body in [*GOOD, *(body for body, _ in BAD)]]
    here = [_read(body) for body in bodies]
    assert all("request" in found for found in here[: len(GOOD)]), here
    for (body, where), found in zip(BAD, here[len(GOOD) :], strict=True):
        assert found.get("where") == where, (body, found)
    there = ask({"completions": bodies})
    for body, mine, theirs in zip(bodies, here, there, strict=True):
        assert mine == theirs, body
    assert here[18]["request"].get("grammar") is None
    assert here[19]["request"]["grammar"] == {"type": "json_schema", "schema": {"type": "object"}}
    assert here[20]["request"]["grammar"] == {"type": "json_schema", "schema": {"type": "array"}}
    assert [found["request"]["k"] for found in here[7:10]] == [4, 2, 7]
