"""A bundle folder on this machine: the strict reader of manifest.json, checked files, the plan.

Knows nothing of devices. Every byte that is handed out was compared with the manifest's SHA-256; a difference is an ArtifactError
that names the file.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any

from .faults import ArtifactError
from .plan import Plan, load_plan

_FIELDS = {
    "format": str,
    "version": int,
    "name": str,
    "license": str,
    "compiler": str,
    "files": list,
    "draft_provenance": dict,
}
_STATUSES = ("none", "champion", "proven", "untrained", "unproven")
_REBUILD = "build or download the bundle again"


@dataclass(frozen=True)
class BundleFile:
    """One file of the manifest."""

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class DraftProvenance:
    """What the compiler found out about the draft. status: one of _STATUSES; SHA-256 of its manifest and of the evaluation prompts."""

    status: str
    provenance: str | None
    strata: str | None


@dataclass(frozen=True)
class Bundle:
    """An opened bundle: its folder, manifest and plan."""

    folder: Path
    name: str
    license: str
    draft_provenance: DraftProvenance
    files: dict[str, BundleFile]
    plan: Plan

    def read(self, path: str) -> bytes:
        """A file's bytes, checked. Raises ArtifactError."""
        return _read_checked(self.folder, self.files, path)

    def verify(self) -> int:
        """Check every file; returns the bytes read. Raises ArtifactError for the first that differs, and for strangers."""
        listed = {"manifest.json", *self.files}
        for path in sorted(self.folder.rglob("*")):
            name = path.relative_to(self.folder).as_posix()
            if path.is_file() and name not in listed:
                raise ArtifactError("the manifest does not list this file", name, "remove it, or " + _REBUILD)
        return sum(len(self.read(path)) for path in sorted(self.files))


def open_bundle(folder: Path | str) -> Bundle:
    """Open a bundle folder: strict manifest, strict plan. Raises ArtifactError."""
    folder = Path(folder)
    try:
        data = json.loads((folder / "manifest.json").read_bytes())
    except FileNotFoundError:
        message = "there is no manifest.json: this is no bundle"
        raise ArtifactError(message, str(folder), "give a folder made by specdec-compile build") from None
    except (OSError, ValueError) as error:
        raise ArtifactError(f"manifest.json cannot be read: {error}", str(folder), _REBUILD) from None
    files = _read_manifest(data)
    plan = load_plan(_read_checked(folder, files, "plan.json"))
    for target in plan.targets:
        for path in (target.module, *(path for buffer in target.buffers for path in buffer.files)):
            if path not in files:
                raise ArtifactError(
                    f"the plan names {path}, the manifest does not", "manifest.json: files", _REBUILD
                )
    about = _read_provenance(data["draft_provenance"])
    return Bundle(folder, data["name"], data["license"], about, files, plan)


def _fail(where: str, message: str) -> ArtifactError:
    return ArtifactError(message, f"manifest.json: {where}", _REBUILD)


def _read_manifest(data: Any) -> dict[str, BundleFile]:
    _check_object(data, _FIELDS, "$")
    if data["format"] != "specdec-bundle" or data["version"] != 1:
        raise _fail(
            "$.format", f"expected specdec-bundle version 1, found {data['format']} {data['version']}"
        )
    files: dict[str, BundleFile] = {}
    for i, entry in enumerate(data["files"]):
        _check_object(entry, {"path": str, "bytes": int, "sha256": str}, f"$.files[{i}]")
        path = entry["path"]
        if {"", ".", ".."} & set(path.split("/")) or "\\" in path or ":" in path or path in files:
            raise _fail(f"$.files[{i}].path", f"{path!r} is not a new path inside the bundle")
        files[path] = BundleFile(path, entry["bytes"], entry["sha256"])
    return files


def _read_provenance(data: dict[str, Any]) -> DraftProvenance:
    where = "$.draft_provenance"
    _check_object(data, {"status": str, "provenance": (str, NoneType), "strata": (str, NoneType)}, where)
    if data["status"] not in _STATUSES:
        raise _fail(f"{where}.status", f"{data['status']!r} is none of {', '.join(_STATUSES)}")
    for key in ("provenance", "strata"):
        if data[key] is not None and re.fullmatch("[0-9a-f]{64}", data[key]) is None:
            raise _fail(f"{where}.{key}", "expected a SHA-256 or null")
    return DraftProvenance(**data)


def _check_object(data: Any, fields: dict[str, type | tuple[type, ...]], where: str) -> None:
    if not isinstance(data, dict):
        raise _fail(where, "expected an object")
    for key in data:
        if key not in fields:
            raise _fail(f"{where}.{key}", "unknown key")
    for key, kind in fields.items():
        kinds = kind if isinstance(kind, tuple) else (kind,)
        if key not in data or type(data[key]) not in kinds:
            raise _fail(f"{where}.{key}", f"expected {' or '.join(k.__name__ for k in kinds)}")


def _read_checked(folder: Path, files: dict[str, BundleFile], path: str) -> bytes:
    if path not in files:
        raise ArtifactError("the manifest does not list this file", path, _REBUILD)
    try:
        data = (folder / path).read_bytes()
    except OSError as error:
        raise ArtifactError(f"a bundle file cannot be read: {error.strerror}", path, _REBUILD) from None
    if len(data) != files[path].bytes:
        raise ArtifactError(f"{len(data)} bytes, the manifest says {files[path].bytes}", path, _REBUILD)
    if hashlib.sha256(data).hexdigest() != files[path].sha256:
        raise ArtifactError("the content does not match the manifest's SHA-256", path, _REBUILD)
    return data
