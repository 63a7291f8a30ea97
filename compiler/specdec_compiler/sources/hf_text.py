"""The text side of a Hugging Face folder: tokenizer.json as it is, chat template, ids with a meaning.

Knows nothing of weights. Where files disagree, the order is transformers': generation_config.json before
config.json for the ends of a text, tokenizer_config.json before tokenizer.json's post-processor for the first
token.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from specdec_runtime.faults import ArtifactError

from .safetensors_file import read_json
from .spec import TextConfig

_CORRECT = "correct or get the file again"


def read_hf_text(folder: Path, vocab_size: int) -> TextConfig:
    """Read the tokenizer's files. Raises ArtifactError naming the file and what in it is missing or out of
    range."""
    path = folder / "tokenizer.json"
    tokenizer = read_json(path)
    ids = _piece_ids(tokenizer, str(path))
    outside = next((piece for piece, i in ids.items() if not 0 <= i < vocab_size), None)
    if outside is not None:
        message = f"the piece {outside!r} has the id {ids[outside]}, the model has {vocab_size} rows"
        raise ArtifactError(message, str(path), "use the tokenizer of this model")
    settings = _optional(folder / "tokenizer_config.json")
    bos = _bos_id(folder, settings, ids, vocab_size)
    eos = _eos_ids(folder, settings, ids, vocab_size)
    special = {entry["id"] for entry in tokenizer.get("added_tokens") or [] if entry.get("special")}
    return TextConfig(
        tokenizer_json=path.read_bytes(),
        chat_template=_chat_template(folder, settings),
        bos_id=bos,
        add_bos=bos is not None and _adds_bos(settings, tokenizer, bos),
        eos_ids=eos,
        special_ids=tuple(sorted({*special, *eos, *(() if bos is None else (bos,))})),
    )


def _optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.exists() else {}


def _piece_ids(tokenizer: dict[str, Any], where: str) -> dict[str, int]:
    model = tokenizer.get("model")
    if (
        not isinstance(model, dict)
        or model.get("type", "BPE") != "BPE"
        or not isinstance(model.get("vocab"), dict)
    ):
        kind = model.get("type") if isinstance(model, dict) else model
        message = f"the tokenizer's model is {kind!r}, which is not supported"
        raise ArtifactError(message, where, "use a model with a BPE tokenizer")
    try:
        return {**model["vocab"], **{e["content"]: e["id"] + 0 for e in tokenizer.get("added_tokens") or []}}
    except (TypeError, KeyError) as error:
        raise ArtifactError(f"added_tokens is damaged: {error!r}", where, _CORRECT) from error


def _piece(value: Any) -> str | None:
    """A token named in tokenizer_config.json: a string, or an object with its content."""
    content = value.get("content") if isinstance(value, dict) else value
    return content if isinstance(content, str) else None


def _bos_id(folder: Path, settings: dict[str, Any], ids: dict[str, int], vocab_size: int) -> int | None:
    named = _piece(settings.get("bos_token"))
    if named is not None:
        return _id_of(named, ids, "bos_token", folder)
    if "bos_token" in settings:
        return None
    value = read_json(folder / "config.json").get("bos_token_id")
    return None if value is None else _checked(value, vocab_size, folder / "config.json", "bos_token_id")


def _eos_ids(folder: Path, settings: dict[str, Any], ids: dict[str, int], vocab_size: int) -> tuple[int, ...]:
    for name in ("generation_config.json", "config.json"):
        value = _optional(folder / name).get("eos_token_id")
        if value is not None:
            values = value if isinstance(value, list) else [value]
            return tuple(sorted({_checked(v, vocab_size, folder / name, "eos_token_id") for v in values}))
    named = _piece(settings.get("eos_token"))
    return () if named is None else (_id_of(named, ids, "eos_token", folder),)


def _id_of(piece: str, ids: dict[str, int], key: str, folder: Path) -> int:
    if piece not in ids:
        where = f"{folder / 'tokenizer_config.json'}: {key}"
        raise ArtifactError(f"the piece {piece!r} is not in tokenizer.json", where, _CORRECT)
    return ids[piece]


def _checked(value: Any, vocab_size: int, path: Path, key: str) -> int:
    if type(value) is not int or not 0 <= value < vocab_size:
        message = f"{key} = {value!r} is no id of the vocabulary of {vocab_size}"
        raise ArtifactError(message, str(path), _CORRECT)
    return value


def _adds_bos(settings: dict[str, Any], tokenizer: dict[str, Any], bos: int) -> bool:
    if isinstance(settings.get("add_bos_token"), bool):
        return settings["add_bos_token"]
    processor = tokenizer.get("post_processor") or {}
    steps = processor.get("processors", [processor])
    templates = [step for step in steps if step.get("type") == "TemplateProcessing"]
    for template in templates:
        first = next(iter(template.get("single") or []), {}).get("SpecialToken", {}).get("id")
        if bos in ((template.get("special_tokens") or {}).get(first) or {}).get("ids", []):
            return True
    return False


def _chat_template(folder: Path, settings: dict[str, Any]) -> str | None:
    path = folder / "chat_template.jinja"
    if path.exists():
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ArtifactError(f"the file cannot be read: {error}", str(path), _CORRECT) from error
    template = settings.get("chat_template")
    if isinstance(template, list):
        template = next((t.get("template") for t in template if t.get("name") == "default"), None)
    if template is not None and not isinstance(template, str):
        where = str(folder / "tokenizer_config.json")
        raise ArtifactError("chat_template is neither a text nor a list of named texts", where, _CORRECT)
    return template or None
