"""specdec-serve: the page and the bundle, with the right headers, and nothing else of this machine."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from specdec_tools import serve
from specdec_tools.serve import SiteServer, running_site


@pytest.fixture
def site(fake_bundle: Path) -> Iterator[SiteServer]:
    with running_site(fake_bundle) as server:
        yield server


def _get(site: SiteServer, path: str, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection(*site.server_address[:2], timeout=10)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, {name.title(): value for name, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def test_files_have_their_type_and_the_isolation_headers(site: SiteServer, fake_bundle: Path) -> None:
    types = {
        "/index.html": "text/html",
        "/worker.js": "text/javascript",
        "/vendor/pyodide/pyodide.mjs": "text/javascript",
        "/vendor/pyodide/pyodide.asm.wasm": "application/wasm",
        "/page/style.css": "text/css",
        "/page/icon.svg": "image/svg+xml",
        "/bundle/manifest.json": "application/json",
        "/bundle/weights/0000.bin": "application/octet-stream",
    }
    for path, kind in types.items():
        status, headers, _ = _get(site, path)
        assert status == 200, path
        assert headers["Content-Type"].startswith(kind), path
        assert headers["Cross-Origin-Opener-Policy"] == "same-origin"
        assert headers["Cross-Origin-Embedder-Policy"] == "require-corp"
    body = _get(site, "/bundle/plan.json")[2]
    assert body == (fake_bundle / "plan.json").read_bytes()
    status, headers, body = _get(site, "/bundle/plan.json", "HEAD")
    assert (status, body) == (200, b"") and int(headers["Content-Length"]) > 0


def test_the_bare_address_leads_to_the_bundle(site: SiteServer) -> None:
    status, headers, _ = _get(site, "/")
    assert (status, headers["Location"]) == (302, "/?bundle=/bundle/")
    assert _get(site, "/?backend=wasm")[1]["Location"] == "/?bundle=/bundle/&backend=wasm"
    assert _get(site, "/?bundle=/bundle/")[0] == 200


def test_no_way_out_of_the_folders(site: SiteServer, fake_bundle: Path) -> None:
    (fake_bundle.parent / "secret.txt").write_text("secret")
    link = fake_bundle / "link.txt"
    link.symlink_to(fake_bundle.parent / "secret.txt")
    try:
        for path in [
            "/bundle/../secret.txt",
            "/bundle/%2e%2e/secret.txt",
            "/bundle/..%2fsecret.txt",
            "/bundle//../secret.txt",
            "/bundle/weights/../../secret.txt",
            "/../pyproject.toml",
            "/%2e%2e/pyproject.toml",
            "/bundle/..\\secret.txt",
            "/bundle/link.txt",
            "/bundle//etc/passwd",
            "//etc/passwd",
            "/bundle/%00",
            "/vendor/",
            "/vendor",
            "/bundle/",
            "/bundle/weights",
            "/nothing",
        ]:
            assert _get(site, path)[0] == 404, path
        assert _get(site, "/index.html", "POST")[0] in (501, 405)
    finally:
        link.unlink()


def test_command_line(capsys: pytest.CaptureFixture[str], tmp_path: Path, fake_bundle: Path) -> None:
    assert serve.main([str(tmp_path)]) == 3
    assert "manifest.json" in capsys.readouterr().err
    assert serve.main([str(fake_bundle), "--host", "203.0.113.1"]) == 2
    assert "cannot listen" in capsys.readouterr().err
    assert serve.main([str(fake_bundle), "--port", "99999"]) == 2
    assert "RequestError: port is 99999" in capsys.readouterr().err


def test_package_pins_are_exact() -> None:
    package = json.loads((serve.WEB.parent / "package.json").read_text())
    for version in [*package["dependencies"].values(), *package["devDependencies"].values()]:
        assert version[0].isdigit(), version
