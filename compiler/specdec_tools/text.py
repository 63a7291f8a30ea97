"""Text in and out of a bundle on this machine: chat template, tokenizer, streamed text.

Twin of web/worker/text.js: the same prompt ids for the same request. Does not know models or devices. Rules: chat = the
template's text, no token added; raw = the text as it is, after BOS where the model adds one; an empty raw prompt is BOS
alone, or a RequestError where the model adds none.
"""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from specdec_runtime.bundle import Bundle, open_bundle
from specdec_runtime.decode.sampling import MAX_BANNED_LEN
from specdec_runtime.decode.text import StreamDecoder
from specdec_runtime.faults import ArtifactError, RequestError
from specdec_runtime.plan import PlanText

from specdec_tools.byte_map import ByteMap

Message = dict[str, Any]  # role and content; what else it has (tool calls, names) is the template's to read


def _refuse(message: str) -> NoReturn:
    """What a template calls to refuse its messages."""
    raise RequestError(f"the chat template refused: {message}", "prompt", "Change the messages")


def _json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _shown(value: Any) -> Any:
    """What `{{ value }}` writes, where the page's library differs from Python's str."""
    if value is None:
        return ""
    return _json(value) if isinstance(value, (bool, list, tuple, dict)) else value


def _require_text(what: str, value: Any) -> str:
    if not isinstance(value, str):
        raise RequestError(f"{what} is not text", what, "Give a string")
    return value


def check_messages(messages: Any) -> None:
    """A list of objects, each with a role; RequestError for anything else. Their contents are the template's to judge."""
    if not isinstance(messages, list) or not messages:
        raise RequestError("messages is empty or not a list", "messages", "Give at least one message")
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if not isinstance(message, dict):
            raise RequestError(f"{where} is not an object", where, "Give an object with role and content")
        if not isinstance(message.get("role"), str):
            raise RequestError(f"{where} has no role", f"{where}.role", "Give a string")


def _compile_template(source: str) -> Any:
    """The template with the settings and helpers that Hugging Face templates are written for."""
    from jinja2.exceptions import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"], finalize=_shown
    )
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    environment.filters["tojson"] = _json
    try:
        return environment.from_string(source)
    except (TemplateError, RecursionError) as error:
        raise ArtifactError(
            f"the chat template cannot be read: {error}", "chat_template.jinja", "Build again"
        ) from None


def _well_formed(text: str) -> str:
    """Lone surrogates have no UTF-8: shown as U+FFFD, as the page does."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class BundleText:
    """Tokenizer and template of one bundle."""

    def __init__(self, tokenizer_json: str, template: str | None, plan: PlanText) -> None:
        from tokenizers import Tokenizer

        try:
            self._tokenizer = Tokenizer.from_str(tokenizer_json)
            parsed = json.loads(tokenizer_json)
        except Exception as error:  # the library raises plain Exception
            raise ArtifactError(
                f"cannot be read: {error}", "tokenizer.json", "Build the bundle again"
            ) from None
        self._plan = plan
        self.byte_map = ByteMap(parsed, [*plan.special_ids, *plan.eos_ids])
        self._template = None if template is None else _compile_template(template)

    @classmethod
    def open(cls, bundle: Bundle | Path, plan: PlanText, has_template: bool) -> BundleText:
        """The text side of a bundle, from its checked files."""
        if not isinstance(bundle, Bundle):
            bundle = open_bundle(bundle)
        names = ["tokenizer.json", *(["chat_template.jinja"] if has_template else [])]
        texts = []
        for name in names:
            try:
                texts.append(bundle.read(name).decode("utf-8"))
            except UnicodeDecodeError as error:
                raise ArtifactError(f"cannot be read: {error}", name, "Build the bundle again") from None
        return cls(texts[0], texts[1] if has_template else None, plan)

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(_well_formed(text), add_special_tokens=False).ids

    def _piece(self, token_id: int | None) -> str:
        return "" if token_id is None else self.byte_map.pieces.get(token_id, "")

    def render(self, messages: list[Message]) -> str:
        """The chat template's text for the messages, up to where the answer begins."""
        if self._template is None:
            raise RequestError("this model has no chat template", "prompt", "Ask for raw text (--raw)")
        check_messages(messages)
        eos = self._plan.eos_ids[0] if self._plan.eos_ids else None
        try:
            return self._template.render(
                messages=messages,
                add_generation_prompt=True,
                bos_token=self._piece(self._plan.bos_id),
                eos_token=self._piece(eos),
            )
        except RequestError:  # the template's own
            raise
        except Exception as error:  # a template is a program: it may fail in any way that Python can
            return _refuse(f"{type(error).__name__}: {error}")

    def raw_ids(self, text: str) -> list[int]:
        """The ids of a text that is continued as it stands."""
        ids = self.encode(text)
        bos = self._plan.bos_id
        if self._plan.add_bos and bos is not None and ids[:1] != [bos]:
            ids.insert(0, bos)
        if not ids:
            raise RequestError("the prompt is empty", "prompt", "Give at least one character")
        return ids

    def chat_ids(self, messages: list[Message], system: str | None = None) -> list[int]:
        """The ids of a whole chat, a system text before it."""
        check_messages(messages)
        said = []
        if system is not None:
            said = [{"role": "system", "content": _require_text("system", system)}]
        return self.encode(self.render([*said, *messages]))

    def prompt_ids(self, prompt: Any, *, raw: bool = False, system: str | None = None) -> list[int]:
        """The ids to start from."""
        if raw and system:
            raise RequestError("a system text needs the chat form", "system", "Leave out raw or system")
        if raw:
            return self.raw_ids(_require_text("prompt", prompt))
        return self.chat_ids([{"role": "user", "content": _require_text("prompt", prompt)}], system)

    def banned_ids(self, words: Any) -> list[list[int]]:
        """Bad words as ids: a text as it stands and after a space, where the two differ; a list is ids already."""
        if not isinstance(words, (list, tuple)):
            raise RequestError("bad_words is not a list", "bad_words", "Give a list of texts")
        banned: list[list[int]] = []
        for index, word in enumerate(words):
            where = f"bad_words[{index}]"
            if isinstance(word, str) and word:
                forms = [self.encode(word), self.encode(f" {word}")]
            elif isinstance(word, (list, tuple)):
                forms = [list(word)]
            else:
                raise RequestError(f"{where} is no text", where, "Give a text that is not empty")
            longest = max(map(len, forms))
            if longest > MAX_BANNED_LEN:
                action = f"Give a text of at most {MAX_BANNED_LEN} tokens"
                raise RequestError(f"{where} is {longest} tokens long", where, action)
            banned += [form for form in forms if form not in banned]
        return banned

    def stream(self) -> StreamDecoder:
        """A decoder for the ids of one answer."""
        return StreamDecoder(self.byte_map)

    def decode(self, ids: list[int]) -> str:
        stream = self.stream()
        return "".join([stream.push(token_id) for token_id in ids]) + stream.finish()
