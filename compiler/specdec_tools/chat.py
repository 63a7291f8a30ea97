"""Chat completions on this CPU in the shape of OpenAI's Python client: `Client` waits, `AsyncClient` is for asyncio.

    with Client("bundles/smollm2-135m") as client:
        for chunk in client.chat.completions.create(messages=[...], stream=True):
            print(chunk.choices[0].delta.content or "", end="")

Does not know how tokens are made. A client has one queue (turns.py) and may be used from any thread; an AsyncClient, from any loop.
Invariants: a stream that nobody reads blocks nobody, the next request runs when it has ended; leaving a stream early ends its
request; what a stream has told, it tells before its error.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Generic, Literal, TypeVar, overload

from specdec_tools.chat_call import Call, End, Engine, Item, Opener, Put
from specdec_tools.chat_types import ChatCompletion, ChatCompletionChunk

T = TypeVar("T")
Start = Callable[[Put], Call]


def _chunk(item: Item) -> ChatCompletionChunk | None:
    """None at the end of a feed; the error that ended it is raised."""
    if isinstance(item, ChatCompletionChunk):
        return item
    if isinstance(item, End) and item.error:
        raise item.error
    return None


def _whole(item: Item) -> ChatCompletion:
    """The one item of an answer that is not streamed."""
    if isinstance(item, End) and item.error:
        raise item.error
    assert isinstance(item, ChatCompletion)
    return item


class Stream:
    """The chunks of an answer. Leaving a loop over it, `close`, and the end of its `with` block end the request."""

    def __init__(self, start: Start) -> None:
        self._items: SimpleQueue[Item] = SimpleQueue()
        self._closed = False
        self._call = start(self._items.put)

    def __iter__(self) -> Iterator[ChatCompletionChunk]:
        try:
            while (chunk := self._take()) is not None:
                yield chunk
        finally:
            self.close()

    def __next__(self) -> ChatCompletionChunk:
        chunk = self._take()
        if chunk is None:
            raise StopIteration
        return chunk

    def _take(self) -> ChatCompletionChunk | None:
        item = End() if self._closed else self._items.get()
        if isinstance(item, End):
            self._items.put(End())  # for whoever asks again; an error is told once
        return _chunk(item)

    def cancel(self) -> None:
        """The answer ends with what there is: its reader hears the rest, and finish_reason "cancelled"."""
        self._call.cancel()

    def close(self) -> None:
        """Nobody reads on."""
        self._closed = True
        self._call.cancel()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_) -> None:
        self.close()


class AsyncStream:
    """The same for asyncio."""

    def __init__(self, start: Start) -> None:
        self._items: asyncio.Queue[Item] = asyncio.Queue()
        self._closed = False
        self._call = start(_put_into(self._items))

    async def __aiter__(self) -> AsyncIterator[ChatCompletionChunk]:
        try:
            while (chunk := await self._take()) is not None:
                yield chunk
        finally:
            self.close()

    async def __anext__(self) -> ChatCompletionChunk:
        chunk = await self._take()
        if chunk is None:
            raise StopAsyncIteration
        return chunk

    async def _take(self) -> ChatCompletionChunk | None:
        item = End() if self._closed else await self._items.get()
        if isinstance(item, End):
            self._items.put_nowait(End())
        return _chunk(item)

    def cancel(self) -> None:
        """The answer ends with what there is: its reader hears the rest, and finish_reason "cancelled"."""
        self._call.cancel()

    def close(self) -> None:
        """Nobody reads on."""
        self._closed = True
        self._call.cancel()

    async def aclose(self) -> None:
        self.close()

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(self, *_) -> None:
        self.close()


def _put_into(items: asyncio.Queue[Item]) -> Put:
    """From the queue's thread into this loop; where the loop is closed, nobody waits for it."""
    loop = asyncio.get_running_loop()

    def put(item: Item) -> None:
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(items.put_nowait, item)

    return put


class Completions:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @overload
    def create(self, *, stream: Literal[True], **body: Any) -> Stream: ...
    @overload
    def create(self, *, stream: Literal[False] | None = None, **body: Any) -> ChatCompletion: ...
    def create(self, **body: Any) -> Stream | ChatCompletion:
        """The whole answer, or with stream=True its chunks."""
        asked = self._engine.read(body)
        if asked.stream:
            return Stream(lambda put: Call(self._engine, asked, put))
        items: SimpleQueue[Item] = SimpleQueue()
        call = Call(self._engine, asked, items.put)
        try:
            return _whole(items.get())
        finally:
            call.cancel()  # Ctrl-C: nobody waits for it any more


class AsyncCompletions:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @overload
    async def create(self, *, stream: Literal[True], **body: Any) -> AsyncStream: ...
    @overload
    async def create(self, *, stream: Literal[False] | None = None, **body: Any) -> ChatCompletion: ...
    async def create(self, **body: Any) -> AsyncStream | ChatCompletion:
        """The whole answer, or with stream=True its chunks. A task that is cancelled while it waits ends its request."""
        asked = self._engine.read(body)
        if asked.stream:
            return AsyncStream(lambda put: Call(self._engine, asked, put))
        items: asyncio.Queue[Item] = asyncio.Queue()
        call = Call(self._engine, asked, _put_into(items))
        try:
            return _whole(await items.get())
        finally:
            call.cancel()


class Chat(Generic[T]):
    def __init__(self, completions: T) -> None:
        self.completions = completions


class Client:
    """A bundle on this CPU. opener: makes its backend, of use in tests."""

    def __init__(self, bundle: Path | str, opener: Opener | None = None) -> None:
        self._engine = Engine(bundle, opener)
        self.chat = Chat(Completions(self._engine))

    def close(self) -> None:
        """Ends the running request; those that wait are refused."""
        self._engine.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_) -> None:
        self.close()


class AsyncClient:
    """The same for asyncio. Opening a bundle takes a moment: it is done at once, in the constructor."""

    def __init__(self, bundle: Path | str, opener: Opener | None = None) -> None:
        self._engine = Engine(bundle, opener)
        self.chat = Chat(AsyncCompletions(self._engine))

    async def close(self) -> None:
        """Ends the running request; those that wait are refused."""
        await asyncio.to_thread(self._engine.close)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_) -> None:
        await self.close()
