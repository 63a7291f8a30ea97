"""A toy grammar over token ids, a backend whose target obeys masks, and the answer by definition.

A model here scores every id by the prefix; the token is the best that the mask of its row allows.
"""

import hashlib
from array import array
from collections.abc import Callable

from simulate import seeded
from specdec_runtime.backends.scripted import ScriptedBackend
from specdec_runtime.backends.scripted_sampling import logits_of
from specdec_runtime.decode.effects import Constrain
from specdec_runtime.decode.rng import gumbel
from specdec_runtime.decode.sampling import PLAIN, Sampling
from specdec_runtime.plan import Plan

VOCAB = 13
EOS = 0
WORDS = 1  # of a row of masks: 13 ids, padded to 16
Allowed = Callable[[tuple[int, ...]], frozenset[int]]  # the answer so far -> what may follow


def mix(*parts) -> int:
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=4).digest(), "little")


def seeded_grammar(seed: int, forced_percent: int = 50, end: int = 9) -> Allowed:
    """Often one id, else some; EOS now and then, and EOS alone from `end` tokens on."""

    def allowed(answer: tuple[int, ...]) -> frozenset[int]:
        if len(answer) >= end:
            return frozenset({EOS})
        ids = [1 + mix(seed, answer, i) % (VOCAB - 1) for i in range(4)]
        if mix(seed, answer, "forced") % 100 < forced_percent:
            return frozenset(ids[:1])
        return frozenset(ids) | ({EOS} if mix(seed, answer, "may end") % 4 == 0 else frozenset())

    return allowed


class ToyMatcher:
    """Counts its calls; refuses what the grammar does."""

    def __init__(self, allowed: Allowed, stop_ids: list[int]) -> None:
        self.allowed, self.stop_ids = allowed, frozenset(stop_ids)
        self.answer: tuple[int, ...] = ()
        self.most = 0

    def accept(self, token_id: int) -> bool:
        if token_id not in self.allowed(self.answer):
            return False
        self.answer += (token_id,)
        self.most = max(self.most, len(self.answer))
        return True

    def mask(self) -> array:
        assert not set(self.answer) & self.stop_ids, "nothing follows the end"
        return array("I", [sum(1 << token_id for token_id in self.allowed(self.answer))])

    def rollback(self, num_ids: int) -> None:
        assert 0 <= num_ids <= len(self.answer)
        self.answer = self.answer[: len(self.answer) - num_ids]


class Toy:
    """Opens matchers and keeps the last."""

    def __init__(self, allowed: Allowed) -> None:
        self.allowed = allowed
        self.asked: list[Constrain] = []

    def __call__(self, asked: Constrain) -> ToyMatcher:
        self.asked.append(asked)
        self.matcher = ToyMatcher(self.allowed, asked.stop_ids)
        return self.matcher


class MaskedBackend(ScriptedBackend):
    """A scripted target, its rows' masks under watch: a pass reads no row that was not written for it."""

    def __init__(self, plan: Plan, seed: int, draft, script=None) -> None:
        super().__init__(plan, seeded(seed, VOCAB), draft, script)

    def submit(self, batch):
        assert len(self.submits) < 400, "the run does not end"
        if batch.masks:
            words = [values for name, first, values in batch.writes if name == "sampling.mask" and first == 0]
            assert [len(each) for each in words] == [batch.masks * WORDS]
            self.tensors["sampling.mask"] = [0] * len(self.tensors["sampling.mask"])
        return super().submit(batch)


def best(seed: int, prefix: tuple[int, ...], allowed, sampling: Sampling = PLAIN) -> int:
    """The target's choice by definition."""
    logits = logits_of(seeded(seed, VOCAB), prefix, VOCAB)
    hot = sampling.temperature > 0

    def value(token_id: int) -> float:
        noise = gumbel(sampling.seed, len(prefix), token_id) if hot else 0.0
        return logits[token_id] / (sampling.temperature if hot else 1.0) + noise

    return max(allowed, key=lambda token_id: (value(token_id), -token_id))


def defined(
    seed: int, allowed: Allowed, prompt: list[int], limit: int, max_context: int, sampling: Sampling = PLAIN
) -> list[int]:
    """The answer one token after another, with no machinery at all."""
    ids = list(prompt)
    while len(ids) < min(len(prompt) + limit, max_context):
        ids.append(best(seed, tuple(ids), allowed(tuple(ids[len(prompt) :])), sampling))
        if ids[-1] == EOS:
            break
    return ids[len(prompt) :]
