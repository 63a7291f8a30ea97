"""specdec-bench: what is packed for a machine elsewhere is complete, and a saved result becomes a table."""

import json

import pytest
from specdec_runtime.plan import load_plan
from specdec_tools import bench_kernels
from specdec_tools.bench import COLUMNS, main
from specdec_tools.bench_rows import table


def test_a_packed_folder_is_complete(tiny_bundle, tmp_path, capsys):
    bundle = tiny_bundle(0, 301)
    assert main(["pack", str(bundle), "-o", str(tmp_path)]) == 0
    page, _, query = capsys.readouterr().out.strip().partition("?")
    assert (tmp_path / page).is_file()
    plan, wgsl = (part.partition("=")[2].lstrip("/") for part in query.split("&"))
    assert load_plan((tmp_path / plan).read_bytes()).target("gpu").kernels
    assert (tmp_path / wgsl).stat().st_size > 0
    for path in ("executor/webgpu.js", "shaders/bench_fill.wgsl", "shaders/bench_read.wgsl"):
        assert (tmp_path / path).is_file()


def test_an_unknown_shape_is_refused(tmp_path, capsys):
    assert main(["pack", "13B", "-o", str(tmp_path / "out")]) == 2
    assert "RequestError" in capsys.readouterr().err


def test_a_saved_result_is_shown(tmp_path, capsys):
    result = {
        "name": "shape-x",
        "adapter": "some gpu",
        "resident_bytes": 2e9,
        "read": {"gb_per_s": 1000.0},
        "floor_us": 2.5,
        "passes": [
            {"program": "target.verify_1", "width": 1, "dispatches": 10, "ms": 2.0, "weight_bytes": 1e9}
        ],
        "rounds": [{"name": "plain", "ms": 2.5}],
        "kernels": [{"program": "target.verify_1", "kernel": "linear_m1", "count": 3, "us": 4.5}],
    }
    path = tmp_path / "result.json"
    path.write_text(json.dumps(result))
    assert main(["show", str(path)]) == 0
    out = capsys.readouterr().out
    assert "| target.verify_1 | 1 | 10 | 2.000 | 500 | 50% |" in out
    assert "linear_m1" in out and "plain" in out
    assert main(["show", str(path), "--plot", str(tmp_path / "a.svg")]) == 0
    drawn = (tmp_path / "a.svg").read_text()
    assert "target.verify_1" in drawn and ">2.5</text>" in drawn


def test_a_report_of_run_is_shown_and_drawn(tmp_path, capsys):
    values = {key: None for key, _ in COLUMNS} | {"tokens_per_s": 100.0, "prefill_tokens_per_s": 250.0}
    rows = [{**values, "backend": backend, "drafter": "off"} for backend in ("native", "wasm")]
    path = tmp_path / "run.json"
    path.write_text(json.dumps({"devices": {}, "rows": rows}))
    assert main(["show", str(path), "--plot", str(tmp_path / "b.svg")]) == 0
    assert "| wasm | off | 100.0 | 250.0 |" in capsys.readouterr().out
    drawn = (tmp_path / "b.svg").read_text()
    assert drawn.count(">native, off</text>") == 2 and drawn.count(">250</text>") == 2


@pytest.mark.browser
def test_rows_are_timed_by_backend_threads_and_width(tiny_bundle, capsys):
    bundle = str(tiny_bundle(0, 301))
    assert main(["rows", bundle, "--threads", "1,2", "--rounds", "2", "--start", "40", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    groups = {(row["backend"], row["threads"]) for row in rows}
    assert groups == {("native", 1), ("wasm", 1), ("wasm", 2)}
    assert [row["rows"] for row in rows if row["backend"] == "native"] == [1, 2, 4, 8, 32]
    assert all(row["median_ms"] >= row["least_ms"] > 0 for row in rows if row["backend"] == "native")
    text = table({"rows": rows})
    assert text.count("\n") == 4 and "| wasm | 2 |" in text and "verify_8, 8 rows" in text


@pytest.mark.browser
def test_a_run_says_what_the_renderer_holds(tiny_bundle, capsys):
    command = ["run", str(tiny_bundle(0, 301)), "--rounds", "1", "--max-tokens", "4", "--threads", "2"]
    assert main([*command, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["devices"]["wasm"]["threads"] == 2
    assert 50 < report["memory"]["pss_mib"] < 450


def _kernel(width: int, us: float) -> dict:
    params = {"eps": "1e-05", "fmt": "q4", "k": 576, "m": width, "n": 960}
    name = f"linear_eps1e_05_fmtq4_k576_m{width}_n960"
    return {
        "kernel": name,
        "width": width,
        "params": params,
        "us": us,
        "bytes": 400_000,
        "program": "p",
        "count": 1,
    }


def test_kernels_are_one_line_each_over_all_widths(tmp_path):
    result = {
        "name": "x",
        "adapter": "gpu",
        "options": {"start": 7},
        "read": {"gb_per_s": 400.0},
        "floor_us": 2.5,
        "kernels": [_kernel(1, 4.0), _kernel(8, 6.0), _kernel(32, 20.0)],
    }
    lines = bench_kernels.table(result).splitlines()
    assert lines[0] == "x on gpu, position 7: read 400 GB/s, 2.5 us an empty dependent dispatch"
    assert lines[-1] == "| linear n=960 k=576 fmt=q4 | 0.4 | 4.0 | 6.0 | 20.0 | 100 | 25% | 1.50 |"
    assert [chart.title for chart in bench_kernels.charts(result)] == [
        f"x: kernels at {n} rows" for n in (1, 8, 32)
    ]


@pytest.mark.browser
def test_kernels_are_measured_at_every_width(tiny_bundle, tmp_path, capsys):
    command = [
        "kernels",
        str(tiny_bundle(0, 301)),
        "--adapter",
        "swiftshader",
        "--context",
        "64",
        "--start",
        "20",
    ]
    assert main([*command, "--plot", str(tmp_path / "k.svg")]) == 0
    text = capsys.readouterr().out
    assert "| qkv_rope" in text and "| attention_split" in text and "32 rows, us" in text
    assert "kernels at 8 rows" in (tmp_path / "k.svg").read_text()
