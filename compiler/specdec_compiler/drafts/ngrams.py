"""Which runs of words a set of prompts contains, in a file small enough to ship: the check that no evaluation prompt was trained on.

Knows no files' places and no models. A text is normalized (NFKC, lower case), split into words (runs of letters and digits; a
CJK character is a word of its own), and cut into its n-grams; a text of fewer than n words is one gram by itself. Of each gram
the first `bits` bits of its BLAKE2b hash are kept. Invariants: every gram of an evaluation text is looked up; with stride s
every s-th gram of a training text is kept, from its first on, so a common run of n + s - 1 words, or an equal text, is always
found; a gram that was not trained on is reported with probability count / 2^bits, at most 2^-20.
"""

from __future__ import annotations

import json
import re
import unicodedata
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
from specdec_runtime.faults import ArtifactError, RequestError

N = 8
STRIDES = (1, 2, 4, 8)
MAX_BYTES = (
    4_400_000  # beside 10 MB of weights; 60,000 prompts of 60 words with no run in common fit with stride 4
)
_MAGIC = b"specdec-ngrams 1\n"
_SPARE_BITS = 20  # a foreign gram is taken for a known one with probability 2^-20 at most
_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
_WORD = re.compile(rf"[{_CJK}]|[^\W_{_CJK}]+")
_AGAIN = "write it again with pack() from the training prompts"


@dataclass(frozen=True)
class Fingerprints:
    """Hashes (uint64, ascending, distinct, below 2^bits) of every `stride`-th n-gram of a set of texts."""

    n: int
    stride: int
    bits: int
    num_texts: int
    hashes: np.ndarray

    @property
    def false_positive_rate(self) -> float:
        """How often a gram that is not in the set is taken for one that is."""
        return len(self.hashes) / 2**self.bits


def words(text: str) -> list[str]:
    """The words that count, normalized."""
    return _WORD.findall(unicodedata.normalize("NFKC", text).lower())


def fingerprints(texts: Iterable[str], n: int = N, stride: int = 1) -> Fingerprints:
    """The set for these texts. Raises RequestError for an n or stride below 1."""
    if n < 1 or stride < 1:
        raise RequestError(f"n = {n}, stride = {stride}", "fingerprints", "give numbers from 1 on")
    full: list[int] = []
    num_texts = 0
    for text in texts:
        num_texts += 1
        full.extend(_hash(gram) for gram in _grams(words(text), n, stride))
    return _narrowed(np.unique(np.array(full, np.uint64)), n, stride, num_texts)


def _narrowed(full: np.ndarray, n: int, stride: int, num_texts: int) -> Fingerprints:
    bits = min(64, max(1, len(full)).bit_length() + _SPARE_BITS)
    return Fingerprints(n, stride, bits, num_texts, np.unique(full >> np.uint64(64 - bits)))


def overlap(known: Fingerprints, text: str) -> list[str]:
    """The grams of the text that the set knows, as normalized words, in the order of the text."""
    grams = list(_grams(words(text), known.n, 1))
    if not grams or not len(known.hashes):
        return []
    hashes = np.array([_hash(gram) for gram in grams], np.uint64) >> np.uint64(64 - known.bits)
    at = np.minimum(np.searchsorted(known.hashes, hashes), len(known.hashes) - 1)
    found = known.hashes[at] == hashes
    return [gram for gram, hit in zip(grams, found, strict=True) if hit]


def fitting(texts: Iterable[str], n: int = N, max_bytes: int = MAX_BYTES) -> bytes:
    """The file prompts.ngrams for these texts: with the smallest stride of STRIDES that keeps it within max_bytes.

    Raises RequestError when not even the largest does.
    """
    texts = list(texts)
    for stride in STRIDES:
        data = pack(fingerprints(texts, n, stride))
        if len(data) <= max_bytes:
            return data
    message = f"{len(texts)} texts need {len(data)} bytes with stride {STRIDES[-1]}"
    raise RequestError(message, "fingerprints", f"train on fewer prompts, or allow more than {max_bytes}")


def pack(known: Fingerprints) -> bytes:
    """The set as a file: a line of its name, a line of JSON, then the differences of the hashes, byte by byte, in zlib."""
    head = {"n": known.n, "stride": known.stride, "bits": known.bits, "num_texts": known.num_texts}
    head["count"] = len(known.hashes)
    steps = np.diff(known.hashes, prepend=np.uint64(0)).astype("<u8")
    planes = np.ascontiguousarray(steps.view(np.uint8).reshape(-1, 8).T)  # equal bytes side by side
    line = json.dumps(head, sort_keys=True, separators=(",", ":")).encode() + b"\n"
    return _MAGIC + line + zlib.compress(planes.tobytes(), 9)


def unpack(data: bytes, where: str) -> Fingerprints:
    """The inverse of pack. Raises ArtifactError for anything that pack would not have written."""
    if not data.startswith(_MAGIC):
        raise ArtifactError("the file is no specdec-ngrams 1", where, _AGAIN)
    line, _, body = data[len(_MAGIC) :].partition(b"\n")
    try:
        head = json.loads(line)
        n, stride, bits, num_texts, count = (_number(head, key) for key in _HEAD)
        unpacker = zlib.decompressobj()
        raw = unpacker.decompress(body, count * 8 + 1)
    except (ValueError, KeyError, TypeError, zlib.error) as error:
        raise ArtifactError(f"the file is damaged: {error!r}", where, _AGAIN) from None
    whole = unpacker.eof and not unpacker.unused_data and len(raw) == count * 8
    if not whole or set(head) != set(_HEAD) or n < 1 or stride < 1 or not 1 <= bits <= 64:
        raise ArtifactError("the file is damaged: its parts do not agree", where, _AGAIN)
    steps = np.frombuffer(raw, np.uint8).reshape(8, count).T.copy().view("<u8").reshape(count)
    hashes = np.cumsum(steps, dtype=np.uint64)
    if count and ((hashes[1:] <= hashes[:-1]).any() or int(hashes[-1]) >> bits):
        raise ArtifactError("the file is damaged: its hashes do not ascend", where, _AGAIN)
    return Fingerprints(n, stride, bits, num_texts, hashes)


_HEAD = ("n", "stride", "bits", "num_texts", "count")


def _number(head: dict[str, Any], key: str) -> int:
    value = head[key]
    if type(value) is not int or not 0 <= value < 1 << 40:
        raise ValueError(f"{key} = {value!r}")
    return value


def _grams(found: list[str], n: int, stride: int) -> Iterator[str]:
    if found and len(found) < n:
        yield " ".join(found)
    for at in range(0, len(found) - n + 1, stride):
        yield " ".join(found[at : at + n])


def _hash(gram: str) -> int:
    return int.from_bytes(blake2b(gram.encode(), digest_size=8).digest(), "big")
