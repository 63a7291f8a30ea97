"""specdec-bench strata --backend replay: recorded answers give the counts of the run they were recorded from, and times by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from specdec_runtime.bundle import open_bundle
from specdec_runtime.faults import ArtifactError, RequestError
from specdec_runtime.schedule.costs import AGAIN
from specdec_tools.bench import main
from specdec_tools.native_run import NativeRun
from specdec_tools.replay import ReplayRun, read_recording, record, recorded
from specdec_tools.schedule_sim import MACHINES
from specdec_tools.strata import STRATA, read_strata
from specdec_tools.strata_matrix import PLAIN, config_of, page_config
from specdec_tools.strata_native import run_native

MACHINE = "gpu, 8 rounds"
COSTS = MACHINES[MACHINE].costs
TOKENS = 40
WORDS = ("one two one two one two", "the sea the sea the sea")
SAMPLED = {"temperature": 0.9, "seed": 5}


def told(done: int, total: int) -> None:
    pass


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "strata"
    made.mkdir()
    for stratum in STRATA:
        lines = [
            {
                "id": f"{stratum}-{at:02}",
                "stratum": stratum,
                "messages": [{"role": "user", "content": f"{words} {stratum}"}],
            }
            for at, words in enumerate(WORDS, 1)
        ]
        text = "".join(json.dumps(line | {"max_tokens": TOKENS}) + "\n" for line in lines)
        (made / f"{stratum}.jsonl").write_text(text)
    return made


def matrix(bundle, folder: Path, sampling: dict) -> dict:
    """Every source and depth that a recording must answer for, each as one round a submit and as several."""
    asked = [{"drafter": "model", "k": k, "rounds": rounds} for k in (1, 2, 3, 7) for rounds in (1, 3)]
    asked += [{"drafter": name, "k": 3, "rounds": 2} for name in ("ngram", "chain")]
    configs = [config_of(**PLAIN), *(config_of(**each) for each in asked)]
    configs = [{**each, "options": each["options"] | sampling} for each in configs]
    return page_config(bundle, read_strata(folder, ["chat", "json"]), configs, 2, TOKENS, {})


def counted(raw: dict) -> list[dict]:
    return [
        {key: value for key, value in run.items() if not key.endswith("_ms")}
        | {
            "speculation": {
                key: run["speculation"][key] for key in run["speculation"] if key.startswith("num_")
            }
        }
        for run in raw["runs"]
    ]


@pytest.mark.parametrize("sampling", [{}, SAMPLED], ids=["greedy", "sampled"])
def test_counts_are_those_of_the_real_run(tiny_bundle, folder, tmp_path, sampling):
    bundle = open_bundle(tiny_bundle(0, 301))
    config = matrix(bundle, folder, sampling)
    recording = recorded(tmp_path / "answers.json", bundle, config, sampling, told)
    stood = [stands for answer in recording.answers for stands in answer.stands]
    assert 0 < sum(stood) < len(stood) == sum(len(answer.ids) for answer in recording.answers)
    real = run_native(bundle, config, told)
    replayed = run_native(bundle, config, told, ReplayRun(bundle, recording, MACHINE))
    assert "error" not in real and "error" not in replayed
    assert counted(replayed) == counted(real)
    assert recorded(tmp_path / "answers.json", bundle, config, sampling, told) == recording, (
        "read, not made anew"
    )


def test_times_are_sums_of_costs(tiny_bundle, folder):
    bundle = open_bundle(tiny_bundle(0, 301))
    config = matrix(bundle, folder, {})
    with NativeRun.open(bundle.folder) as native:
        recording = record(native, config["prompts"][:1], TOKENS, {})
    (answer,) = recording.answers
    # all stand but the first: so a round of 3 gives one token, and rounds after it 4 each
    answer = replace(answer, stands=[False, *([True] * (TOKENS - 1))])
    run = ReplayRun(bundle, replace(recording, answers=[answer]), MACHINE)

    def ms(tokens: int, **options) -> float:
        asked = {"prompt_ids": answer.prompt_ids, "max_tokens": tokens, **options}
        return run.generate(asked)["timing_ms"]["decode"]

    sync, verify, draft = COSTS.sync, COSTS.verify, COSTS.draft_step or 0.0
    read = -(-(len(answer.prompt_ids) - 2) // 32) * (COSTS.draft_read or 0.0)  # a step takes the last two
    assert ms(3, drafter="off", plain_steps=1) == pytest.approx(3 * (sync + verify[1]))
    # the first token has a submit to itself
    assert ms(9, drafter="off") == pytest.approx(2 * sync + 9 * verify[1])
    one = sync + 3 * draft + verify[4]
    assert ms(5, drafter="model", k=3, rounds=1) == pytest.approx(read + 2 * one)
    further = 3 * draft + verify[4] + COSTS.accept + AGAIN * COSTS.outside
    assert ms(5, drafter="model", k=3, rounds=2) == pytest.approx(read + one + further)


def test_costs_stay_as_given(tiny_bundle, folder):
    """What a submit is said to take is what the costs say, with the draft's reading of the prompt in it."""
    bundle = open_bundle(tiny_bundle(0, 301))
    config = matrix(bundle, folder, {})
    with NativeRun.open(bundle.folder) as native:
        recording = record(native, config["prompts"][:1], TOKENS, {})
    answer = recording.answers[0]
    long = replace(answer, prompt_ids=answer.prompt_ids * 6, stands=[True] * TOKENS)
    for machine in (MACHINE, "wasm", "gpu, 4 rounds"):
        run = ReplayRun(bundle, replace(recording, answers=[long]), machine)
        asked = {"prompt_ids": long.prompt_ids, "max_tokens": TOKENS, "drafter": "model", "k": 7}
        told_of = run.generate(asked | {"schedule": "break_even"})["speculation"]["schedule"]["costs"]
        given = MACHINES[machine].costs.json()
        assert {**told_of, "how": ""} == {**given, "how": ""}, machine


def test_what_was_not_recorded_is_refused(tiny_bundle, folder, tmp_path):
    bundle = open_bundle(tiny_bundle(0, 301))
    config, path = matrix(bundle, folder, {}), tmp_path / "answers.json"
    run = ReplayRun(bundle, recorded(path, bundle, config, {}, told), MACHINE)
    asked = {"prompt_ids": config["prompts"][0]["prompt_ids"], "max_tokens": 8}
    for wrong, where in (
        ({"prompt_ids": [1, 2]}, "--answers"),
        ({"temperature": 0.5}, "--answers"),
        ({"max_tokens": 400}, "--max-tokens"),
        ({"mode": "reject"}, "--modes"),
        ({"top_p": 0.5}, "top_p"),
        ({"stop": ["x"]}, "stop"),
        ({"schedule": "confidence", "drafter": "model"}, "schedule"),
    ):
        with pytest.raises(RequestError) as caught:
            run.generate(asked | wrong)
        assert caught.value.where == where
    assert run.generate(asked | {"plain_steps": None, "rounds": None})["token_ids"], "None is as if left out"
    with pytest.raises(RequestError, match="folder"):
        recorded(tmp_path / "none" / "answers.json", bundle, config, {}, told)
    with pytest.raises(ArtifactError, match="another bundle"):
        recorded(path, open_bundle(tiny_bundle(1, 301)), config, {}, told)
    for text in ("", "[]", '{"format": "specdec-answers", "version": 2}', path.read_text("ascii")[:-9]):
        path.write_text(text, "ascii")
        with pytest.raises(ArtifactError):
            read_recording(path)


def test_the_command_records_once_and_reports_predictions(tiny_bundle, folder, tmp_path, capsys):
    answers = tmp_path / "answers.json"
    command = [
        "strata",
        str(tiny_bundle(0, 301)),
        "--folder",
        str(folder),
        "--strata",
        "json",
        "--pairs",
        "2",
    ]
    command += ["--backend", "replay", "--drafters", "chain", "--k", "3", "--schedule", "fixed,break_even"]
    assert main(command) == 2 and "--answers" in capsys.readouterr().err
    assert main([*command, "--answers", str(answers)]) == 0
    first = capsys.readouterr().out
    assert "(a prediction)" in first and "break_even" in first
    made = answers.read_bytes()
    assert main([*command, "--answers", str(answers)]) == 0
    assert capsys.readouterr().out == first and answers.read_bytes() == made
    assert main([*command, "--answers", str(answers), "--machine", "wasm"]) == 0
    assert capsys.readouterr().out != first
