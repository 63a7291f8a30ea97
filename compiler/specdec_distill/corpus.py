"""Texts as token ids, with the part to learn from; batches of like length.

Knows neither prompts nor networks. A text is ids [n] and `start`: the champion wrote ids[start:], so positions start - 1 .. n - 2
(each predicts the next id) are learned from. Invariant: the same texts, budget and seed give the same batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
import torch
from specdec_runtime.faults import ContractError

LENGTHS = (64, 128, 192, 256, 384, 512, 768)  # texts are padded to one of these


@dataclass(frozen=True)
class Corpus:
    """ids: all texts one after the other [total] u16 or i32; bounds [texts + 1]; starts [texts]; kinds: one name a text."""

    ids: np.ndarray
    bounds: np.ndarray
    starts: np.ndarray
    kinds: list[str]

    def __len__(self) -> int:
        return len(self.starts)

    def text(self, index: int) -> np.ndarray:
        return self.ids[self.bounds[index] : self.bounds[index + 1]]

    @property
    def num_learned(self) -> int:
        """Positions to learn from."""
        return int((np.diff(self.bounds) - self.starts).sum())

    def save(self, path: Path) -> None:
        part = path.with_name(path.name + ".part")
        with part.open("wb") as file:
            np.savez(file, ids=self.ids, bounds=self.bounds, starts=self.starts, kinds=np.array(self.kinds))
        part.rename(path)


def load_corpus(path: Path) -> Corpus:
    with np.load(path) as data:
        return Corpus(data["ids"], data["bounds"], data["starts"], data["kinds"].tolist())


def make_corpus(texts: list[tuple[list[int], int]], kinds: list[str], vocab_size: int) -> Corpus:
    """(ids, start) of each text, and its kind -> Corpus. Texts longer than the longest of LENGTHS are cut.

    Raises ContractError for a text of which nothing is left to learn.
    """
    cut = [(ids[: LENGTHS[-1]], start) for ids, start in texts]
    if not all(0 < start < len(ids) for ids, start in cut):
        raise ContractError(
            "a text has nothing to learn from", "make_corpus", "keep prompts below the longest length"
        )
    dtype = np.uint16 if vocab_size <= 1 << 16 else np.int32
    flat = np.concatenate([np.array(ids, dtype) for ids, _ in cut])
    bounds = np.concatenate([[0], np.cumsum([len(ids) for ids, _ in cut])])
    return Corpus(flat, bounds, np.array([start for _, start in cut]), kinds)


def join(parts: list[Corpus]) -> Corpus:
    offsets = np.cumsum([0, *(len(part.ids) for part in parts[:-1])])
    bounds = [part.bounds[:-1] + offset for part, offset in zip(parts, offsets, strict=True)]
    total = sum(len(part.ids) for part in parts)
    return Corpus(
        np.concatenate([part.ids for part in parts]),
        np.concatenate([*bounds, [total]]),
        np.concatenate([part.starts for part in parts]),
        [kind for part in parts for kind in part.kinds],
    )


@dataclass(frozen=True)
class Batch:
    """ids [B, T] (zeros past a text's end); learned: indices into the flattened [B * T] positions to learn from."""

    texts: list[int]
    ids: torch.Tensor
    learned: torch.Tensor


def batches(corpus: Corpus, tokens: int, seed: int, device: str, first: int = 0) -> Iterator[Batch]:
    """One pass over the corpus in batches of about `tokens` positions, padding included, in an order drawn from the seed; from batch
    `first` on."""
    rng = Random(f"batches {seed}")
    lens = np.diff(corpus.bounds)
    groups: list[tuple[int, list[int]]] = []
    shortest = 0
    for length in LENGTHS:
        members = np.flatnonzero((lens > shortest) & (lens <= length)).tolist()
        rng.shuffle(members)
        size = max(1, tokens // length)
        groups += [(length, members[at : at + size]) for at in range(0, len(members), size)]
        shortest = length
    rng.shuffle(groups)
    for length, members in groups[first:]:
        yield batch_of(corpus, members, length, device)


def num_batches(corpus: Corpus, tokens: int) -> int:
    """Batches of one pass."""
    lens = np.diff(corpus.bounds)
    edges = zip((0, *LENGTHS), LENGTHS, strict=False)
    return sum(
        -(-int(((lens > short) & (lens <= long)).sum()) // max(1, tokens // long)) for short, long in edges
    )


def batch_of(corpus: Corpus, members: list[int], length: int, device: str) -> Batch:
    """These texts, padded to `length`."""
    ids = np.zeros((len(members), length), np.int64)
    learned = np.zeros((len(members), length), bool)
    for row, index in enumerate(members):
        text = corpus.text(index)
        ids[row, : len(text)] = text
        learned[row, corpus.starts[index] - 1 : len(text) - 1] = True
    where = torch.from_numpy(np.flatnonzero(learned.ravel()))
    return Batch(
        members, torch.from_numpy(ids).to(device, non_blocking=True), where.to(device, non_blocking=True)
    )
