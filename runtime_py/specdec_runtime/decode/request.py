"""What a caller may ask, and the checks that refuse it before any device work.

Knows the plan's limits; does not know drafters. Invariant: a request that passes leaves room for at least one
generated (or scored) token, and all its ids are inside the vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specdec_runtime.decode.logprobs import MAX_LOGPROBS
from specdec_runtime.decode.sampling import PLAIN, Sampling, check_sampling
from specdec_runtime.decode.session import check_session
from specdec_runtime.decode.text import check_stops
from specdec_runtime.faults import RequestError
from specdec_runtime.grammars import lowered
from specdec_runtime.plan.sampling_layout import MAX_STOPS
from specdec_runtime.plan.schema import MAX_ROWS, Plan

MAX_K = MAX_ROWS - 1
MAX_STEPS = 8  # more gain little, and waste what follows the end of an answer
MAX_ROUNDS = 8  # as far as the rows of all rounds of a submit fit into `out`


@dataclass(frozen=True, slots=True)
class Request:
    """One generation. eos_ids None means the plan's; () never stops on a token. logprobs: how many of the likeliest tokens
    are told with each committed one; 0: nothing is."""

    prompt_ids: Sequence[int]
    max_tokens: int
    k: int = 4
    eos_ids: Sequence[int] | None = None
    steps: int = 1  # plain steps in one submit where nothing drafts
    rounds: int = 1  # rounds in one submit where a drafter can go on without the host
    sampling: Sampling = PLAIN
    stop: Sequence[str] = ()  # strings that end the answer
    logprobs: int = 0
    session: str | None = None  # the conversation that it goes on with; None: nothing is reused, nothing kept
    grammar: Mapping[str, Any] | None = None  # {"type": "json" | "json_schema" | "regex" | "ebnf", ...}


def check_request(plan: Plan, request: Request) -> None:
    """Raise RequestError at the first thing that cannot be served."""
    check_count(request.max_tokens, "max_tokens", None)
    check_count(request.k, "k", MAX_K)
    check_several(request.steps, "plain_steps", MAX_STEPS)
    check_several(request.rounds, "rounds", MAX_ROUNDS)
    check_sampling(plan, request.sampling)
    check_stops(request.stop)
    check_count(request.logprobs, "logprobs", MAX_LOGPROBS)
    check_choice(plan, request)
    if request.session is not None:
        check_session(request.session)
    check_ids(plan, request.prompt_ids, "prompt_ids")
    check_room(plan, len(request.prompt_ids), 1)
    if request.eos_ids:
        check_ids(plan, request.eos_ids, "eos_ids")
    check_left(plan, request)
    if request.grammar is not None:
        check_grammar(plan, request)


def check_grammar(plan: Plan, request: Request) -> None:
    """A grammar must be one, be able to end, and nothing else may forbid what it alone allows."""
    lowered(request.grammar or {})
    eos_ids = plan.text.eos_ids if request.eos_ids is None else request.eos_ids
    if not eos_ids:
        raise RequestError(
            "nothing ends an answer", "grammar", "A grammar needs an end token: leave one of them out"
        )
    sampling = request.sampling
    clashing = {
        "min_tokens": sampling.min_tokens,
        "bad_words": sampling.bad_words,
        "allowed_ids": sampling.allowed_ids is not None,
    }
    for name, given in clashing.items():
        if given:
            raise RequestError(
                "a grammar forbids ids too: together nothing may be left", name, "Leave one out"
            )


def check_left(plan: Plan, request: Request) -> None:
    """Some id may be chosen: not every one is barred by itself, or an end before min_tokens. Else the device would be blamed."""
    sampling = request.sampling
    barred = {word[0] for word in sampling.bad_words if len(word) == 1}
    if sampling.min_tokens:
        barred |= set(plan.text.eos_ids if request.eos_ids is None else request.eos_ids)
    if sampling.allowed_ids is None:
        if len(barred) == plan.target_model.vocab_size:
            raise RequestError("every token is barred", "bad_words", "Bar fewer ids")
    elif barred.issuperset(sampling.allowed_ids):
        message = "every allowed id is one of bad_words, or ends the answer before min_tokens"
        raise RequestError(message, "allowed_ids", "Allow another id, or leave one of them out")


def check_choice(plan: Plan, request: Request) -> None:
    """This runtime has the accept rule, and the device the room, for the sampling asked."""
    sampling = request.sampling
    num_stops = len(plan.text.eos_ids if request.eos_ids is None else request.eos_ids)
    if sampling.min_tokens and num_stops > MAX_STOPS:
        message = f"{num_stops} ids end an answer"
        raise RequestError(message, "min_tokens", f"Leave it out, or give at most {MAX_STOPS} end ids")


def check_score(plan: Plan, prompt_ids: Sequence[int], score_ids: Sequence[int], width: int) -> None:
    """The same for teacher forcing."""
    check_ids(plan, prompt_ids, "prompt_ids")
    check_ids(plan, score_ids, "score_ids")
    check_room(plan, len(prompt_ids), len(score_ids))
    widths = plan.target_model.widths
    if width not in widths or isinstance(width, bool):
        raise RequestError(
            f"no pass of this bundle has {width!r} rows", "width", f"Use one of {list(widths)}"
        )


def check_count(value: Any, name: str, highest: int | None) -> None:
    """A count is an int (True is not), at least 0 and at most `highest`."""
    if type(value) is not int or value < 0 or (highest is not None and value > highest):
        limit = "of 0 or more" if highest is None else f"from 0 to {highest}"
        raise RequestError(f"{name} is {value!r}", name, f"Give a whole number {limit}")


def check_several(value: Any, name: str, highest: int) -> None:
    """How many of something lie in one submit: at least one."""
    if type(value) is not int or not 1 <= value <= highest:
        raise RequestError(f"{name} is {value!r}", name, f"Give a whole number from 1 to {highest}")


def check_ids(plan: Plan, ids: Sequence[Any], name: str) -> None:
    """At least one id, every one inside the vocabulary."""
    if not isinstance(ids, (list, tuple)) or not ids:
        raise RequestError(f"{name} is empty or not a list", name, "Give at least one token id")
    vocab_size = plan.target_model.vocab_size
    for position, token_id in enumerate(ids):
        if type(token_id) is not int or not 0 <= token_id < vocab_size:
            action = f"Token ids of this bundle are 0 to {vocab_size - 1}"
            raise RequestError(f"{token_id!r} is not a token id", f"{name}[{position}]", action)


def check_room(plan: Plan, num_prompt: int, num_more: int) -> None:
    """The prompt and num_more tokens after it lie within the context."""
    max_context = plan.target_model.max_context
    room = max_context - num_prompt
    if num_more <= room:
        return
    message = f"{num_prompt} prompt tokens and {num_more} more do not fit a context of {max_context}"
    if room > 0:  # more than one token was asked for: ids to score
        raise RequestError(message, "score_ids", f"Give at most {room} score ids")
    raise RequestError(message, "prompt_ids", f"Shorten the prompt to {max_context - 1} tokens")
