"""specdec-bench soak: a short one holds; what grows is named, and the command fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from specdec_runtime.faults import ContractError
from specdec_tools import soak
from specdec_tools.bench import main

COUNTS = {
    "page_bytes": 10**6,
    "worker_bytes": 10**7,
    "python_objects": 25000,
    "python_bytes": 2**25,
    "wasm_bytes": 2**20,
    "pages_held": 0,
}


def _report(**growth: int) -> dict:
    first = {"requests": 10, "seconds": 1.0, "pss_mib": 100.0, **COUNTS}
    last = {**first, "requests": 100, **{name: COUNTS[name] + more for name, more in growth.items()}}
    return {"soak": 100, "tokens": 4, "device": {}, "samples": [first, last]}


def test_what_grew_is_named() -> None:
    assert soak.judged(_report(page_bytes=2000, python_objects=-5))["grew"] == []
    for name in COUNTS:
        assert soak.judged(_report(**{name: soak.NOISE[name] + 1}))["grew"] == [name]
    assert "worker_bytes +7" in soak.table(soak.judged(_report(worker_bytes=7)))


def test_growth_fails_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def grown(*_):
        return soak.judged(_report(python_objects=301))

    monkeypatch.setattr(soak, "_run", grown)
    assert main(["soak", "anywhere", "--requests", "100"]) == ContractError.exit_code
    told = capsys.readouterr()
    assert "python_objects" in told.err and "| 100 |" in told.out
    assert main(["soak", "anywhere", "--requests", "9"]) == 2


@pytest.mark.browser
def test_a_short_soak_holds(tiny_bundle, capsys: pytest.CaptureFixture[str]) -> None:
    bundle: Path = tiny_bundle(0, 384)
    assert main(["soak", str(bundle), "--requests", "140", "--json", "--drafter", "chain"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [sample["requests"] for sample in report["samples"]] == list(range(14, 141, 14))
    assert report["grew"] == [] and report["device"]["backend"] == "wasm"
    assert all(sample["python_objects"] > 1000 for sample in report["samples"])
