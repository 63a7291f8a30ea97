"""Feeding known tokens to a model's KV, one chunk a submit.

Knows the sequence and one cache. Invariant: chunks end at absolute multiples of the program's width, whatever
the start, so that a position is always computed by the same row of the same program.
"""

from __future__ import annotations

from collections.abc import Generator

from specdec_runtime.decode.cache import ModelCache
from specdec_runtime.decode.effects import Readback, Submit
from specdec_runtime.decode.sequence import Sequence


def prefill_chunk(
    sequence: Sequence, cache: ModelCache, to_len: int, kind: str
) -> Generator[Submit, Readback, None]:
    """One submit: the next chunk of the positions below to_len."""
    start, (program, width) = cache.cached_len, cache.feeding
    end = min((start // width + 1) * width, to_len)
    writes = sequence.token_writes(end) + cache.feed(end - start)
    yield Submit(kind, writes, [program], [])
    sequence.landed(end)
    cache.landed(end - start)
