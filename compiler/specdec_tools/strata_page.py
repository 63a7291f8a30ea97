"""The evaluation in a page: web/bench/strata.html driven in this machine's browser, or packed for a machine elsewhere.

Does not know how a run is measured. Invariants: a stopped page leaves what its finished turns gave; the packed folder is all that
the page needs: no address outside it is asked.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.async_api import Error, Page
from specdec_runtime.bundle import Bundle
from specdec_runtime.faults import DeviceFault, RequestError

from .browser import BrowserOptions, PageSession, browser_running, check_adapter
from .paths import WEB
from .peers.gpu import MB, check_new, packed, squeeze
from .serve import check_site, running_site

PAGE = "bench/strata.html"
POLL_S = 0.25
LOOK = "({done: strata.done, total: strata.total, device: strata.outcome && strata.outcome.device, over: !!window.benchResult})"


def run_page(
    bundle: Bundle, config: dict[str, Any], options: BrowserOptions, told: Callable[[int, int], None]
) -> dict[str, Any]:
    """The whole matrix in this machine's browser."""
    with running_site(bundle.folder) as site:
        return asyncio.run(_driven(site.url, config, options, told))


async def _driven(
    url: str, config: dict[str, Any], options: BrowserOptions, told: Callable[[int, int], None]
) -> dict[str, Any]:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop.set)
    try:
        async with browser_running(options) as browser:
            page = await browser.new_page()
            session = PageSession(page, options)
            await page.add_init_script(f"window.strataConfig = {json.dumps(config)}")
            page.on("crash", lambda _: stop.set())
            await page.goto(f"{url}{PAGE}")
            await page.wait_for_function("window.strata || window.benchResult")
            outcome = await _watched(page, options, told, stop)
            return outcome | {"renderer": await session.renderer_memory()}
    except Error as error:
        raise DeviceFault(f"the browser failed: {error.message.splitlines()[0]}", PAGE, "Try again") from None
    finally:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)


async def _watched(
    page: Page, options: BrowserOptions, told: Callable[[int, int], None], stop: asyncio.Event
) -> dict[str, Any]:
    """The outcome; when it is stopped, or takes too long, that of the turns so far."""
    began, seen = time.monotonic(), -1
    while not stop.is_set() and time.monotonic() - began < options.timeout_s:
        look = await page.evaluate(LOOK)
        if look["device"]:
            check_adapter(look["device"], options)
        if look["done"] != seen and look["total"]:
            seen = look["done"]
            told(seen, look["total"])
        if look["over"]:
            return await page.evaluate("window.benchResult")
        try:
            await asyncio.wait_for(stop.wait(), POLL_S)
        except TimeoutError:
            continue
    outcome = await page.evaluate("(window.strata.stop = true, window.strata.outcome)")
    if not outcome:
        raise RequestError(
            "it was stopped before anything was measured", PAGE, "Let it run longer (--timeout)"
        )
    return outcome


def pack_page(bundle: Bundle, config: dict[str, Any], out: Path, part_mb: int) -> dict[str, Any]:
    """Site, bundle and configuration in parts; says how to unpack, and what to open."""
    check_site(bundle.folder)
    check_new(out)
    with tempfile.TemporaryDirectory() as scratch:
        site = Path(scratch) / "site"
        shutil.copytree(WEB, site)
        shutil.copytree(bundle.folder, site / "bundle")
        (site / "strata.json").write_text(json.dumps(config), encoding="utf-8")
        names = squeeze(site, out, part_mb * MB)
    return packed(names, out, f"/{PAGE}?limit={config['pairs']}&tokens=128")
