"""What the device must hold of a request's sampling, and the writes that bring it there: only what differs from what it holds.

Knows the tensors sampling.* of docs/plan.md, not what kernels make of them. `Held` lives as long as the device's memory does, across
requests; without one nothing is known of the device. Invariants: between a write and its landing nothing is known of what it covers,
so a submit that failed costs a second write and never a stale value; what no flag names may be stale, for no program reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from specdec_runtime.decode.effects import Write
from specdec_runtime.decode.rng import seed_words
from specdec_runtime.decode.sampling import BLOCK, Sampling
from specdec_runtime.plan.sampling_layout import (
    BAN,
    BANNED,
    BIAS,
    BLOCK_RULE,
    FIRST_STOP,
    FLAGS,
    MASK,
    MAX_STOPS,
    NOISE,
    PENALTIES,
)
from specdec_runtime.plan.schema import BANNED_FIELDS

MAX_INVERSE = 1e30  # colder than that is the argmax all the same
FEW = 256  # ids whose biases are written one by one


class Bias(NamedTuple):
    """sampling.bias: `others` for every id that is not in `ids`."""

    others: float
    ids: dict[int, float]

    def get(self, token_id: int) -> float:
        return self.ids.get(token_id, self.others)


class Held:
    """What the device holds, as far as it is known: None where it is not."""

    def __init__(self) -> None:
        self.ints: list[int] | None = None
        self.floats: list[float] | None = None
        self.bias: Bias | None = None
        self.banned: list[int] | None = None


class SamplingState:
    """One request's part: `writes` go with the submits up to the first that lands."""

    def __init__(
        self,
        sampling: Sampling,
        prompt_len: int,
        stop_ids: Iterable[int],
        vocab: int,
        held: Held,
        masked: bool = False,
    ) -> None:
        self._held, self._vocab = held, vocab
        self._sent = Held()  # what was written and has not landed
        # check_request knows of the limit
        stops = sorted(stop_ids)[:MAX_STOPS] if sampling.min_tokens else []
        wanted = Held()
        if masked or sampling.kind != "verify":
            wanted.ints = ints_of(sampling, prompt_len, stops)
            wanted.ints[FLAGS] |= MASK * masked
            wanted.floats = floats_of(sampling)
            wanted.bias = bias_of(sampling) if wanted.ints[FLAGS] & BIAS else None
            wanted.banned = banned_of(sampling) or None
        self._wanted = wanted

    def writes(self) -> list[Write]:
        """What the device lacks; nothing for a request that no program asks sampling.* for."""
        held, wanted, writes = self._held, self._wanted, list[Write]()
        self._sent = Held()
        for name in ("ints", "floats", "banned"):
            value = getattr(wanted, name)
            known = getattr(held, name)
            if value is not None and (known is None or known[: len(value)] != value):
                writes.append((f"sampling.{name}", 0, value))
                setattr(self._sent, name, value)
                setattr(held, name, None)
        if wanted.bias is not None and held.bias != wanted.bias:
            writes += bias_writes(held.bias, wanted.bias, self._vocab)
            self._sent.bias, held.bias = wanted.bias, None
        return writes

    def landed(self) -> None:
        """The submit with the last writes succeeded."""
        for name in ("ints", "floats", "banned", "bias"):
            value = getattr(self._sent, name)
            if value is not None:
                setattr(self._held, name, value)


def flags_of(sampling: Sampling) -> int:
    """All but MASK: a grammar's masks are no matter of sampling."""
    words = [len(word) for word in sampling.bad_words]
    biased = bool(sampling.logit_bias) or 1 in words or sampling.allowed_ids is not None
    return (
        NOISE * (sampling.temperature > 0)
        + BIAS * biased
        + PENALTIES * sampling.penalizes
        + BANNED * any(count > 1 for count in words)
        + BLOCK_RULE * (sampling.promise == BLOCK)
    )


def ints_of(sampling: Sampling, prompt_len: int, stops: Sequence[int]) -> list[int]:
    """sampling.ints, up to the last element of use."""
    low, high = (word - (word >> 31 << 32) for word in seed_words(sampling.seed))  # bit patterns as int32
    num_banned = sum(len(word) > 1 for word in sampling.bad_words)
    min_len = prompt_len + sampling.min_tokens
    top_k = min(sampling.top_k, 2**31 - 1)
    head = [low, high, top_k, prompt_len, min_len, len(stops), flags_of(sampling), num_banned]
    return head + [0] * (FIRST_STOP - len(head)) + list(stops) if stops else head


def floats_of(sampling: Sampling) -> list[float]:
    inverse = min(1 / sampling.temperature, MAX_INVERSE) if sampling.temperature > 0 else 1.0
    penalties = [sampling.repetition_penalty, sampling.frequency_penalty, sampling.presence_penalty]
    return [float(value) for value in (inverse, sampling.top_p, sampling.min_p, *penalties)]


def bias_of(sampling: Sampling) -> Bias:
    """Logit biases, the ids that alone may be chosen, and words of one id that must not be."""
    others, ids = 0.0, {token_id: float(value) for token_id, value in sampling.logit_bias.items()}
    if sampling.allowed_ids is not None:
        others, ids = BAN, {token_id: ids.get(token_id, 0.0) for token_id in sampling.allowed_ids}
    ids.update({word[0]: BAN for word in sampling.bad_words if len(word) == 1})
    return Bias(others, ids)


def banned_of(sampling: Sampling) -> list[int]:
    """sampling.banned, row by row: a length, the ids, zeros."""
    rows = [word for word in sampling.bad_words if len(word) > 1]
    return [value for word in rows for value in (len(word), *word, *[0] * (BANNED_FIELDS - 1 - len(word)))]


def bias_writes(held: Bias | None, wanted: Bias, vocab: int) -> list[Write]:
    """The whole tensor, or the ids that differ where they are few: neighbours in one write."""
    if held is None or held.others != wanted.others:
        return [("sampling.bias", 0, [wanted.get(token_id) for token_id in range(vocab)])]
    ids = sorted(v for v in held.ids.keys() | wanted.ids.keys() if held.get(v) != wanted.get(v))
    if len(ids) > FEW:
        return bias_writes(None, wanted, vocab)
    writes: list[Write] = []
    for token_id in ids:
        if writes and writes[-1][1] + len(writes[-1][2]) == token_id:
            writes[-1][2].append(wanted.get(token_id))
        else:
            writes.append(("sampling.bias", token_id, [wanted.get(token_id)]))
    return writes
