"""How a token is chosen from the target's logits: what a request may ask, and the checks that refuse it.

Knows no device and no drafter. Invariants: temperature 0 draws no random number; `kind` names the cheapest programs whose
results are those of the whole pipeline (docs/sampling.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specdec_runtime.faults import RequestError
from specdec_runtime.plan.schema import Plan

GREEDY, COUPLED, REJECT, BLOCK = "greedy", "coupled", "reject", "block"
MODES = (COUPLED, REJECT, BLOCK)  # above temperature 0
MAX_TEMPERATURE = 100.0
MAX_PENALTY = 2.0  # of frequency and presence, either sign
MAX_REPETITION = 10.0
MAX_BIAS = 100.0
MAX_BANNED = 32  # sequences of several ids
MAX_BANNED_LEN = 7
MAX_SEED = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Sampling:
    """One request's processors, in the order in which they apply. The defaults are greedy decoding without any.

    mode: one of MODES, of use above temperature 0. logit_bias: id -> what is added to its logit. bad_words: lists of ids that must not
    appear. allowed_ids: nothing else may be chosen; None: no such limit. top_k 0, top_p 1, min_p 0, repetition 1: off.
    """

    temperature: float = 0.0
    mode: str = COUPLED
    seed: int = 0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    bad_words: Sequence[Sequence[int]] = ()
    min_tokens: int = 0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    allowed_ids: Sequence[int] | None = None

    @property
    def promise(self) -> str:
        """The mode as results name it: "greedy" at temperature 0."""
        return self.mode if self.temperature > 0 else GREEDY

    @property
    def judges(self) -> bool:
        """Are the draft model's draws judged by probabilities? Else by equality with the target's own choice."""
        return self.promise in (REJECT, BLOCK)

    @property
    def draws(self) -> bool:
        """Tokens are drawn. May be asked before the checks: what is no number draws nothing, and is refused by them."""
        return isinstance(self.temperature, (int, float)) and self.temperature > 0

    @property
    def penalizes(self) -> bool:
        return (self.repetition_penalty, self.frequency_penalty, self.presence_penalty) != (1.0, 0.0, 0.0)

    @property
    def truncates(self) -> bool:
        """Drops ids by rank or probability; at temperature 0 that changes nothing."""
        return self.temperature > 0 and (self.top_k > 0 or self.top_p < 1 or self.min_p > 0)

    @property
    def kind(self) -> str:
        """Which programs compute it: "verify" (argmax), "sample" (bias, temperature, noise) or "filter" (all of it)."""
        if (
            self.penalizes
            or self.truncates
            or self.min_tokens
            or any(len(word) > 1 for word in self.bad_words)
        ):
            return "filter"
        if self.temperature > 0 or self.logit_bias or self.bad_words or self.allowed_ids is not None:
            return "sample"
        return "verify"


PLAIN = Sampling()  # greedy, nothing to process


def check_sampling(plan: Plan, sampling: Sampling) -> None:
    """Raise RequestError at the first thing that cannot be served."""
    _check_number(sampling.temperature, "temperature", 0, MAX_TEMPERATURE)
    if sampling.mode not in MODES:
        raise RequestError(f"mode is {sampling.mode!r}", "mode", f"Use one of {', '.join(MODES)}")
    _check_whole(sampling.seed, "seed", MAX_SEED)
    _check_number(sampling.repetition_penalty, "repetition_penalty", 0, MAX_REPETITION, above=True)
    _check_number(sampling.frequency_penalty, "frequency_penalty", -MAX_PENALTY, MAX_PENALTY)
    _check_number(sampling.presence_penalty, "presence_penalty", -MAX_PENALTY, MAX_PENALTY)
    _check_whole(sampling.min_tokens, "min_tokens", plan.target_model.max_context)
    _check_whole(sampling.top_k, "top_k", None)
    _check_number(sampling.top_p, "top_p", 0, 1, above=True)
    _check_number(sampling.min_p, "min_p", 0, 1)
    _check_ids(plan, sampling)


def _check_ids(plan: Plan, sampling: Sampling) -> None:
    vocab = plan.target_model.vocab_size
    for token_id, bias in sampling.logit_bias.items():
        _check_id(token_id, "logit_bias", vocab)
        _check_number(bias, f"logit_bias[{token_id}]", -MAX_BIAS, MAX_BIAS)
    for i, word in enumerate(sampling.bad_words):
        if not 1 <= len(word) <= MAX_BANNED_LEN:
            action = f"Give 1 to {MAX_BANNED_LEN} ids"
            raise RequestError(f"it has {len(word)} token ids", f"bad_words[{i}]", action)
        for token_id in word:
            _check_id(token_id, f"bad_words[{i}]", vocab)
    if sum(len(word) > 1 for word in sampling.bad_words) > MAX_BANNED:
        raise RequestError("too many of several ids", "bad_words", f"Give at most {MAX_BANNED}")
    if sampling.allowed_ids is not None:
        if not sampling.allowed_ids:
            raise RequestError(
                "nothing may be chosen", "allowed_ids", "Give at least one id, or leave it out"
            )
        for token_id in sampling.allowed_ids:
            _check_id(token_id, "allowed_ids", vocab)


def _check_number(value: Any, name: str, lowest: float, highest: float, above: bool = False) -> None:
    """A finite number within bounds; `above` leaves the lowest itself out."""
    good = type(value) in (int, float) and math.isfinite(value) and lowest <= value <= highest
    if not good or (above and value == lowest):
        least = f"above {lowest:g}" if above else f"from {lowest:g}"
        raise RequestError(f"{name} is {value!r}", name, f"Give a number {least} to {highest:g}")


def _check_whole(value: Any, name: str, highest: int | None) -> None:
    if type(value) is not int or value < 0 or (highest is not None and value > highest):
        limit = "of 0 or more" if highest is None else f"from 0 to {highest}"
        raise RequestError(f"{name} is {value!r}", name, f"Give a whole number {limit}")


def _check_id(value: Any, name: str, vocab: int) -> None:
    if type(value) is not int or not 0 <= value < vocab:
        raise RequestError(
            f"{value!r} is not a token id", name, f"Token ids of this bundle are 0 to {vocab - 1}"
        )
