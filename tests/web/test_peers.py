"""The peers' commands without the peers: reports from made-up runs, the packed folder, the page with our own sides."""

import asyncio
import io
import json
import tarfile

import pytest
from specdec_runtime.bundle import open_bundle
from specdec_runtime.faults import DeviceFault, RequestError
from specdec_tools.bench import main
from specdec_tools.bench_gpu import page_result
from specdec_tools.browser import BrowserOptions
from specdec_tools.peers import cpu, export, gpu, install
from specdec_tools.peers.prompts import TEXT, prompt_of
from specdec_tools.peers.sides import About, Run, pss_of
from specdec_tools.serve import running_site
from specdec_tools.text import BundleText


def run_of(first_ms: float, total_ms: float, ids=(1, 2, 3, 4, 5)) -> Run:
    return Run(list(ids), 1, first_ms, total_ms)


def test_rates_count_from_the_first_id():
    one = run_of(500, 700)
    assert one.decode_rate == pytest.approx(4 / 0.2)
    assert one.prefill_rate(100) == pytest.approx(200)
    assert Run([1, 2, 3, 4, 5], 3, 500, 700).decode_rate == pytest.approx(2 / 0.2)  # a drafted first cycle


ABOUTS = [About("ours", 1), About("wllama", 1), About("wllama", 2)]
RUNS = [
    [run_of(100, 200), run_of(200, 400), run_of(100, 300)],  # decode 40, 20, 20
    [run_of(400, 800, (1, 2, 9)), run_of(400, 900, (1, 2, 9)), run_of(500, 900, (1, 2, 9))],  # 5, 4, 5
    [run_of(300, 500), run_of(300, 500), run_of(300, 500)],
]


def test_rows_have_medians_and_paired_ratios():
    ours, one, two = cpu.rows(ABOUTS, RUNS, [10_000_000, 20_000_000, 30_000_000], 10)
    assert ours == {
        "side": "ours",
        "threads": 1,
        "decode_tokens_per_s": 20.0,
        "decode_range": [20.0, 40.0],
        "prefill_tokens_per_s": 100.0,
        "first_token_ms": 100,
        "pss_mb": 10.0,
        "ids": [1, 2, 3, 4, 5],
    }
    assert one["ours_over_it_decode"] == 5.0  # of 8, 5, 4: by round, not of medians
    assert one["ours_over_it_prefill"] == 4.0  # of 4, 2, 5
    assert one["equal_leading_ids"] == 2
    assert "ours_over_it_decode" not in two  # ours was not run with two threads


def test_a_side_without_its_threads_is_left_out_and_noted():
    abouts = [About("ours", 1, {"threads": 1}), About("ours", 2, {"threads": 1}), About("llama.cpp", 2)]
    kept, notes = cpu.split_by_threads(abouts)
    assert kept == [abouts[0], abouts[2]]
    assert notes == ["ours: asked for 2 threads, it has 1: not measured"]


class FakeSide:
    """Answers with given runs and notes the order of calls."""

    def __init__(self, about: About, runs: list[Run], calls: list[str]) -> None:
        self.about, self.runs, self.calls = about, list(runs), calls

    async def run(self, prompt_ids: list[int], tokens: int) -> Run:
        self.calls.append(self.about.name)
        return self.runs.pop(0)

    async def pss_bytes(self) -> int:
        return 5_000_000


def test_rounds_are_interleaved_and_the_first_is_thrown_away(capsys):
    calls: list[str] = []
    warm = run_of(1, 2)
    ours = FakeSide(About("ours", 1), [warm, *RUNS[0]], calls)
    other = FakeSide(About("wllama", 1), [warm, *RUNS[1]], calls)
    report = asyncio.run(cpu.measure([ours, other], [7] * 10, 5, 3))
    assert calls == ["ours", "wllama"] * 4
    assert [row["decode_tokens_per_s"] for row in report["rows"]] == [20.0, 5.0]
    lines = cpu.table(report).splitlines()
    assert lines[2] == "| ours | 1 | 20.0 | 100.0 | 100 | 5.0 |  |  |  |"
    assert lines[3] == "| wllama | 1 | 5.0 | 25.0 | 400 | 5.0 | 5.0 | 4.0 | 2 |"
    assert [bar.value for bar in cpu.charts(report)[0].bars] == [20.0, 5.0]
    assert cpu.charts(report)[0].bars[0].high == 40.0


PAGE_RESULT = {
    "about": {"ours": {"adapter": "x"}, "transformers-q4": {"dtype": "q4"}},
    "prompts": [
        {
            "prompt_tokens": 32,
            "sides": {
                "ours": {"decode_tokens_per_s": 300, "prefill_tokens_per_s": 900, "ttft_ms": 35.5},
                "transformers-q4": {
                    "decode_tokens_per_s": 100,
                    "prefill_tokens_per_s": 1800,
                    "ttft_ms": 17.8,
                },
            },
            "ratios": [{"against": "transformers-q4", "decode": 3, "prefill": 0.5, "equal_leading_ids": 7}],
        }
    ],
}


def test_a_saved_page_result_is_shown_and_drawn(tmp_path, capsys):
    saved, drawn = tmp_path / "r.json", tmp_path / "r.svg"
    saved.write_text(json.dumps(PAGE_RESULT))
    assert main(["show", str(saved), "--plot", str(drawn)]) == 0
    out = capsys.readouterr().out
    assert "| 32 | ours | 300.0 | 900.0 | 35.5 |  |  |  |" in out
    assert "| 32 | transformers-q4 | 100.0 | 1800.0 | 17.8 | 3.00 | 0.50 | 7 |" in out
    assert drawn.read_text().count('height="18"') == 4


def test_parts_have_the_limit_and_lose_nothing(tmp_path):
    parts = gpu.Parts(tmp_path / "out", 10)
    for data in (b"abc", b"d" * 17, b"", b"e" * 10):
        assert parts.write(data) == len(data)
    assert parts.names == ["p1", "p2", "p3"] and parts.sizes == [10, 10, 10]
    joined = b"".join((tmp_path / "out" / name).read_bytes() for name in parts.names)
    assert joined == b"abc" + b"d" * 17 + b"e" * 10


def test_the_packed_folder_has_what_the_page_needs(tiny_bundle, tmp_path):
    bundle = open_bundle(tiny_bundle(0, 301))
    fake = tmp_path / "fake.js"
    fake.write_text("// a peer\n")
    names = gpu.pack(bundle, {"transformers.min.js": fake}, [5, 9], tmp_path / "out", 1_000_000)
    packed = b"".join((tmp_path / "out" / name).read_bytes() for name in names)
    assert len(names) > 1 and all(
        (tmp_path / "out" / name).stat().st_size == 1_000_000 for name in names[:-1]
    )
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        tar.extractall(tmp_path / "site", filter="data")
    site = tmp_path / "site"
    for path in ("bench/peer.html", "bench/peer.js", "bench/sides.js", "worker.js", "vendor/pyodide"):
        assert (site / path).exists(), path
    assert open_bundle(site / "bundle").verify() > 0
    assert (site / "peer" / "transformers.min.js").read_text() == "// a peer\n"
    prompts = json.loads((site / "peer" / "prompts.json").read_text())
    assert [len(each["prompt_ids"]) for each in prompts] == [5, 9]
    with pytest.raises(RequestError, match="not empty"):
        gpu.pack(bundle, {}, [5], tmp_path / "out", 1_000_000)


def test_the_page_compares_sides_and_finds_equal_ids(tiny_bundle, tmp_path):
    bundle = open_bundle(tiny_bundle(0, 301))
    gpu.write_site(bundle, {}, [6], tmp_path / "site")
    with running_site(tmp_path / "site" / "bundle", web=tmp_path / "site") as server:
        url = f"{server.url}bench/peer.html?sides=ours,ours-ngram4&backend=wasm&rounds=2&tokens=9"
        result = asyncio.run(page_result(url, BrowserOptions("wasm", timeout_s=120)))
    assert "error" not in result, result
    (prompt,) = result["prompts"]
    plain, fast = (prompt["sides"][name] for name in ("ours", "ours-ngram4"))
    assert plain["ids"] == fast["ids"] and 1 <= len(plain["ids"]) <= 9
    assert len(plain["runs"]) == 2 and all(0 < one["first_ms"] <= one["total_ms"] for one in plain["runs"])
    assert prompt["ratios"][0]["equal_leading_ids"] == len(plain["ids"])
    assert result["about"]["ours"]["backend"] == "wasm"


def test_prompts_are_cut_to_their_length(tiny_bundle):
    bundle = open_bundle(tiny_bundle(0, 301))
    text = BundleText.open(bundle, bundle.plan.text, True)
    assert prompt_of(text, 7) == text.raw_ids(TEXT)[:7]
    with pytest.raises(RequestError, match="1 prompt tokens"):
        prompt_of(text, 1)


def test_the_config_that_peers_read_is_a_llama_of_the_same_sizes(tiny_bundle):
    from specdec_compiler.sources import ModelConfig

    sizes = {"vocab_size": 99, "hidden": 32, "ffn": 64, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2}
    more = {"head_dim": 8, "rope_theta": 1e5, "norm_eps": 1e-5, "context": 128, "tied_embedding": True}
    config = export.config_json(ModelConfig("llama", "m", **sizes, **more), (2,))
    assert (config["hidden_size"], config["num_key_value_heads"], config["head_dim"]) == (32, 2, 8)
    assert config["rope_theta"] == 1e5 and config["tie_word_embeddings"] is True
    with pytest.raises(RequestError, match="gpt2"):
        export.config_json(ModelConfig("gpt2", "m", **sizes, **more), (2,))


def test_an_installed_peer_is_found_and_a_failing_install_is_a_fault(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path))
    commands = []
    monkeypatch.setattr(install, "call", lambda command, *_a, **_k: commands.append(command) or "")
    monkeypatch.setattr(install.venv, "create", lambda folder, **_: folder.mkdir(parents=True))
    first = install.python_peer("kind", ("a==1",), "note")
    assert install.python_peer("kind", ("a==1",), "note") == first and len(commands) == 1
    assert commands[0][-1] == "a==1" and install.python_peer("kind", ("a==2",), "note") != first
    monkeypatch.undo()
    with pytest.raises(DeviceFault, match="exit status 3"):
        install.call(["python3", "-c", "raise SystemExit(3)"], "install")


def test_memory_is_read_of_a_live_process():
    import os

    assert pss_of(os.getpid()) > 1_000_000


def test_wrong_requests_are_refused(tiny_bundle, tmp_path, capsys):
    bundle = str(tiny_bundle(0, 301))
    for wrong in (["--threads", "0"], ["--rounds", "x"], ["--plot", "a.png"]):
        with pytest.raises(SystemExit):
            main(["peers", bundle, *wrong])
    assert main(["peers", bundle, "--peers", "other"]) == 2
    assert main(["peers-gpu", bundle, "-o", str(tmp_path / "o"), "--plot", "a.svg"]) == 2
    (tmp_path / "x.json").write_text("{}")
    assert main(["show", str(tmp_path / "x.json")]) == 2
    assert "no report" in capsys.readouterr().err
