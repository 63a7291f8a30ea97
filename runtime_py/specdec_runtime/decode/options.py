"""The fields of a request as callers send them (JSON), read into a `Request`; the one reader, for the page and for native runs.

Knows no plan: whether a value can be served is for request.py and sampling.py. Invariants: a field that is left out has its
default; one of another shape is a RequestError that names it; texts have become ids before. A seed is drawn by the caller, never here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specdec_runtime.decode.request import Request
from specdec_runtime.decode.sampling import Sampling
from specdec_runtime.faults import RequestError

MAX_SEED = 2**53 - 1  # JSON numbers are exact so far, on both sides
_SAME = (
    "temperature",
    "mode",
    "seed",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "min_tokens",
    "top_k",
    "top_p",
    "min_p",
)
OPTIONS = frozenset((*_SAME, "logit_bias", "bad_words", "allowed_ids", "stop", "ignore_eos", "logprobs"))


def read_request(fields: Mapping[str, Any], steps: int, rounds: int) -> Request:
    """prompt_ids, max_tokens and k of the fields, and whichever of OPTIONS there are."""
    ignore_eos = fields.get("ignore_eos", False)
    if type(ignore_eos) is not bool:
        raise RequestError(f"ignore_eos is {ignore_eos!r}", "ignore_eos", "Give true or false")
    stop = fields.get("stop", ())
    return Request(
        fields["prompt_ids"],
        fields["max_tokens"],
        fields["k"],
        eos_ids=() if ignore_eos else None,
        steps=steps,
        rounds=rounds,
        sampling=read_sampling(fields),
        stop=[stop] if isinstance(stop, str) else stop,
        logprobs=fields.get("logprobs", 0),
    )


def read_sampling(fields: Mapping[str, Any]) -> Sampling:
    """The part that says how a token is chosen."""
    given = {name: fields[name] for name in _SAME if name in fields}
    seed = given.get("seed", 0)
    if type(seed) is not int or not 0 <= seed <= MAX_SEED:
        raise RequestError(f"seed is {seed!r}", "seed", f"Give a whole number from 0 to {MAX_SEED}")
    if "logit_bias" in fields:
        given["logit_bias"] = _bias(fields["logit_bias"])
    if "bad_words" in fields:
        words = _list(fields["bad_words"], "bad_words")
        given["bad_words"] = [_list(word, f"bad_words[{index}]") for index, word in enumerate(words)]
    if fields.get("allowed_ids") is not None:
        given["allowed_ids"] = _list(fields["allowed_ids"], "allowed_ids")
    return Sampling(**given)


def _bias(given: Any) -> dict[int, Any]:
    """JSON has its ids as texts."""
    if not isinstance(given, Mapping):
        raise RequestError(f"logit_bias is {given!r}", "logit_bias", "Give an object: token id to number")
    read: dict[int, Any] = {}
    for key, bias in given.items():
        token_id = int(key) if isinstance(key, str) and key.isascii() and key.isdigit() else key
        if type(token_id) is not int:
            raise RequestError(
                f"{key!r} is not a token id", "logit_bias", "Give an object: token id to number"
            )
        read[token_id] = bias
    return read


def _list(given: Any, name: str) -> list[Any]:
    if not isinstance(given, (list, tuple)):
        raise RequestError(f"{name} is {given!r}", name, "Give a list")
    return list(given)
