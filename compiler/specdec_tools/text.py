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

Message = dict[str, str]


def _refuse(message: str) -> NoReturn:
    """What a template calls to refuse its messages."""
    raise RequestError(f"the chat template refused: {message}", "prompt", "Change the messages")


def _compile_template(source: str) -> Any:
    """The template with the settings and helpers that Hugging Face templates are written for."""
    from jinja2.exceptions import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(
        value, ensure_ascii=False, indent=indent
    )
    try:
        return environment.from_string(source)
    except TemplateError as error:
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
        from jinja2.exceptions import TemplateError

        if self._template is None:
            raise RequestError("this model has no chat template", "prompt", "Ask for raw text (--raw)")
        eos = self._plan.eos_ids[0] if self._plan.eos_ids else None
        try:
            return self._template.render(
                messages=messages,
                add_generation_prompt=True,
                bos_token=self._piece(self._plan.bos_id),
                eos_token=self._piece(eos),
            )
        except TemplateError as error:
            return _refuse(str(error))

    def raw_ids(self, text: str) -> list[int]:
        """The ids of a text that is continued as it stands."""
        ids = self.encode(text)
        bos = self._plan.bos_id
        if self._plan.add_bos and bos is not None and ids[:1] != [bos]:
            ids.insert(0, bos)
        if not ids:
            raise RequestError("the prompt is empty", "prompt", "Give at least one character")
        return ids

    def prompt_ids(self, prompt: str, *, raw: bool = False, system: str | None = None) -> list[int]:
        """The ids to start from."""
        if raw and system:
            raise RequestError("a system text needs the chat form", "system", "Leave out raw or system")
        if raw:
            return self.raw_ids(prompt)
        said = [{"role": "system", "content": system}] if system is not None else []
        return self.encode(self.render([*said, {"role": "user", "content": prompt}]))

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
