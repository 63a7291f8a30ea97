"""The ops `process` and `truncate` (filter.py) with their two forms."""

from __future__ import annotations

from .base import Form, Op, by_row
from .filter_cpu import process_cpu, truncate_cpu
from .filter_gpu import process_gpu, truncate_gpu

_SAMPLING = (("ints", "read"), ("floats", "read"))
_PROCESS = (
    ("args", "read"),
    ("tokens", "read"),
    ("logits", "read"),
    *_SAMPLING,
    ("bias", "read"),
    ("mask", "read"),
    ("z", "write"),
)
_TRUNCATE = (
    ("args", "read"),
    ("tokens", "read"),
    *_SAMPLING,
    ("banned", "read"),
    ("z", "read_write"),
)
_KEPT, _LIMITS = (*_TRUNCATE, ("kept", "write")), (*_TRUNCATE, ("limits", "write"))
PROCESS = Op("process", Form(_PROCESS, process_cpu, by_row), Form(_PROCESS, process_gpu))
TRUNCATE = Op("truncate", Form(_KEPT, truncate_cpu, by_row), Form(_LIMITS, truncate_gpu))
