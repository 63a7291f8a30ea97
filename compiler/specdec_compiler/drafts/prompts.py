"""The training prompts as a draft folder ships them: prompts.ngrams, or prompts.jsonl as text for small sets.

Knows the two files, not what they are compared with.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from specdec_runtime.faults import ArtifactError

from .ngrams import STRIDES, Fingerprints, N, fingerprints, fitting, unpack
from .provenance import PromptsDigest

_AGAIN = "write it again with write_prompts"


def write_prompts(folder: Path | str, texts: Sequence[str], *, plain: bool = False) -> PromptsDigest:
    """Write prompts.ngrams (plain: prompts.jsonl) into the draft folder; -> what provenance.json says of it.

    texts: every prompt the training saw, each message of a conversation a text of its own.
    Raises RequestError when the fingerprints do not fit, ArtifactError when the folder cannot be written.
    """
    if plain:
        name, data = "prompts.jsonl", "".join(json.dumps(text) + "\n" for text in texts).encode()
    else:
        name, data = "prompts.ngrams", fitting(texts)
    path = Path(folder) / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    except OSError as error:
        raise ArtifactError(f"cannot write: {error.strerror}", str(path), "give a writable folder") from error
    return PromptsDigest(name, hashlib.sha256(data).hexdigest())


def read_prompts(folder: Path, digest: PromptsDigest) -> Fingerprints:
    """The fingerprints of the prompts a draft was trained on. Raises ArtifactError: no such file, another hash, damaged."""
    path = folder / digest.file
    data = read_hashed(path, digest.sha256, "prompts_digest")
    if path.suffix != ".ngrams":
        return fingerprints(_lines(data, path))
    known = unpack(data, str(path))
    if known.n != N or known.stride not in STRIDES or (known.num_texts > 0) != (len(known.hashes) > 0):
        message = (
            f"{known.num_texts} texts as {len(known.hashes)} grams of {known.n} words, every {known.stride}th"
        )
        raise ArtifactError(
            message, str(path), "write the folder again with write_prompts: nothing could be found in these"
        )
    return known


def read_hashed(path: Path, sha256: str, key: str) -> bytes:
    """A file whose hash the manifest states under `key`. Raises ArtifactError where it is absent or another."""
    try:
        data = path.read_bytes()
    except OSError as error:
        message = f"{path.name}, which provenance.json names, cannot be read: {error.strerror}"
        raise ArtifactError(message, str(path), "copy the whole draft folder") from error
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        message = f"the file's SHA-256 is {found}, provenance.json says {sha256} ($.{key})"
        raise ArtifactError(message, str(path), "use the files that the manifest was written for")
    return data


def _lines(data: bytes, path: Path) -> list[str]:
    texts = []
    for number, line in enumerate(data.splitlines(), 1):
        try:
            text = json.loads(line)
        except ValueError:
            text = None
        if not isinstance(text, str):
            raise ArtifactError(f"line {number} is no JSON string", str(path), _AGAIN)
        texts.append(text)
    return texts
