"""Open the native backend of a bundle: build its kernels for this CPU (or find them in the cache) and load the weights."""

from __future__ import annotations

from pathlib import Path

from specdec_runtime.backends.native import NativeBackend
from specdec_runtime.bundle import Bundle, open_bundle
from specdec_runtime.faults import ArtifactError

from .build import kernel_instances
from .cache import cached, compiler_hash
from .emit.code import build_native


def open_backend(bundle: Bundle | Path | str) -> NativeBackend:
    """The bundle on this CPU, weights resident. Raises ArtifactError (damaged, or built by another compiler) and DeviceFault."""
    if not isinstance(bundle, Bundle):
        bundle = open_bundle(bundle)
    if bundle.plan.ids.kernels != compiler_hash():
        message = "the bundle's kernels were made by another version of the compiler"
        raise ArtifactError(
            message, "plan.json: $.ids.kernels", "build the bundle again with specdec-compile build"
        )
    kernels = kernel_instances(bundle.plan)
    key = sorted([name, op, sorted(params.items())] for name, (op, params) in kernels.items())
    return NativeBackend(bundle, cached("native", key, lambda: build_native(kernels)))
