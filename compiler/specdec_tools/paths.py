"""Where the project's folders lie: the tools run from a checkout (an editable install)."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WEB = ROOT / "web"
VENDOR = WEB / "vendor"
NODE_MODULES = ROOT / "node_modules"
RUNTIME_PY = ROOT / "runtime_py"
