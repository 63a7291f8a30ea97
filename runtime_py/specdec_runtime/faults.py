"""The four error families: who is at fault, where, and what to do about it.

Knows nothing of plans, models or devices. Invariant: every error a user can meet is one of these four, and
its JSON form (`error_json`) carries everything the text form says, so that it crosses to JavaScript and
back unchanged.
"""

from __future__ import annotations

from typing import Any


class SpecdecError(Exception):
    """An error that says what is wrong, where, and what the reader should do next."""

    exit_code = 1

    def __init__(self, message: str, where: str = "", action: str = "") -> None:
        super().__init__(message, where, action)
        self.message = message
        self.where = where
        self.action = action

    def __str__(self) -> str:
        place = f" ({self.where})" if self.where else ""
        advice = f". {self.action}" if self.action else ""
        return f"{self.message}{place}{advice}"


class RequestError(SpecdecError):
    """The user's request cannot be served as asked."""

    exit_code = 2


class ArtifactError(SpecdecError):
    """A bundle, recipe, plan or weight file is wrong."""

    exit_code = 3


class DeviceFault(SpecdecError):
    """A backend failed: lost device, bad readback, numbers that are not finite."""

    exit_code = 4


class ContractError(SpecdecError):
    """A bug: one part of specdec broke the contract with another."""

    exit_code = 5


FAMILIES: dict[str, type[SpecdecError]] = {
    family.__name__: family for family in (RequestError, ArtifactError, DeviceFault, ContractError)
}


def exit_code(error: SpecdecError) -> int:
    """The exit status of a command that ends in this error: 2, 3, 4 or 5."""
    return error.exit_code


def error_json(error: SpecdecError) -> dict[str, Any]:
    """The error as the JSON object every command, worker and page shows."""
    fields = {"type": type(error).__name__, "message": error.message}
    return {"error": {**fields, "where": error.where, "action": error.action}}


def error_from_json(data: Any) -> SpecdecError:
    """The typed error for `error_json`'s object; an unknown shape or type is itself a ContractError."""
    inner = data.get("error", data) if isinstance(data, dict) else None
    fields = inner if isinstance(inner, dict) else {}
    family = FAMILIES.get(str(fields.get("type")), ContractError)
    message = str(fields.get("message") or f"a part of specdec failed without a typed error: {data!r}")
    return family(message, str(fields.get("where") or ""), str(fields.get("action") or ""))
