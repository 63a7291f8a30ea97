"""May this draft serve this champion? Both must mean the same by every token id.

Knows no weights. The draft sees ids only, never text, so what must agree is: the piece of each id, the
vocabulary's size, the ids with a meaning, the chat template (the champion's prompts must look to the draft as
it was trained) and enough positions. How text is split (merges, pre-tokenizer) is the champion's business
alone. Invariant: a refusal names the first difference, in the order of the checks in check_pair.
"""

from __future__ import annotations

import json
from itertools import zip_longest
from typing import NoReturn

from specdec_runtime.faults import ArtifactError

from .sources.spec import ModelSpec


def check_pair(champion: ModelSpec, draft: ModelSpec, context: int) -> None:
    """Raise ArtifactError naming the first difference that keeps the draft from serving the champion.

    context: the positions of the bundle, which the draft must have too.
    """
    _check_pieces(champion, draft)
    _check_equal("vocabulary size", champion.config.vocab_size, draft.config.vocab_size)
    _check_equal("first token (bos)", champion.text.bos_id, draft.text.bos_id)
    _check_equal("use of a first token (add_bos)", champion.text.add_bos, draft.text.add_bos)
    _check_equal("end ids (eos)", champion.text.eos_ids, draft.text.eos_ids)
    _check_equal("special ids", champion.text.special_ids, draft.text.special_ids)
    _check_template(champion.text.chat_template, draft.text.chat_template)
    if draft.config.context < context:
        message = f"the draft has {draft.config.context} positions, the bundle {context}"
        _refuse(message, f"use a longer draft, or set champion.context to {draft.config.context} or less")


def pieces(tokenizer_json: bytes) -> list[str | None]:
    """The piece of each id in a tokenizer.json, by id; None where an id has none.

    Raises ArtifactError when the file holds no vocabulary.
    """
    try:
        data = json.loads(tokenizer_json)
        by_id = {i: piece for piece, i in data["model"]["vocab"].items()}
        by_id |= {entry["id"]: entry["content"] for entry in data.get("added_tokens") or []}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        message = f"the tokenizer has no vocabulary: {error!r}"
        raise ArtifactError(message, "tokenizer.json", "get the model again") from error
    return [by_id.get(i) for i in range(max(by_id, default=-1) + 1)]


def _check_pieces(champion: ModelSpec, draft: ModelSpec) -> None:
    if champion.text.tokenizer_json == draft.text.tokenizer_json:
        return
    pairs = zip_longest(pieces(champion.text.tokenizer_json), pieces(draft.text.tokenizer_json))
    for i, (mine, other) in enumerate(pairs):
        if mine != other:
            message = f"the tokenizers differ: id {i} is {mine!r} for the champion, {other!r} for the draft"
            _refuse(message, "use a draft with the champion's tokenizer")


def _check_equal(what: str, mine: object, other: object) -> None:
    if mine != other:
        message = f"the {what} differs: {mine} for the champion, {other} for the draft"
        _refuse(message, "use a draft made for this champion")


def _check_template(mine: str | None, other: str | None) -> None:
    if mine == other:
        return
    if mine is None or other is None:
        having = "the draft" if mine is None else "the champion"
        _refuse(f"the chat template differs: only {having} has one", "use a draft made for this champion")
    at = next(
        (i for i, (a, b) in enumerate(zip(mine, other, strict=False)) if a != b), min(len(mine), len(other))
    )
    message = (
        f"the chat template differs from character {at} on: {mine[at : at + 20]!r} for the champion, "
        f"{other[at : at + 20]!r} for the draft"
    )
    _refuse(message, "use a draft made for this champion")


def _refuse(message: str, action: str) -> NoReturn:
    raise ArtifactError(message, "pairing of champion and draft", action)
