"""The machines we generate code for, and the WebGPU limits a plan asks for."""

from __future__ import annotations

import platform

import tvm

WASM_FEATURES = ("simd128", "bulk-memory", "nontrapping-fptoint")
GPU_FEATURES: tuple[str, ...] = ()  # the packed dot has a form in f32 (web/executor/dot.js)

# WebGPU's guaranteed limits; a plan lists only what it needs beyond them (emit/plan.py)
GUARANTEED_LIMITS = {
    "maxBufferSize": 256 << 20,
    "maxStorageBufferBindingSize": 128 << 20,
    "maxStorageBuffersPerShaderStage": 8,
    "maxComputeInvocationsPerWorkgroup": 256,
    "maxComputeWorkgroupSizeX": 256,
    "maxComputeWorkgroupStorageSize": 16384,
    "maxComputeWorkgroupsPerDimension": 65535,
}


def wasm_target() -> tvm.target.Target:
    """WASM with 128-bit SIMD."""
    return _llvm("wasm32-unknown-unknown-wasm", [f"+{feature}" for feature in WASM_FEATURES])


def native_target() -> tvm.target.Target:
    """This CPU, with the same 128-bit vectors as WASM and no fused multiply-add, so that both round alike."""
    machine = platform.machine().lower()
    if machine in ("x86_64", "amd64"):
        return _llvm("x86_64-unknown-linux-gnu", ["+sse4.2", "+avx", "-fma"])
    return _llvm(f"{'aarch64' if machine in ('arm64', 'aarch64') else machine}-unknown-linux-gnu", [])


# loops stay loops: a kernel unrolls in Python what it wants unrolled, in an order that needs few registers
_LLVM_OPTIONS = ["-unroll-threshold:uint=0", "-unroll-partial-threshold:uint=0"]


def _llvm(triple: str, features: list[str]) -> tvm.target.Target:
    spec = {"kind": "llvm", "mtriple": triple, "mattr": features, "opt-level": 3, "vector-width": 128}
    return tvm.target.Target(spec | {"cl-opt": _LLVM_OPTIONS})
