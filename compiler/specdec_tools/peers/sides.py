"""The CPU's sides: our page and wllama's, each in a browser of its own, and llama.cpp in a process of its own.

Does not know what is compared. Invariants: a side is asked for greedy ids after given prompt ids and answers with a Run; its memory is
that of the one process that holds the model; a build that cannot have the threads asked for is not measured as if it had them.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from playwright.async_api import Browser, Page
from specdec_runtime.faults import DeviceFault

from ..browser import BrowserOptions, browser_running

RUNNER = Path(__file__).with_name("llama_runner.py")
START_S, RUN_S = 240.0, 600.0


@dataclass(frozen=True)
class Run:
    """Ids, how many of them came first, and the times from the call to the first and to the end."""

    ids: list[int]
    first: int
    first_ms: float
    total_ms: float

    @property
    def decode_rate(self) -> float:
        """Tokens a second after the first."""
        return (len(self.ids) - self.first) / (self.total_ms - self.first_ms) * 1000

    def prefill_rate(self, prompt_tokens: int) -> float:
        """Prompt tokens a second up to the first id."""
        return prompt_tokens / self.first_ms * 1000


@dataclass
class About:
    """A side as it was opened."""

    name: str
    threads: int
    facts: dict[str, Any] = field(default_factory=dict)


class Side(Protocol):
    """One opened runtime."""

    about: About

    async def run(self, prompt_ids: list[int], tokens: int) -> Run: ...

    async def pss_bytes(self) -> int: ...


def pss_of(pid: int) -> int:
    """The proportional share of memory of a process, in bytes (Linux)."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise DeviceFault("no Pss line", f"/proc/{pid}/smaps_rollup", "Use a current Linux")


class PageSide:
    """A side of web/bench/sides.js."""

    def __init__(self, about: About, browser: Browser, page: Page) -> None:
        self.about, self._browser, self._page = about, browser, page

    async def run(self, prompt_ids: list[int], tokens: int) -> Run:
        call = self._page.evaluate(
            "([side, ids, n]) => window.benchSides[side](ids, n)", [self.about.name, prompt_ids, tokens]
        )
        return Run(**await asyncio.wait_for(call, RUN_S))

    async def pss_bytes(self) -> int:
        """Of the browser's largest renderer: the page's."""
        session = await self._browser.new_browser_cdp_session()
        info = await session.send("SystemInfo.getProcessInfo")
        await session.detach()
        return max(pss_of(int(each["id"])) for each in info["processInfo"] if each["type"] == "renderer")


@asynccontextmanager
async def page_side(name: str, threads: int, site: str) -> AsyncIterator[PageSide]:
    """Our WASM backend ("ours") or "wllama" in a browser of its own. Raises DeviceFault when it does not load."""
    async with browser_running(BrowserOptions("wasm")) as browser:
        page = await browser.new_page()
        query = f"sides={name}&backend=wasm&threads={threads}&rounds=0"
        await page.goto(f"{site}bench/peer.html?{query}")
        await page.wait_for_function("window.benchResult", timeout=START_S * 1000)
        result = await page.evaluate("window.benchResult")
        if "error" in result:
            raise DeviceFault(result["error"].splitlines()[0], name, "See that the site has the peer's files")
        yield PageSide(About(name, threads, result["about"][name]), browser, page)


class LlamaSide:
    """llama.cpp through llama-cpp-python, in the peer's own environment."""

    def __init__(self, about: About, process: asyncio.subprocess.Process) -> None:
        self.about, self._process = about, process

    async def _line(self, limit_s: float) -> dict[str, Any]:
        assert self._process.stdout
        line = await asyncio.wait_for(self._process.stdout.readline(), limit_s)
        if not line:
            raise DeviceFault("its process ended", "llama.cpp", "Run the command again")
        return json.loads(line)

    async def start(self) -> None:
        self.about.facts = {"backend": "native", **await self._line(START_S)}

    async def run(self, prompt_ids: list[int], tokens: int) -> Run:
        assert self._process.stdin
        self._process.stdin.write(json.dumps({"prompt_ids": prompt_ids, "tokens": tokens}).encode() + b"\n")
        return Run(**await self._line(RUN_S))

    async def pss_bytes(self) -> int:
        return pss_of(self._process.pid)


@asynccontextmanager
async def llama_side(python: str, gguf: Path, context: int, threads: int) -> AsyncIterator[LlamaSide]:
    """llama.cpp with so many threads."""
    command = [python, str(RUNNER), str(gguf), str(context), str(threads)]
    process = await asyncio.create_subprocess_exec(
        *command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, limit=1 << 20
    )
    try:
        side = LlamaSide(About("llama.cpp", threads), process)
        await side.start()
        yield side
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
