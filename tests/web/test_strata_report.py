"""The figures of an evaluation: intervals against an enumeration, rows against counts made by hand, predictions against rounds."""

from __future__ import annotations

import itertools
import json
import re
import statistics
from pathlib import Path

import pytest
from specdec_runtime.faults import RequestError
from specdec_tools.bench import main
from specdec_tools.plot import svg
from specdec_tools.strata import FOLDER
from specdec_tools.strata_matrix import sampled
from specdec_tools.strata_predict import Costs, predicted, predictions, read_costs
from specdec_tools.strata_report import summary
from specdec_tools.strata_stats import THRESHOLDS, coverage, interval_rank, median_of, verdict
from specdec_tools.strata_tables import HEADS, charts, table

RECORDED = Path(__file__).parents[1] / "fixtures" / "strata_run.json"


def enumerated(num: int, rank: int) -> float:
    """Of all ways in which num values may lie below or above the median: how often the two ranked ones enclose it."""
    ways = list(itertools.product((0, 1), repeat=num))
    return sum(1 for way in ways if sorted(way)[rank - 1] == 0 and sorted(way)[-rank] == 1) / len(ways)


@pytest.mark.parametrize("num", range(1, 13))
def test_the_interval_of_a_median_against_an_enumeration(num: int):
    chances = {rank: enumerated(num, rank) for rank in range(1, num // 2 + 1)}
    for rank, chance in chances.items():
        assert coverage(num, rank) == pytest.approx(chance, abs=1e-12)
    assert interval_rank(num) == max((rank for rank, chance in chances.items() if chance >= 0.95), default=0)
    found = median_of([float(value) for value in range(num, 0, -1)])
    rank = interval_rank(num)
    assert found.interval == ((rank, num + 1 - rank) if rank else None)
    assert found.median == (num + 1) / 2 and (found.interval is None) == (num < 6)


def test_verdicts_follow_the_declared_thresholds():
    def of(low: float, high: float) -> str:
        return verdict(median_of([low, *[(low + high) / 2] * 4, high]))

    assert of(1.01, 2) == "promote" and of(0.5, 0.96) == "delete"
    assert {of(1.0, 2), of(0.5, 0.97), of(0.9, 1.1)} == {"keep measuring"}
    assert verdict(median_of([2.0] * 5)) == "keep measuring"  # too few for an interval
    assert verdict(median_of([2.0] * 12), partial=True) == "keep measuring"
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    said = re.findall(r"\| (promote|delete) \| .* bound is (above|below) ([0-9.]+) \|", text)
    assert {f"{what}_{side}": float(number) for what, side, number in said} == THRESHOLDS


def run_of(turn: int, prompt: str, config: str, total_ms: float, rounds: list[tuple[int, int]]) -> dict:
    """A run after 100 ms of prefill; a round is (drafted, accepted) and commits one token more than it accepts."""
    counts = {
        "num_cycles": len(rounds),
        "num_target_passes": len(rounds),
        "num_draft_passes": 2 * len(rounds),
    }
    by_position: dict[str, list[int]] = {"drafted": [0] * 2, "evaluated": [0] * 2, "accepted": [0] * 2}
    for drafted, accepted in rounds:
        for name, count in (
            ("drafted", drafted),
            ("evaluated", min(drafted, accepted + 1)),
            ("accepted", accepted),
        ):
            for i in range(count):
                by_position[name][i] += 1
    counts |= {f"num_{name}": sum(numbers) for name, numbers in by_position.items()}
    return {
        "turn": turn,
        "prompt": prompt,
        "config": config,
        "tokens": sum(1 + accepted for _, accepted in rounds),
        "first_ms": total_ms / 10,
        "total_ms": total_ms,
        "prefill_ms": 100,
        "speculation": {"drafter": "model", "plain_steps": 1, **counts, "fallbacks": {}},
        **by_position,
    }


ROUNDS = [(2, 2), (2, 0), (2, 1), (0, 0)]  # 7 tokens; judged 2 + 1 + 2; accepted 2 + 0 + 1


def made_up() -> dict:
    """Two strata, eight prompts each, two turns a prompt; the speed-up of prompt i is 1.i in the one and half of it in the other."""
    fast = {"name": "model k2", "options": {"drafter": "model", "k": 2}}
    planned = {"name": "model k2 break_even", "options": {**fast["options"], "schedule": "break_even"}}
    plains = [{"name": f"plain {n}", "options": {"drafter": "off", "k": 0, "plain_steps": n}} for n in (1, 4)]
    runs, prompts, turn = [], [], 0
    for stratum, factor in (("chat", 1.0), ("adversarial", 2.0)):
        for i in range(8):
            prompt = f"{stratum}-{i:02}"
            prompts.append({"id": prompt, "stratum": stratum, "prompt_tokens": 9})
            for slow in (1.0, 1.3):  # the second turn met a busy machine
                decode = 700 * slow
                runs.append(run_of(turn, prompt, "plain 1", 100 + 2 * decode, [(0, 0)] * 7))
                runs.append(run_of(turn, prompt, "plain 4", 100 + decode, [(0, 0)] * 7))
                runs.append(run_of(turn, prompt, "model k2", 100 + decode * factor / (1 + i / 10), ROUNDS))
                runs.append(run_of(turn, prompt, "model k2 break_even", 100 + decode, ROUNDS))
                turn += 1
    head = {
        "strata_format": 1,
        "name": "made-up",
        "device": {"backend": "native"},
        "memory": {"kv": 2_000_000},
    }
    return {**head, "configs": [*plains, fast, planned], "prompts": prompts, "runs": runs, "partial": False}


def test_rows_against_counts_made_by_hand():
    rows = {(row["group"], row["config"]): row for row in summary(made_up())["rows"]}
    assert [group for group, _ in rows][::2] == ["headline", "chat", "adversarial", "all"]
    chat = rows["chat", "model k2"]
    assert chat["speedup"] == {
        "num": 8,
        "median": 1.35,
        "quartiles": [1.175, 1.525],
        "interval": [1.0, 1.7],
        "level": 0.9922,
    }
    assert chat["verdict"] == "keep measuring" and rows["adversarial", "model k2"]["verdict"] == "delete"
    assert chat["fastest_plain"] == {"plain 4": 16}
    assert chat["tokens_per_target_pass"] == 1.75 and chat["acceptance"] == 0.6
    assert chat["positions"] == {"drafted": [48, 48], "evaluated": [48, 32], "accepted": [32, 16]}
    assert (chat["target_calls"], chat["draft_calls"], chat["cycles"], chat["tokens"]) == (64, 128, 64, 112)
    assert chat["plain_tokens_per_s"] == round((10 + 10 / 1.3) / 2, 1)
    assert chat["ttft_plain_ms"] == round((80 + 101) / 2, 2)
    assert rows["headline", "model k2"]["speedup"] == chat["speedup"]
    assert rows["all", "model k2"]["prompts"] == 16


def test_a_partial_report_has_no_verdict_and_unknown_options_are_noted():
    raw = made_up()
    notes = summary(raw)["notes"]
    assert notes == ["model k2 break_even: the runtime did not say that it knows schedule"]
    for run in raw["runs"]:
        run["speculation"]["schedule"] = {"name": "fixed" if run["turn"] else "break_even"}
    assert summary(raw)["notes"] == [
        "model k2 break_even: asked for schedule break_even, the runtime says fixed"
    ]
    raw |= {"partial": True, "error": {"message": "cable cut"}}
    made = summary(raw)
    assert {row["verdict"] for row in made["rows"]} == {"keep measuring"} and made["notes"][
        0
    ] == "partial: cable cut"
    raw["runs"][2]["speculation"]["num_evaluated"] += 1  # one run whose positions do not add up
    rows = {(row["group"], row["config"]): row for row in summary(raw)["rows"]}
    assert rows["chat", "model k2"]["positions"] is None and rows["adversarial", "model k2"]["positions"]


def test_what_a_sampled_run_says_of_itself_is_heard():
    raw = made_up()
    raw["configs"] = [one for one in sampled(raw["configs"], 0.8, 7) if "schedule" not in one["options"]]
    raw["runs"] = [run for run in raw["runs"] if "break_even" not in run["config"]]
    for run in raw["runs"]:
        run["seed"], run["speculation"]["mode"] = 7, "coupled"
    assert summary(raw)["notes"] == []
    for run in raw["runs"]:
        run["seed"] = 8
    assert summary(raw)["notes"] == ["model k2: asked for seed 7, the runtime says 8"]
    for run in raw["runs"]:
        run["seed"], run["speculation"]["mode"] = None, "greedy"
    assert summary(raw)["notes"] == [
        "model k2: asked for temperature 0.8, the runtime says mode greedy",
        "model k2: the runtime did not say that it knows seed",
        "model k2: asked for mode coupled, the runtime says greedy",
    ]


def test_the_oracle_names_the_best_fixed_configuration():
    oracle = {row["group"]: row for row in summary(made_up())["oracle"]}
    assert (oracle["chat"]["best_fixed"], oracle["chat"]["best_fixed_speedup"]) == ("model k2", 1.35)
    assert (oracle["adversarial"]["best_fixed"], oracle["adversarial"]["best_of_each_prompt"]) == (
        "plain",
        1.0,
    )
    against = {g: row["scheduled_against_best_fixed"]["model k2 break_even"] for g, row in oracle.items()}
    assert against["adversarial"]["median"] == 1.0
    assert against["chat"]["median"] == round(statistics.median(1 / (1 + i / 10) for i in range(8)), 4)


def test_a_prediction_is_the_sum_over_single_rounds():
    costs = Costs("shape", 0.5, {1: 3.0, 2: 3.5, 4: 5.0}, 0.8, plain_steps=4)
    row = predictions(made_up(), costs)[0]
    times = {
        2: 2 * 0.8 + 5.0 + 0.5,
        0: 3.0 + 0.5,
    }  # 3 rows run as 4; 2 draft passes for 2 drafts, made up above as 8 for 6
    draft = 0.8 * 8 / 6
    spent = sum(times[drafted] + drafted * (draft - 0.8) for drafted, _ in ROUNDS)
    assert row["config"] == "model k2" and row["prediction_by_k"]["2"] == round(
        7 * (3.0 + 0.5 / 4) / spent, 3
    )
    assert {row["config"] for row in predictions(made_up(), costs)} == {"model k2"}
    everything = {"num_cycles": 625, "num_drafted": 2500, "num_draft_passes": 2500}
    positions = {"drafted": [625] * 4, "accepted": [500, 400, 320, 256]}
    free = Costs("free", 0.0, {1: 1.0, 8: 1.0}, 0.0)
    assert predicted(free, everything | {"positions": positions}, 4) == pytest.approx(
        3.3616
    )  # alpha 0.8, k 4
    with pytest.raises(RequestError, match="5 are needed"):
        predicted(costs, everything | {"positions": positions}, 4)


@pytest.mark.parametrize(
    "change",
    [
        {"sync_ms": -1},
        {"draft_ms": "1"},
        {"verify_ms": {"2": 3}},
        {"verify_ms": {"1": 0}},
        {"verify_ms": {"1": 3, "x": 3}},
        {"plain_steps": 0},
        {"more": 1},
    ],
)
def test_costs_are_read_strictly(tmp_path, change: dict):
    path = tmp_path / "costs.json"
    good = {"name": "8B", "sync_ms": 0.4, "verify_ms": {"1": 3.4, "8": 7.0}, "draft_ms": 0.9}
    path.write_text(json.dumps(good))
    assert read_costs(path) == Costs("8B", 0.4, {1: 3.4, 8: 7.0}, 0.9)
    path.write_text(json.dumps(good | change))
    with pytest.raises(RequestError) as caught:
        read_costs(path)
    assert caught.value.where == str(path)


def test_a_recorded_run_is_shown_drawn_and_predicted(tmp_path, capsys):
    raw = json.loads(RECORDED.read_text())
    drawn, costs = tmp_path / "a.svg", tmp_path / "costs.json"
    costs.write_text('{"name": "8B", "sync_ms": 0.4, "verify_ms": {"1": 3.4, "4": 5.3}, "draft_ms": 0.9}')
    command = ["strata", "--show", str(RECORDED), "--plot", str(drawn), "--predict", str(costs)]
    assert main(command) == 0
    text = capsys.readouterr().out
    lines = [line for line in text.splitlines() if line.startswith("| json | ngram k3 |")]
    cells = dict(zip(HEADS, lines[0].strip("| ").split(" | "), strict=True))
    runs = [run for run in raw["runs"] if run["config"] == "ngram k3" and run["prompt"].startswith("json")]
    spent = [run["speculation"] for run in runs]
    assert (
        cells["accepted"]
        == f"{sum(s['num_accepted'] for s in spent) / sum(s['num_evaluated'] for s in spent):.1%}"
    )
    assert (
        cells["target calls"] == str(sum(s["num_target_passes"] for s in spent)) and cells["prompts"] == "6"
    )
    assert "Prediction for 8B, not measured" in text and text.count("prediction, k") == 3
    assert (
        "| json | ngram k3 | 0." in text.split("Prediction")[1]
        or "| json | ngram k3 | 1." in text.split("Prediction")[1]
    )
    picture = drawn.read_text()
    assert picture.count("speed-up over the fastest plain run") == 2 and "ngram k3, draft 3" in picture
    assert svg(charts(raw)) == picture
    assert main(["show", str(RECORDED)]) == 0
    assert capsys.readouterr().out.strip() == table(raw)


def test_what_is_no_report_is_refused(tmp_path, capsys):
    path = tmp_path / "r.json"
    for text in ("{", '{"strata_format": 2, "runs": [1]}', json.dumps(made_up() | {"runs": []})):
        path.write_text(text)
        assert main(["strata", "--show", str(path)]) == 2
    assert capsys.readouterr().err.count("RequestError") == 3
