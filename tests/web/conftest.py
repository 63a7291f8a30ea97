"""A bundle that costs nothing, a browser shared by a test module, copies of the page with one line changed."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

import pytest
from playwright.async_api import Page

sys.path.insert(0, str(Path(__file__).parent))

from fake_bundle import build_fake_bundle
from specdec_runtime.faults import SpecdecError
from specdec_tools.browser import BrowserOptions, PageSession, browser_running
from specdec_tools.paths import WEB
from specdec_tools.serve import SiteServer, running_site
from specdec_tools.site import fill_vendor


@pytest.fixture(scope="session", autouse=True)
def vendor() -> Path:
    """The page's libraries and the runtime as it is now."""
    return fill_vendor()


@pytest.fixture(scope="session")
def fake_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_fake_bundle(tmp_path_factory.mktemp("fake") / "bundle")


@pytest.fixture
def bundle_copy(fake_bundle: Path, tmp_path: Path) -> Path:
    """A bundle of this test's own, to damage."""
    return Path(shutil.copytree(fake_bundle, tmp_path / "bundle"))


@pytest.fixture
def patched_web(tmp_path: Path, vendor: Path) -> Callable[..., Path]:
    """patched_web({file: [(old, new)...]}): a copy of web/ with those texts changed."""

    def make(changes: dict[str, list[tuple[str, str]]]) -> Path:
        copy = Path(shutil.copytree(WEB, tmp_path / "web"))
        for name, replacements in changes.items():
            text = (copy / name).read_text()
            for old, new in replacements:
                assert old in text, f"{name} no longer holds {old!r}"
                text = text.replace(old, new)
            (copy / name).write_text(text)
        return copy

    return make


class BrowserRig:
    """One browser on one event loop; `page` opens the page on a site, `do` waits for anything."""

    def __init__(self, options: BrowserOptions) -> None:
        self.options = options
        self.runner = asyncio.Runner()
        self.async_stack = AsyncExitStack()
        self.stack = ExitStack()
        self.pages: list[Page] = []
        self.kept: dict[str, PageSession] = {}
        self.kept_stack = ExitStack()
        self.browser = self.do(self.async_stack.enter_async_context(browser_running(options)))

    def do(self, work):
        return self.runner.run(_awaited(work))

    def site(self, bundle: Path | None, **options) -> SiteServer:
        return self.stack.enter_context(running_site(bundle, **options))

    def page(self, url: str, backend: str | None = None) -> PageSession:
        options = self.options if backend is None else BrowserOptions(backend, "auto", self.options.timeout_s)

        async def opened() -> PageSession:
            session = PageSession(await self.browser.new_page(), options)
            self.pages.append(session.page)
            await session.open(url)
            return session

        return self.do(opened())

    def loaded(self, bundle: Path, backend: str | None = None, **options) -> PageSession:
        """The page on a site of its own, the bundle loaded."""
        session = self.page(self.site(bundle, **options).url, backend)
        self.do(session.load("/bundle/"))
        return session

    def load_fault(self, bundle: Path, backend: str | None = None, **options) -> SpecdecError:
        """The error that loading the bundle ends in."""
        session = self.page(self.site(bundle, **options).url, backend)
        with pytest.raises(SpecdecError) as caught:
            self.do(session.load("/bundle/"))
        return caught.value

    def shared(self, bundle: Path, backend: str) -> PageSession:
        """A page with the bundle loaded that the module's tests share: loading costs seconds."""
        if backend not in self.kept:
            site = self.kept_stack.enter_context(running_site(bundle))
            session = self.page(site.url, backend)
            self.pages.remove(session.page)
            self.do(session.load("/bundle/"))
            self.kept[backend] = session
        session = self.kept[backend]
        session.on_text = lambda text: None
        return session

    def close_pages(self) -> None:
        for page in self.pages:
            self.do(page.context.close())
        self.pages.clear()
        self.stack.close()

    def close(self) -> None:
        self.close_pages()
        self.kept_stack.close()
        self.do(self.async_stack.aclose())
        self.runner.close()


async def _awaited(work):
    return await work


@pytest.fixture(scope="module")
def browser_module() -> Iterator[BrowserRig]:
    rig = BrowserRig(BrowserOptions("webgpu", "swiftshader", timeout_s=300))
    yield rig
    rig.close()


@pytest.fixture
def rig(browser_module: BrowserRig) -> Iterator[BrowserRig]:
    """The module's browser, with this test's pages and sites closed after it."""
    yield browser_module
    browser_module.close_pages()
