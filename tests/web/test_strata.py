"""specdec-bench strata on tiny pairs: the native run and the page give the same counts, stop alike, and find a difference of ids."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import tarfile
import time
from pathlib import Path

import pytest
from specdec_runtime.bundle import open_bundle
from specdec_runtime.faults import RequestError
from specdec_tools import strata_native
from specdec_tools.bench import main
from specdec_tools.bench_gpu import page_result
from specdec_tools.browser import BrowserOptions
from specdec_tools.native_run import NativeRun
from specdec_tools.serve import running_site
from specdec_tools.strata import HEADLINE, STRATA, read_strata
from specdec_tools.strata_matrix import (
    PLAIN,
    config_of,
    make_configs,
    page_config,
    read_configs,
    references,
    sampled,
)
from specdec_tools.strata_native import ordered, run_native, turns_of
from specdec_tools.strata_page import run_page
from specdec_tools.strata_report import COUNTS

CONFIGS = make_configs([1, 4], ["ngram", "chain"], [3], [], [])
WORDS = ("one two one two one two", "the sea the sea the sea")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two short prompts a stratum."""
    made = tmp_path / "strata"
    made.mkdir()
    for stratum in STRATA:
        lines = []
        for number, words in enumerate(WORDS, 1):
            messages = [{"role": "user", "content": f"{words} {stratum}"}]
            line = {
                "id": f"{stratum}-{number:02}",
                "stratum": stratum,
                "messages": messages,
                "max_tokens": 40,
            }
            lines.append(json.dumps(line) + "\n")
        (made / f"{stratum}.jsonl").write_text("".join(lines))
    return made


@pytest.fixture
def bundle(tiny_bundle):
    return open_bundle(tiny_bundle(0, 301))


@pytest.fixture
def config(bundle, folder):
    load = {"backend": "wasm", "threads": 1}
    return page_config(bundle, read_strata(folder, ["chat", "json"]), CONFIGS, 3, 24, load)


def counted(raw: dict) -> list[dict]:
    """All of the runs but their times, and of what the runtime says of them the counts."""
    found = []
    for run in raw["runs"]:
        counts = {name: run["speculation"][name] for name in (*COUNTS, "fallbacks")}
        found.append({k: v for k, v in run.items() if not k.endswith("_ms")} | {"speculation": counts})
    return found


@pytest.mark.browser
def test_native_and_page_run_the_same_matrix(bundle, config):
    seen: list[tuple[int, int]] = []
    native = run_native(bundle, config, lambda done, total: seen.append((done, total)))
    page = run_page(bundle, config, BrowserOptions("wasm", timeout_s=120), lambda done, total: None)
    assert "error" not in page and not page["partial"] and not native["partial"]
    assert counted(page) == counted(
        native
    )  # WASM has the native backend's bits: ids, drafts and counts agree
    assert len(native["runs"]) == 6 * len(CONFIGS) and seen[-1] == (6, 6)
    assert sum(run["speculation"]["num_drafted"] for run in native["runs"]) > 20
    assert page["memory"] == native["memory"] and page["prompts"] == native["prompts"]
    for run in [*native["runs"], *page["runs"]]:
        assert 0 < run["first_ms"] <= run["total_ms"] and run["prefill_ms"] < run["total_ms"]
        for name in ("drafted", "evaluated", "accepted"):
            assert sum(run[name]) == run["speculation"][f"num_{name}"], (run["config"], name)


@pytest.mark.browser
def test_scheduled_runs_tell_the_costs_they_were_chosen_by(bundle, config):
    scheduled = config | {"configs": make_configs([1], ["chain"], [3], [], ["break_even"]), "pairs": 1}
    native = run_native(bundle, scheduled, lambda done, total: None)
    page = run_page(bundle, scheduled, BrowserOptions("wasm", timeout_s=120), lambda done, total: None)
    assert native["costs"]["how"] == page["costs"]["how"] == "measured at load"
    assert all(ms > 0 for raw in (native, page) for ms in raw["costs"]["verify"].values())


@pytest.mark.browser
def test_ctrl_c_leaves_what_the_page_has(bundle, config):
    stopped: list[float] = []

    def stop(done: int, total: int) -> None:
        if done and not stopped:  # a look may find several turns done
            stopped.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)

    page = run_page(bundle, config | {"pairs": 5000}, BrowserOptions("wasm", timeout_s=120), stop)
    assert time.monotonic() - stopped[0] < 60, "it was the time limit that ended it"
    turns = {run["turn"] for run in page["runs"]}
    assert page["partial"] and "error" not in page
    assert 1 <= len(turns) < 10000 and len(page["runs"]) == len(turns) * len(CONFIGS)


@pytest.mark.browser
def test_a_packed_site_runs_anywhere(folder, tiny_bundle, tmp_path, capsys):
    command = ["strata", str(tiny_bundle(0, 301)), "--folder", str(folder), "--strata", "json", "--k", "2"]
    command += ["--pack", str(tmp_path / "out"), "--part-mb", "1", "--pairs", "2", "--drafters", "ngram"]
    assert main(command) == 0
    told = json.loads(capsys.readouterr().out)
    packed = b"".join((tmp_path / "out" / name).read_bytes() for name in told["parts"])
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        tar.extractall(tmp_path / "site", filter="data")
    page = told["open"].split("?")[0]
    shorter = [
        config_of(**PLAIN),
        {"name": "other", "options": {"drafter": "ngram", "k": 2, "max_tokens": 3}},
    ]

    async def results(url: str) -> list[dict]:
        asked = ["?limit=1&tokens=9", "?seconds=0", f"?runs={json.dumps(shorter)}"]
        return [
            await page_result(f"{url}{page[1:]}{query}", BrowserOptions("wasm", timeout_s=120))
            for query in asked
        ]

    with running_site(tmp_path / "site" / "bundle", web=tmp_path / "site") as server:
        good, stopped, different = asyncio.run(results(server.url))
    assert "error" not in good and not good["partial"] and good["tokens"] == 9
    assert [run["config"] for run in good["runs"]] == ["plain 1", "ngram k2"]
    assert all(1 <= run["tokens"] <= 9 for run in good["runs"])
    assert stopped["partial"] and stopped["runs"] == []
    assert different["error"]["type"] == "ContractError" and different["partial"]
    assert (
        different["error"]["message"] == 'json-01: "other" differs from "plain 1" at position 3 of the answer'
    )
    saved = tmp_path / "good.json"
    saved.write_text(json.dumps(good))
    assert main(["show", str(saved)]) == 0
    assert "| json | ngram k2 | 1 |" in capsys.readouterr().out


def test_a_difference_of_ids_ends_the_run_and_keeps_what_there_is(bundle, config, monkeypatch):
    right = NativeRun.generate

    def wrong(self, request, **listeners):
        result = right(self, request, **listeners)
        if request["drafter"] == "chain" and request["prompt_ids"] == config["prompts"][2]["prompt_ids"]:
            result["token_ids"][4] += 1
        return result

    monkeypatch.setattr(NativeRun, "generate", wrong)
    raw = run_native(bundle, config, lambda done, total: None)
    assert raw["error"]["type"] == "ContractError" and raw["partial"]
    assert raw["error"]["message"] == 'json-01: "chain k3" differs from "plain 1" at position 4 of the answer'
    assert {run["prompt"] for run in raw["runs"]} == {"chat-01"}
    with pytest.raises(strata_native.ContractError, match="position 2 of"):
        strata_native.check_equal("p", "a", [1, 2], "b", [1, 2, 3])


def test_ctrl_c_leaves_what_the_native_run_has(bundle, config, folder, tmp_path, monkeypatch, capsys):
    def stop(done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    raw = run_native(bundle, config, stop)
    assert raw["partial"] and len(raw["runs"]) == 2 * len(CONFIGS)
    monkeypatch.setattr("specdec_tools.strata_cli._progress", stop)
    saved, drawn, marked = tmp_path / "r.json", tmp_path / "r.svg", tmp_path / "r.md"
    command = ["strata", str(bundle.folder), "--backend", "native", "--folder", str(folder), "--k", "1,2"]
    assert main([*command, "--json", str(saved), "--plot", str(drawn), "--markdown", str(marked)]) == 0
    text = capsys.readouterr().out
    assert "partial: it was stopped" in text and "promote |" not in text
    assert marked.read_text() == text
    report = json.loads(saved.read_text())
    assert report["partial"] and report["summary"]["partial"] and "ambiguity" in drawn.read_text()
    names = [config["name"] for config in report["configs"]]
    assert names == ["plain 1", *(f"{name} k{k}" for name in ("model", "ngram", "chain") for k in (1, 2))]


def test_turns_go_over_strata_and_orders_change():
    prompts = [{"id": f"{stratum}{i}", "stratum": stratum} for stratum in "ab" for i in range(2)]
    assert [turn["id"] for turn in turns_of(prompts, 3)] == ["a0", "b0", "a1", "b1", "a0", "b0"]
    orders = [[config["name"] for config in ordered(CONFIGS, turn)] for turn in range(8)]
    assert orders[1] == orders[0][::-1] and orders[2] != orders[0]
    assert all(sorted(order) == sorted(orders[0]) for order in orders)
    assert {order[0] for order in orders} == set(orders[0])  # each has been first


def test_what_cannot_be_run_is_refused(bundle, folder, tmp_path, capsys):
    configs = tmp_path / "configs.json"
    for text, why in [
        ("{}", "no list"),
        ("[", "cannot be read"),
        ('[{"drafter": "ngram"}]', "no list"),
        ('[{"drafter": "off", "k": 0}]', "twice|no speculative"),
        ('[{"drafter": "ngram", "k": 2}, {"drafter": "ngram", "k": 2}]', "twice"),
    ]:
        configs.write_text(text)
        with pytest.raises(RequestError, match=why):
            read_configs(configs)
    configs.write_text('[{"drafter": "ngram", "k": 2, "rounds": 4, "schedule": "break_even", "new": 1}]')
    plain, fast = read_configs(configs)
    assert (plain["name"], fast["name"]) == ("plain 1", "ngram k2 rounds 4 break_even new 1")
    assert fast["options"]["new"] == 1
    with pytest.raises(RequestError, match="do not fit"):
        page_config(bundle, read_strata(), CONFIGS, 1, 24, {})
    for more in (
        ["--drafters", "magic"],
        ["--strata", "poems"],
        ["--pack", str(tmp_path / "x"), "--json", "y"],
    ):
        assert main(["strata", str(bundle.folder), "--folder", str(folder), *more]) == 2
    assert main(["strata"]) == 2
    assert capsys.readouterr().err.count("RequestError") == 4
    assert set(HEADLINE) < set(STRATA)


def test_sampled_configurations_share_a_seed_and_say_their_mode():
    """Plain runs once, the others in every mode; only those that promise ids are compared."""
    found = sampled(CONFIGS, 0.8, 7, ["coupled", "reject"])
    names = [one["name"] for one in found]
    assert names == [
        "plain 1",
        "plain 4",
        *(f"{d} k3 {m}" for d in ("ngram", "chain") for m in ("coupled", "reject")),
    ]
    assert all((one["options"]["temperature"], one["options"]["seed"]) == (0.8, 7) for one in found)
    expected = references([*CONFIGS[:1], *({**one, "name": f"{one['name']} sampled"} for one in found)])
    assert expected.pop("plain 1") == "plain 1", "greedy ids are compared with greedy ids"
    assert set(expected) == {
        f"{n} sampled" for n in ("plain 1", "plain 4", "ngram k3 coupled", "chain k3 coupled")
    }
    assert set(expected.values()) == {"plain 1 sampled"}
    assert sampled(CONFIGS, 0.0, 7) == CONFIGS
    assert [one["options"].get("mode") for one in sampled(CONFIGS, 0.8, 7)] == [
        None,
        None,
        "coupled",
        "coupled",
    ]


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["--temperature", ".8", "--modes", ","], "no mode is named (--modes)"),
        (["--temperature", ".8", "--modes", "coupled,coupled"], "named twice"),
        (["--temperature", ".8", "--modes", "coupled,best"], "there is no mode best"),
        (["--modes", "block"], "at temperature 0 nothing is drawn (--modes)"),
    ],
)
def test_modes_that_say_nothing_are_refused(bundle, folder, capsys, more, why):
    command = ["strata", str(bundle.folder), "--backend", "native", "--folder", str(folder), "--pairs", "1"]
    assert main([*command, *more]) == 2
    told = capsys.readouterr().err
    assert told.startswith("RequestError: ") and why in told
