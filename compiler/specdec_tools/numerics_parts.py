"""Logits that a page sent in parts (web/bench/logits.js): what to compute, the parts checked, and rows out of them.

The page gets ids.json: {format, choice, lists: [{ids, first}]}; `choice` is the SHA-256 of the lists. A part is one line of JSON,
{format, part, bytes, sha256}, and then that many bytes: part 0 is a JSON object that says which choice, bundle and device, the others
are whole float32 rows (little-endian, vocabulary columns only), list after list, from each list's `first` on. A log has parts as lines
"specdec-rows INDEX BASE64" among any others. Knows no browser. Invariant: rows are handed out only if every part of this bundle's and
this choice's rows is there and undamaged.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from specdec_runtime.bundle import Bundle
from specdec_runtime.faults import ArtifactError, ContractError, DeviceFault, RequestError

from specdec_tools.numerics_texts import TextRun

FORMAT = "specdec-rows"
_LOGGED = re.compile(rb"^specdec-rows (\d+) ([A-Za-z0-9+/=]*)\r?$", re.MULTILINE)
_AGAIN = "Let the page send them again"


def choice(runs: list[TextRun]) -> dict[str, Any]:
    """ids.json's object."""
    lists = [{"ids": run.ids, "first": run.first} for run in runs]
    digest = hashlib.sha256(json.dumps(lists, separators=(",", ":")).encode()).hexdigest()
    return {"format": "specdec-ids", "choice": digest, "lists": lists}


def read_files(paths: list[Path]) -> Iterator[bytes]:
    """The parts in files that lie end to end: parts as they were sent, or a log."""
    where = ", ".join(map(str, paths))
    try:
        data = b"".join(path.read_bytes() for path in paths)
    except OSError as error:
        raise ArtifactError(
            f"cannot be read: {error.strerror}", str(error.filename), "Name the files"
        ) from None
    if data.startswith(b'{"format":"specdec-rows"'):
        at = 0
        while at < len(data):
            about, start = _about(data, at, where)
            at, begin = start + about["bytes"], at
            yield data[begin:at]
        return
    logged = list(_LOGGED.finditer(data))
    if not logged:
        raise ArtifactError("there are no parts of logits in it", where, "Give what web/bench/logits.js sent")
    for found in logged:
        try:
            yield base64.b64decode(found[2], validate=True)
        except binascii.Error as error:
            raise ArtifactError(f"part {int(found[1])} is no base64: {error}", where, _AGAIN) from None


def _about(data: bytes, at: int, where: str) -> tuple[dict[str, Any], int]:
    """A part's first line, and where its bytes begin."""
    end = data.find(b"\n", at, at + 1000)
    try:
        about = json.loads(data[at:end]) if end >= 0 else None
    except ValueError:
        about = None
    fields = {"format": str, "part": int, "bytes": int, "sha256": str}
    is_part = isinstance(about, dict) and all(type(about.get(key)) is kind for key, kind in fields.items())
    if is_part and about is not None and about["format"] == FORMAT and about["bytes"] >= 0:
        return about, end + 1
    raise ArtifactError(f"no part of logits begins at byte {at}", where, _AGAIN)


class PartRows:
    """A source of logits: the rows of `runs`, and no others."""

    def __init__(self, bundle: Bundle, runs: list[TextRun], parts: Iterable[bytes], where: str) -> None:
        self._where = where
        payloads = self._checked(parts)
        self._check_head(payloads.pop(0), bundle, choice(runs)["choice"])
        vocab = bundle.plan.target_model.vocab_size
        total = sum(run.num_rows for run in runs)
        data = b"".join(payloads)
        if len(data) != 4 * vocab * total:
            message = f"{len(data)} bytes of logits, {total} rows of {vocab} need {4 * vocab * total}"
            raise ArtifactError(message, where, "The page did not send all: look for its error in the log")
        logits = np.frombuffer(data, "<f4").reshape(total, vocab)
        if not np.isfinite(logits).all():
            raise DeviceFault("there are logits that are not finite", where, "Try another device")
        self._rows: dict[tuple[int, ...], np.ndarray] = {}
        at = 0
        for run in runs:
            self._rows[run.first, *run.ids] = logits[at : at + run.num_rows]
            at += run.num_rows

    def _checked(self, parts: Iterable[bytes]) -> list[bytes]:
        """What the parts carry, in order."""
        found: dict[int, bytes] = {}
        for part in parts:
            about, start = _about(part, 0, self._where)
            index, payload = about["part"], part[start:]
            if len(payload) != about["bytes"] or hashlib.sha256(payload).hexdigest() != about["sha256"]:
                raise ArtifactError(f"part {index} is damaged or cut off", self._where, _AGAIN)
            if index in found:
                raise ArtifactError(f"part {index} comes twice", self._where, "Give the files of one run")
            found[index] = payload
        lacking = next((index for index in range(len(found)) if index not in found), None)
        if lacking is not None or not found:
            raise ArtifactError(f"part {lacking or 0} is missing", self._where, "Give all files of the run")
        return [found[index] for index in range(len(found))]

    def _check_head(self, data: bytes, bundle: Bundle, chosen: str) -> None:
        """Rows of another choice or bundle have the same size: only the head tells."""
        try:
            head = json.loads(data)
            device = {name: str(head["device"][name]) for name in ("backend", "adapter", "browser")}
            names = [head[name] for name in ("choice", "kernels", "weights")]
        except (ValueError, KeyError, TypeError):
            raise ArtifactError("part 0 does not say what the rows are of", self._where, _AGAIN) from None
        ids = bundle.plan.ids
        for name, found, wanted in zip(
            ("choice of texts", "kernels", "weights"), names, (chosen, ids.kernels, ids.weights), strict=True
        ):
            if found != wanted:
                action = "Give the options, texts and bundle that --pack was given"
                raise RequestError(f"the rows are of another {name}", self._where, action)
        self.device = device

    def rows(self, ids: list[int], first: int = 0) -> np.ndarray:
        found = self._rows.get((first, *ids))
        if found is None:
            raise ContractError("no rows were asked for these ids", "numerics")
        return found

    def close(self) -> None:
        self._rows.clear()
