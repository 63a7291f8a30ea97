"""Chat completions in the page, on WASM with a tiny model: the same objects as in Python, whole and streamed; left, aborted, queued."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import BrowserRig
from specdec_runtime.faults import RequestError
from specdec_tools.browser import PageSession
from specdec_tools.chat import Client
from specdec_tools.chat_types import to_dict

pytestmark = pytest.mark.browser

MESSAGES = [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "Hello there"}]
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}
BODIES: list[dict[str, Any]] = [
    {
        "max_tokens": 24,
        "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}},
    },
    {"max_tokens": 24},
    {"max_tokens": 24, "drafter": "model", "k": 3, "schedule": "fixed"},
    {"max_tokens": 0},
    {"max_tokens": 24, "stop": ["e", "\n"]},
    {"max_tokens": 24, "temperature": 0.8, "top_p": 0.9, "seed": 7, "drafter": "model"},
    {"max_tokens": 24, "logprobs": True, "top_logprobs": 2},
    {"max_tokens": 24, "session": "one"},
    {"max_tokens": 24, "ignore_eos": True},
]
WHOLE_JS = "(body) => window.specdec.chat.completions.create(body)"
STREAM_JS = """async (body) => {
  const chunks = [];
  for await (const chunk of await window.specdec.chat.completions.create({ ...body, stream: true })) chunks.push(chunk);
  return chunks;
}"""
WAYS_JS = """async (body) => {
  const create = (fields, options) => window.specdec.chat.completions.create({ ...body, ...fields }, options);
  const text = async (fields) => (await create(fields)).choices[0].message.content;
  const plain = await text({});
  const seen = [];
  for await (const chunk of await create({ stream: true })) if (chunk.choices[0].delta.content) break;
  seen.push(await text({}) === plain);
  const abandoned = await create({ stream: true });
  const abort = new AbortController();
  const aborted = create({}, { signal: abort.signal }).catch((error) => [error.type, error.name]);
  const after = text({});
  abort.abort();
  seen.push(await aborted, await after === plain);
  let late = "";
  for await (const chunk of abandoned) late += chunk.choices[0].delta.content ?? "";
  seen.push(late === plain);
  const middle = new AbortController();
  const stopped = create({ max_tokens: 200, ignore_eos: true, stream: true }, { signal: middle.signal });
  let heard = 0;
  try {
    for await (const chunk of await stopped) if (++heard === 5) middle.abort();
  } catch (error) {
    seen.push(error.name, heard);
  }
  seen.push(await text({}) === plain);
  return seen;
}"""


@pytest.fixture
def bundle(tiny_bundle: Callable[..., Path]) -> Path:
    return tiny_bundle(0, 384)


@pytest.fixture
def session(rig: BrowserRig, bundle: Path) -> PageSession:
    return rig.shared(bundle, "wasm")


def _same(answer: dict[str, Any]) -> dict[str, Any]:
    """What does not depend on the machine and the hour."""
    kept = {name: value for name, value in answer.items() if name not in ("id", "created", "specdec")}
    return kept | {"ids": (answer.get("specdec") or {}).get("token_ids")}


def _joined(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """What the chunks of a stream add up to."""
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    roles = [choice["delta"].get("role") for choice in choices]
    assert roles == ["assistant", *[None] * (len(choices) - 1)]
    assert [choice["finish_reason"] for choice in choices[:-1]] == [None] * (len(choices) - 1)
    return {
        "content": "".join(choice["delta"].get("content", "") for choice in choices),
        "finish_reason": choices[-1]["finish_reason"],
    }


def test_the_page_answers_as_python_does(rig: BrowserRig, session: PageSession, bundle: Path) -> None:
    with Client(bundle) as client:
        for body in BODIES:
            whole = {"messages": MESSAGES, **body}
            here = to_dict(client.chat.completions.create(**whole))
            there = rig.do(session.page.evaluate(WHOLE_JS, whole))
            assert _same(here) == _same(there), body
            said = {"content": here["choices"][0]["message"]["content"]}
            said["finish_reason"] = here["choices"][0]["finish_reason"]
            if "response_format" in body:
                assert list(json.loads(said["content"])) == ["ok"] and said["finish_reason"] == "stop"
            streamed = [to_dict(chunk) for chunk in client.chat.completions.create(stream=True, **whole)]
            assert _joined(streamed) == said
            assert _joined(rig.do(session.page.evaluate(STREAM_JS, whole))) == said
        assert here["choices"][0]["message"]["content"] and here["usage"]["completion_tokens"] == 24


def test_every_way_to_end_one(rig: BrowserRig, session: PageSession) -> None:
    body = {"messages": MESSAGES, "max_tokens": 40}
    seen = rig.do(session.page.evaluate(WAYS_JS, body))
    assert seen == [True, ["RequestError", "AbortError"], True, True, "AbortError", 5, True]


def test_what_the_core_refuses(rig: BrowserRig, session: PageSession, bundle: Path) -> None:
    """The same field is named in Python and in the page, whole or streamed."""
    refused_js = (
        "async ([make, body]) => (await eval(make)(body).catch((error) => [error.type, error.where]))"
    )
    with Client(bundle) as client:
        for fields in (
            {"temperature": -1},
            {"top_p": 0},
            {"k": 9},
            {"max_tokens": 1.5},
            {"drafter": "oracle"},
            {"logit_bias": {"9999": 1}},
        ):
            body = {"messages": MESSAGES, **fields}
            with pytest.raises(RequestError) as caught:
                client.chat.completions.create(**body)
            for make in (WHOLE_JS, STREAM_JS):
                told = rig.do(session.page.evaluate(refused_js, [make, body]))
                assert told == ["RequestError", caught.value.where], fields
