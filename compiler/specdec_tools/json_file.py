"""A JSON file that the caller of a command named. Knows nothing of what should be in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from specdec_runtime.faults import RequestError


def read_json_file(path: Path, action: str) -> Any:
    """What the file holds. Raises RequestError with that action where it cannot be read or is no JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise RequestError("it is nested too deep", str(path), action) from None
    except (OSError, ValueError) as error:
        raise RequestError(f"it cannot be read: {error}", str(path), action) from None
