"""Open the native backend of a bundle: build its kernels for this CPU (or find them in the cache) and load the weights.

TVM is imported only when the kernels are not in the cache yet.
"""

from __future__ import annotations

import sys
from pathlib import Path

from specdec_runtime.backends.native import NativeBackend
from specdec_runtime.bundle import Bundle, open_bundle
from specdec_runtime.faults import ArtifactError

from .cache import cached, compiler_hash


def open_backend(bundle: Bundle | Path | str) -> NativeBackend:
    """The bundle on this CPU, weights resident. Raises ArtifactError (damaged, or built by another compiler) and DeviceFault."""
    if not isinstance(bundle, Bundle):
        bundle = open_bundle(bundle)
    if bundle.plan.ids.kernels != compiler_hash():
        message = "the bundle's kernels were made by another version of the compiler"
        raise ArtifactError(
            message, "plan.json: $.ids.kernels", "build the bundle again with specdec-compile build"
        )
    kernels = {kernel.entry: (kernel.op, dict(kernel.params)) for kernel in bundle.plan.target("cpu").kernels}
    key = sorted([name, op, sorted(params.items())] for name, (op, params) in kernels.items())

    def build() -> bytes:
        from .emit.code import build_native

        return build_native(kernels)

    return NativeBackend(bundle, cached("native", key, build, _loads))


def _loads(path: Path) -> bool:
    """True for a library that is whole: a cut one must not be given to the loader, which may crash on it."""
    data = path.read_bytes()
    return len(data) > ELF_HEADER and _elf_end(data) <= len(data)


ELF_HEADER = 64


def _elf_end(data: bytes) -> int:
    """The byte where a 64-bit ELF file's section table, its last part, ends; beyond any file when it is no ELF."""
    if data[:4] != b"\x7fELF":
        return sys.maxsize
    offset = int.from_bytes(data[40:48], "little")
    size, count = (int.from_bytes(data[at : at + 2], "little") for at in (58, 60))
    return offset + size * count
