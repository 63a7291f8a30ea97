"""Logits of the WebGPU kernels (SwiftShader) through web/bench/logits.html: near the oracle's, and the same bits whether the page
runs under specdec-numerics or is packed, served elsewhere and its log read back.

GPU activations are 8-bit groups of 16 and KV is f16, where the oracle is float32: of a group's largest value, a code is off by up to
1/254. The bounds are some ten times what was seen. A row shifted by one, or another model's, gives a KL of 0.1 and more.
"""

import asyncio
import functools
import json
import shutil
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from llama_numpy import LlamaNumpy
from specdec_compiler.build import open_models
from specdec_compiler.recipe import read_recipe
from specdec_runtime.bundle import open_bundle
from specdec_runtime.faults import ArtifactError, DeviceFault
from specdec_tools import numerics
from specdec_tools.browser import BrowserOptions, browser_running
from specdec_tools.numerics_metrics import kl_divergence
from specdec_tools.numerics_parts import PartRows, read_files
from specdec_tools.numerics_texts import TextRun
from specdec_tools.numerics_webgpu import browser_rows, pack
from specdec_tools.serve import SiteServer

pytestmark = pytest.mark.browser
OPTIONS = BrowserOptions("webgpu", "swiftshader", timeout_s=120)
VOCAB = 301  # padded in the kernels: other columns must not come along
MAX_MEAN_KL = 1e-2
MAX_KL = 5e-2


def lists() -> list[TextRun]:
    """Over the page's part (8 rows a pass): whole, ending inside a pass, wanted from inside one, wanted from a pass on."""
    rng = np.random.RandomState(7)
    sizes = [(8, 0), (21, 13), (40, 32), (11, 10)]
    return [TextRun("x", False, rng.randint(0, VOCAB, n).tolist(), first) for n, first in sizes]


def rows_of(source, runs: list[TextRun]) -> np.ndarray:
    return np.concatenate([source.rows(run.ids, run.first) for run in runs])


class Oracle:
    """The float32 model of tests/compiler in the place of PyTorch's."""

    def __init__(self, spec) -> None:
        self._spec = spec

    def rows(self, ids: list[int], first: int = 0) -> np.ndarray:
        return LlamaNumpy(self._spec).extend(ids)[first:].astype(np.float32)


def oracle(folder) -> Oracle:
    return Oracle(open_models(read_recipe(folder.parent / "recipe.toml")).champion)


def run_elsewhere(folder, page: str, log) -> None:
    """What a plain static server that prints posted bodies does, and a browser at the page."""

    class Printer(SimpleHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            with log.open("a") as file:
                print(body, file=file)
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args) -> None:
            pass

    async def watch(url: str) -> dict:
        async with browser_running(OPTIONS) as browser:
            tab = await browser.new_page()
            await tab.goto(url)
            await tab.wait_for_function("window.benchResult", timeout=120_000)
            return await tab.evaluate("window.benchResult")

    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Printer, directory=folder)) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            result = asyncio.run(watch(f"http://127.0.0.1:{server.server_port}/{page}"))
        finally:
            server.shutdown()
            thread.join()
    assert "error" not in result, result


def test_rows_are_near_the_oracle_and_the_same_from_a_packed_page(tiny_bundle, tmp_path):
    folder, runs = tiny_bundle(1, VOCAB), lists()
    bundle, fed = open_bundle(folder), []
    direct = browser_rows(bundle, runs, OPTIONS, fed.append)
    assert "swiftshader" in direct.device["adapter"].lower()
    assert fed[-1] == sum(len(run.ids) for run in runs)
    found, expected = rows_of(direct, runs), rows_of(oracle(folder), runs)
    kl = kl_divergence(expected, found)
    assert found.shape == (8 + 8 + 8 + 1, VOCAB)
    assert 0 < kl.mean() <= MAX_MEAN_KL and kl.max() <= MAX_KL, kl
    assert kl_divergence(expected, np.roll(found, 1, axis=0)).mean() > 10 * MAX_MEAN_KL

    page = pack(runs, tmp_path / "site")
    shutil.copytree(folder, tmp_path / "site" / "bundle")
    log = tmp_path / "log"
    run_elsewhere(tmp_path / "site", page, log)
    again = rows_of(PartRows(bundle, runs, read_files([log]), "log"), runs)
    assert np.array_equal(found.view(np.uint32), again.view(np.uint32))
    log.write_text(log.read_text()[:-6000])  # the end is lost on the way
    with pytest.raises(ArtifactError):
        PartRows(bundle, runs, read_files([log]), "log")


def test_the_report_from_a_log_is_that_of_a_direct_run(tiny_bundle, tmp_path, capsys, monkeypatch):
    folder = tiny_bundle(1, VOCAB)
    texts = tmp_path / "texts"
    texts.mkdir()
    for name in ("one", "two"):
        (texts / f"{name}.txt").write_text(f"Lamp {name} turns once in nine seconds. " * 9)
    (texts / "prompts.json").write_text('["Hi"]')
    monkeypatch.setattr(numerics, "TorchReference", Oracle)
    monkeypatch.setattr(Oracle, "greedy", lambda self, ids, most, eos: [7, 8, 9, 10], raising=False)
    command = [str(folder), "--recipe", str(folder.parent / "recipe.toml"), "--texts", str(texts)]
    command += ["--backend", "webgpu", "--positions", "8", "--own", "4", "--last", "4", "--window", "24"]

    assert numerics.main([*command, "--pack", str(tmp_path / "site")]) == 0
    page, about = capsys.readouterr().out.splitlines()
    assert about.startswith("3 lists, 12 rows")
    shutil.copytree(folder, tmp_path / "site" / "bundle")
    log = tmp_path / "log"
    run_elsewhere(tmp_path / "site", page, log)

    reports = []
    for more in (["--rows", str(log)], ["--adapter", "swiftshader"]):
        status = numerics.main([*command, *more, "--json"])
        reports.append(json.loads(capsys.readouterr().out))
        assert status == (0 if reports[-1]["ok"] else 1)
    given, direct = reports
    assert given["groups"] == direct["groups"] and given["bounds"] == direct["bounds"]
    assert given["judged"] == "webgpu" and given["sample"] == direct["sample"]
    total = next(line for line in given["groups"] if line["group"] == "all")
    assert total["positions"] == 12 and total["native"]["kl_mean"] < total["webgpu"]["kl_mean"] < MAX_MEAN_KL
    assert {line["name"] for line in given["bounds"]} == {"foreign positions", "own positions", "mean KL"}
    assert "swiftshader" in given["device"]["adapter"].lower()
    assert numerics.main([*command, "--rows", str(log), "--adapter", "gpu"]) == 4  # rows of software
    assert numerics.main([*command, "--rows", str(log), "--window", "25"]) == 2  # of other lists
    assert "another choice" in capsys.readouterr().err


def test_the_page_s_errors_keep_their_type(tiny_bundle, monkeypatch):
    bundle = open_bundle(tiny_bundle(1, VOCAB))
    with pytest.raises(DeviceFault, match="stood still"):
        browser_rows(bundle, lists(), BrowserOptions("webgpu", "swiftshader", timeout_s=0), lambda done: None)
    monkeypatch.setattr(SiteServer, "__init__", _without_bundle(SiteServer.__init__))
    with pytest.raises(ArtifactError, match=r"manifest\.json"):
        browser_rows(bundle, lists(), OPTIONS, lambda done: None)


def _without_bundle(original):
    """A server whose bundle has gone."""

    def init(self, address, bundle, **options):
        original(self, address, bundle / "gone", **options)

    return init
