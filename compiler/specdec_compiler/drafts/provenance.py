"""provenance.json: where a trained draft comes from, and the strict reader and the writer of it.

Knows no weights and no prompts, only what they hash to. The dataclasses are the format: every key is required, none other is
allowed, but `ablation`, which may hold anything. Invariant: a manifest that was read is consistent in itself: a draft that was
trained has prompts, and one that was not has none.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import types
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from specdec_runtime.faults import ArtifactError

FILE = "provenance.json"
ALLOW = "--allow-unproven-draft"
FORMAT, VERSION = "specdec-provenance", 1
PROMPT_FILES = ("prompts.ngrams", "prompts.jsonl")
SOURCE_KINDS = ("template", "self", "file")
HASHED_FILES = ("config.json", "model.safetensors")
_CORRECT = "correct the manifest, or write it again with write_provenance"
T = TypeVar("T")


@dataclass(frozen=True)
class Champion:
    """Whose draft this is. sha256: drafts.gate.champion_sha256 of the champion as the recipe sees it."""

    name: str
    sha256: str


@dataclass(frozen=True)
class Generator:
    """How the training texts were drawn from the champion."""

    seeds: list[int]
    temperatures: list[float]
    sampler: str


@dataclass(frozen=True)
class PromptSource:
    """One origin of prompts. kind: "template", "self" (the champion wrote them) or "file"; sha256 of its template, texts or file."""

    name: str
    kind: str
    sha256: str
    count: int


@dataclass(frozen=True)
class SampleCounts:
    """How much the draft saw."""

    prompts: int
    sequences: int
    tokens: int


@dataclass(frozen=True)
class PromptsDigest:
    """What the gate compares with the evaluation prompts: `file` is prompts.ngrams (fingerprints) or prompts.jsonl (one JSON string
    a line, for small sets)."""

    file: str
    sha256: str


@dataclass(frozen=True)
class Training:
    """The run. losses: as many as one likes, the last one last; empty when steps is 0."""

    objective: str
    steps: int
    batch: int
    lr: float
    seed: int
    device: str
    losses: list[float]


@dataclass(frozen=True)
class Provenance:
    """The whole manifest. files: SHA-256 of config.json and model.safetensors. ablation: a free table of what was measured."""

    champion: Champion
    code_commit: str
    generator: Generator
    prompt_sources: list[PromptSource]
    sample_counts: SampleCounts
    prompts_digest: PromptsDigest
    training: Training
    licence: str
    files: dict[str, str]
    ablation: dict[str, Any]


def write_provenance(folder: Path | str, provenance: Provenance) -> str:
    """Write provenance.json into the draft folder; -> its SHA-256. Raises ArtifactError for one that the reader would refuse."""
    data = {"format": FORMAT, "version": VERSION, **asdict(provenance)}
    path = Path(folder) / FILE
    try:
        content = (json.dumps(data, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()
    except (TypeError, ValueError) as error:
        raise ArtifactError(f"not JSON: {error}", FILE, "give plain, finite values") from None
    parse_provenance(content, FILE)
    try:
        path.write_bytes(content)
    except OSError as error:
        raise ArtifactError(f"cannot write: {error.strerror}", str(path), "give a writable folder") from error
    return hashlib.sha256(content).hexdigest()


def read_provenance(folder: Path) -> tuple[Provenance, str]:
    """The manifest of a draft folder, and its file's SHA-256. Raises ArtifactError naming the key or the line."""
    path = folder / FILE
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        message = f"the draft has no {FILE}: nobody says what it was trained on"
        raise ArtifactError(
            message, str(folder), "train it with its manifest, or build with " + ALLOW
        ) from None
    except OSError as error:
        raise ArtifactError(f"the file cannot be read: {error.strerror}", str(path), _CORRECT) from error
    return parse_provenance(content, str(path)), hashlib.sha256(content).hexdigest()


def parse_provenance(content: bytes, where: str) -> Provenance:
    """The manifest of a file's bytes. Raises ArtifactError naming the key or the line."""
    try:
        data = json.loads(content.decode(), object_pairs_hook=_no_twice, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        message = f"line {error.lineno}, column {error.colno}: {error.msg}"
        raise ArtifactError(message, where, _CORRECT) from None
    except ValueError as error:
        raise ArtifactError(f"the file is not JSON: {error}", where, _CORRECT) from None
    if not isinstance(data, dict):
        raise ArtifactError("expected an object", f"{where}: $", _CORRECT)
    for key, wanted in (("format", FORMAT), ("version", VERSION)):
        if key not in data:
            raise ArtifactError("the key is missing", f"{where}: $.{key}", f"add it: {wanted!r}")
        found = data.pop(key)
        if type(found) is not type(wanted) or found != wanted:
            raise ArtifactError(f"expected {wanted!r}, found {found!r}", f"{where}: $.{key}", _CORRECT)
    provenance = _read(Provenance, data, f"{where}: $")
    _check(provenance, f"{where}: $")
    return provenance


def _check(p: Provenance, where: str) -> None:
    """What the types do not say."""
    for key, text in (
        ("champion.name", p.champion.name),
        ("code_commit", p.code_commit),
        ("licence", p.licence),
        ("training.objective", p.training.objective),
    ):
        _demand(bool(text.strip()), "the text is empty", f"{where}.{key}")
    hashes = {"champion.sha256": p.champion.sha256, "prompts_digest.sha256": p.prompts_digest.sha256}
    hashes |= {f"files.{name}": digest for name, digest in p.files.items()}
    hashes |= {f"prompt_sources[{i}].sha256": source.sha256 for i, source in enumerate(p.prompt_sources)}
    for key, digest in hashes.items():
        fine = re.fullmatch(r"[0-9a-f]{64}", digest) is not None
        _demand(fine, f"{digest!r} is no SHA-256 in lower-case hex", f"{where}.{key}")
    for i, source in enumerate(p.prompt_sources):
        kind, key = source.kind, f"{where}.prompt_sources[{i}]"
        _demand(kind in SOURCE_KINDS, f"{kind!r} is none of {', '.join(SOURCE_KINDS)}", f"{key}.kind")
        _demand(source.count > 0, f"{source.count} prompts", f"{key}.count")
    file = p.prompts_digest.file
    _demand(
        file in PROMPT_FILES, f"{file!r} is none of {', '.join(PROMPT_FILES)}", f"{where}.prompts_digest.file"
    )
    missing = [name for name in HASHED_FILES if name not in p.files]
    _demand(not missing, f"{', '.join(missing)} is missing", f"{where}.files")
    unknown = [name for name in p.files if name not in HASHED_FILES]
    _demand(not unknown, f"{', '.join(unknown)} is unknown", f"{where}.files")
    _check_amounts(p, where)


def _check_amounts(p: Provenance, where: str) -> None:
    counts, training = p.sample_counts, p.training
    for name, value in (*asdict(counts).items(), ("steps", training.steps), ("batch", training.batch)):
        part = "training" if name in ("steps", "batch") else "sample_counts"
        _demand(value >= 0, f"{value} is negative", f"{where}.{part}.{name}")
    listed = sum(source.count for source in p.prompt_sources)
    message = f"{counts.prompts} prompts, but the sources have {listed} together"
    _demand(counts.prompts == listed, message, f"{where}.sample_counts.prompts")
    trained = training.steps > 0
    message = f"{counts.prompts} prompts and {training.steps} steps: a draft was trained on prompts, or it was not trained"
    _demand(trained == (counts.prompts > 0), message, f"{where}.training.steps")
    message = f"{len(training.losses)} losses and {training.steps} steps"
    _demand(trained == bool(training.losses), message, f"{where}.training.losses")


def _demand(good: bool, message: str, where: str) -> None:
    if not good:
        raise ArtifactError(message, where, _CORRECT)


def _read(kind: type[T], data: Any, where: str) -> T:
    """`data` as a dataclass: exactly its keys, each of its type."""
    _demand(isinstance(data, dict), "expected an object", where)
    hints = get_type_hints(kind)
    for key in data:
        _demand(key in hints, "unknown key", f"{where}.{key}")
    values = {}
    for field in fields(kind):  # type: ignore[arg-type]
        _demand(field.name in data, "the key is missing", f"{where}.{field.name}")
        values[field.name] = _value(hints[field.name], data[field.name], f"{where}.{field.name}")
    return kind(**values)


def _value(kind: Any, data: Any, where: str) -> Any:
    if is_dataclass(kind):
        return _read(kind, data, where)  # type: ignore[arg-type]
    if isinstance(kind, types.GenericAlias):
        origin, arguments = get_origin(kind), get_args(kind)
        _demand(isinstance(data, origin), f"expected a {origin.__name__}", where)
        if origin is list:
            return [_value(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(data)]
        return {key: _value(arguments[1], item, f"{where}.{key}") for key, item in data.items()}
    if kind is Any:
        return data
    number = kind is float and type(data) is int
    _demand(type(data) is kind or number, f"expected {kind.__name__}, found {data!r}", where)
    _demand(not isinstance(data, float) or math.isfinite(data), f"{data!r} is no finite number", where)
    return kind(data)


def _no_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) != len(pairs):
        twice = next(key for i, (key, _) in enumerate(pairs) if key in dict(pairs[:i]))
        raise ValueError(f"the key {twice!r} is there twice")
    return data


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")
