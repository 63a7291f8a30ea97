"""The abstract ops models are written in, and the modules that hold their packed weights.

An op is a relax `call_dps_packed` named "specdec.<op>" whose last argument is a "key=value,..." string: compiler passes fuse
these and replace them by kernels. Every tensor that outlives a pass (weights, KV pages, token history, args) is an nn.Parameter
whose name the compiler maps to a plan tensor. Codes of quantized activations are int8 [M, K] here; a target may store them wider.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn.core import wrap_nested

from .config import GROUP, RuntimeConfig


def op(name: str, args: list, shapes: list[tuple[tuple[int, ...], str]], **params: int | str) -> Any:
    """Call one abstract op; returns a tensor, or a tuple of them when there are several outputs."""
    text = ",".join(f"{key}={params[key]}" for key in sorted(params))
    types = [relax.TensorType(list(shape), dtype) for shape, dtype in shapes]  # type: ignore[arg-type]
    inputs = relax.Tuple([*(arg._expr for arg in args), tvm.ir.StringImm(text)])
    call = relax.call_dps_packed(f"specdec.{name}", inputs, out_ty=types if len(types) > 1 else types[0])
    return wrap_nested(call, name)


def rows(x: nn.Tensor) -> int:
    """The static number of rows of an activation."""
    return int(x.shape[0])  # type: ignore[arg-type]


def quantized(m: int, k: int) -> list[tuple[tuple[int, ...], str]]:
    """Shapes of quantized activations: codes and (scale, sum) pairs."""
    return [((m, k), "int8"), ((m, k // GROUP, 2), "float32")]


class Matrix(nn.Module):
    """Packed weights [n, k] in one group format; see the compiler's quantize.py for the layout."""

    def __init__(self, n: int, k: int, fmt: str):
        self.n, self.k, self.fmt = n, k, fmt
        blocks, groups = n // 4, k // GROUP
        chunks, scales = (4, 2) if fmt == "q4" else (8, 1)
        self.w = nn.Parameter((blocks, chunks, groups, 4), "uint32")
        self.ws = nn.Parameter((blocks, scales, groups, 4), "float32")

    def forward(self, args: nn.Tensor, codes: nn.Tensor, scales: nn.Tensor) -> nn.Tensor:
        m = rows(codes)
        shape = [((m, self.n), "float32")]
        return op(
            "linear", [args, codes, scales, self.w, self.ws], shape, m=m, n=self.n, k=self.k, fmt=self.fmt
        )


class Fused(nn.Module):
    """Several matrices over the same input, as one where their formats agree, else side by side."""

    def __init__(self, sizes: dict[str, int], fused: str, k: int, prefix: str, config: RuntimeConfig):
        names = config.formats.parts(fused, tuple(sizes), prefix)
        self.parts = [name.removeprefix(prefix) for name in names]
        for name, part in zip(names, self.parts, strict=True):
            n = sum(sizes.values()) if part == fused else sizes[part]
            setattr(self, part, Matrix(n, k, config.formats.by_name[name]))

    def forward(self, args: nn.Tensor, codes: nn.Tensor, scales: nn.Tensor) -> nn.Tensor:
        outputs = [getattr(self, part)(args, codes, scales) for part in self.parts]
        if len(outputs) == 1:
            return outputs[0]
        m, widths = rows(codes), [int(x.shape[1]) for x in outputs]  # type: ignore[arg-type]
        parts = "x".join(str(width) for width in widths)
        return op(
            f"concat{len(outputs)}", [args, *outputs], [((m, sum(widths)), "float32")], m=m, parts=parts
        )


class RMSNorm(nn.Module):
    """RMSNorm (Zhang and Sennrich 2019), followed by quantization of its result to int8 groups."""

    def __init__(self, size: int, eps: float):
        self.size, self.eps = size, eps
        self.weight = nn.Parameter((size,), "float32")

    def forward(self, args: nn.Tensor, x: nn.Tensor) -> Any:
        m = rows(x)
        shape = [((m, self.size), "float32")]
        normed = op("rms_norm", [args, x, self.weight], shape, m=m, k=self.size, eps=repr(self.eps))
        return quantize(args, normed)


def quantize(args: nn.Tensor, x: nn.Tensor) -> Any:
    """int8 codes with a scale and a sum per group of 32."""
    m, k = (int(size) for size in x.shape)  # type: ignore[arg-type]
    return op("quantize", [args, x], quantized(m, k), m=m, k=k)


def add(args: nn.Tensor, a: nn.Tensor, b: nn.Tensor) -> nn.Tensor:
    """The residual sum, f32."""
    shape = tuple(int(size) for size in a.shape)  # type: ignore[arg-type]
    return op("add", [args, a, b], [(shape, "float32")])
