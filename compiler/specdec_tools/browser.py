"""Drive the page in a real Chromium through Playwright.

Knows window.specdec, not the page's looks. Invariants: every wait has a limit and ends in a typed error; the adapter
that a WebGPU run got is checked; the browser's whole process group is gone when a session ends, found by its process
id; Ctrl-C in the terminal reaches neither browser nor driver, only our own handler.
"""

from __future__ import annotations

import asyncio
import functools
import os
import shutil
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, Error, Page, Playwright, async_playwright
from specdec_runtime.faults import DeviceFault, RequestError, error_from_json

CHROME_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
QUIET_FLAGS = (
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
SOFTWARE_FLAGS = (
    "--use-webgpu-adapter=swiftshader",
    "--enable-unsafe-swiftshader",
    "--disable-gpu-watchdog",  # one pass of a real model takes SwiftShader longer than the watchdog waits
)
ADAPTERS = ("auto", "gpu", "swiftshader")
START_S = 60.0
CLOSE_S = 10.0

OnText = Callable[[str], None]
OnProgress = Callable[[dict[str, Any]], None]

# Runs one call of the page's client; errors come back as data, so that they keep their type.
CALL_JS = """async ([method, args]) => {
  const hear = (name) => (...heard) => window[name](...heard);
  const listeners = {
    load: () => [args.url, { ...args.options, onProgress: hear("specdecProgress") }],
    generate: () => [args, (text) => window.specdecText(text), hear("specdecProgress")],
    score: () => [args, hear("specdecProgress")],
    sessions: () => [],
    dropSession: () => [args.session],
  };
  try {
    return { value: await window.specdec[method](...listeners[method]()) };
  } catch (error) {
    return { error: error.toJson ? error.toJson() : { type: "ContractError", message: String(error), where: "page" } };
  }
}"""


@dataclass(frozen=True)
class BrowserOptions:
    """How to start the browser."""

    backend: str = "wasm"  # auto | wasm | webgpu
    adapter: str = "auto"  # auto takes what the browser names; gpu refuses software; swiftshader asks for it
    timeout_s: float = 900.0  # the longest single request
    threads: int | None = None  # of the WASM backend; None: the page's own choice
    extra_flags: tuple[str, ...] = ()


def find_chrome() -> str | None:
    """SPECDEC_CHROME, else a Chrome or Chromium on PATH, else None: Playwright's own."""
    named = os.environ.get("SPECDEC_CHROME")
    if named:
        found = shutil.which(named)
        if not found:
            raise RequestError(f"there is no program {named}", "SPECDEC_CHROME", "Name a Chrome or Chromium")
        return found
    return next((path for path in map(shutil.which, CHROME_NAMES) if path), None)


def chrome_flags(options: BrowserOptions) -> list[str]:
    flags = [*QUIET_FLAGS]
    if os.geteuid() == 0:
        flags.append("--no-sandbox")
    if options.backend != "wasm":
        # developer features: timestamps to the nanosecond, where a page for everyone gets steps of 0.1 ms
        flags += ["--enable-unsafe-webgpu", "--enable-webgpu-developer-features"]
    if options.adapter == "swiftshader":
        flags.extend(SOFTWARE_FLAGS)
    return [*flags, *options.extra_flags]


@contextmanager
def _children_in_own_session() -> Iterator[None]:
    """Children started inside get their own session: the terminal's Ctrl-C does not reach them.

    Playwright starts its driver by asyncio.create_subprocess_exec and has no option for this.
    """
    original = asyncio.create_subprocess_exec
    asyncio.create_subprocess_exec = functools.partial(original, start_new_session=True)  # type: ignore[assignment]
    try:
        yield
    finally:
        asyncio.create_subprocess_exec = original


async def _launch(playwright: Playwright, options: BrowserOptions) -> Browser:
    path = find_chrome()
    try:
        return await playwright.chromium.launch(
            executable_path=path,
            args=chrome_flags(options),
            headless=True,
            handle_sigint=False,
            handle_sigterm=False,
            handle_sighup=False,
            timeout=START_S * 1000,
        )
    except Error as error:
        what = path or "Playwright's Chromium"
        action = "Install chromium, or set SPECDEC_CHROME, or run python -m playwright install chromium"
        raise DeviceFault(
            f"the browser did not start: {error.message.splitlines()[0]}", what, action
        ) from None


async def _processes(browser: Browser, kind: str) -> list[int]:
    """Process ids of a kind ("browser", "renderer", ...)."""
    session = await browser.new_browser_cdp_session()
    try:
        info = await session.send("SystemInfo.getProcessInfo")
    finally:
        await session.detach()
    return [int(entry["id"]) for entry in info["processInfo"] if entry["type"] == kind]


def _proportional_bytes(pid: int) -> int:
    """The PSS of a process: its own pages, and its share of those it has in common with others. 0 where /proc has none."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


async def _process_group(browser: Browser) -> int | None:
    """The process group of the browser, if it leads one of its own."""
    pid = next(iter(await _processes(browser, "browser")), None)
    if pid is None:
        return None
    with suppress(ProcessLookupError):
        group = os.getpgid(pid)
        return None if group == os.getpgid(0) else group
    return None


async def _close(browser: Browser, group: int | None) -> None:
    with suppress(Error, asyncio.TimeoutError):
        await asyncio.wait_for(browser.close(), CLOSE_S)
    if group is not None:
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


class PageSession:
    """The page, opened; each method is one call of window.specdec."""

    def __init__(self, page: Page, options: BrowserOptions) -> None:
        self.page = page
        self.options = options
        self.on_text: OnText = lambda text: None
        self.on_progress: OnProgress = lambda progress: None
        self._crashed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        page.on("crash", self._crash)

    def _crash(self, page: Page) -> None:
        if not self._crashed.done():
            self._crashed.set_result(None)

    async def open(self, url: str) -> None:
        await self.page.expose_function("specdecText", lambda text: self.on_text(text))
        await self.page.expose_function("specdecProgress", lambda progress: self.on_progress(progress))
        await self._within(self.page.goto(f"{url}?idle=1"), START_S, "open the page")
        await self._within(self.page.wait_for_function("window.specdec"), START_S, "start the page")

    async def _within(self, work: Any, limit_s: float, what: str) -> Any:
        """The result of a wait; a limit, a crash or a closed page is a DeviceFault."""
        task = asyncio.ensure_future(work)
        done, _ = await asyncio.wait(
            {task, self._crashed}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED
        )
        if task not in done:
            task.cancel()
            with suppress(asyncio.CancelledError, Error):
                await task
            why = "the page crashed" if self._crashed in done else f"no answer within {limit_s:.0f} s"
            raise DeviceFault(why, what, "Try again, or another backend")
        try:
            return task.result()
        except Error as error:
            raise DeviceFault(
                f"the browser failed: {error.message.splitlines()[0]}", what, "Try again"
            ) from None

    async def wait(self, work: Any, what: str) -> Any:
        """The result of a wait that may take as long as a request."""
        return await self._within(work, self.options.timeout_s, what)

    async def call(self, method: str, args: dict[str, Any]) -> dict[str, Any]:
        answer = await self.wait(self.page.evaluate(CALL_JS, [method, args]), method)
        if "error" in answer:
            raise error_from_json(answer["error"])
        return answer["value"]

    async def load(self, bundle: str, **options: Any) -> dict[str, Any]:
        threads = {} if self.options.threads is None else {"threads": self.options.threads}
        chosen = {"backend": self.options.backend, **threads, **options}
        loaded = await self.call("load", {"url": bundle, "options": chosen})
        check_adapter(loaded["device"], self.options)
        return loaded

    async def generate(self, request: dict[str, Any]) -> dict[str, Any]:
        return await self.call("generate", request)

    async def score(self, request: dict[str, Any]) -> dict[str, Any]:
        return await self.call("score", request)

    async def sessions(self) -> dict[str, Any]:
        return await self.call("sessions", {})

    async def drop_session(self, name: str) -> dict[str, Any]:
        return await self.call("dropSession", {"session": name})

    async def cancel(self) -> None:
        await self.page.evaluate("window.specdec.cancel()")

    async def renderer_memory(self) -> dict[str, float]:
        """MiB of the page's renderer, worker and Python included: the largest of the browser's renderers."""
        browser = self.page.context.browser
        pids = await _processes(browser, "renderer") if browser else []
        return {"pss_mib": max(map(_proportional_bytes, pids), default=0) / 2**20}

    async def stats(self) -> dict[str, Any]:
        """Counts of the JavaScript pump in the last request."""
        return await self.page.evaluate("window.specdec.stats")


def check_adapter(device: dict[str, Any], options: BrowserOptions) -> None:
    """A wrong flag falls back to software, or to the CPU, without a word: look."""
    adapter = str(device["adapter"]).lower()
    software = any(word in adapter for word in ("swiftshader", "lavapipe", "llvmpipe"))
    if options.backend in ("wasm", "webgpu") and device["backend"] != options.backend:
        raise DeviceFault(f"asked for {options.backend}, got {device['backend']}", "browser", "Report this")
    if device["backend"] != "webgpu":
        return
    if options.adapter == "gpu" and software:
        action = "Pass --adapter swiftshader to accept it"
        raise DeviceFault(f"the adapter is software: {device['adapter']}", "WebGPU", action)
    if options.adapter == "swiftshader" and "swiftshader" not in adapter:
        raise DeviceFault(
            f"the adapter is not SwiftShader: {device['adapter']}", "WebGPU", "Pass --adapter gpu"
        )


@asynccontextmanager
async def browser_running(options: BrowserOptions) -> AsyncIterator[Browser]:
    """A headless browser while the block runs."""
    if options.adapter not in ADAPTERS:
        raise RequestError(
            f"unknown adapter {options.adapter}", "adapter", f"Choose one of {', '.join(ADAPTERS)}"
        )
    manager = async_playwright()
    with _children_in_own_session():
        playwright = await manager.start()
    try:
        browser = await _launch(playwright, options)
        group = await _process_group(browser)
        try:
            yield browser
        finally:
            await _close(browser, group)
    finally:
        with suppress(Error, asyncio.TimeoutError):
            await asyncio.wait_for(playwright.stop(), CLOSE_S)


@asynccontextmanager
async def page_session(url: str, options: BrowserOptions) -> AsyncIterator[PageSession]:
    """The page at `url`, in a browser of its own."""
    async with browser_running(options) as browser:
        page = await browser.new_page()
        page.set_default_timeout(0)  # the session has its own limits
        session = PageSession(page, options)
        await session.open(url)
        yield session
