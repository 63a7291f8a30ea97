"""From token ids to the bytes they stand for, read from tokenizer.json.

Twin of web/worker/byte_map.js: the same tables. Does not know models, nor how bytes become text (specdec_runtime.decode.text).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from specdec_runtime.faults import ArtifactError

PieceBytes = Callable[[str], bytes]

_BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")


def byte_level_alphabet() -> dict[str, int]:
    """GPT-2's map from a byte to a printable character, turned round."""
    alphabet, spare = {}, 256
    for byte in range(256):
        if 33 <= byte <= 126 or 161 <= byte <= 172 or byte >= 174:
            alphabet[chr(byte)] = byte
        else:
            alphabet[chr(spare)] = byte
            spare += 1
    return alphabet


def _byte_level() -> PieceBytes:
    alphabet = byte_level_alphabet()

    def piece_bytes(piece: str) -> bytes:
        """A piece that holds any other character stands for its own UTF-8."""
        if all(character in alphabet for character in piece):
            return bytes(alphabet[character] for character in piece)
        return piece.encode()

    return piece_bytes


def _sentence_piece(steps: list[dict[str, Any]]) -> PieceBytes | None:
    types = [step["type"] for step in steps]
    replace = next((step for step in steps if step["type"] == "Replace"), None)
    if not {"ByteFallback", "Fuse", "Replace"} <= set(types) <= {"ByteFallback", "Fuse", "Replace", "Strip"}:
        return None
    if replace is None or "String" not in replace["pattern"]:
        return None
    found, content = replace["pattern"]["String"], replace["content"]

    def piece_bytes(piece: str) -> bytes:
        byte = _BYTE_PIECE.fullmatch(piece)
        return bytes([int(byte[1], 16)]) if byte else piece.replace(found, content).encode()

    return piece_bytes


def _read_decoder(decoder: dict[str, Any] | None) -> tuple[PieceBytes, bool]:
    """How a piece becomes bytes, and whether the text's first space is no part of it."""
    kind = (decoder or {}).get("type")
    if kind == "ByteLevel":
        return _byte_level(), False
    steps = decoder["decoders"] if decoder and kind == "Sequence" else []
    piece_bytes = _sentence_piece(steps)
    if piece_bytes is None:
        raise ArtifactError(
            f"unknown decoder {kind}", "tokenizer.json", "Build the bundle with a known tokenizer"
        )
    return piece_bytes, any(step["type"] == "Strip" for step in steps)


class ByteMap:
    """The bytes each token shows; hidden ids (special tokens) show none."""

    def __init__(self, tokenizer: dict[str, Any], hidden: Iterable[int]) -> None:
        self._piece_bytes, self.strips_first_space = _read_decoder(tokenizer.get("decoder"))
        self.pieces: dict[int, str] = {index: piece for piece, index in tokenizer["model"]["vocab"].items()}
        self.pieces |= {token["id"]: token["content"] for token in tokenizer.get("added_tokens") or []}
        self._hidden = frozenset(hidden)

    def bytes(self, token_id: int) -> bytes:
        piece = None if token_id in self._hidden else self.pieces.get(token_id)
        return b"" if piece is None else self._piece_bytes(piece)
