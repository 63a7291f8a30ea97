"""The gate: a draft of its own is let in only with a manifest that exists, parses, holds, and shows no evaluation prompt."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from draft_folders import EVALUATION, PROMPTS, trained_pair, write_manifest, write_strata
from specdec_compiler.build import build_bundle
from specdec_compiler.cli import main
from specdec_compiler.drafts import evaluation_prompts, write_prompts
from specdec_compiler.drafts.gate import Admission, Gate
from specdec_compiler.drafts.provenance import parse_provenance, read_provenance, write_provenance
from specdec_compiler.drafts.strata import DEFAULT
from specdec_compiler.recipe import read_recipe
from specdec_compiler.tiny import make_tiny
from specdec_runtime.bundle import open_bundle
from specdec_runtime.faults import ArtifactError


@pytest.fixture
def pair(tmp_path) -> Path:
    trained_pair(tmp_path)
    return tmp_path


def admit(folder: Path, **options: Any) -> Admission:
    return Gate(folder / "strata", **options).admit(read_recipe(folder / "recipe.toml"))


def refusal(folder: Path) -> str:
    with pytest.raises(ArtifactError) as error:
        admit(folder)
    return str(error.value)


def test_a_draft_that_is_proven(pair) -> None:
    found = admit(pair)
    assert found.status == "proven"
    assert found.provenance == read_provenance(pair / "trained")[1]
    write_strata(pair / "strata", [("more-01", "another prompt")])
    assert admit(pair).strata != found.strata, "the record says which prompts it was compared with"


def test_drafts_that_need_no_manifest(pair) -> None:
    text = (pair / "recipe.toml").read_text()
    before, _, after = text.partition("[draft]")
    pages = after[after.index("[pages]") :]
    (pair / "recipe.toml").write_text(before + pages)
    assert admit(pair) == Admission("none")
    (pair / "recipe.toml").write_text(before + "[draft]\nfrom_layers = 1\n" + pages)
    assert admit(pair) == Admission("champion")


def test_an_untrained_draft_says_so(tmp_path) -> None:
    make_tiny(tmp_path, 3)
    assert Gate(tmp_path / "nowhere").admit(read_recipe(tmp_path / "recipe.toml")).status == "untrained"


def test_what_is_missing_is_never_fine(pair) -> None:
    (pair / "trained" / "prompts.ngrams").rename(pair / "kept")
    assert "prompts.ngrams, which provenance.json names, cannot be read" in refusal(pair)
    (pair / "kept").rename(pair / "trained" / "prompts.ngrams")
    (pair / "strata").rename(pair / "elsewhere")
    message = refusal(pair)
    assert "no evaluation prompts" in message and str(pair / "strata") in message and "--strata" in message
    (pair / "strata").mkdir()
    (pair / "strata" / "chat.jsonl").write_text("\n")
    assert "no evaluation prompt" in refusal(pair)
    (pair / "trained" / "provenance.json").unlink()
    message = refusal(pair)
    assert "no provenance.json" in message and "--allow-unproven-draft" in message


def test_hashes_must_hold(pair) -> None:
    def appended(path: Path, data: bytes = b" ") -> str:
        before = path.read_bytes()
        path.write_bytes(before + data)
        message = refusal(pair)
        path.write_bytes(before)
        return message

    assert "$.files.config.json" in appended(pair / "trained" / "config.json")
    assert "$.files.model.safetensors" in appended(pair / "trained" / "model.safetensors")
    assert "$.prompts_digest" in appended(pair / "trained" / "prompts.ngrams")
    assert "$.champion.sha256" in appended(pair / "champion" / "config.json")
    assert "$.champion.sha256" in appended(pair / "champion" / "model.safetensors")
    assert admit(pair).status == "proven"


@pytest.mark.parametrize(
    "text",
    [
        EVALUATION[0][1],
        EVALUATION[1][1].upper().replace(",", "").replace(" ", "\n  "),
        "Here is my task.\n\nwrite a function, in RUST, that returns the longest common prefix (of two strings)",
        "name three FRUITS",
    ],
)
@pytest.mark.parametrize("plain", [False, True])
def test_an_evaluation_prompt_among_the_training_prompts(pair, text, plain) -> None:
    prompts = [*PROMPTS, text]
    files = read_provenance(pair / "trained")[0].files
    digest = write_prompts(pair / "trained", prompts, plain=plain)
    write_manifest(pair, files, prompts, prompts_digest=digest)
    message = refusal(pair)
    name = next(name for name, _ in EVALUATION if name.split("-")[0] in message)
    assert f"1 evaluation prompts: {name}: '" in message
    with pytest.raises(ArtifactError, match="evaluation"):
        build_bundle(pair / "recipe.toml", pair / "bundle", lambda *_: None, Gate(pair / "strata"))
    assert not (pair / "bundle").exists()


def test_every_prompt_must_be_in_the_fingerprints(pair) -> None:
    files = read_provenance(pair / "trained")[0].files
    write_manifest(
        pair, files, PROMPTS, prompts_digest=write_prompts(pair / "trained", PROMPTS[:1], plain=True)
    )
    assert "1 texts, but the draft was trained on 2 prompts" in refusal(pair)
    (pair / "trained" / "prompts.jsonl").write_text('"a"\n3\n')
    data = json.loads((pair / "trained" / "provenance.json").read_text())
    data["prompts_digest"]["sha256"] = hashlib.sha256(b'"a"\n3\n').hexdigest()
    (pair / "trained" / "provenance.json").write_text(json.dumps(data))
    assert "line 2 is no JSON string" in refusal(pair)


REMOVE = object()
BAD = [
    ("format", "specdec-plan", r"\$\.format"),
    ("version", 2, r"\$\.version"),
    ("version", True, r"\$\.version"),
    ("version", REMOVE, r"\$\.version"),
    ("champion", REMOVE, r"key is missing.*\$\.champion"),
    ("champion.sha256", "ABC", r"\$\.champion\.sha256"),
    ("champion.name", " ", r"\$\.champion\.name"),
    ("champion.file", "x", r"unknown key.*\$\.champion\.file"),
    ("code_commit", "", r"\$\.code_commit"),
    ("author", "me", r"unknown key.*\$\.author"),
    ("generator.seeds", 3, r"\$\.generator\.seeds"),
    ("generator.seeds", [1, "2"], r"\$\.generator\.seeds\[1\]"),
    ("generator.temperatures", [None], r"\$\.generator\.temperatures\[0\]"),
    ("prompt_sources", [], r"\$\.sample_counts\.prompts"),
    ("prompt_sources.0.kind", "web", r"\$\.prompt_sources\[0\]\.kind"),
    ("prompt_sources.0.count", 0, r"\$\.prompt_sources\[0\]\.count"),
    ("prompt_sources.0.sha256", "0", r"\$\.prompt_sources\[0\]\.sha256"),
    ("prompt_sources.0.url", "x", r"\$\.prompt_sources\[0\]\.url"),
    ("sample_counts.prompts", 3, r"3 prompts, but the sources have 2"),
    ("sample_counts.tokens", -1, r"\$\.sample_counts\.tokens"),
    ("sample_counts.tokens", 1.5, r"\$\.sample_counts\.tokens"),
    ("prompts_digest.file", "../prompts.ngrams", r"\$\.prompts_digest\.file"),
    ("prompts_digest", "0" * 64, r"expected an object.*\$\.prompts_digest"),
    ("training.steps", 0, r"2 prompts and 0 steps"),
    ("training.losses", [], r"\$\.training\.losses"),
    ("training.lr", "1e-3", r"\$\.training\.lr"),
    ("licence", "", r"\$\.licence"),
    ("licence", REMOVE, r"\$\.licence"),
    ("files.config.json", REMOVE, r"config.json is missing.*\$\.files"),
    ("files.more.bin", "0" * 64, r"more.bin is unknown.*\$\.files"),
    ("ablation", [], r"\$\.ablation"),
]


@pytest.mark.parametrize(("path", "value", "found"), BAD)
def test_a_wrong_key_is_named(pair, path, value, found) -> None:
    file = pair / "trained" / "provenance.json"
    data = json.loads(file.read_text())
    at: Any = data
    keys = ["files", path[6:]] if path.startswith("files.") else path.split(".")
    for key in keys[:-1]:
        at = at[int(key) if isinstance(at, list) else key]
    if value is REMOVE:
        del at[keys[-1]]
    else:
        at[keys[-1]] = value
    file.write_text(json.dumps(data))
    with pytest.raises(ArtifactError, match=found):
        admit(pair)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "line 1, column 1"),
        ('{\n"format": }', "line 2, column 11"),
        ("[]", "expected an object"),
        ('{"format": "a", "format": "b"}', "'format' is there twice"),
        ('{"format": NaN}', "NaN"),
        ('{"a": 1e999}', "format"),
    ],
)
def test_what_is_no_manifest(text, found) -> None:
    with pytest.raises(ArtifactError, match=found):
        parse_provenance(text.encode(), "provenance.json")


def test_the_writer_writes_what_the_reader_takes(pair) -> None:
    manifest, digest = read_provenance(pair / "trained")
    assert write_provenance(pair / "trained", manifest) == digest
    for changes in ({"licence": ""}, {"ablation": {"x": float("nan")}}, {"ablation": {"x": pair}}):
        with pytest.raises(ArtifactError):
            write_provenance(pair / "trained", dataclasses.replace(manifest, **changes))
    assert read_provenance(pair / "trained") == (manifest, digest), "a refused one writes nothing"


def test_an_unproven_draft_on_demand(pair, capsys) -> None:
    (pair / "trained" / "provenance.json").unlink()
    command = [
        "build",
        str(pair / "recipe.toml"),
        "-o",
        str(pair / "bundle"),
        "--quiet",
        "--strata",
        str(pair / "strata"),
    ]
    assert main(command) == 3 and not (pair / "bundle").exists()
    assert "ArtifactError: the draft has no provenance.json" in capsys.readouterr().err
    assert main([*command, "--allow-unproven-draft"]) == 0
    assert "warning: the draft is unproven: the draft has no provenance.json" in capsys.readouterr().err
    about = open_bundle(pair / "bundle").draft_provenance
    assert (about.status, about.provenance, about.strata) == ("unproven", None, None)
    assert main(["inspect", str(pair / "bundle")]) == 0
    assert "draft is UNPROVEN" in capsys.readouterr().out
    assert main(["inspect", str(pair / "bundle"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["draft_provenance"]["status"] == "unproven"


def test_a_proven_draft_is_recorded_as_one_also_where_others_are_allowed(pair, capsys) -> None:
    command = [
        "build",
        str(pair / "recipe.toml"),
        "-o",
        str(pair / "bundle"),
        "--quiet",
        "--strata",
        str(pair / "strata"),
    ]
    assert main([*command, "--allow-unproven-draft"]) == 0
    assert capsys.readouterr().err == ""
    about = open_bundle(pair / "bundle").draft_provenance
    assert about.status == "proven" and about.provenance == read_provenance(pair / "trained")[1]


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (None, r"\$\.draft_provenance"),
        ({"status": "fine", "provenance": None, "strata": None}, r"\$\.draft_provenance\.status"),
        ({"status": "proven", "provenance": "0", "strata": None}, r"\$\.draft_provenance\.provenance"),
        ({"status": "proven", "provenance": None}, r"\$\.draft_provenance\.strata"),
        ({"status": "none", "provenance": None, "strata": None, "x": 1}, r"\$\.draft_provenance\.x"),
    ],
)
def test_a_bundle_says_it_strictly(pair, value, found) -> None:
    build_bundle(pair / "recipe.toml", pair / "bundle", lambda *_: None, Gate(pair / "strata"))
    path = pair / "bundle" / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"draft_provenance": value}))
    with pytest.raises(ArtifactError, match=found):
        open_bundle(pair / "bundle")


def test_evaluation_prompts_are_read_strictly(tmp_path) -> None:
    record = {
        "id": "chat-01",
        "stratum": "chat",
        "messages": [{"role": "user", "content": "a b"}],
        "max_tokens": 160,
    }
    record["messages"] += [{"role": "assistant", "content": "c"}, {"role": "user", "content": "d"}]
    path = tmp_path / "chat.jsonl"
    path.write_text(json.dumps(record) + "\n\n")
    assert evaluation_prompts(tmp_path) == [("chat-01", "a b"), ("chat-01", "c"), ("chat-01", "d")]
    for bad in (
        "{",
        "[]",
        "{}",
        '{"id": "x"}',
        '{"id": "x", "messages": []}',
        '{"id": "x", "messages": [{"role": "user"}]}',
    ):
        path.write_text(json.dumps(record) + "\n" + bad + "\n")
        with pytest.raises(ArtifactError, match=r"chat\.jsonl, line 2"):
            evaluation_prompts(tmp_path)


def test_the_default_strata_lie_beside_the_models() -> None:
    assert Path(__file__).parents[2] / "models" / "strata" == DEFAULT
