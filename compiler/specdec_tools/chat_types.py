"""What chat completions answer with, in the shape of OpenAI's objects; `to_dict` gives the JSON form that the page's twin has.

Knows no model and no stream. Beyond OpenAI's fields there is `specdec`: what the result of `generate` says besides.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

Fields = dict[str, Any]

EXTRAS = ("prompt_ids", "token_ids", "stop", "seed", "speculation", "timing_ms", "device")


@dataclass(frozen=True)
class Message:
    content: str
    role: str = "assistant"
    refusal: None = None


@dataclass(frozen=True)
class Delta:
    """What a chunk adds: the role, then text, at the end nothing."""

    role: str | None = None
    content: str | None = None


@dataclass(frozen=True)
class Choice:
    message: Message
    finish_reason: str
    logprobs: Fields | None = None
    index: int = 0


@dataclass(frozen=True)
class ChunkChoice:
    delta: Delta
    finish_reason: str | None = None
    logprobs: Fields | None = None
    index: int = 0


@dataclass(frozen=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: Fields  # cached_tokens: those that a session's KV was there for


@dataclass(frozen=True)
class ChatCompletion:
    id: str
    created: int
    model: str
    choices: list[Choice]
    usage: Usage
    specdec: Fields
    object: str = "chat.completion"


@dataclass(frozen=True)
class ChatCompletionChunk:
    id: str
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: Usage | None = None
    specdec: Fields = field(default_factory=dict)
    object: str = "chat.completion.chunk"


def to_dict(answer: ChatCompletion | ChatCompletionChunk) -> Fields:
    """Plain dictionaries and lists."""
    plain = asdict(answer)
    for choice in plain["choices"]:
        if "delta" in choice:
            choice["delta"] = {name: value for name, value in choice["delta"].items() if value is not None}
    return plain


def token_logprobs(entries: list[Fields], shown: Callable[[int], bytes], num_top: int) -> list[Fields]:
    """`logprobs` of a cycle in OpenAI's form."""

    def said(entry: Fields) -> Fields:
        data = shown(entry["id"])
        return {"token": data.decode(errors="replace"), "logprob": entry["logprob"], "bytes": list(data)}

    return [
        {**said(entry), "top_logprobs": [said(top) for top in entry["top"][:num_top]]} for entry in entries
    ]


def logprobs_of(content: list[Fields] | None) -> Fields | None:
    return None if content is None else {"content": content, "refusal": None}


def usage_of(result: Fields) -> Usage:
    prompt, completion = result["usage"]["prompt_tokens"], result["usage"]["completion_tokens"]
    details = {"cached_tokens": result["usage"]["cached_tokens"]}
    return Usage(prompt, completion, prompt + completion, details)


def extras(result: Fields) -> Fields:
    """What a result says beyond OpenAI's fields."""
    return {name: result[name] for name in EXTRAS}


class Answer:
    """The objects of one answer: they have its id, time and model in common."""

    def __init__(self, model: str) -> None:
        self._head: Fields = {
            "id": f"chatcmpl-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": model,
        }

    def chunk(self, delta: Delta, **more: Any) -> ChatCompletionChunk:
        return ChatCompletionChunk(**self._head, choices=[ChunkChoice(delta, **more)])

    def role(self) -> ChatCompletionChunk:
        return self.chunk(Delta("assistant", ""))

    def end(self, result: Fields) -> ChatCompletionChunk:
        choice = ChunkChoice(Delta(), result["finish_reason"])
        return ChatCompletionChunk(**self._head, choices=[choice], specdec=extras(result))

    def usage(self, result: Fields) -> ChatCompletionChunk:
        return ChatCompletionChunk(**self._head, choices=[], usage=usage_of(result))

    def completion(self, result: Fields, logprobs: list[Fields] | None) -> ChatCompletion:
        choice = Choice(Message(result["text"]), result["finish_reason"], logprobs_of(logprobs))
        return ChatCompletion(**self._head, choices=[choice], usage=usage_of(result), specdec=extras(result))
