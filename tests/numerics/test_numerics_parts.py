"""What a page sent for specdec-numerics, read back: parts and logs, damaged, incomplete or of something else; and samples."""

import base64
import hashlib
import json

import numpy as np
import pytest
from specdec_runtime.bundle import open_bundle
from specdec_runtime.faults import ArtifactError, ContractError, DeviceFault, RequestError
from specdec_tools import numerics
from specdec_tools.numerics_parts import PartRows, choice, read_files
from specdec_tools.numerics_texts import TEXTS, Sample, TextRun, own_runs, sampled_runs
from specdec_tools.text import BundleText

RUNS = [TextRun("a", False, [5, 6, 7, 8], 2), TextRun("b", False, [5, 6, 9], 0)]


def part(index: int, payload: bytes) -> bytes:
    about = {
        "format": "specdec-rows",
        "part": index,
        "bytes": len(payload),
        "sha256": hashlib.sha256(payload).hexdigest(),
    }
    return json.dumps(about, separators=(",", ":")).encode() + b"\n" + payload


@pytest.fixture
def bundle(tiny_bundle):
    return open_bundle(tiny_bundle(0, 384))


@pytest.fixture
def logits() -> np.ndarray:
    return np.random.RandomState(3).standard_normal((5, 384)).astype(np.float32)


def parts_of(bundle, logits: np.ndarray, **changes) -> list[bytes]:
    """Part 0, then two rows, then three."""
    ids = bundle.plan.ids
    device = {"backend": "webgpu", "adapter": "an adapter", "browser": "a browser"}
    head = {
        "choice": choice(RUNS)["choice"],
        "kernels": ids.kernels,
        "weights": ids.weights,
        "device": device,
    }
    payloads = [json.dumps(head | changes).encode(), logits[:2].tobytes(), logits[2:].tobytes()]
    return [part(i, payload) for i, payload in enumerate(payloads)]


def check_rows(source: PartRows, logits: np.ndarray) -> None:
    found = [source.rows(run.ids, run.first) for run in RUNS]
    assert np.array_equal(np.concatenate(found).view(np.uint32), logits.view(np.uint32))
    assert source.device["adapter"] == "an adapter"


def test_parts_end_to_end_are_read(bundle, logits, tmp_path):
    logits[0, 0] = -0.0  # bits, not values
    parts = parts_of(bundle, logits)
    whole = b"".join(parts)
    files = [tmp_path / "one", tmp_path / "two"]
    files[0].write_bytes(whole[:1000])  # cut anywhere
    files[1].write_bytes(whole[1000:])
    check_rows(PartRows(bundle, RUNS, read_files(files), "files"), logits)
    files[1].write_bytes(parts[2] + parts[1] + parts[0])
    check_rows(PartRows(bundle, RUNS, read_files(files[1:]), "files"), logits)
    with pytest.raises(ContractError):
        PartRows(bundle, RUNS, parts, "parts").rows([5, 6, 7, 8], 1)


def test_a_log_is_read_among_other_lines(bundle, logits, tmp_path):
    lines = [
        f"specdec-rows {i} {base64.b64encode(p).decode()}" for i, p in enumerate(parts_of(bundle, logits))
    ]
    log = tmp_path / "log"
    log.write_text("starting\n\n" + "\n\nnoise\n".join(lines) + '\r\n{"parts": 3}\n')
    check_rows(PartRows(bundle, RUNS, read_files([log]), "log"), logits)
    log.write_text("\n".join([lines[0], lines[1][:-3], lines[2]]))
    with pytest.raises(ArtifactError, match="no base64"):
        list(read_files([log]))
    log.write_text("\n".join([lines[0], lines[1][:-40], lines[2]]))
    with pytest.raises(ArtifactError, match="part 1 is damaged or cut off"):
        PartRows(bundle, RUNS, read_files([log]), "log")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda p: [p[0], p[1]], "3072 bytes of logits, 5 rows of 384 need 7680"),
        (lambda p: [p[0], p[2]], "part 1 is missing"),
        (lambda p: p[1:], "part 0 is missing"),
        (lambda p: [], "part 0 is missing"),
        (lambda p: [*p, p[2]], "part 2 comes twice"),
        (lambda p: [p[0], p[1][:-1] + b"?", p[2]], "part 1 is damaged"),
        (lambda p: [p[0], p[1][:-1], p[2]], "part 1 is damaged"),
        (lambda p: [*p, part(3, b"\0" * 4)], "7684 bytes of logits"),
        (lambda p: [part(0, b"[]"), *p[1:]], "part 0 does not say"),
        (lambda p: [p[0], b"{}\n", p[2]], "no part of logits begins"),
    ],
)
def test_damaged_parts_are_refused(bundle, logits, damage, message):
    with pytest.raises(ArtifactError, match=message):
        PartRows(bundle, RUNS, damage(parts_of(bundle, logits)), "parts")


@pytest.mark.parametrize("name", ["choice", "kernels", "weights"])
def test_rows_of_something_else_are_refused(bundle, logits, name):
    with pytest.raises(RequestError, match=f"of another {name}"):
        PartRows(bundle, RUNS, parts_of(bundle, logits, **{name: "0" * 64}), "parts")


def test_rows_that_are_not_finite_are_refused(bundle, logits):
    logits[4, 383] = np.nan
    with pytest.raises(DeviceFault, match="not finite"):
        PartRows(bundle, RUNS, parts_of(bundle, logits), "parts")


def test_bad_files_and_options_on_the_command_line(tiny_bundle, tmp_path, capsys):
    folder = tiny_bundle(0, 384)
    command = [str(folder), "--recipe", str(folder.parent / "recipe.toml"), "--texts", str(texts(tmp_path))]
    command += ["--positions", "16", "--own", "4", "--backend", "webgpu", "--json"]
    bad = tmp_path / "bad"
    bad.write_text("no parts\n")
    wrong = [
        (["--rows", str(bad)], "ArtifactError", "no parts of logits"),
        (["--rows", str(tmp_path / "none")], "ArtifactError", "cannot be read"),
        (["--rows", str(bad), "--pack", str(tmp_path)], "RequestError", "--pack makes"),
        (["--rows", str(bad), "--backend", "wasm"], "RequestError", "for WebGPU"),
        (["--last", "65"], "RequestError", "a list has 64 ids"),
        (["--window", "513"], "RequestError", "the context has 512"),
    ]
    for more, kind, message in wrong:
        assert numerics.main([*command, *more]) in (2, 3)
        error = json.loads(capsys.readouterr().out)["error"]
        assert error["type"] == kind and message in error["message"], error


def texts(folder):
    """Two files and two stored answers of any tiny champion."""
    folder = folder / "texts"
    folder.mkdir()
    (folder / "one.txt").write_text("The lamp turns once in nine seconds, and the keeper counts. " * 8)
    (folder / "two.txt").write_text("def turn(lamp): return lamp.angle + 40  # degrees a second\n" * 8)
    (folder / "prompts.json").write_text('["Hi", "Again"]')
    return folder


def test_a_sample_has_the_last_rows_of_windows(bundle):
    text = BundleText.open(bundle.folder, bundle.plan.text, True)
    files = len(list(TEXTS.glob("*.txt")))
    sample = Sample(8, 64)
    few = sampled_runs(text, TEXTS, 50, sample)
    assert len({run.group for run in few}) == len(few) == 7  # spread over the files, one of each
    assert few[0].group[0] < few[-1].group[0]
    assert all(run.num_rows == 8 and len(run.ids) == 64 for run in few)
    more = sampled_runs(text, TEXTS, 8 * (files + 3), sample)
    assert len(more) == files + 3
    assert len({run.group for run in more}) == files
    assert len({tuple(run.ids) for run in more}) == files + 3
    everything = sampled_runs(text, TEXTS, None, sample)
    assert len(everything) > 5 * files
    assert len(sampled_runs(text, TEXTS, 10**6, sample)) == len(everything)


def test_a_sample_of_own_answers_is_cut_to_the_window(bundle, tmp_path):
    text = BundleText.open(bundle.folder, bundle.plan.text, True)
    folder = texts(tmp_path)
    long = own_runs(text, folder, "c", 512, None, lambda ids, most: list(range(5, 85)))
    answer = lambda ids, most: list(range(5, 85))  # noqa: E731
    short = own_runs(text, folder, "c", 512, None, answer, Sample(8, 64))
    for whole, run in zip(long, short, strict=True):
        assert run.num_rows == 8
        assert run.ids == whole.ids[: len(run.ids)]
        assert len(run.ids) == max(64, whole.first + 8 + 1) - 1
        assert run.first > whole.first - 1
    assert len(own_runs(text, folder, "c", 512, 8, answer, Sample(8, 64))) == 1
    tiny = own_runs(text, folder, "c", 512, None, lambda ids, most: [2], Sample(8, 64))
    assert [run.num_rows for run in tiny] == [1, 1]  # no row of the question
