"""Asks the JavaScript side, in Node, what it makes of something."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def ask(question: dict[str, Any]) -> Any:
    done = subprocess.run(
        ["node", str(HERE / "twin.mjs")],
        input=json.dumps(question),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
