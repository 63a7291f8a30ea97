"""Puts this folder's shared modules on the path; one quick and one thorough hypothesis profile."""

import os
import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))

settings.register_profile(
    "quick", max_examples=100, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("thorough", settings.get_profile("quick"), max_examples=2000, derandomize=False)
settings.load_profile(os.environ.get("SPECDEC_HYPOTHESIS", "quick"))
