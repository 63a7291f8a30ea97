"""Fill web/vendor: after it, the folder web/ works from any static file server, offline.

Copies the pinned browser libraries from node_modules, the runtime wheel and one shader; takes nothing else from them. Invariants:
the versions are those of package.json; nothing in vendor/ is half-written (a folder is made beside it and renamed).
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from specdec_runtime.faults import ArtifactError, SpecdecError, exit_code

from specdec_tools.paths import NODE_MODULES, ROOT, RUNTIME_PY, VENDOR

# Package -> (folder in vendor/, {file in the package: name in that folder})
PACKAGES: dict[str, tuple[str, dict[str, str]]] = {
    "pyodide": (
        "pyodide",
        {
            name: name
            for name in (
                "pyodide.mjs",
                "pyodide.asm.mjs",
                "pyodide.asm.wasm",
                "python_stdlib.zip",
                "pyodide-lock.json",
            )
        },
    ),
    "@huggingface/tokenizers": (
        "tokenizers",
        {"dist/tokenizers.min.mjs": "tokenizers.mjs", "LICENSE": "LICENSE"},
    ),
    "@mlc-ai/web-xgrammar": ("xgrammar", {"lib/index.js": "index.js"}),
    "@huggingface/jinja": ("jinja", {"dist/index.js": "index.js", "LICENSE": "LICENSE"}),
}
WHEEL = "specdec_runtime.whl"
SETUP = "Run npm ci --ignore-scripts in the project's root"


def _pinned() -> dict[str, str]:
    return json.loads((ROOT / "package.json").read_text())["dependencies"]


def _copy_package(name: str, version: str, into: Path) -> None:
    source = NODE_MODULES / name
    try:
        found = json.loads((source / "package.json").read_text())["version"]
    except OSError:
        raise ArtifactError(f"{name} is not installed", str(source), SETUP) from None
    if found != version:
        raise ArtifactError(f"{name} is {found}, package.json pins {version}", str(source), SETUP)
    folder, files = PACKAGES[name]
    (into / folder).mkdir(parents=True)
    for original, copy in files.items():
        shutil.copyfile(source / original, into / folder / copy)


def _build_wheel(into: Path) -> None:
    """runtime_py/build_wheel.py makes the wheel; its name has a version, the page's copy has none."""
    into.mkdir(parents=True)
    builder = RUNTIME_PY / "build_wheel.py"
    with tempfile.TemporaryDirectory() as work:
        done = subprocess.run(
            [sys.executable, str(builder), work], capture_output=True, text=True, check=False
        )
        wheels = sorted(Path(work).glob("*.whl"))
        if done.returncode != 0 or len(wheels) != 1:
            raise ArtifactError(
                f"the wheel was not built: {done.stderr.strip()}", str(builder), "Mend the runtime"
            )
        shutil.copyfile(wheels[0], into / WHEEL)


def fill_vendor(vendor: Path = VENDOR) -> Path:
    """Make web/vendor anew; the folder."""
    work = Path(tempfile.mkdtemp(prefix=".vendor-", dir=vendor.parent))
    try:
        for name, version in _pinned().items():
            _copy_package(name, version, work)
        _build_wheel(work / "runtime")
        work.chmod(0o755)
        if vendor.exists():
            shutil.rmtree(vendor)
        work.rename(vendor)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return vendor


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="specdec_tools.site", description="Fill web/vendor.")
    parser.parse_args(argv)
    try:
        folder = fill_vendor()
    except SpecdecError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return exit_code(error)
    total = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{folder}: {total / 2**20:.1f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
