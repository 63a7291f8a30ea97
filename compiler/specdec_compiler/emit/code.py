"""Object code to modules: the WASM module of a bundle and the native library of the cache, both linked by ziglang's linkers.

Output bytes depend on the kernels and the pinned tools only. Nothing here knows what the kernels compute.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from specdec_runtime.faults import ArtifactError

from ..kernels import OPS, Params
from ..passes.lower import Wgsl, build_cpu, build_gpu
from ..targets import native_target, wasm_target

STACK_BYTES = 1 << 18
MAX_MEMORY_BYTES = 1 << 32
Instances = Mapping[str, tuple[str, Params]]  # kernel name -> (op, params)


def build_wasm(kernels: Instances) -> bytes:
    """One WASM module exporting a function per kernel; it imports only its memory."""
    exports = [f"--export={name}" for name in (*kernels, "__heap_base", "__stack_pointer")]
    flags = [
        "--no-entry",
        "--import-memory",
        f"--max-memory={MAX_MEMORY_BYTES}",
        "--stack-first",
        "-z",
        f"stack-size={STACK_BYTES}",
        "--strip-all",
    ]
    return _link("wasm-ld", [*flags, *exports], kernels, wasm_target())


def build_native(kernels: Instances) -> bytes:
    """The same kernels as a shared library for this CPU."""
    return _link("ld.lld", ["-shared", "--strip-all"], kernels, native_target())


def build_wgsl(kernels: Instances) -> dict[str, Wgsl]:
    """Every kernel's WGSL, by name."""
    return {
        name: build_gpu(name, OPS[op].form("gpu").build(name, params))
        for name, (op, params) in kernels.items()
    }


def _link(linker: str, flags: list[str], kernels: Instances, target) -> bytes:
    functions = {name: OPS[op].form("cpu").build(name, params) for name, (op, params) in kernels.items()}
    with tempfile.TemporaryDirectory() as folder:
        source, linked = Path(folder, "kernels.o"), Path(folder, "kernels.bin")
        build_cpu(functions, target).write_to_file(str(source), "o")
        command = [sys.executable, "-m", "ziglang", linker, *flags, "-o", str(linked), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            text = (done.stderr or done.stdout).strip()[:2000]
            raise ArtifactError(
                f"{linker} failed: {text}", "linking kernels", "check that the ziglang package is whole"
            )
        return linked.read_bytes()
