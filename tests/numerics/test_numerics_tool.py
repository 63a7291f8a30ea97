"""The parts of specdec-numerics that need no model: distances, bounds, verdict, texts, the command line's errors."""

import json

import numpy as np
import pytest
from specdec_runtime.bundle import open_bundle
from specdec_tools import numerics
from specdec_tools.numerics_metrics import bound, kl_divergence, margins
from specdec_tools.numerics_report import Tally, render
from specdec_tools.numerics_texts import TEXTS, TextRun, foreign_runs, own_runs, write_own
from specdec_tools.text import BundleText


def test_kl_of_known_distributions():
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.2, 0.6])
    expected = float(np.sum(p * np.log(p / q)))
    reference, other = (np.log(row).astype(np.float32)[None] for row in (p, q))
    assert kl_divergence(reference, other) == pytest.approx([expected], rel=1e-6)
    assert kl_divergence(reference, other + np.float32(100)) == pytest.approx([expected], rel=1e-4)
    many = np.repeat(reference, 150, axis=0)
    assert np.array_equal(kl_divergence(many, many), np.zeros(150))
    assert len(kl_divergence(reference[:0], other[:0])) == 0


def test_kl_is_not_symmetric_and_stands_large_logits():
    reference = np.array([[0.0, 200.0, -200.0]], np.float32)
    other = np.array([[0.0, 190.0, -200.0]], np.float32)
    there, back = kl_divergence(reference, other), kl_divergence(other, reference)
    assert np.isfinite(there).all()
    assert there != back


def test_margins():
    rows = np.array([[1.0, 3.0, 2.5], [4.0, 4.0, 0.0]], np.float32)
    assert margins(rows).tolist() == [0.5, 0.0]


@pytest.mark.parametrize("value", [None, float("nan"), 0.0051])
def test_a_bound_that_is_missed(value):
    assert not bound("mean KL", value, 0.005, at_most=True)["ok"]
    assert bound("mean KL", 0.005, 0.005, at_most=True)["ok"]


def tally_of(noise: float, llama_noise: float = 0.5) -> Tally:
    """300 foreign and 300 own rows whose ours and llama.cpp rows are the reference plus noise."""
    rng = np.random.RandomState(0)
    tally = Tally("native", ["native", "llama.cpp"])
    for own in (False, True):
        reference = rng.standard_normal((300, 50)).astype(np.float32) * 4
        rows = {
            name: reference + (rng.standard_normal(reference.shape) * size).astype(np.float32)
            for name, size in (("native", noise), ("llama.cpp", llama_noise))
        }
        tally.add(TextRun("own" if own else "foreign", own, list(range(300))), reference, rows)
    return tally


def missed(report: dict) -> set[str]:
    return {line["name"] for line in report["bounds"] if not line["ok"]}


def test_verdicts():
    assert missed(tally_of(1e-3).report((300, 300))) == set()
    assert missed(tally_of(1e-3).report((301, 300))) == {"foreign positions"}
    assert missed(tally_of(1e-3, 1e-4).report((300, 300))) == {"mean KL / llama.cpp's"}
    wrong = tally_of(3.0).report((300, 300))
    assert not wrong["ok"]
    assert {"mean KL", "top-1, all clear", "top-1, all foreign", "top-1, all own"} <= missed(wrong)


def test_rows_equal_counts_bits():
    reference = np.zeros((3, 4), np.float32)
    wasm = reference.copy()
    wasm[1, 2] = -0.0  # equal as a number, not in bits
    tally = Tally("wasm", ["native", "wasm"])
    tally.add(TextRun("a", False, [1, 2, 3]), reference, {"native": reference, "wasm": wasm})
    report = tally.report((1, 0))
    assert (report["wasm_rows_equal"], report["rows"]) == (2, 3)
    assert "top-1, all own" in missed(report)  # no own positions: not shown, so not met


def test_the_table_shows_everything():
    report = tally_of(1e-3).report((300, 300)) | {
        "own_answers": "stored",
        "seconds": 1,
        "seconds_of": {"native": 1},
    }
    text = render(report)
    assert "MISS" not in text
    assert text.count("ok  ") == 7
    assert "llama.cpp: mean KL" in text


@pytest.fixture
def text(tiny_bundle) -> BundleText:
    bundle = open_bundle(tiny_bundle(0, 384))
    return BundleText.open(bundle.folder, bundle.plan.text, True)


def test_foreign_runs(text):
    whole = foreign_runs(text, TEXTS, 512, None)
    assert len(whole) == len(list(TEXTS.glob("*.txt"))) >= 15
    assert max(len(run.ids) for run in whole) == 512
    assert all(run.first == 0 and not run.own for run in whole)
    short = foreign_runs(text, TEXTS, 512, 100)
    assert 100 <= sum(run.num_rows for run in short) <= 100 + len(whole)
    assert all(long.ids[: len(run.ids)] == run.ids for run, long in zip(short, whole, strict=True))


def test_own_runs_are_stored_or_made(text, tmp_path):
    (tmp_path / "prompts.json").write_text('["Hi", "Again"]')
    asked = []

    def answer(prompt_ids: list[int], most: int) -> list[int]:
        asked.append(most)
        return [5, 6, 2]

    runs = own_runs(text, tmp_path, "champion", 512, None, answer)
    assert len(asked) == 2
    for run in runs:
        assert run.own
        assert run.num_rows == 3
        assert run.ids[-2:] == [5, 6]  # the last id is predicted, never fed
    write_own(text, tmp_path, "champion", answer)
    asked.clear()
    assert own_runs(text, tmp_path, "champion", 512, None, answer) == runs
    assert not asked
    assert own_runs(text, tmp_path, "another", 512, 4, answer)[1].num_rows == 1
    assert len(asked) == 2


def test_stored_answers_are_enough():
    stored = json.loads((TEXTS / "own.json").read_text())
    assert sum(len(entry["answer_ids"]) for entry in stored["answers"]) >= 1000


def test_command_line_errors(tiny_bundle, tmp_path, capsys):
    assert numerics.main([str(tmp_path)]) == 3
    assert "no bundle" in capsys.readouterr().err
    assert numerics.main([str(tiny_bundle(0, 384)), "--json"]) == 2  # its recipe is not in models/recipes
    assert json.loads(capsys.readouterr().out)["error"]["type"] == "RequestError"
    with pytest.raises(SystemExit):
        numerics.main([str(tmp_path), "--positions", "0"])
