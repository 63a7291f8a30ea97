"""Logits of the WebGPU kernels: by this machine's browser, or packed for a machine elsewhere.

`browser_rows` serves the bundle, opens web/bench/logits.html and takes what it sends. `pack` writes the page and its ids into a folder
that any static server can serve, with the bundle in it as bundle/. Does not read parts: numerics_parts does. Invariant: a page that
stands still ends in a DeviceFault.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.async_api import Error, Page
from specdec_runtime.bundle import Bundle
from specdec_runtime.faults import DeviceFault, RequestError, error_from_json

from specdec_tools.browser import BrowserOptions, browser_running, check_adapter
from specdec_tools.numerics_parts import PartRows, choice
from specdec_tools.numerics_texts import TextRun
from specdec_tools.paths import WEB
from specdec_tools.serve import BUNDLE_PREFIX, Handler, check_site, running_site

PAGE = "bench/logits.html"
_POLL_S = 0.5

OnRows = Callable[[int], object]  # rows fed so far


def check_kernels(bundle: Bundle) -> None:
    if all(target.name != "gpu" for target in bundle.plan.targets):
        raise RequestError("the bundle has no WebGPU kernels", bundle.name, "Build it with a gpu target")


def pack(runs: list[TextRun], folder: Path) -> str:
    """Write the page and ids.json; returns the page's path and query."""
    check_site(None)
    for part in ("bench", "executor", "worker", "vendor/tokenizers", "vendor/jinja"):
        shutil.copytree(WEB / part, folder / part, dirs_exist_ok=True)
    (folder / "ids.json").write_text(json.dumps(choice(runs)), encoding="utf-8")
    return f"{PAGE}?bundle={BUNDLE_PREFIX}&ids=/ids.json&encoding=base64"


def browser_rows(bundle: Bundle, runs: list[TextRun], options: BrowserOptions, on_rows: OnRows) -> PartRows:
    """The rows of all runs, computed now."""
    parts: list[bytes] = []
    with running_site(bundle.folder, handler=_receiver(json.dumps(choice(runs)).encode(), parts)) as site:
        url = f"{site.url}{PAGE}?bundle={BUNDLE_PREFIX}&ids=/ids.json"
        asyncio.run(_run_page(url, options, on_rows))
    rows = PartRows(bundle, runs, parts, "the page")
    check_adapter(rows.device, options)
    return rows


def _receiver(ids: bytes, parts: list[bytes]) -> type[Handler]:
    """A site that also has ids.json, and keeps what is posted to /rows."""

    class Receiver(Handler):
        def do_GET(self) -> None:
            if urlsplit(self.path).path != "/ids.json":
                return super().do_GET()
            self._answer(HTTPStatus.OK, ids)
            return None

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path == "/rows":
                parts.append(body)
            self._answer(HTTPStatus.OK, b"")

        def _answer(self, status: HTTPStatus, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Receiver


async def _run_page(url: str, options: BrowserOptions, on_rows: OnRows) -> None:
    async with browser_running(options) as browser:
        page = await browser.new_page()
        try:
            await page.goto(url)
            result = await _watch(page, options.timeout_s, on_rows)
        except Error as error:
            raise DeviceFault(
                f"the browser failed: {error.message.splitlines()[0]}", PAGE, "Try again"
            ) from None
    if "error" in result:
        raise error_from_json(result)


async def _watch(page: Page, limit_s: float, on_rows: OnRows) -> dict[str, Any]:
    """The page's result; it may take as long as it likes while it gets on."""
    done, since = -1, time.monotonic()
    while True:
        rows, result = await page.evaluate("[window.benchProgress?.[0] ?? 0, window.benchResult ?? null]")
        if rows > done:
            done, since = rows, time.monotonic()
            on_rows(rows)
        if result is not None:
            return result
        if time.monotonic() - since > limit_s:
            raise DeviceFault(f"the page stood still for {limit_s:.0f} s", PAGE, "Try fewer --positions")
        await asyncio.sleep(_POLL_S)
