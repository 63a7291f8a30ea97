"""The runtime's plain Python pipeline (decode/pipeline.py) says what the kernels' twin says: every setting, every row, over all ids.

And the twin tells wrong pipelines from right ones: mutants of each processor change some row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import inf
from unittest.mock import patch

import numpy as np
import pytest
from specdec_compiler.kernels.filter_twin import filtered
from specdec_runtime.backends.scripted_sampling import processors_of
from specdec_runtime.decode import pipeline
from specdec_runtime.decode.pipeline import process

from .cases import CASES as ALL_CASES
from .cases import Case

CASES = [
    case for case in ALL_CASES if case.op == "filtered" and (case.params["n"] == 301 or "hard" in case.name)
]


def _tensors(arrays: dict) -> dict[str, list]:
    return {
        f"sampling.{name}": arrays[name].tolist() for name in ("ints", "floats", "bias", "mask", "banned")
    }


def _differences(case: Case) -> list[str]:
    arrays = case.work(127).arrays
    expected = filtered(case.params, arrays, 127)["kept"]
    n, tensors, wrong = int(case.params["n"]), _tensors(arrays), []
    for row, kept in enumerate(expected[:, :n]):
        logits = arrays["logits"].reshape(int(case.params["m"]), -1)[row, :n].tolist()
        history = arrays["tokens"][: int(arrays["args"][0]) + row + 1].tolist()
        z = process(logits, history, processors_of(tensors, int(arrays["args"][3]) + row))
        if z is None:
            wrong += [] if np.isnan(kept).all() else [f"row {row} has no values"]
        elif np.isnan(kept).any() or not np.allclose(kept, z, rtol=1e-9, atol=1e-9):
            wrong.append(f"row {row} differs")
    return wrong


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_pipeline_is_the_twin(case: Case) -> None:
    assert _differences(case) == []


def _strictly(z, least):
    """Ties at the threshold go."""
    above = [value if value > least else -inf for value in z]
    return above if max(above) > -inf else [value if value >= least else -inf for value in z]


def _one_fewer(logits, history, use):
    """The row's own token, the last of its drafted prefix, is not counted."""
    return REAL["penalized"](logits, history[:-1], use)


def _once(logits, history, use):
    """An id counts once, however often it came."""
    with patch.object(pipeline, "Counter", lambda ids: Counter(set(ids))):
        return REAL["penalized"](logits, history, use)


def _all_of_it(logits, history, use):
    """Frequencies of the prompt too."""
    return REAL["penalized"](logits, history, pipeline.Processors(**{**vars_of(use), "prompt_len": 0}))


def _later(history, use):
    """Stops are banned for one position too few."""
    return REAL["too_early"]([*history, -1], use)


def _without_first(z, top_p):
    """The id that reaches the mass is dropped with the rest."""
    found = REAL["nucleus"](z, top_p)
    above = [value for value in z if value > found]
    return min(above) if above else found


def vars_of(use: pipeline.Processors) -> dict:
    return {name: getattr(use, name) for name in use.__dataclass_fields__}


NAMES = ("penalized", "too_early", "nucleus", "at_least")
REAL: dict[str, Callable] = {name: getattr(pipeline, name) for name in NAMES}
MUTANTS = {
    "at_least": [_strictly],
    "penalized": [_one_fewer, _once, _all_of_it],
    "too_early": [_later],
    "nucleus": [_without_first],
}


@pytest.mark.parametrize(
    ("name", "mutant"), [(name, mutant) for name, many in MUTANTS.items() for mutant in many]
)
def test_wrong_pipelines_are_told(name: str, mutant: Callable) -> None:
    with patch.object(pipeline, name, mutant):
        assert any(_differences(case) for case in CASES)
