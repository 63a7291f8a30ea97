"""Open the native backend of a bundle: build its kernels for this CPU (or find them in the cache) and load the weights.

TVM is imported only when the kernels are not in the cache yet.
"""

from __future__ import annotations

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

    return NativeBackend(bundle, cached("native", key, build))
