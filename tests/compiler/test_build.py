"""Building bundles: the same bytes every time, nothing of others deleted, nothing half-written, typed errors, a damaged cache."""

from __future__ import annotations

import filecmp
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from specdec_compiler.build import build_bundle
from specdec_compiler.cli import main
from specdec_compiler.tiny import make_tiny
from specdec_runtime.bundle import open_bundle
from specdec_runtime.faults import ArtifactError


def quiet(what: str, done: int, total: int) -> None:
    """No progress."""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recipe")
    make_tiny(folder, 5, 384)
    return folder / "recipe.toml"


def same_tree(a: Path, b: Path) -> bool:
    names = sorted(path.relative_to(a) for path in a.rglob("*") if path.is_file())
    others = sorted(path.relative_to(b) for path in b.rglob("*") if path.is_file())
    return names == others and all(filecmp.cmp(a / name, b / name, shallow=False) for name in names)


def leftovers(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


def test_two_builds_give_the_same_bytes(recipe, tmp_path, monkeypatch) -> None:
    build_bundle(recipe, tmp_path / "a", quiet)
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / "fresh"))  # the second compiles everything anew
    build_bundle(recipe, tmp_path / "b", quiet)
    assert same_tree(tmp_path / "a", tmp_path / "b")
    assert open_bundle(tmp_path / "a").verify() > 0


def test_a_bundle_is_replaced_through_a_link_too(recipe, tmp_path) -> None:
    build_bundle(recipe, tmp_path / "real", quiet)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    build_bundle(recipe, tmp_path / "link", quiet)
    assert (tmp_path / "link").is_symlink() and open_bundle(tmp_path / "real")
    assert not leftovers(tmp_path)


@pytest.mark.parametrize(
    "manifest", ['{"name": "my web app"}', "no json", '{"format": "specdec-bundle", "files": []}']
)
def test_folders_of_others_are_left_alone(recipe, tmp_path, manifest) -> None:
    app = tmp_path / "webapp"
    (app / "src").mkdir(parents=True)
    (app / "src" / "main.js").write_text("precious")
    (app / "manifest.json").write_text(manifest)
    with pytest.raises(ArtifactError, match="no bundle"):
        build_bundle(recipe, app, quiet)
    assert (app / "src" / "main.js").read_text() == "precious"


def test_a_stranger_in_a_bundle_is_not_deleted(recipe, tmp_path) -> None:
    build_bundle(recipe, tmp_path / "b", quiet)
    (tmp_path / "b" / "notes.txt").write_text("mine")
    with pytest.raises(ArtifactError, match="no bundle"):
        build_bundle(recipe, tmp_path / "b", quiet)
    assert (tmp_path / "b" / "notes.txt").read_text() == "mine"


def test_destinations_that_cannot_be(recipe, tmp_path, monkeypatch, capsys) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.chdir(tmp_path)
    for destination in (".", "file", "file/bundle"):
        assert main(["build", str(recipe), "-o", destination, "--quiet"]) == 3
        assert capsys.readouterr().err.startswith("ArtifactError: ")
    assert not leftovers(tmp_path)


def test_an_error_leaves_the_old_bundle(recipe, tmp_path) -> None:
    build_bundle(recipe, tmp_path / "b", quiet)
    before = (tmp_path / "b" / "plan.json").read_bytes()

    def fail(what: str, done: int, total: int) -> None:
        if done > total // 2:
            raise ArtifactError("half way", "test", "none")

    with pytest.raises(ArtifactError, match="half way"):
        build_bundle(recipe, tmp_path / "b", fail)
    assert (tmp_path / "b" / "plan.json").read_bytes() == before and not leftovers(tmp_path)


def test_sigterm_leaves_nothing(recipe, tmp_path) -> None:
    environment = {**os.environ, "SPECDEC_CACHE": str(tmp_path / "cache")}  # empty: the build takes seconds
    command = [
        sys.executable,
        "-m",
        "specdec_compiler.cli",
        "build",
        str(recipe),
        "-o",
        str(tmp_path / "b"),
        "--quiet",
    ]
    process = subprocess.Popen(command, env=environment)
    limit = time.monotonic() + 60
    while not leftovers(tmp_path) and time.monotonic() < limit:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143
    assert not leftovers(tmp_path) and not (tmp_path / "b").exists()


def test_a_damaged_cache_is_made_again(recipe, tmp_path, monkeypatch) -> None:
    from specdec_compiler.native import open_backend

    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / "cache"))
    build_bundle(recipe, tmp_path / "a", quiet)
    open_backend(tmp_path / "a").close()
    for kind in ("lowered", "native"):
        (path,) = (tmp_path / "cache" / kind).iterdir()
        data = path.read_bytes()
        path.unlink()  # a new file: this process has the old one mapped
        path.write_bytes(data[: len(data) // 2])
    build_bundle(recipe, tmp_path / "b", quiet)
    open_backend(tmp_path / "b").close()
    assert same_tree(tmp_path / "a", tmp_path / "b")


def test_a_cache_that_cannot_be_written(recipe, tmp_path, monkeypatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / "file"))
    with pytest.raises(ArtifactError, match="compile cache"):
        build_bundle(recipe, tmp_path / "b", quiet)
    assert not (tmp_path / "b").exists()


def _edited(tmp_path: Path, name: str, **changes: object) -> Path:
    """A tiny recipe whose champion's JSON file has other values."""
    make_tiny(tmp_path, 6, 384)
    path = tmp_path / "champion" / name
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return tmp_path / "recipe.toml"


def test_a_template_that_is_none(tmp_path) -> None:
    recipe = _edited(tmp_path, "tokenizer_config.json", chat_template="{% for x %}")
    with pytest.raises(ArtifactError, match="template"):
        build_bundle(recipe, tmp_path / "b", quiet)


def test_sizes_without_kernels(tmp_path) -> None:
    recipe = _edited(tmp_path, "config.json", head_dim=24)
    with pytest.raises(ArtifactError):
        build_bundle(recipe, tmp_path / "b", quiet)


def test_source_paths_that_cannot_be(recipe, tmp_path) -> None:
    text = recipe.read_text().replace('source = "champion"', 'source = "~nobody-of-that-name/x.gguf"')
    (tmp_path / "r.toml").write_text(text)
    with pytest.raises(ArtifactError, match="source"):
        build_bundle(tmp_path / "r.toml", tmp_path / "b", quiet)


@pytest.mark.parametrize("phase", ["import", "fuse", "target", "memory", "kernels"])
def test_dump(recipe, capsys, phase) -> None:
    assert main(["dump", str(recipe), "--phase", phase, "--program", "draft.step_1"]) == 0
    assert "R.function" in capsys.readouterr().out or phase == "kernels"


def test_dump_of_nothing(recipe, capsys) -> None:
    assert main(["dump", str(recipe), "--phase", "nonsense"]) == 2
    assert main(["dump", str(recipe), "--phase", "fuse", "--program", "nonsense"]) == 2
    assert "RequestError" in capsys.readouterr().err
