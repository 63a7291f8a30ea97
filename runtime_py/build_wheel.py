"""Builds the runtime's wheel, byte for byte the same on every machine: `python build_wheel.py OUT_DIR`.

Also a PEP 517 backend (pyproject.toml names it). Knows the wheel format, nothing of the runtime.
Invariants: files are sorted, stored without compression (zlib versions differ), dated 1980, mode 644;
only .py files of the package go in; name and version come from pyproject.toml, and the version must be
the package's own.
"""

from __future__ import annotations

import base64
import hashlib
import re
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PACKAGE = "specdec_runtime"


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: Any = None) -> str:
    """PEP 517: write the wheel, return its file name."""
    return build(Path(wheel_directory)).name


def build_sdist(sdist_directory: str, config_settings: Any = None) -> str:
    """PEP 517 wants the hook; a source archive is the repository's business."""
    raise NotImplementedError("specdec-runtime is built as a wheel only")


def build(out_dir: Path) -> Path:
    """Write the wheel into out_dir and return its path."""
    project = tomllib.loads((HERE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    stem = f"{PACKAGE}-{project['version']}"
    contents = {**_sources(project["version"]), **_metadata(project, f"{stem}.dist-info")}
    contents[f"{stem}.dist-info/RECORD"] = _record(contents, f"{stem}.dist-info/RECORD")
    out_dir.mkdir(parents=True, exist_ok=True)
    path = out_dir / f"{stem}-py3-none-any.whl"
    path.write_bytes(b"")  # a link or a longer file of an earlier build does not shine through
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name in contents:
            archive.writestr(_entry(name), contents[name])
    return path


def _sources(version: str) -> dict[str, bytes]:
    """The package's .py files, sorted by path."""
    paths = sorted((HERE / PACKAGE).rglob("*.py"), key=lambda path: path.relative_to(HERE).as_posix())
    sources = {path.relative_to(HERE).as_posix(): path.read_bytes() for path in paths}
    found = re.search(rb'^__version__ = "(.*)"$', sources[f"{PACKAGE}/__init__.py"], re.MULTILINE)
    if not found or found[1].decode() != version:
        raise SystemExit(f"pyproject.toml says {version}, {PACKAGE}/__init__.py does not")
    return sources


def _metadata(project: dict[str, Any], folder: str) -> dict[str, bytes]:
    metadata = (
        "Metadata-Version: 2.1\n"
        f"Name: {project['name']}\n"
        f"Version: {project['version']}\n"
        f"Summary: {project['description']}\n"
        f"License: {project['license']['text']}\n"
        f"Requires-Python: {project['requires-python']}\n"
    )
    wheel = "Wheel-Version: 1.0\nGenerator: specdec build_wheel\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    top_level = f"{PACKAGE}\n"
    texts = {"METADATA": metadata, "WHEEL": wheel, "top_level.txt": top_level}
    return {f"{folder}/{name}": text.encode() for name, text in texts.items()}


def _record(contents: dict[str, bytes], own_name: str) -> bytes:
    """One line a file: path, sha256 in url-safe base64 without padding, size."""
    lines = []
    for name, data in contents.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(data)}\n")
    return "".join([*lines, f"{own_name},,\n"]).encode()


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
    entry.create_system = 3  # Unix, also when built elsewhere
    entry.external_attr = 0o100644 << 16
    return entry


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: build_wheel.py OUT_DIR", file=sys.stderr)
        return 2
    print(build(Path(sys.argv[1])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
