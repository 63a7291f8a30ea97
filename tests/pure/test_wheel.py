"""The wheel: valid, pure, complete, and the same bytes wherever it is built."""

import base64
import csv
import hashlib
import io
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

RUNTIME = Path(__file__).parents[2] / "runtime_py"
NAME = "specdec_runtime-0.1.0-py3-none-any.whl"


def build(out: Path, source: Path = RUNTIME) -> bytes:
    command = [sys.executable, str(source / "build_wheel.py"), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=out.parent)
    assert done.stdout.strip() == str(out / NAME)
    return (out / NAME).read_bytes()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> bytes:
    return build(tmp_path_factory.mktemp("wheel") / "out")


def test_same_bytes_from_a_touched_copy_elsewhere(wheel, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(RUNTIME, copy, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for path in copy.rglob("*.py"):
        os.utime(path, (1, 1))
        path.chmod(0o600)
    (copy / "specdec_runtime" / "plan" / "notes.txt").write_text("not a module")
    assert build(tmp_path / "out", copy) == wheel


def test_record_is_right_and_complete(wheel):
    archive = zipfile.ZipFile(io.BytesIO(wheel))
    assert archive.testzip() is None
    names = archive.namelist()
    rows = list(csv.reader(io.StringIO(archive.read("specdec_runtime-0.1.0.dist-info/RECORD").decode())))
    assert [row[0] for row in rows] == names
    for name, digest, size in rows[:-1]:
        data = archive.read(name)
        encoded = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        assert (digest, int(size)) == (f"sha256={encoded}", len(data))
    sources = {path.relative_to(RUNTIME).as_posix() for path in (RUNTIME / "specdec_runtime").rglob("*.py")}
    assert {name for name in names if ".dist-info/" not in name} == sources


def test_the_decode_core_runs_from_the_wheel_alone(wheel, tmp_path):
    """As in the browser: nothing but the standard library and the wheel on the path."""
    path = tmp_path / NAME
    path.write_bytes(wheel)
    code = "import sys; sys.path.insert(0, sys.argv[1]); from specdec_runtime.worker import Engine; print(Engine('{}').ready())"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, str(path)], capture_output=True, text=True, check=True
    )
    assert "ArtifactError" in done.stdout


def test_a_version_that_disagrees_is_refused(tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(RUNTIME, copy, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    init = copy / "specdec_runtime" / "__init__.py"
    init.write_text(init.read_text().replace("0.1.0", "0.2.0"))
    command = [sys.executable, str(copy / "build_wheel.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0 and "0.1.0" in done.stderr


def test_pip_builds_and_installs_it(wheel, tmp_path):
    """Any PEP 517 front end gives the same file, with no network."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    offline = ["--no-index", "--no-deps", "--quiet"]
    subprocess.run(
        [*pip, "wheel", *offline, "-w", str(tmp_path), str(RUNTIME)], check=True, capture_output=True
    )
    assert (tmp_path / NAME).read_bytes() == wheel
    target = tmp_path / "site"
    subprocess.run(
        [*pip, "install", *offline, "--target", str(target), str(tmp_path / NAME)],
        check=True,
        capture_output=True,
    )
    assert (target / "specdec_runtime" / "worker.py").is_file()
