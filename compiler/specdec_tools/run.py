"""specdec-run: one prompt through a bundle, on this CPU or in a headless browser.

Does not know how tokens are made: it joins text, a backend and the decode core (native), or drives the page (wasm,
webgpu). Both print the same object with --json. Exit codes: 0, or 2-5 by the error's family.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from specdec_runtime.faults import ContractError, RequestError, SpecdecError, error_json, exit_code

OnText = Callable[[str], None]
BACKENDS = ("native", "wasm", "webgpu")


def _ids(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise argparse.ArgumentTypeError(f"not a list of ids: {text!r}") from None


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="specdec-run", description="Run one prompt through a bundle.")
    parser.add_argument("bundle", type=Path, help="folder that specdec-compile build made")
    parser.add_argument("--backend", choices=BACKENDS, default="native")
    prompt = parser.add_mutually_exclusive_group(required=True)
    prompt.add_argument("--prompt", help="text of the user")
    prompt.add_argument("--prompt-ids", type=_ids, metavar="1,2,3", help="token ids, taken as they are")
    parser.add_argument(
        "--raw", action="store_true", help="continue the text itself, without the chat template"
    )
    parser.add_argument("--system", help="system text of the chat")
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--drafter", choices=("off", "model", "ngram", "chain"), default="ngram")
    parser.add_argument("--k", type=int, default=4, help="drafted tokens a cycle, 0 to 7")
    parser.add_argument(
        "--score-ids", type=_ids, metavar="4,5,6", help="score these ids after the prompt instead"
    )
    parser.add_argument("--width", type=int, default=1, help="rows of a scoring pass: 1, 2, 4 or 8")
    parser.add_argument(
        "--adapter", choices=("auto", "gpu", "swiftshader"), default="auto", help="for webgpu"
    )
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds a browser may take")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


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


def _request(args: argparse.Namespace) -> dict[str, Any]:
    """The request as window.specdec takes it."""
    prompt = {"prompt": args.prompt} if args.prompt is not None else {"prompt_ids": args.prompt_ids}
    if args.raw:
        prompt["raw"] = True
    if args.system is not None:
        prompt["system"] = args.system
    if args.score_ids is not None:
        return prompt | {"score_ids": args.score_ids, "width": args.width}
    return prompt | {"max_tokens": args.max_tokens, "drafter": args.drafter, "k": args.k}


def _run_native(args: argparse.Namespace, on_text: OnText, interrupt: Interrupt) -> dict[str, Any]:
    from specdec_tools.native_run import NativeRun

    with NativeRun.open(args.bundle) as runner:
        request = _request(args)
        if args.score_ids is not None:
            return runner.score(request)
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


async def _drive_page(args: argparse.Namespace, on_text: OnText, interrupt: Interrupt) -> dict[str, Any]:
    from specdec_tools.browser import BrowserOptions, page_session
    from specdec_tools.serve import BUNDLE_PREFIX, running_site

    options = BrowserOptions(args.backend, args.adapter, args.timeout)
    loop = asyncio.get_running_loop()
    with running_site(args.bundle) as site:
        async with page_session(site.url, options) as session:
            bar = LoadBar()
            session.on_progress = bar
            loaded = await session.load(BUNDLE_PREFIX, timestamps=True)
            bar.clear()
            if args.adapter == "auto" and "swiftshader" in loaded["device"]["adapter"].lower():
                print("note: WebGPU runs on a software adapter (SwiftShader)", file=sys.stderr)
            session.on_text = on_text
            if args.score_ids is not None:
                return await session.score(_request(args))
            pending: set[asyncio.Task[None]] = set()  # the loop keeps no strong reference to a task
            cancel = lambda: pending.add(loop.create_task(session.cancel()))  # noqa: E731
            interrupt.on_interrupt = lambda: loop.call_soon_threadsafe(cancel)
            if interrupt.seen:
                raise KeyboardInterrupt  # while the bundle was loading: there is nothing to print
            result = await session.generate(_request(args))
            await asyncio.gather(*pending, return_exceptions=True)
            return result


def _run_browser(args: argparse.Namespace, on_text: OnText, interrupt: Interrupt) -> dict[str, Any]:
    return asyncio.run(_drive_page(args, on_text, interrupt))


def run(args: argparse.Namespace, on_text: OnText = lambda text: None) -> dict[str, Any]:
    """The result object of one request."""
    if not (args.bundle / "manifest.json").is_file():
        action = "Build one with specdec-compile build"
        raise RequestError("this is no bundle: it has no manifest.json", str(args.bundle), action)
    with Interrupt().listening() as interrupt:
        runner = _run_native if args.backend == "native" else _run_browser
        return runner(args, on_text, interrupt)


def summary(result: dict[str, Any]) -> str:
    """The counts of a run, in two lines."""
    usage, spec, ms = result["usage"], result["speculation"], result["timing_ms"]
    tokens = usage["completion_tokens"]
    speed = 1000 * tokens / ms["decode"] if ms["decode"] else 0.0
    first = "none" if ms["first_token"] is None else f"{ms['first_token']:.0f} ms"
    device = result["device"]
    return (
        f"[{tokens} tokens, {result['finish_reason']}; {speed:.1f} tokens/s; prompt {usage['prompt_tokens']} tokens; "
        f"first token {first}; load {ms['load']:.0f} ms; {device['backend']}: {device['adapter']}]\n"
        f"[drafter {spec['drafter']}: {spec['num_drafted']} drafted, {spec['num_accepted']} accepted, "
        f"{spec['num_target_passes']} target passes; ms: prefill {ms['prefill']:.0f}, draft {ms['draft']:.0f}, "
        f"verify {ms['verify']:.0f}, other {ms['other']:.0f}]"
    )


class Printer:
    """Text to stdout as it comes; at the end whatever of the result's text has not been printed."""

    def __init__(self) -> None:
        self._printed = ""

    def __call__(self, text: str) -> None:
        self._printed += text
        print(text, end="", flush=True)

    def finish(self, text: str) -> None:
        if not text.startswith(self._printed):
            raise ContractError("the streamed text is not the beginning of the result's", "specdec-run")
        print(text[len(self._printed) :], flush=True)


def _print_result(args: argparse.Namespace, result: dict[str, Any], printer: Printer) -> None:
    if args.json:
        print(json.dumps(result, ensure_ascii=False))
    elif args.score_ids is not None:
        for row in result["positions"]:
            print("{id}\ttop {top_id}\tmargin {margin:.4f}\tlogprob {logprob:.4f}".format(**row))
    else:
        printer.finish(result["text"])
        print(summary(result), file=sys.stderr)


def main(argv: list[str] | None = None) -> int:
    args = make_parser().parse_args(argv)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):
            stream.reconfigure(encoding="utf-8", errors="replace")  # type: ignore[union-attr]
    printer = Printer()
    try:
        result = run(args, (lambda text: None) if args.json else printer)
        _print_result(args, result, printer)
    except SpecdecError as error:
        if args.json:
            print(json.dumps(error_json(error), ensure_ascii=False))
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return exit_code(error)
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
