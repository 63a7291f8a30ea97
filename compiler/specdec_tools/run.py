"""specdec-run: one prompt through a bundle, on this CPU or in a headless browser.

Does not know how tokens are made: it joins text, a backend and the decode core (native), or drives the page (wasm,
webgpu). Both print the same object with --json. Invariant: with --json, one object goes to stdout, whatever happens.
Exit codes: 0, 2-5 by the error's family, 130 where Ctrl-C left nothing to show.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from specdec_runtime.faults import (
    ContractError,
    DeviceFault,
    RequestError,
    SpecdecError,
    error_json,
    exit_code,
)
from specdec_runtime.schedule.policy import AUTO, SCHEDULES

from specdec_tools.json_file import read_json_file
from specdec_tools.sampling_options import add_options, option_fields

if TYPE_CHECKING:
    from specdec_tools.browser import PageSession

OnText = Callable[[str], None]
BACKENDS = ("native", "wasm", "webgpu")
WIDTHS = (1, 2, 4, 8)
MAX_ID = 2**31 - 1


class StdoutError(Exception):
    """Standard output cannot be written; the cause says why."""


def _write(text: str, end: str = "\n") -> None:
    try:
        print(text, end=end, flush=True)
    except OSError as error:
        raise StdoutError from error


def _ids(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    for part in parts:
        if not re.fullmatch("[0-9]{1,10}", part) or int(part) > MAX_ID:
            raise argparse.ArgumentTypeError(f"{part!r} is not a token id")
    return [int(part) for part in parts]


class Parser(argparse.ArgumentParser):
    """Errors are RequestErrors, so that --json can show them."""

    def error(self, message: str) -> NoReturn:
        raise RequestError(message, "command line", f"{self.prog} --help lists the options")


def make_parser() -> Parser:
    # no abbreviations: main must know --json when it sees it, even where the rest cannot be read
    parser = Parser(prog="specdec-run", description="Run one prompt through a bundle.", allow_abbrev=False)
    parser.add_argument("bundle", type=Path, help="folder that specdec-compile build made")
    parser.add_argument("--backend", choices=BACKENDS, default="native")
    prompt = parser.add_mutually_exclusive_group(required=True)
    prompt.add_argument("--prompt", help="text of the user")
    prompt.add_argument("--prompt-ids", type=_ids, metavar="1,2,3", help="token ids, taken as they are")
    prompt.add_argument(
        "--chat", action="store_true", help="a conversation: each line of standard input is a turn"
    )
    parser.add_argument(
        "--raw", action="store_true", help="continue the text itself, without the chat template"
    )
    parser.add_argument("--system", help="system text of the chat")
    parser.add_argument("--max-tokens", type=int, help="the most tokens of the answer (default 256)")
    parser.add_argument(
        "--drafter", choices=("off", "model", "ngram", "chain"), help="who guesses ahead (default chain)"
    )
    parser.add_argument(
        "--schedule",
        choices=(AUTO, *SCHEDULES),
        help="how many are drafted, when (default: what the bundle says, else break_even)",
    )
    parser.add_argument(
        "--k",
        type=int,
        help="the most drafted tokens a cycle, 0 to 7 (default 7); with --schedule fixed always so many (default 4)",
    )
    parser.add_argument(
        "--plain-steps",
        type=int,
        metavar="N",
        help="plain steps in one submit where nothing drafts, 1 to 8 (default: 8 on a GPU, else 1)",
    )
    parser.add_argument(
        "--rounds",
        type=int,
        metavar="N",
        help="rounds of the draft model in one submit, 1 to 8; with a schedule other than fixed at most so many "
        "(default: 8 on a GPU, else 1)",
    )
    grammar = parser.add_mutually_exclusive_group()
    grammar.add_argument("--json-schema", type=Path, metavar="FILE", help="the answer is JSON of this schema")
    grammar.add_argument(
        "--grammar",
        metavar="json | regex:TEXT | FILE",
        help="the answer is JSON, or matches a regular expression, or an EBNF grammar",
    )
    parser.add_argument(
        "--score-ids", type=_ids, metavar="4,5,6", help="score these ids after the prompt instead"
    )
    add_options(parser)
    parser.add_argument("--width", type=int, default=1, help="rows of a scoring pass: 1, 2, 4 or 8")
    parser.add_argument("--adapter", choices=("auto", "gpu", "swiftshader"), help="for webgpu (default auto)")
    parser.add_argument("--threads", type=int, metavar="N", help="for wasm; left out: the machine's, up to 4")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds a browser may take")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


_OF_AN_ANSWER = (
    "grammar",
    "json_schema",
    "drafter",
    "rounds",
    "schedule",
    "k",
    "plain_steps",
    "max_tokens",
)


def _check_scores(args: argparse.Namespace) -> None:
    """Scores follow given ids: nothing is drafted, chosen or ended."""
    drafting = [name for name in _OF_AN_ANSWER if getattr(args, name) is not None]
    if given := [*drafting, *option_fields(args)]:
        raise RequestError("scores have no such option", given[0], "Leave it out, or --score-ids")


def _check_backend(args: argparse.Namespace) -> None:
    """Refuse what only another backend would follow."""
    if args.threads is not None and args.backend != "wasm":
        action = "Leave --threads out, or add --backend wasm"
        raise RequestError(f"the {args.backend} backend does not choose its threads", "threads", action)
    if args.adapter is not None and args.backend != "webgpu":
        action = "Leave --adapter out, or add --backend webgpu"
        raise RequestError(f"the {args.backend} backend has no adapter", "adapter", action)


def _check(args: argparse.Namespace) -> None:
    """Refuse what neither backend would notice."""
    if args.prompt_ids is not None and (args.raw or args.system is not None):
        raise RequestError(
            "ids take no --raw and no --system", "prompt_ids", "Give --prompt, or leave them out"
        )
    if args.score_ids is not None:
        _check_scores(args)
    if args.grammar == "":
        raise RequestError("the grammar is empty", "--grammar", "Give json, regex:TEXT or a file")
    if args.chat and (args.raw or args.json or args.score_ids is not None):
        action = "Leave out --raw, --json and --score-ids"
        raise RequestError("a conversation is text, by the chat template", "chat", action)
    if args.width not in WIDTHS:
        raise RequestError(f"width is {args.width}", "width", f"Use one of {list(WIDTHS)}")
    _check_backend(args)
    if not (math.isfinite(args.timeout) and args.timeout > 0):
        raise RequestError(f"timeout is {args.timeout}", "timeout", "Give a number of seconds above 0")


class Interrupt:
    """Ctrl-C as a flag and a call: the first one cancels, a second one ends the program at once."""

    def __init__(self) -> None:
        self.seen = False
        self.on_interrupt: Callable[[], object] = lambda: None

    @contextmanager
    def listening(self) -> Iterator[Interrupt]:
        def heard(number: int, frame: Any) -> None:
            self.seen = True
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self.on_interrupt()

        before = signal.signal(signal.SIGINT, heard)
        try:
            yield self
        finally:
            signal.signal(signal.SIGINT, before)


def _grammar(args: argparse.Namespace) -> dict[str, Any] | None:
    """What the answer must match, as a request says it."""
    if args.json_schema is not None:
        return {
            "type": "json_schema",
            "schema": read_json_file(args.json_schema, "Give a file with a JSON schema"),
        }
    if args.grammar is None or args.grammar == "json":
        return None if args.grammar is None else {"type": "json"}
    if args.grammar.startswith("regex:"):
        return {"type": "regex", "pattern": args.grammar.removeprefix("regex:")}
    try:
        return {"type": "ebnf", "grammar": Path(args.grammar).read_text(encoding="utf-8")}
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(
            f"it cannot be read: {error}", "--grammar", "Give json, regex:TEXT or a file"
        ) from None


def request_of(args: argparse.Namespace) -> dict[str, Any]:
    """The request as window.specdec takes it; of a conversation, without its messages."""
    prompt = {"prompt": args.prompt} if args.prompt is not None else {"prompt_ids": args.prompt_ids}
    if args.chat:
        prompt = {}
    if args.raw:
        prompt["raw"] = True
    if args.system is not None and not args.chat:
        prompt["system"] = args.system
    if args.score_ids is not None:
        return prompt | {"score_ids": args.score_ids, "width": args.width}
    if args.plain_steps is not None:
        prompt["plain_steps"] = args.plain_steps
    if args.rounds is not None:
        prompt["rounds"] = args.rounds
    grammar = _grammar(args)
    if grammar is not None:
        prompt["grammar"] = grammar
    k = args.k if args.k is not None else 4 if args.schedule == "fixed" else 7
    return prompt | {
        "max_tokens": 256 if args.max_tokens is None else args.max_tokens,
        "drafter": args.drafter or "chain",
        "k": k,
        "schedule": args.schedule or AUTO,
        **option_fields(args),
    }


def _run_native(args: argparse.Namespace, on_text: OnText, interrupt: Interrupt) -> dict[str, Any]:
    from specdec_tools.native_run import NativeRun

    with NativeRun.open(args.bundle) as runner:
        request = request_of(args)
        if args.score_ids is not None:
            return runner.score(request, lambda: interrupt.seen)
        return runner.generate(request, on_text, lambda: interrupt.seen)


class LoadBar:
    """Progress of a load by bytes, on a terminal's stderr only."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()

    def __call__(self, progress: dict[str, Any]) -> None:
        if not self._shown:
            return
        if progress.get("stage") == "load" and progress["total_bytes"]:
            done = progress["bytes"] / progress["total_bytes"]
            bar = "#" * int(30 * done)
            print(f"\rloading [{bar:<30}] {done:4.0%}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _drafts(args: argparse.Namespace) -> bool:
    """Is there anything for a schedule to decide? Then the device's costs are measured with the load."""
    return args.score_ids is None and args.drafter != "off" and args.schedule != "fixed"


@asynccontextmanager
async def opened_page(args: argparse.Namespace) -> AsyncIterator[PageSession]:
    """The page in a browser of its own, with the bundle loaded."""
    from specdec_tools.browser import BrowserOptions, page_session
    from specdec_tools.serve import BUNDLE_PREFIX, running_site

    options = BrowserOptions(args.backend, args.adapter or "auto", args.timeout, args.threads)
    with running_site(args.bundle) as site:
        async with page_session(site.url, options) as session:
            bar = LoadBar()
            session.on_progress = bar
            loaded = await session.load(BUNDLE_PREFIX, timestamps=True, costs=_drafts(args))
            bar.clear()
            if reason := loaded["device"].get("threads_reason"):
                print(f"note: one thread: {reason}", file=sys.stderr)
            if args.adapter in (None, "auto") and "swiftshader" in loaded["device"]["adapter"].lower():
                print("note: WebGPU runs on a software adapter (SwiftShader)", file=sys.stderr)
            yield session


async def ask_page(
    session: PageSession,
    ask: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]],
    request: dict[str, Any],
    on_text: OnText,
    interrupt: Interrupt,
) -> dict[str, Any]:
    """One request; an interrupt cancels it."""
    loop = asyncio.get_running_loop()
    session.on_text = on_text
    pending: set[asyncio.Task[None]] = set()  # the loop keeps no strong reference to a task
    cancel = lambda: pending.add(loop.create_task(session.cancel()))  # noqa: E731
    interrupt.on_interrupt = lambda: loop.call_soon_threadsafe(cancel)
    if interrupt.seen:
        raise KeyboardInterrupt  # while the bundle was loading: there is nothing to print
    result = await ask(request)
    await asyncio.gather(*pending, return_exceptions=True)
    return result


async def _drive_page(args: argparse.Namespace, on_text: OnText, interrupt: Interrupt) -> dict[str, Any]:
    async with opened_page(args) as session:
        ask = session.generate if args.score_ids is None else session.score
        return await ask_page(session, ask, request_of(args), on_text, interrupt)


def _run_browser(args: argparse.Namespace, on_text: OnText, interrupt: Interrupt) -> dict[str, Any]:
    return asyncio.run(_drive_page(args, on_text, interrupt))


def _check_bundle(args: argparse.Namespace) -> None:
    _check(args)
    if not (args.bundle / "manifest.json").is_file():
        action = "Build one with specdec-compile build"
        raise RequestError("this is no bundle: it has no manifest.json", str(args.bundle), action)


def run(args: argparse.Namespace, on_text: OnText = lambda text: None) -> dict[str, Any]:
    """The result object of one request."""
    _check_bundle(args)
    with Interrupt().listening() as interrupt:
        runner = _run_native if args.backend == "native" else _run_browser
        return runner(args, on_text, interrupt)


def _chat(args: argparse.Namespace) -> None:
    from specdec_tools.run_chat import chat

    _check_bundle(args)
    chat(args)


def summary(result: dict[str, Any]) -> str:
    """The counts of a run, in two lines or three."""
    usage, spec, ms = result["usage"], result["speculation"], result["timing_ms"]
    tokens = usage["completion_tokens"]
    speed = 1000 * tokens / ms["decode"] if ms["decode"] else 0.0
    first = "none" if ms["first_token"] is None else f"{ms['first_token']:.0f} ms"
    device, test = result["device"], result["device"]["self_test"]
    threads = f", {device['threads']} threads" if device.get("threads", 1) > 1 else ""
    tested = f"; self-test {test['verdict']}" if test["passes"] else ""
    fallen = f"; fallbacks: {', '.join(spec['fallbacks'])}" if spec["fallbacks"] else ""
    kept = f" ({usage['cached_tokens']} kept)" if usage["cached_tokens"] else ""
    return (
        f"[{tokens} tokens, {result['finish_reason']}; {speed:.1f} tokens/s; prompt {usage['prompt_tokens']} tokens{kept}; "
        f"first token {first}; load {ms['load']:.0f} ms; {device['backend']}: {device['adapter']}{threads}{tested}]\n"
        f"[drafter {spec['drafter']}: {spec['num_drafted']} drafted, {spec['num_accepted']} accepted, "
        f"{spec['num_target_passes']} target passes; ms: prefill {ms['prefill']:.0f}, draft {ms['draft']:.0f}, "
        f"verify {ms['verify']:.0f}, other {ms['other']:.0f}{fallen}]{_scheduled(spec)}"
    )


def _scheduled(spec: dict[str, Any]) -> str:
    """What the schedule chose, on a line of its own; nothing where there was nothing to choose."""
    schedule = spec["schedule"]
    if spec["drafter"] == "off" or not schedule["choices"]:
        return ""
    choices = ", ".join(f"{choice} x{count}" for choice, count in schedule["choices"].items())
    return f"\n[schedule {schedule['name']}: {choices}]"


class Printer:
    """Text to stdout as it comes; at the end whatever of the result's text has not been printed."""

    def __init__(self) -> None:
        self._printed = ""

    def __call__(self, text: str) -> None:
        self._printed += text
        _write(text, end="")

    def finish(self, text: str) -> None:
        if not text.startswith(self._printed):
            raise ContractError("the streamed text is not the beginning of the result's", "specdec-run")
        _write(text[len(self._printed) :])


def _print_result(args: argparse.Namespace, result: dict[str, Any], printer: Printer) -> None:
    if args.json:
        _write(json.dumps(result, ensure_ascii=False))
    elif args.score_ids is not None:
        for row in result["positions"]:
            _write("{id}\ttop {top_id}\tmargin {margin:.4f}\tlogprob {logprob:.4f}".format(**row))
        if result.get("finish_reason") == "cancelled":
            print(f"[{len(result['positions'])} of {len(args.score_ids)} ids, cancelled]", file=sys.stderr)
    else:
        printer.finish(result["text"])
        print(summary(result), file=sys.stderr)


def _nothing_done(args: argparse.Namespace) -> dict[str, Any]:
    """The result where Ctrl-C came before any device work: no device, no times."""
    result = {"prompt_ids": args.prompt_ids or [], "finish_reason": "cancelled"}
    if args.score_ids is not None:
        return result | {"positions": []}
    return result | {
        "token_ids": [],
        "text": "",
        "usage": {"prompt_tokens": 0, "completion_tokens": 0, "cached_tokens": 0},
    }


def _typed(error: Exception) -> SpecdecError:
    """The error as one of the four families."""
    if isinstance(error, SpecdecError):
        return error
    message = f"{type(error).__name__}: {error}"
    if isinstance(error, (OSError, MemoryError)):
        return DeviceFault(message, "this machine", "Look at its files, memory and limits")
    return ContractError(message, "specdec-run", "Report this")


def _answer(argv: list[str]) -> int:
    """Run and print; the exit status."""
    try:
        args = make_parser().parse_args(argv)
        try:
            if args.chat:
                _chat(args)
                return 0
            printer = Printer()
            result = run(args, (lambda text: None) if args.json else printer)
            _print_result(args, result, printer)
        except KeyboardInterrupt:
            if args.json:
                _write(json.dumps(_nothing_done(args)))
            return 130
    except StdoutError:
        raise
    except Exception as error:
        fault = _typed(error)
        if "--json" in argv:
            _write(json.dumps(error_json(fault), ensure_ascii=False))
        print(f"{type(fault).__name__}: {fault}", file=sys.stderr)
        return exit_code(fault)
    return 0


def main(argv: list[str] | None = None) -> int:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):
            stream.reconfigure(encoding="utf-8", errors="replace")  # type: ignore[union-attr]
    try:
        return _answer(sys.argv[1:] if argv is None else argv)
    except StdoutError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        if isinstance(error.__cause__, BrokenPipeError):  # the reader (head, less) has seen enough
            return 0
        print(f"DeviceFault: cannot write: {error.__cause__} (standard output)", file=sys.stderr)
        return DeviceFault.exit_code


if __name__ == "__main__":
    sys.exit(main())
