"""python tests/golden/screenshot.py BUNDLE: take docs/page.png anew from the real page with a real bundle.

Serves the page, loads the bundle on the WASM backend, asks QUESTIONS and waits for each whole answer. Knows the page's element ids.
"""

from __future__ import annotations

import sys
from pathlib import Path

from playwright.sync_api import sync_playwright
from specdec_tools.browser import BrowserOptions, chrome_flags, find_chrome
from specdec_tools.serve import BUNDLE_PREFIX, running_site

PICTURE = Path(__file__).resolve().parents[2] / "docs" / "page.png"
QUESTIONS = (
    "List the numbers from 1 to 20, separated by commas.",
    "What is the capital of France, and what is it known for?",
)
SIZE = {"width": 1120, "height": 810}
WAIT_MS = 180_000


def take(bundle: Path) -> None:
    """Load, ask, wait for the note under each answer, take the picture."""
    flags = chrome_flags(BrowserOptions("wasm"))
    with running_site(bundle) as site, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chrome(), args=flags)
        page = browser.new_page(viewport=SIZE, color_scheme="light")  # type: ignore[arg-type]
        page.goto(f"{site.url}?bundle={BUNDLE_PREFIX}&backend=wasm")
        page.wait_for_selector("#prompt:enabled", timeout=WAIT_MS)
        page.select_option("#drafter", "chain")
        for asked, question in enumerate(QUESTIONS, 1):
            page.fill("#prompt", question)
            page.press("#prompt", "Enter")
            page.wait_for_function(
                f"document.querySelectorAll('.answer .note').length === {asked}", timeout=WAIT_MS
            )
        page.screenshot(path=PICTURE)
        browser.close()
    print(f"docs/page.png: {PICTURE.stat().st_size} bytes")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python tests/golden/screenshot.py BUNDLE")
    take(Path(sys.argv[1]))
