"""specdec-serve: the page and one bundle from this machine.

Serves web/ at / and the bundle at /bundle/, nothing else: no listing, no path out of the two folders. Sends the two
headers that make a page cross-origin isolated (finer clocks, and memory shared by threads). Does not know what it serves.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

from specdec_runtime.faults import ArtifactError, RequestError, SpecdecError, exit_code

from specdec_tools.paths import VENDOR, WEB

BUNDLE_PREFIX = "/bundle/"
ISOLATION = {
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Cross-Origin-Resource-Policy": "same-origin",
}
MIME = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".wasm": "application/wasm",
    ".svg": "image/svg+xml",
    ".wgsl": "text/plain; charset=utf-8",
    ".jinja": "text/plain; charset=utf-8",
    ".zip": "application/zip",
}


class Handler(SimpleHTTPRequestHandler):
    """Files of the two folders, by GET and HEAD."""

    server: SiteServer
    protocol_version = "HTTP/1.1"

    def send_head(self):
        path, query = urlsplit(self.path)[2:4]
        if path == "/" and self.server.bundle and "bundle=" not in query and "idle" not in query:
            return self._redirect(f"/?bundle={BUNDLE_PREFIX}{'&' + query if query else ''}")
        if self._file() is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return None
        return super().send_head()

    def _redirect(self, location: str) -> None:
        self.send_response(HTTPStatus.FOUND)
        self.send_header("Location", location)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _file(self) -> Path | None:
        """The file that the address names, if it lies in the served folders."""
        name = unquote(urlsplit(self.path).path)
        root, rest = self.server.web, name.removeprefix("/")
        if name.startswith(BUNDLE_PREFIX):
            root, rest = self.server.bundle, name.removeprefix(BUNDLE_PREFIX)
        if root is None or "\0" in rest or "\\" in rest:
            return None
        path = (root / (rest or "index.html")).resolve()
        return path if path.is_relative_to(root) and path.is_file() else None

    def translate_path(self, path: str) -> str:
        return str(self._file())

    def guess_type(self, path) -> str:
        return MIME.get(Path(path).suffix, "application/octet-stream")

    def end_headers(self) -> None:
        for name, value in self.server.headers.items():
            self.send_header(name, value)
        self.send_header("Cache-Control", "no-cache")  # ask before using a stored copy
        self.send_header("X-Content-Type-Options", "nosniff")
        super().end_headers()

    def log_message(self, format: str, *args) -> None:
        if self.server.verbose:
            super().log_message(format, *args)


class SiteServer(ThreadingHTTPServer):
    """The page and, when given, a bundle."""

    daemon_threads = True

    def __init__(
        self,
        address: tuple[str, int],
        bundle: Path | None,
        *,
        web: Path = WEB,
        isolated: bool = True,
        handler: type[Handler] = Handler,
    ):
        self.bundle = bundle.resolve() if bundle else None
        self.web = web.resolve()
        self.headers = ISOLATION if isolated else {}
        self.verbose = False
        super().__init__(address, handler)

    @property
    def url(self) -> str:
        host, port = self.server_address[:2]
        shown = f"[{host}]" if ":" in str(host) else host
        return f"http://{shown}:{port}/"

    def handle_error(self, request, client_address) -> None:
        """A browser that hangs up in the middle of a file is no news."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


def check_site(bundle: Path | None) -> None:
    """Say what is missing before a browser does."""
    if not (VENDOR / "pyodide").is_dir():
        raise ArtifactError(
            "the page's libraries are missing", str(VENDOR), "Run make setup, or python -m specdec_tools.site"
        )
    if bundle is not None and not (bundle / "manifest.json").is_file():
        raise ArtifactError(
            "this is no bundle: it has no manifest.json", str(bundle), "Build one with specdec-compile build"
        )


@contextmanager
def running_site(bundle: Path | None, **options) -> Iterator[SiteServer]:
    """A server on a free port of this machine, in a thread, while the block runs."""
    check_site(bundle)
    with SiteServer(("127.0.0.1", 0), bundle, **options) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def _open(host: str, port: int, bundle: Path) -> SiteServer:
    if not 0 <= port <= 65535:
        raise RequestError(f"port is {port}", "port", "Give a number from 0 to 65535")
    try:
        return SiteServer((host, port), bundle)
    except OSError as error:
        raise RequestError(
            f"cannot listen: {error.strerror}", f"{host}:{port}", "Choose another port"
        ) from None


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="specdec-serve", description="Serve the chat page with a bundle.")
    parser.add_argument("bundle", type=Path, help="folder that specdec-compile build made")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--verbose", action="store_true", help="print each request")
    args = parser.parse_args(argv)
    try:
        check_site(args.bundle)
        with _open(args.host, args.port, args.bundle) as server:
            server.verbose = args.verbose
            print(f"{server.url}?bundle={BUNDLE_PREFIX}", flush=True)
            with contextlib.suppress(KeyboardInterrupt):
                server.serve_forever()
    except SpecdecError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return exit_code(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
