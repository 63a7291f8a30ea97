"""A folder of compiled things, keyed by everything they depend on. Safe to delete; safe for several processes.

$SPECDEC_CACHE, else $XDG_CACHE_HOME/specdec, else ~/.cache/specdec.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from specdec_runtime.faults import ArtifactError

from . import __version__


def cache_folder() -> Path:
    """Where compiled kernels are kept."""
    if own := os.environ.get("SPECDEC_CACHE"):
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "specdec"


@cache
def compiler_hash() -> str:
    """SHA-256 over the sources and tools that decide generated code: kernels, passes, emit, models, the layouts and the random bits
    that they share with the runtime, TVM, the linker."""
    digest = hashlib.sha256()
    here = Path(__file__).parent
    models = find_spec("specdec_models")  # found, not imported: importing it would import TVM
    runtime = find_spec("specdec_runtime")
    assert models and models.origin and runtime and runtime.origin
    shared = Path(runtime.origin).parent
    sources = [
        *here.glob("*.py"),
        *here.glob("kernels/*.py"),
        *here.glob("passes/*.py"),
        *here.glob("emit/*.py"),
        *shared.glob("plan/*.py"),
        shared / "decode" / "rng.py",
    ]
    sources += Path(models.origin).parent.rglob("*.py")
    for path in sorted(sources, key=lambda p: (p.parent.name, p.name)):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    for tool in ("apache-tvm", "ziglang"):
        digest.update(f"{tool}={version(tool)};".encode())
    digest.update(__version__.encode())
    return digest.hexdigest()


def cached(kind: str, key: object, make: Callable[[], bytes], valid: Callable[[Path], bool]) -> Path:
    """The file holding make()'s bytes for this (kind, key, compiler); made once, then found.

    A file that is not `valid` (cut short, damaged) is made again. Raises ArtifactError when the folder cannot be written.
    """
    text = json.dumps([kind, key, compiler_hash()], sort_keys=True)
    path = cache_folder() / kind / hashlib.sha256(text.encode()).hexdigest()
    with _typed_errors():
        if path.exists() and valid(path):
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
    data = make()
    with _typed_errors():
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(data)
        os.replace(file.name, path)
    return path


@contextmanager
def _typed_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        action = "set SPECDEC_CACHE to a folder that can be written"
        raise ArtifactError(
            f"the compile cache cannot be used: {error}", str(cache_folder()), action
        ) from None
