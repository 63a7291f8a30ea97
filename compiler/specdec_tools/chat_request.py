"""A request in the shape of OpenAI's chat completions, as a request of `NativeRun.generate`.

Twin of web/page/completions_request.js: the same requests, the same refusals. Does not know models or streams. Invariants: None is as
if left out; a field that is not served is refused by its name, never ignored; numbers are judged by the decode core.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from specdec_runtime.faults import RequestError

from specdec_tools.chat_types import Message

Fields = dict[str, Any]

LEAVE = "Leave it out"
MAX_TOP_LOGPROBS = 5
# handed on under the same name: OpenAI's first, then ours
SAME = (
    "temperature", "top_p", "seed", "frequency_penalty", "presence_penalty",
    "top_k", "min_p", "repetition_penalty", "min_tokens", "bad_words", "allowed_ids", "ignore_eos",
    "mode", "drafter", "k", "schedule", "rounds", "plain_steps", "session",
)  # fmt: skip
READ = (
    "model", "messages", "max_tokens", "max_completion_tokens", "stop", "logprobs", "top_logprobs", "logit_bias",
    "response_format", "n", "stream", "stream_options",
)  # fmt: skip
DEFAULTS = {"drafter": "chain", "schedule": "auto"}
MOST_DRAFTS = {"auto": 7, "fixed": 4}
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


@dataclass(frozen=True)
class Completion:
    """What a body asks for; `request` has max_tokens where it was given."""

    model: str | None
    stream: bool
    include_usage: bool
    top_logprobs: int
    request: Fields


def _check(good: bool, message: str, where: str, action: str = LEAVE) -> None:
    if not good:
        raise RequestError(message, where, action)


def _show(value: Any) -> str:
    return json.dumps(value, default=repr)


def _fields(given: Any, known: Sequence[str], where: str) -> Fields:
    """The fields that are given; another one than those known is refused."""
    if not isinstance(given, Mapping):
        raise RequestError(f"{where or 'the request'} is not an object", where or "request", "Give an object")
    present = {str(name): value for name, value in given.items() if value is not None}
    for name in present:
        path = f"{where}.{name}" if where else name
        _check(name in known, f"{path} is not supported", path)
    return present


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def _content(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    _check(_is_list(content), f"{where} is not text", where, "Give a string, or parts of text")
    texts = []
    for i, given in enumerate(content):
        at = f"{where}[{i}]"
        part = _fields(given, ("type", "text"), at)
        _check(part.get("type") == "text", f"{at} is no text", f"{at}.type", "Give parts of type text")
        _check(isinstance(part.get("text"), str), f"{at} has no text", f"{at}.text", "Give a string")
        texts.append(part["text"])
    return "".join(texts)


def _messages(messages: Any) -> list[dict[str, str]]:
    good = _is_list(messages) and len(messages) > 0
    _check(good, "messages is empty or not a list", "messages", "Give at least one message")
    read = []
    for i, given in enumerate(messages):
        where = f"messages[{i}]"
        plain = asdict(given) if isinstance(given, Message) else given
        message = _fields(plain, ("role", "content"), where)
        role = message.get("role")
        action = f"Use one of {', '.join(ROLES)}"
        _check(
            isinstance(role, str) and role in ROLES,
            f"{where} has role {_show(role)}",
            f"{where}.role",
            action,
        )
        read.append(
            {"role": ROLES[str(role)], "content": _content(message.get("content"), f"{where}.content")}
        )
    return read


def _text(given: Fields) -> Fields:
    """What `stop`, `logprobs` and `logit_bias` ask for."""
    stop, logprobs, top = given.get("stop"), given.get("logprobs"), given.get("top_logprobs")
    strings = [stop] if isinstance(stop, str) else stop
    good = strings is None or (_is_list(strings) and all(isinstance(text, str) and text for text in strings))
    _check(good, "stop is no text", "stop", "Give a string, or a list of them, none empty")
    _check_flag(logprobs, "logprobs", "logprobs")
    if top is not None:
        good = type(top) is int and 0 <= top <= MAX_TOP_LOGPROBS
        action = f"Give a whole number from 0 to {MAX_TOP_LOGPROBS}"
        _check(good, f"top_logprobs is {_show(top)}", "top_logprobs", action)
        _check(logprobs is True, "top_logprobs needs logprobs", "top_logprobs", "Set logprobs to true")
    read: Fields = {"stop": list(strings)} if strings else {}
    if logprobs:
        read["logprobs"] = max(1, top or 0)  # `generate` tells them with at least one of the likeliest
    return read | _bias(given.get("logit_bias"))


def _bias(bias: Any) -> Fields:
    if bias is None:
        return {}
    good = isinstance(bias, Mapping) and all(
        str(token_id).isascii() and str(token_id).isdigit() for token_id in bias
    )
    _check(good, "logit_bias is no map of token ids", "logit_bias", "Give {id: number}")
    return {"logit_bias": {int(token_id): value for token_id, value in bias.items()}}


def _check_flag(value: Any, name: str, where: str) -> None:
    _check(
        value is None or isinstance(value, bool), f"{name} is not true or false", where, "Give true or false"
    )


def _format(given: Any) -> Fields:
    """The grammar of a response format."""
    if given is None:
        return {}
    read = _fields(given, ("type", "json_schema"), "response_format")
    kind, named = read.get("type"), read.get("json_schema")
    where = "response_format.json_schema"
    _check(named is None or kind == "json_schema", "json_schema needs type json_schema", where)
    if kind == "text":
        return {}
    if kind == "json_object":
        return {"grammar": {"type": "json_schema", "schema": {"type": "object"}}}
    action = "Use text, json_object or json_schema"
    _check(kind == "json_schema", f"response_format.type is {_show(kind)}", "response_format.type", action)
    # a schema is always kept strictly; its name is a label
    schema = _fields(named, ("name", "strict", "schema"), where).get("schema")
    _check(isinstance(schema, Mapping), "there is no schema", f"{where}.schema", "Give a JSON schema")
    return {"grammar": {"type": "json_schema", "schema": schema}}


def _stream(given: Fields) -> bool:
    """Is usage a chunk of its own?"""
    stream, options = given.get("stream"), given.get("stream_options")
    _check_flag(stream, "stream", "stream")
    if options is None:
        return False
    _check(stream is True, "stream_options needs stream", "stream_options")
    usage = _fields(options, ("include_usage",), "stream_options").get("include_usage")
    _check_flag(usage, "include_usage", "stream_options.include_usage")
    return usage is True


def _limit(given: Fields) -> Fields:
    names = [name for name in ("max_tokens", "max_completion_tokens") if name in given]
    message = "max_tokens and max_completion_tokens are the same"
    _check(len(names) < 2, message, "max_completion_tokens", "Give one of them")
    return {"max_tokens": given[names[0]]} if names else {}


def read_completion(body: Mapping[str, Any]) -> Completion:
    """The request that a body stands for; RequestError names the first field that is not served."""
    given = _fields(body, (*READ, *SAME), "")
    model, n = given.get("model"), given.get("n")
    action = "Give the bundle's name, or leave it out"
    _check(model is None or isinstance(model, str), "model is not text", "model", action)
    _check(n is None or (type(n) is int and n == 1), f"n is {_show(n)}", "n", "Only 1 is supported")
    include_usage = _stream(given)
    same = {name: given[name] for name in SAME if name in given}
    messages = _messages(given.get("messages"))
    k = MOST_DRAFTS["fixed" if given.get("schedule") == "fixed" else "auto"]
    asked = {**DEFAULTS, "k": k, **same, "messages": messages}
    request = asked | _limit(given) | _text(given) | _format(given.get("response_format"))
    return Completion(
        model, given.get("stream") is True, include_usage, given.get("top_logprobs", 0), request
    )
