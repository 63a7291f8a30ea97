"""models/strata: the strict reader's refusals, and the files themselves."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest
from specdec_compiler.drafts.strata import DEFAULT
from specdec_runtime.faults import ArtifactError, RequestError
from specdec_tools.strata import FOLDER, STRATA, read_strata

GOOD = {"id": "chat-90", "stratum": "chat", "messages": [{"role": "user", "content": "Hi?"}], "max_tokens": 9}
USER, ANSWER = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FOLDER, tmp_path / "strata"))


def added(folder: Path, line: str) -> str:
    """`line` as the last one of chat.jsonl; returns its place."""
    path = folder / "chat.jsonl"
    path.write_text(path.read_text(encoding="utf-8") + line + "\n", encoding="utf-8")
    return f"{path}:{len(path.read_text(encoding='utf-8').splitlines())}"


def test_reads_a_line_that_was_added(folder: Path):
    added(folder, json.dumps(GOOD))
    chat = read_strata(folder, ["chat"])
    assert (chat[-1].id, chat[-1].max_tokens, chat[-1].messages) == ("chat-90", 9, ({**GOOD["messages"][0]},))
    assert {prompt.stratum for prompt in chat} == {"chat"}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"id": "chat-01"}, "id stand at"),
        ({"id": "json-90"}, "id 'json-90'"),
        ({"id": 3}, "id 3"),
        ({"stratum": "json"}, "in the file of 'chat'"),
        ({"max_tokens": 0}, "max_tokens 0"),
        ({"max_tokens": True}, "max_tokens True"),
        ({"max_tokens": 2000}, "max_tokens 2000"),
        ({"more": 1}, "exactly the keys"),
        ({"messages": []}, "messages is no list"),
        ({"messages": [{"role": "user"}]}, "a message is no object"),
        ({"messages": [{"role": "user", "content": " a"}]}, "blanks"),
        ({"messages": [{"role": "user", "content": 5}]}, "no text"),
        ({"messages": [ANSWER]}, "roles"),
        ({"messages": [USER, ANSWER]}, "roles"),
        ({"messages": [{"role": "system", "content": "a"}]}, "roles"),
        ({"messages": [USER, USER, USER]}, "roles"),
    ],
)
def test_refuses_with_file_and_line(folder: Path, change: dict, says: str):
    where = added(folder, json.dumps(GOOD | change))
    with pytest.raises(ArtifactError, match=says) as caught:
        read_strata(folder)
    assert caught.value.where == where


@pytest.mark.parametrize("line", ["", "{", "[]", '{"id": 1, "id": 2}', "{}"])
def test_refuses_what_is_no_such_object(folder: Path, line: str):
    where = added(folder, line)
    with pytest.raises(ArtifactError) as caught:
        read_strata(folder)
    assert caught.value.where == where


def test_refuses_the_same_messages_twice(folder: Path):
    first = json.loads((folder / "json.jsonl").read_text(encoding="utf-8").splitlines()[2])
    added(folder, json.dumps(GOOD | {"messages": first["messages"]}))
    with pytest.raises(ArtifactError, match=r"its messages stand at .*chat\.jsonl:13 already") as caught:
        read_strata(folder)
    assert caught.value.where.endswith("json.jsonl:3")


def test_refuses_missing_unfinished_and_unknown_files(folder: Path):
    (folder / "poems.jsonl").write_text("{}\n")
    with pytest.raises(ArtifactError, match="no stratum"):
        read_strata(folder)
    (folder / "poems.jsonl").unlink()
    (folder / "json.jsonl").write_bytes((folder / "json.jsonl").read_bytes()[:-1])
    with pytest.raises(ArtifactError, match="does not end"):
        read_strata(folder)
    (folder / "json.jsonl").write_bytes(b"\xff\n")
    with pytest.raises(ArtifactError, match="UTF-8"):
        read_strata(folder)
    (folder / "json.jsonl").unlink()
    with pytest.raises(ArtifactError, match="cannot be read"):
        read_strata(folder)
    with pytest.raises(RequestError, match="poems"):
        read_strata(folder, ["poems"])
    with pytest.raises(RequestError):
        read_strata(folder, [])


def test_a_folder_without_prompts(tmp_path: Path):
    with pytest.raises(ArtifactError, match="no evaluation prompts") as caught:
        read_strata(tmp_path)
    assert caught.value.where == str(tmp_path) and "--folder" in (caught.value.action or "")


def test_the_files():
    assert FOLDER == DEFAULT  # what is evaluated is what drafts are kept apart from
    prompts = read_strata()
    counts = Counter(prompt.stratum for prompt in prompts)
    assert list(counts) == list(STRATA)
    assert min(counts.values()) >= 12
    table = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert all(f"| `{stratum}` |" in table for stratum in STRATA)


@pytest.mark.model
def test_prompts_fit_the_default_model(smollm2_bundle):
    from specdec_runtime.bundle import open_bundle
    from specdec_tools.strata_matrix import prompt_ids

    bundle = open_bundle(smollm2_bundle)
    for prompt in prompt_ids(bundle, read_strata(), 1024):  # refuses what does not fit with its answer
        least, most = (1000, 1400) if prompt["stratum"] == "long_context" else (20, 349)
        assert least <= len(prompt["prompt_ids"]) <= most, prompt["id"]
