"""The token ids of one request: the prompt and what has been committed, and how many of them the device has.

Knows no model and no terminal rule (commit.py does). Invariants: ids only grow; `on_device_len` of them are
in the device's `tokens` tensor, at their own position; it grows only after a submit succeeded.
"""

from __future__ import annotations

from collections.abc import Sequence as Ids

from specdec_runtime.decode.effects import Write


class Sequence:
    """Committed token ids, by absolute position."""

    __slots__ = ("ids", "on_device_len", "prompt_len")

    def __init__(self, prompt_ids: Ids[int]) -> None:
        self.ids = list(prompt_ids)
        self.prompt_len = len(self.ids)
        self.on_device_len = 0

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def generated_ids(self) -> list[int]:
        """A copy of what was committed after the prompt."""
        return self.ids[self.prompt_len :]

    def token_writes(self, to_len: int, drafted_ids: Ids[int] = ()) -> list[Write]:
        """What the device lacks of the first to_len ids, and after them drafts the host knows."""
        start = self.on_device_len
        values = self.ids[start:to_len]
        values.extend(drafted_ids)
        return [("tokens", start, values)] if values else []

    def landed(self, to_len: int) -> None:
        """The device now has the first to_len ids."""
        self.on_device_len = max(self.on_device_len, to_len)
