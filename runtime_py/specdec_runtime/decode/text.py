"""Text as it is committed: tokens to characters, and the strings that end an answer.

Knows no tokenizer: a `TokenBytes` says which bytes a token shows. Invariants: a character cut in two by a token's end is held
back until its other bytes come; what never becomes a character shows as U+FFFD at the end. Stop strings are found as if the
text came one character at a time: the first to be whole ends it, of several that are whole at once the longest; it is no part
of the text. What could still become one is held back, so that nothing shown is ever taken back.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Sequence as Ids
from typing import Any, Protocol

from specdec_runtime.faults import ContractError, RequestError

MAX_STOPS = 16
MAX_STOP_LEN = 200  # characters
REPLACEMENT = "\ufffd"


class TokenBytes(Protocol):
    """The bytes each token shows; none for special tokens and unknown ids."""

    strips_first_space: bool  # the text's first space is no part of it

    def bytes(self, token_id: int) -> bytes: ...


class ByteTable:
    """All of them at once, as JavaScript hands them over: {"strips_first_space", "bytes": one string an id, a character a byte}."""

    def __init__(self, table_json: str) -> None:
        data = json.loads(table_json)
        if not isinstance(data, dict) or set(data) != {"strips_first_space", "bytes"}:
            raise ContractError("this is no table of tokens", "decode/text.py")
        self.strips_first_space = bool(data["strips_first_space"])
        self._shown: list[str] = data["bytes"]

    def bytes(self, token_id: int) -> bytes:
        return self._shown[token_id].encode("latin-1") if token_id < len(self._shown) else b""


class StreamDecoder:
    """Text from ids, given as they are committed."""

    def __init__(self, tokens: TokenBytes) -> None:
        self._tokens = tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._at_start = tokens.strips_first_space

    def push(self, token_id: int) -> str:
        """The text that this token finished."""
        text = self._decoder.decode(self._tokens.bytes(token_id))
        if not self._at_start or not text:
            return text
        self._at_start = False
        return text.removeprefix(" ")

    def finish(self) -> str:
        """What is left at the end."""
        return self._decoder.decode(b"", final=True)


class StopText:
    """The text of one answer that stop strings may end."""

    def __init__(self, stops: Ids[str], tokens: TokenBytes) -> None:
        self.stop: str | None = None  # the string that ended it
        self._stops = tuple(stops)
        self._most_held = max(map(len, self._stops)) - 1
        self._stream = StreamDecoder(tokens)
        self._held = ""  # may become a stop string
        self._pieces: list[str] = []
        self._num_taken = 0

    def push(self, token_id: int) -> bool:
        """One committed token; True: a stop string is whole with it, and the text has ended."""
        self._held += self._stream.push(token_id)
        found = self._first()
        if found is None:
            shown = len(self._held) - self._num_held()
            self._pieces.append(self._held[:shown])
            self._held = self._held[shown:]
            return False
        start, self.stop = found
        self._pieces.append(self._held[:start])
        self._held = ""
        return True

    def take(self) -> list[str]:
        """What may be shown of each token since the last call."""
        pieces = self._pieces[self._num_taken :]
        self._num_taken = len(self._pieces)
        return pieces

    def finish(self) -> str:
        """The whole text; no token follows."""
        if self.stop is None:
            self._held += self._stream.finish()
        return "".join(self._pieces) + self._held

    def _first(self) -> tuple[int, str] | None:
        """Where the stop string begins that is whole first, and which it is; of several that end there the longest."""
        best: tuple[int, int, str] | None = None  # end, begin, string
        for stop in self._stops:
            start = self._held.find(stop)
            if start >= 0:
                found = (start + len(stop), start, stop)
                best = found if best is None else min(best, found)
        return None if best is None else best[1:]

    def _num_held(self) -> int:
        """Characters at the end that begin a stop string, as many as there can be."""
        for length in range(min(len(self._held), self._most_held), 0, -1):
            end = self._held[-length:]
            if any(stop.startswith(end) for stop in self._stops):
                return length
        return 0


def check_stops(stops: Any) -> None:
    """Raise RequestError at the first that is no stop string."""
    if not isinstance(stops, (list, tuple)) or len(stops) > MAX_STOPS:
        what = f"{len(stops)} strings" if isinstance(stops, (list, tuple)) else f"{stops!r}"
        raise RequestError(f"stop is {what}", "stop", f"Give a list of at most {MAX_STOPS} strings")
    for index, stop in enumerate(stops):
        where = f"stop[{index}]"
        if not isinstance(stop, str) or not 0 < len(stop) <= MAX_STOP_LEN:
            action = f"Give a string of 1 to {MAX_STOP_LEN} characters"
            raise RequestError(f"{stop!r} is no stop string", where, action)
        if REPLACEMENT in stop or any("\ud800" <= character <= "\udfff" for character in stop):
            action = "Give characters: U+FFFD and lone surrogates stand for bytes that are none"
            raise RequestError(f"{stop!a} cannot be text", where, action)
