"""XGrammar on this machine: matchers of the decode core's protocol.

Knows the engine's C++ bindings alone: the package around them imports PyTorch, of which nothing is needed, so the extension
module is loaded by itself. The vocabulary is the bytes that each id shows (byte_map.py), so what the matcher reads is what
the answer's text is; ids that show nothing are never allowed. Twin of web/worker/grammar.js: the same version of the engine,
the same EBNF, the same masks.
"""

from __future__ import annotations

import functools
import importlib.util
from array import array
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from typing import Any

from specdec_runtime.decode.effects import Constrain
from specdec_runtime.faults import RequestError

from specdec_tools.byte_map import ByteMap

INSTALL = "pip install --no-deps xgrammar (constraints.txt has the version), or leave the grammar out"
RAW = 0  # VocabType: the vocabulary is bytes as they are
KEPT = 8  # compiled grammars


@functools.cache
def bindings() -> Any:
    """The extension module of the xgrammar package."""
    spec = importlib.util.find_spec("xgrammar")
    folders = list(spec.submodule_search_locations or []) if spec else []
    found = [path for folder in folders for path in sorted(Path(folder).glob("xgrammar_bindings*"))]
    if not found:
        raise RequestError("the grammar engine xgrammar is not installed", "grammar", INSTALL)
    loader = ExtensionFileLoader("xgrammar_bindings", str(found[0]))
    made = importlib.util.spec_from_loader("xgrammar_bindings", loader)
    assert made is not None
    module = importlib.util.module_from_spec(made)
    loader.exec_module(module)
    return module


class Matchers:
    """Makes the matchers of one bundle."""

    def __init__(self, byte_map: ByteMap) -> None:
        self._map = byte_map
        self._compilers: dict[tuple[int, tuple[int, ...]], Any] = {}
        self._compiled = functools.lru_cache(KEPT)(self._compile)

    def __call__(self, asked: Constrain) -> NativeMatcher:
        stop_ids = tuple(asked.stop_ids)
        compiled = self._compiled(asked.text, asked.vocab_size, stop_ids)
        return NativeMatcher(compiled, asked.vocab_size, stop_ids)

    def _compile(self, text: str, vocab_size: int, stop_ids: tuple[int, ...]) -> Any:
        key = vocab_size, stop_ids
        if key not in self._compilers:
            engine = bindings()
            vocabulary = [self._map.bytes(token_id) for token_id in range(vocab_size)]
            info = engine.TokenizerInfo(vocabulary, RAW, vocab_size, list(stop_ids), False)
            self._compilers[key] = engine.GrammarCompiler(info, 1, False, -1)
        try:
            return self._compilers[key].compile_grammar(text, "root")
        except RuntimeError as error:
            message = str(error).strip().rpartition(": ")[2] or str(error)
            raise RequestError(f"the grammar cannot be read: {message}", "grammar", "Mend it") from None


class NativeMatcher:
    """One answer's."""

    def __init__(self, compiled: Any, vocab_size: int, stop_ids: tuple[int, ...]) -> None:
        self.stop_ids = frozenset(stop_ids)
        self._matcher = bindings().GrammarMatcher(compiled, list(stop_ids), False, -1)
        self._words = -(-vocab_size // 32)

    def accept(self, token_id: int) -> bool:
        return bool(self._matcher.accept_token(token_id, False))

    def mask(self) -> array:
        words = array("i", [-1]) * self._words
        self._matcher.fill_next_token_bitmask(words, 0, False)
        return array("I", words.tobytes())

    def rollback(self, num_ids: int) -> None:
        if num_ids:
            self._matcher.rollback(num_ids)
