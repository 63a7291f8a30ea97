"""The peers' pinned versions, and their installation into folders of the cache, once.

Does not know what a peer is used for. Invariants: a folder that exists is complete (it is made aside and renamed, or marked last);
its name carries the pins, so that a bump installs anew; nothing is written outside the cache folder.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

from specdec_compiler.cache import cache_folder
from specdec_runtime.faults import DeviceFault

TRANSFORMERS_JS = "4.3.2"
WLLAMA = "2.4.0"
LLAMA_CPP_PYTHON = "0.3.36"
BUILDER = "0.18.0"

NPM = (f"@huggingface/transformers@{TRANSFORMERS_JS}", f"@wllama/wllama@{WLLAMA}")
NATIVE = (f"llama-cpp-python=={LLAMA_CPP_PYTHON}",)
EXPORT = (
    f"onnxruntime-genai=={BUILDER}",
    "onnxruntime==1.32.0",
    "onnx-ir==1.1.0",
    "torch==2.13.0",
    "transformers==5.24.0",
)
DONE = "installed"


def peers_folder() -> Path:
    """Where peers live; safe to delete."""
    return cache_folder() / "peers"


def _place(kind: str, pins: Sequence[str]) -> Path:
    return peers_folder() / f"{kind}-{hashlib.sha256(json.dumps(pins).encode()).hexdigest()[:12]}"


def call(command: list[str], what: str, cwd: Path | None = None) -> str:
    """Run a command to its end; its output, or a DeviceFault with its last lines."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)
    except OSError as error:
        raise DeviceFault(f"it did not start: {error.strerror}", what, f"Install {command[0]}") from None
    if done.returncode:
        last = "\n".join((done.stdout + done.stderr).strip().splitlines()[-8:])
        raise DeviceFault(f"exit status {done.returncode}:\n{last}", what, "See its output")
    return done.stdout


def _say(text: str) -> None:
    print(f"peers: {text}", file=sys.stderr, flush=True)


def python_of(folder: Path) -> str:
    """The interpreter of an environment that `python_peer` made."""
    return str(folder / "bin" / "python")


def python_peer(kind: str, pins: Sequence[str], note: str) -> Path:
    """A virtual environment holding `pins`; made when it is not there."""
    folder = _place(kind, pins)
    if (folder / DONE).is_file():
        return folder
    _say(f"installing {', '.join(pins)} into {folder} ({note})")
    venv.create(folder, with_pip=True, clear=True)
    call([python_of(folder), "-m", "pip", "install", "--quiet", *pins], f"pip install {' '.join(pins)}")
    (folder / DONE).write_text("\n".join(pins) + "\n")
    return folder


def llama_cpp() -> Path:
    """The environment with llama-cpp-python, which may be built from source."""
    return python_peer("native", NATIVE, "some minutes where it is compiled; needs a C++ compiler")


def exporter() -> Path:
    """The environment with ONNX Runtime's model builder."""
    return python_peer("export", EXPORT, "about 1.5 GB")


def npm_peers() -> Path:
    """The node_modules folder with the browser peers; no install script of theirs runs."""
    folder = _place("npm", NPM)
    if (folder / DONE).is_file():
        return folder / "node_modules"
    _say(f"installing {', '.join(NPM)} into {folder} (about 470 MB)")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "package.json").write_text('{"private": true}\n')
    command = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--silent", "--omit=optional"]
    call([*command, "--save-exact", *NPM], f"npm install {' '.join(NPM)}", cwd=folder)
    (folder / DONE).write_text("\n".join(NPM) + "\n")
    return folder / "node_modules"
