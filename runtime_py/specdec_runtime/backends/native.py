"""The native backend: a plan's CPU kernels as a shared library on this machine, called through ctypes.

Standard library only; specdec_compiler.native builds the library. Memory is anonymous mmaps, zero-filled and lazily resident; weights
are read once and checked. Invariants: a program is a prebuilt list of (function, pointers); a submit touches no weights.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import time
from pathlib import Path
from typing import Any, Literal

from ..bundle import Bundle
from ..decode.effects import Readback, Submit
from ..faults import ContractError, DeviceFault
from ..plan.schema import Buffer, Target

WHOLE = (ctypes.c_int32(0), ctypes.c_int32(1))  # part 0 of 1: the whole of a kernel's work
_FORMATS: dict[str, Literal["i", "I", "f"]] = {"int32": "i", "uint32": "I", "float32": "f"}


class NativeBackend:
    """Runs submits on this CPU, one thread."""

    def __init__(self, bundle: Bundle, library: Path):
        target = bundle.plan.target("cpu")
        self.info: dict[str, Any] = {
            "backend": "native",
            "adapter": platform.processor() or platform.machine(),
            "threads": 1,
            "threads_reason": "the native backend has one",
        }
        try:
            self._library = ctypes.CDLL(str(library))
        except OSError as error:
            raise DeviceFault(
                f"the kernel library cannot be loaded: {error}", str(library), "delete the cache"
            ) from None
        self._memory = [_allocate(bundle, buffer) for buffer in target.buffers]
        self._addresses = [ctypes.addressof(ctypes.c_char.from_buffer(memory)) for memory in self._memory]
        self._views = self._host_views(target)
        self._programs = {
            program.name: self._calls(target, program.dispatches) for program in target.programs
        }

    def _host_views(self, target: Target) -> dict[str, memoryview]:
        views = {}
        for tensor in target.tensors:
            if target.buffers[tensor.buffer].lifetime in ("state", "kv") and tensor.dtype in _FORMATS:
                raw = memoryview(self._memory[tensor.buffer])[
                    tensor.offset : tensor.offset + tensor.num_bytes
                ]
                views[tensor.name] = raw.cast(_FORMATS[tensor.dtype])
        return views

    def _calls(self, target: Target, dispatches) -> list[tuple[Any, tuple[Any, ...]]]:
        calls = []
        for dispatch in dispatches:
            function = getattr(self._library, target.kernels[dispatch.kernel].entry)
            tensors = [target.tensors[i] for i in dispatch.tensors]
            pointers = (ctypes.c_void_p(self._addresses[t.buffer] + t.offset) for t in tensors)
            calls.append((function, (*pointers, *WHOLE)))
        return calls

    def view(self, name: str) -> memoryview:
        """A state or KV tensor as a flat memoryview (for numerics and tests)."""
        return self._views[name]

    def submit(self, batch: Submit) -> Readback:
        """Writes, calls, reads. Raises ContractError for a name the plan has not."""
        try:
            for name, offset, values in batch.writes:
                view = self._views[name]
                for i, value in enumerate(values, offset):
                    view[i] = value
            ms = [self._run(self._programs[call]) for call in batch.calls]
            reads = [
                self._views[name][offset : offset + count].tolist() for name, offset, count in batch.reads
            ]
        except (KeyError, IndexError, ValueError) as error:
            raise ContractError(f"bad submit: {error!r}", "native backend") from error
        return Readback(reads, ms)

    @staticmethod
    def _run(calls) -> float:
        start = time.perf_counter()
        for function, arguments in calls:
            function(*arguments)
        return (time.perf_counter() - start) * 1000

    def close(self) -> None:
        """Drop the memory; the backend cannot be used again."""
        self._programs.clear()
        self._views.clear()
        self._memory.clear()


def _allocate(bundle: Bundle, buffer: Buffer) -> mmap.mmap:
    memory = mmap.mmap(-1, buffer.bytes)
    at = 0
    for path in buffer.files:
        data = bundle.read(path)
        memory[at : at + len(data)] = data
        at += len(data)
    if buffer.files and at != buffer.bytes:
        raise ContractError(f"the shards of {buffer.name} hold {at} bytes of {buffer.bytes}", "plan buffers")
    return memory
