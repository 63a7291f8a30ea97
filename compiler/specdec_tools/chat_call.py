"""One loaded bundle with its queue, and one request on its way through it, for both clients of chat.py.

Does not know who waits: what happens is put into a feed, on the queue's thread, ended by one `End`. Invariant: a feed is bounded
by its answer (max_tokens, the context), so putting never waits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from specdec_runtime.backends.base import Backend
from specdec_runtime.bundle import Bundle
from specdec_runtime.decode.effects import Emit
from specdec_runtime.faults import ContractError, RequestError, SpecdecError

from specdec_tools.chat_request import Completion, read_completion
from specdec_tools.chat_types import (
    Answer,
    ChatCompletion,
    ChatCompletionChunk,
    Delta,
    logprobs_of,
    token_logprobs,
)
from specdec_tools.native_run import NativeRun
from specdec_tools.turns import Turn, Turns

Opener = Callable[[Bundle], Backend]


class End:
    """The last item of a feed."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error


Item = ChatCompletionChunk | ChatCompletion | End
Put = Callable[[Item], None]


class Engine:
    """A bundle on this CPU, one request at a time."""

    def __init__(self, bundle: Path | str, opener: Opener | None = None) -> None:
        self.runner = NativeRun.open(Path(bundle), opener)
        self.turns = Turns()

    def read(self, body: Mapping[str, Any]) -> Completion:
        """What the body asks for, or the RequestError that refuses it."""
        asked, name = read_completion(body), self.runner.plan.name
        if asked.model not in (None, name):
            action = "Give its name, or leave it out"
            raise RequestError(f"the bundle is {name}, not {asked.model}", "model", action)
        return asked

    def close(self) -> None:
        """Ends the running request; those that wait are refused."""
        self.turns.close()
        self.runner.backend.close()


class Call:
    """One request in the queue."""

    def __init__(self, engine: Engine, asked: Completion, put: Put) -> None:
        self._runner, self._turns, self._asked, self._put = engine.runner, engine.turns, asked, put
        self._answer = Answer(engine.runner.plan.name)
        self._turn = engine.turns.add(self._work)

    def cancel(self) -> None:
        """It never runs, or ends with what there is; one that is over is left alone."""
        if self._turns.cancel(self._turn):
            self._put(End(_cancelled()))

    def _work(self, turn: Turn) -> None:
        error: Exception | None = None
        try:
            if turn.cancelled:
                raise _cancelled()
            self._run(turn)
        except SpecdecError as fault:
            error = fault
        except Exception as bug:  # the thread must live on, and the reader must hear of it
            error = ContractError(f"{type(bug).__name__}: {bug}", "chat completions", "Please report this")
            error.__cause__ = bug
        self._put(End(error))

    def _run(self, turn: Turn) -> None:
        asked, answer, put = self._asked, self._answer, self._put
        request = {"max_tokens": self._runner.plan.target_model.max_context} | asked.request
        told = _Told(self._runner, asked)
        if asked.stream:
            put(answer.role())

        def on_text(text: str) -> None:
            if asked.stream:
                put(answer.chunk(Delta(content=text), logprobs=logprobs_of(told.take())))

        result = self._runner.generate(request, on_text, lambda: turn.cancelled, told.hear)
        rest = told.take()
        if not asked.stream:
            put(answer.completion(result, rest))
            return
        if rest:  # of tokens that showed no text
            put(answer.chunk(Delta(content=""), logprobs=logprobs_of(rest)))
        put(answer.end(result))
        if asked.include_usage:
            put(answer.usage(result))


class _Told:
    """Log-probabilities that were heard and wait for their chunk."""

    def __init__(self, runner: NativeRun, asked: Completion) -> None:
        self._shown, self._num_top = runner.text.byte_map.bytes, asked.top_logprobs
        self._waiting: list[dict[str, Any]] | None = [] if "logprobs" in asked.request else None

    def hear(self, emit: Emit) -> None:
        if self._waiting is not None:
            self._waiting += token_logprobs(emit.logprobs or [], self._shown, self._num_top)

    def take(self) -> list[dict[str, Any]] | None:
        """All since the last call; None where none were asked for."""
        taken = self._waiting
        self._waiting = None if taken is None else []
        return taken


def _cancelled() -> RequestError:
    return RequestError("the request was cancelled before it began", "cancel")
