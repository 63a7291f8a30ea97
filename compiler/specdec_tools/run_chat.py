"""specdec-run --chat: a conversation, a line of standard input a turn.

Does not know how tokens are made: run.py has the two ways to ask. Invariants: all turns are one session, so a turn reads only what
is new; Ctrl-C during an answer ends the answer, before one it ends the conversation; on a terminal a turn that is refused is as if it
had not been said, elsewhere it ends the program.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Any

from specdec_runtime.faults import RequestError

from specdec_tools.run import Interrupt, OnText, Printer, ask_page, opened_page, request_of, summary

Fields = dict[str, Any]
Ask = Callable[[Fields, OnText, Interrupt], Fields]
SESSION = "chat"


def chat(args: argparse.Namespace) -> None:
    """Until standard input ends."""
    messages = [] if args.system is None else [{"role": "system", "content": args.system}]
    opened = _native if args.backend == "native" else _page
    with opened(args) as ask:
        for said in _turns():
            asked = [*messages, {"role": "user", "content": said}]
            try:
                text = _answer(ask, {**request_of(args), "messages": asked, "session": SESSION})
            except RequestError as error:
                if not sys.stdin.isatty():
                    raise
                print(f"RequestError: {error}", file=sys.stderr)
                continue
            messages = [*asked, {"role": "assistant", "content": text}]


def _answer(ask: Ask, request: Fields) -> str:
    printer = Printer()
    with Interrupt().listening() as interrupt:
        result = ask(request, printer, interrupt)
    printer.finish(result["text"])
    print(summary(result), file=sys.stderr)
    return result["text"]


def _turns() -> Iterator[str]:
    while True:
        if sys.stdin.isatty():
            print("> ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line:
            return
        if line.strip():
            yield line.strip()


@contextmanager
def _native(args: argparse.Namespace) -> Iterator[Ask]:
    from specdec_tools.native_run import NativeRun

    with NativeRun.open(args.bundle) as runner:
        yield lambda request, on_text, interrupt: runner.generate(request, on_text, lambda: interrupt.seen)


@contextmanager
def _page(args: argparse.Namespace) -> Iterator[Ask]:
    """The loop runs while there is something to wait for, so that between the turns Ctrl-C is Python's own."""
    with asyncio.Runner() as loop:
        stack = AsyncExitStack()
        try:
            session = loop.run(stack.enter_async_context(opened_page(args)))
            yield lambda request, on_text, interrupt: loop.run(
                ask_page(session, session.generate, request, on_text, interrupt)
            )
        finally:
            loop.run(stack.aclose())
