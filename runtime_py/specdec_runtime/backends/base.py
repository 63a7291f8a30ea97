"""The one protocol every executor speaks: run a submit, give back numbers.

Knows no kernel and no device. Invariants: one submit is one unit of device work; writes land before the
calls, the calls run in order, the reads come last; a backend that cannot do a submit raises `DeviceFault`
(or `ContractError` when the submit itself is malformed) and never answers with made-up values.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from specdec_runtime.decode.effects import Readback, Submit


@runtime_checkable
class Backend(Protocol):
    """A place where the programs of one plan run, with the weights already resident."""

    info: dict[str, Any]  # at least {"backend": "native" | "wasm" | "webgpu" | "scripted", "adapter": str}

    def submit(self, batch: Submit) -> Readback:
        """Run one submit to its end."""
        ...

    def close(self) -> None:
        """Give back memory and handles; a second call does nothing."""
        ...
