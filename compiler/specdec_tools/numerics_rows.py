"""Where logits come from: the compiled model natively or as WASM under Node, and llama.cpp.

Knows no reference and no statistics. Every source has rows(ids, first) -> float32 [len(ids) - first, vocab], row i predicting the
id after ids[first + i], starting afresh, and close(). WebGPU's is in numerics_parts.py. Invariant: the compiled model runs its widest
verify program from position 0 on, as decoding does; a row that is not finite is a DeviceFault.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from specdec_compiler.native import open_backend
from specdec_runtime.bundle import Bundle
from specdec_runtime.decode.effects import Submit
from specdec_runtime.faults import DeviceFault, RequestError

from specdec_tools.numerics_reference import needed

RUNNER = Path(__file__).with_name("numerics_wasm.mjs")


class Rows(Protocol):
    """A source of logits."""

    def rows(self, ids: list[int], first: int = 0) -> np.ndarray: ...

    def close(self) -> None: ...


class NativeRows:
    """The CPU kernels on this machine."""

    def __init__(self, bundle: Bundle) -> None:
        model = bundle.plan.target_model
        self._backend = open_backend(bundle)
        self._vocab, self._pages, self._width = (
            model.vocab_size,
            list(range(model.num_pages)),
            max(model.widths),
        )
        logits = np.frombuffer(self._backend.view("target.logits"), np.float32)
        self._logits = logits.reshape(-1, model.padded_vocab)

    def rows(self, ids: list[int], first: int = 0) -> np.ndarray:
        out = np.empty((len(ids), self._vocab), np.float32)
        for start in range(0, len(ids), self._width):
            chunk = ids[start : start + self._width]
            self._verify(start, chunk)
            out[start : start + len(chunk)] = self._logits[: len(chunk), : self._vocab]
        return out[first:]

    def _verify(self, start: int, chunk: list[int]) -> None:
        writes = [
            ("tokens", start, chunk),
            ("target.page_table", 0, self._pages),
            ("target.args", 0, [start, len(chunk), 0, 0]),
        ]
        reads = [("target.out", 0, 2 * len(chunk))]
        answer = self._backend.submit(Submit("score", writes, [f"target.verify_{self._width}"], reads))
        if not all(answer.values[0][1::2]):
            raise DeviceFault(f"logits after position {start} are not finite", "target.out", "Build again")

    def close(self) -> None:
        self._backend.close()


class WasmRows:
    """kernels.wasm under Node, run by the page's own executor (web/executor/wasm.js)."""

    def __init__(self, bundle: Bundle) -> None:
        node = shutil.which("node")
        if node is None:
            raise RequestError("there is no node on this machine", "wasm", "Install Node 18 or later")
        bundle.verify()
        self._vocab = bundle.plan.target_model.vocab_size
        self._node = subprocess.Popen(
            [node, str(RUNNER), str(bundle.folder.resolve())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def rows(self, ids: list[int], first: int = 0) -> np.ndarray:
        stdin, stdout = self._node.stdin, self._node.stdout
        assert stdin is not None and stdout is not None
        wanted = 4 * len(ids) * self._vocab
        try:
            stdin.write(json.dumps(ids).encode() + b"\n")
            stdin.flush()
            data = stdout.read(wanted)
        except BrokenPipeError:
            data = b""
        if len(data) != wanted:
            raise DeviceFault(f"the WASM runner ended: {self._last_words()}", "node", "See the message")
        return np.frombuffer(data, np.float32).reshape(len(ids), self._vocab)[first:]

    def _last_words(self) -> str:
        self._node.kill()
        assert self._node.stderr is not None
        return self._node.stderr.read().decode(errors="replace").strip()[-600:]

    def close(self) -> None:
        for pipe in (self._node.stdin, self._node.stdout, self._node.stderr):
            if pipe is not None:
                pipe.close()
        self._node.kill()
        self._node.wait()


class LlamaCppRows:
    """llama.cpp on the GGUF file itself, on the CPU with its own defaults."""

    def __init__(self, gguf: Path, context: int) -> None:
        self._llama: Any = needed("llama_cpp").Llama(
            str(gguf),
            n_ctx=context,
            n_threads=1,
            n_threads_batch=1,
            n_gpu_layers=0,
            logits_all=True,
            verbose=False,
        )

    def rows(self, ids: list[int], first: int = 0) -> np.ndarray:
        self._llama.reset()
        self._llama.eval(ids)
        return np.array(self._llama.scores[first : len(ids)], np.float32)

    def close(self) -> None:
        self._llama.close()
