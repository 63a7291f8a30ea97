"""The hard cases of greedy decoding through the command line and real kernels: the right answer or a typed error, never a hang."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from runs import Native, random_prompt
from specdec_runtime import drive
from specdec_runtime.decode.effects import Progress
from specdec_runtime.decode.request import Request
from specdec_runtime.decode.round import decode
from specdec_runtime.drafters.registry import make_drafter

VOCAB, CONTEXT = 384, 512
EXIT = {"RequestError": 2, "ArtifactError": 3, "DeviceFault": 4, "ContractError": 5}


def specdec_run(bundle: Path, *args: str) -> tuple[int, dict]:
    """Exit status and the JSON object of `specdec-run BUNDLE --backend native --json ...`."""
    command = [sys.executable, "-m", "specdec_tools.run", str(bundle), "--backend", "native", "--json", *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.strip(), done.stderr
    return done.returncode, json.loads(done.stdout)


def fails(bundle: Path, kind: str, *args: str) -> dict:
    status, answer = specdec_run(bundle, *args)
    assert status == EXIT[kind], answer
    assert answer["error"]["type"] == kind
    assert answer["error"]["message"] and answer["error"]["action"]
    return answer["error"]


def ids(numbers: list[int]) -> str:
    return ",".join(map(str, numbers))


@pytest.fixture(scope="module")
def bundle(tiny_bundle) -> Path:
    return tiny_bundle(1, VOCAB)


@pytest.fixture(scope="module")
def prompt() -> list[int]:
    return random_prompt(1, VOCAB)


def test_the_json_object_has_every_field(bundle, prompt) -> None:
    status, answer = specdec_run(
        bundle, "--prompt-ids", ids(prompt), "--max-tokens", "9", "--drafter", "chain"
    )
    assert status == 0
    assert answer["prompt_ids"] == prompt
    assert set(answer) >= {
        "prompt_ids",
        "token_ids",
        "text",
        "finish_reason",
        "usage",
        "speculation",
        "timing_ms",
        "device",
    }
    assert set(answer["speculation"]) >= {
        "mode", "drafter", "num_cycles", "num_drafted", "num_accepted", "num_evaluated",
        "num_target_passes", "num_draft_passes", "fallbacks",
    }  # fmt: skip
    assert set(answer["timing_ms"]) >= {
        "load",
        "first_token",
        "prefill",
        "decode",
        "draft",
        "verify",
        "other",
    }
    assert answer["device"]["backend"] == "native"
    counted = {
        "prompt_tokens": len(prompt),
        "completion_tokens": len(answer["token_ids"]),
        "cached_tokens": 0,
    }
    assert answer["usage"] == counted


def test_empty_raw_prompt_is_refused_without_bos(bundle) -> None:
    fails(bundle, "RequestError", "--raw", "--prompt", "")


def test_empty_chat_prompt_is_a_chat(bundle) -> None:
    status, answer = specdec_run(bundle, "--prompt", "", "--max-tokens", "2")
    assert status == 0 and answer["prompt_ids"]


@pytest.mark.parametrize("drafter", ["off", "model", "ngram", "chain"])
def test_context_end(bundle, drafter) -> None:
    """One token fits after a prompt of context - 1; a prompt of the context length, or longer, leaves no room."""
    full = (random_prompt(2, VOCAB) * 300)[:CONTEXT]
    answer = Native(bundle).run(full[:-1], 50, drafter, 7)
    assert len(answer["token_ids"]) == 1
    for length in (CONTEXT, CONTEXT + 1):
        with pytest.raises(Exception) as caught:
            Native(bundle).run((full * 2)[:length], 50, drafter, 7)
        assert type(caught.value).__name__ == "RequestError"
    near = Native(bundle).run(full[: CONTEXT - 12], 50, "off", 0)
    assert Native(bundle).run(full[: CONTEXT - 12], 50, drafter, 7)["token_ids"] == near["token_ids"]
    assert len(near["token_ids"]) <= 12


@pytest.mark.parametrize("max_tokens", [0, 1, 2])
@pytest.mark.parametrize("drafter", ["model", "ngram", "chain"])
def test_few_tokens_with_k_7(bundle, prompt, drafter, max_tokens) -> None:
    plain = Native(bundle).run(prompt, 8)["token_ids"]
    answer = Native(bundle).run(prompt, max_tokens, drafter, 7)
    assert answer["token_ids"] == plain[:max_tokens]
    assert answer["finish_reason"] == "length"
    assert answer["speculation"]["num_target_passes"] <= max_tokens


def test_prompt_id_outside_the_vocabulary(bundle) -> None:
    for bad in (VOCAB, VOCAB + 1000, -1):
        fails(bundle, "RequestError", f"--prompt-ids=1,{bad},3")


@pytest.mark.parametrize("k", ["8", "-1"])
def test_k_outside_0_to_7(bundle, k) -> None:
    status, answer = specdec_run(bundle, "--prompt-ids", "1,2,3", f"--k={k}")
    assert status == 2 and answer["error"]["type"] == "RequestError"


def _with_eos(bundle: Path, prompt: list[int], eos: int, drafter: str, k: int) -> dict:
    native = Native(bundle)
    plan = native.bundle.plan
    effects = decode(plan, Request(prompt, 40, k, eos_ids=(eos,)), make_drafter(drafter, plan))
    return drive.run(effects, native.backend)


@pytest.mark.parametrize("at", range(10))
def test_eos_at_every_position(bundle, prompt, at) -> None:
    """EOS as first token, inside drafts, as bonus token: the answer ends with it, whatever the drafter."""
    tokens = Native(bundle).run(prompt, 40)["token_ids"]
    eos = tokens[at]
    expected = tokens[: tokens.index(eos) + 1]
    for drafter, k in (("off", 0), ("model", 7), ("ngram", 4), ("chain", 3)):
        answer = _with_eos(bundle, prompt, eos, drafter, k)
        assert answer["token_ids"] == expected
        assert answer["finish_reason"] == "stop"


@pytest.mark.parametrize("drafter", ["off", "model", "ngram"])
def test_cancel_anywhere_then_again(bundle, drafter) -> None:
    """Cancel before submit 1, 2, 3, ... of a request; the same request afterwards, on the same backend, gives the whole answer."""
    prompt = (random_prompt(4, VOCAB) * 30)[:100]
    native = Native(bundle)
    whole = native.run(prompt, 12, drafter, 3)
    for stop in range(1, whole["speculation"]["num_cycles"] + 5):
        plan, seen = native.bundle.plan, []

        def cancel(seen=seen, stop=stop) -> bool:
            seen.append(1)
            return len(seen) >= stop

        effects = decode(plan, Request(prompt, 12, 3 if drafter != "off" else 0), make_drafter(drafter, plan))
        partial = drive.run(effects, native.backend, should_cancel=cancel)
        if partial["finish_reason"] == "cancelled":
            assert partial["token_ids"] == whole["token_ids"][: len(partial["token_ids"])]
        assert native.run(prompt, 12, drafter, 3)["token_ids"] == whole["token_ids"]


def test_prefill_reports_progress(bundle) -> None:
    native, steps = Native(bundle), []
    plan = native.bundle.plan
    effects = decode(plan, Request((random_prompt(4, VOCAB) * 30)[:100], 1, 0), make_drafter("off", plan))
    drive.run(
        effects, native.backend, lambda effect: isinstance(effect, Progress) and steps.append(effect.done)
    )
    assert steps == [32, 64, 96, 99]


@pytest.mark.parametrize("width", ["1", "2", "4", "8"])
def test_scores(bundle, prompt, width) -> None:
    tokens = Native(bundle).run(prompt, 11)["token_ids"]
    status, answer = specdec_run(
        bundle, "--prompt-ids", ids(prompt), "--score-ids", ids(tokens), "--width", width
    )
    assert status == 0
    assert [position["id"] for position in answer["positions"]] == tokens
    assert [position["top_id"] for position in answer["positions"]] == tokens
    assert all(p["margin"] >= 0 and p["logprob"] < 0 for p in answer["positions"])


@pytest.fixture
def damaged(bundle, tmp_path) -> Path:
    """A copy to break."""
    return Path(shutil.copytree(bundle, tmp_path / "bundle"))


def test_flipped_byte_in_a_shard(damaged) -> None:
    shard = damaged / "weights" / "0000.bin"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    assert "0000.bin" in fails(damaged, "ArtifactError", "--prompt-ids", "1,2,3")["where"]


def test_missing_and_short_shard(damaged) -> None:
    shard = damaged / "weights" / "0000.bin"
    shard.write_bytes(shard.read_bytes()[:-4])
    fails(damaged, "ArtifactError", "--prompt-ids", "1,2,3")
    shard.unlink()
    fails(damaged, "ArtifactError", "--prompt-ids", "1,2,3")


def test_unknown_plan_key(damaged) -> None:
    plan = json.loads((damaged / "plan.json").read_text())
    plan["surprise"] = 1
    (damaged / "plan.json").write_text(json.dumps(plan))
    fails(damaged, "ArtifactError", "--prompt-ids", "1,2,3")


def test_not_a_bundle(tmp_path) -> None:
    fails(tmp_path, "RequestError", "--prompt-ids", "1,2,3")
