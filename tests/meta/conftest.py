"""Lets the mutant tests use the suite and the shared modules of tests/pure."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "pure"))
