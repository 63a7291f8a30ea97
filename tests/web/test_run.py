"""specdec-run as a user types it: what it prints, its exit codes, Ctrl-C; the native path on a scripted device."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fake_backend import FakeBackend
from fake_bundle import CONTEXT, EOS, fake_greedy
from specdec_runtime.bundle import open_bundle
from specdec_runtime.decode.request import Request
from specdec_runtime.decode.sampling import Sampling
from specdec_runtime.faults import ArtifactError, RequestError
from specdec_tools import native_run, run
from specdec_tools.native_run import NativeRun
from specdec_tools.text import BundleText

PROMPT_IDS = [72, 101, 108, 108, 111]
IDS = "72,101,108,108,111"


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_run, "open_native", FakeBackend)


def _json(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, dict]:
    code = run.main([*args, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_native_json(native: None, capsys: pytest.CaptureFixture[str], fake_bundle: Path) -> None:
    bundle = str(fake_bundle)
    for drafter in ("off", "ngram", "model", "chain"):
        args = [bundle, "--prompt-ids", IDS, "--max-tokens", "40", "--drafter", drafter, "--k", "3"]
        code, result = _json(capsys, *args)
        assert code == 0
        assert result["token_ids"] == fake_greedy(PROMPT_IDS, 40)
        assert result["text"] == bytes(i for i in result["token_ids"] if i < 256).decode(errors="replace")
        assert result["prompt_ids"] == PROMPT_IDS
        assert set(result) == {
            "prompt_ids", "token_ids", "text", "finish_reason", "stop", "seed", "logprobs", "usage", "speculation",
            "timing_ms", "device",
        }  # fmt: skip
        assert result["device"]["backend"] == "scripted"


def test_plain_steps(native: None, capsys: pytest.CaptureFixture[str], fake_bundle: Path) -> None:
    """The number asked for is kept where nothing drafts, and refused where it cannot be."""
    args = [str(fake_bundle), "--prompt-ids", IDS, "--max-tokens", "30", "--schedule", "fixed"]
    for drafter, asked, steps, cycles in (("off", "4", 4, 9), ("off", "1", 1, 30), ("model", "4", 1, None)):
        code, result = _json(capsys, *args, "--drafter", drafter, "--plain-steps", asked)
        assert code == 0 and result["token_ids"] == fake_greedy(PROMPT_IDS, 30)
        assert result["speculation"]["plain_steps"] == steps
        assert cycles is None or result["speculation"]["num_cycles"] == cycles
        assert result["device"]["self_test"]["verdict"] == "by specification"
    for bad in ("0", "9", "-1"):
        code, answer = _json(capsys, *args, f"--plain-steps={bad}")
        assert (code, answer["error"]["where"]) == (2, "plain_steps")


def test_rounds(native: None, capsys: pytest.CaptureFixture[str], fake_bundle: Path) -> None:
    """The number asked for is kept where something drafts; the answer is the same."""
    args = [str(fake_bundle), "--prompt-ids", IDS, "--max-tokens", "30", "--k", "3"]
    for drafter, rounds in (("off", 1), ("model", 3), ("chain", 3)):
        for schedule in ("fixed", "break_even"):
            code, result = _json(capsys, *args, "--drafter", drafter, "--rounds", "3", "--schedule", schedule)
            assert code == 0 and result["token_ids"] == fake_greedy(PROMPT_IDS, 30)
            assert result["speculation"]["rounds"] == rounds
            choices = result["speculation"]["schedule"]["choices"]
            assert schedule != "fixed" or drafter != "model" or choices["model 3 (3 rounds)"] >= 2, choices
    for bad in ("0", "9", "-1"):
        code, answer = _json(capsys, *args, f"--rounds={bad}")
        assert (code, answer["error"]["where"]) == (2, "rounds")


def test_schedules(native: None, capsys: pytest.CaptureFixture[str], fake_bundle: Path) -> None:
    """Without one the bundle's; `fixed` alone pins k."""
    args = [str(fake_bundle), "--prompt-ids", IDS, "--max-tokens", "60", "--drafter", "model"]
    for given, name in (
        ((), "break_even"),
        (("--schedule", "heuristic"), "heuristic"),
        (("--schedule", "confidence"), "confidence"),
        (("--schedule", "fixed"), "fixed"),
    ):
        code, result = _json(capsys, *args, *given)
        told = result["speculation"]["schedule"]
        assert code == 0 and result["token_ids"] == fake_greedy(PROMPT_IDS, 60) and told["name"] == name
    assert (
        set(told["choices"]) <= {"model 4", "model 3", "model 2", "model 1", "plain 1"}
        and told["choices"]["model 4"] > 5
    )


def test_stop_strings(native: None, capsys: pytest.CaptureFixture[str], fake_bundle: Path) -> None:
    """The answer ends before the text, whatever drafts; with --json and streamed."""
    args = [str(fake_bundle), "--prompt-ids", IDS, "--max-tokens", "60"]
    whole = _json(capsys, *args)[1]
    assert whole["stop"] is None and whole["logprobs"] is None and whole["seed"] is None
    stop = whole["text"][20:23]
    for drafter in ("off", "ngram", "model", "chain"):
        asked = [*args, "--drafter", drafter, "--stop", "never said", "--stop", stop]
        code, result = _json(capsys, *asked)
        assert (code, result["finish_reason"], result["stop"]) == (0, "stop", stop)
        assert result["text"] == whole["text"][: whole["text"].index(stop)]
        assert result["token_ids"] == whole["token_ids"][: len(result["token_ids"])]
        assert run.main(asked) == 0 and capsys.readouterr().out == result["text"] + "\n"


def test_ignore_eos(native: None, capsys: pytest.CaptureFixture[str], fake_bundle: Path) -> None:
    """The fake model goes on after its end token, which is no text."""
    prompt = next(one for one in range(60, 200) if EOS in fake_greedy([one], 200))
    args = [str(fake_bundle), "--prompt-ids", str(prompt), "--max-tokens", "200"]
    ended, on = (_json(capsys, *args, *more)[1] for more in ((), ("--ignore-eos",)))
    assert ended["finish_reason"] == "stop" and ended["token_ids"][-1] == EOS
    assert on["finish_reason"] == "length" and len(on["token_ids"]) == 200
    assert on["token_ids"][: len(ended["token_ids"])] == ended["token_ids"]
    assert "eos" not in on["text"]


def test_logprobs(native: None, capsys: pytest.CaptureFixture[str], fake_bundle: Path) -> None:
    """One entry a token, the same however it was drafted."""
    args = [str(fake_bundle), "--prompt-ids", IDS, "--max-tokens", "30", "--logprobs", "3"]
    found = []
    for more in (
        ["--drafter", "off"],
        ["--drafter", "off", "--plain-steps", "4"],
        ["--drafter", "model", "--schedule", "fixed", "--rounds", "3"],
        ["--drafter", "chain"],
    ):
        result = _json(capsys, *args, *more)[1]
        assert [one["id"] for one in result["logprobs"]] == result["token_ids"] == fake_greedy(PROMPT_IDS, 30)
        found.append(result["logprobs"])
    assert all(one == found[0] for one in found)
    for one in found[0]:
        assert (
            len(one["top"]) == 3
            and one["top"][0] == {"id": one["id"], "logprob": 0.0}
            and one["logprob"] == 0
        )
        assert one["top"][1]["logprob"] >= one["top"][2]["logprob"]


@pytest.mark.parametrize(
    ("options", "where"),
    [
        (["--temperature", "-1"], "temperature"),
        (["--temperature", "nan"], "temperature"),
        (["--top-k", "-1"], "top_k"),
        (["--top-p", "0"], "top_p"),
        (["--min-p", "2"], "min_p"),
        (["--seed", "-1"], "seed"),
        (["--seed", str(2**53)], "seed"),
        (["--repetition-penalty", "0"], "repetition_penalty"),
        (["--frequency-penalty", "3"], "frequency_penalty"),
        (["--presence-penalty=-3"], "presence_penalty"),
        (["--logit-bias", "1=inf"], "logit_bias[1]"),
        (["--logit-bias", "300=1"], "logit_bias"),
        (["--bad-word", ""], "bad_words[0]"),
        (["--bad-word", "ok", "--bad-word", "far too many tokens"], "bad_words[1]"),
        (["--min-tokens", "-1"], "min_tokens"),
        (["--stop", "x", "--stop", ""], "stop[1]"),
        (["--logprobs", "6"], "logprobs"),
        (["--mode", "lenient"], "command line"),
        (["--logit-bias", "x=1"], "command line"),
        (["--logit-bias", "1=x"], "command line"),
        (["--top-k", "many"], "command line"),
        (["--score-ids", "1", "--stop", "x"], "stop"),
        (["--score-ids", "1", "--grammar", "json"], "grammar"),
        (["--score-ids", "1", "--json-schema", "schema.json"], "json_schema"),
        (["--score-ids", "1", "--drafter", "chain"], "drafter"),
        (["--score-ids", "1", "--schedule", "auto"], "schedule"),
        (["--score-ids", "1", "--rounds", "2"], "rounds"),
        (["--score-ids", "1", "--k", "0"], "k"),
        (["--score-ids", "1", "--plain-steps", "2"], "plain_steps"),
        (["--score-ids", "1", "--max-tokens", "9"], "max_tokens"),
        (["--grammar", ""], "--grammar"),
        (["--adapter", "gpu"], "adapter"),
        (["--adapter", "gpu", "--backend", "wasm"], "adapter"),
    ],
)
def test_bad_options_are_named(
    native: None, capsys: pytest.CaptureFixture[str], fake_bundle: Path, options: list[str], where: str
) -> None:
    code, answer = _json(capsys, str(fake_bundle), "--prompt-ids", IDS, *options)
    assert (code, answer["error"]["type"], answer["error"]["where"]) == (2, "RequestError", where)
    assert answer["error"]["action"]
    if where == "command line":
        assert options[0] in answer["error"]["message"]


def test_an_empty_grammar_is_called_so(
    native: None, capsys: pytest.CaptureFixture[str], fake_bundle: Path
) -> None:
    code, answer = _json(capsys, str(fake_bundle), "--prompt-ids", IDS, "--grammar", "")
    assert (code, answer["error"]["message"]) == (2, "the grammar is empty")


def test_every_option_reaches_the_core(monkeypatch: pytest.MonkeyPatch, fake_bundle: Path) -> None:
    """As a Request; a seed is drawn where none is given."""
    seen: list[Request] = []

    def decoded(plan: object, asked: Request, *rest: object, **named: object) -> None:
        seen.append(asked)
        raise RequestError("seen", "test", "")

    monkeypatch.setattr(native_run, "open_native", FakeBackend)
    monkeypatch.setattr(native_run, "decode", decoded)
    options = (
        "--temperature 0.7 --mode block --seed 9 --repetition-penalty 1.5 --frequency-penalty 0.5 --presence-penalty=-0.5 "
        "--logit-bias 65=2.5 --logit-bias 66=-3 --bad-word the --bad-word q --min-tokens 3 --top-k 4 --top-p 0.9 --min-p 0.1 "
        "--stop a --stop b --ignore-eos --logprobs 2"
    )
    args = [str(fake_bundle), "--prompt-ids", IDS, "--schedule", "fixed"]
    assert run.main([*args, *options.split()]) == 2
    asked = seen[0]
    assert asked.sampling == Sampling(
        temperature=0.7,
        mode="block",
        seed=9,
        repetition_penalty=1.5,
        frequency_penalty=0.5,
        presence_penalty=-0.5,
        logit_bias={65: 2.5, 66: -3.0},
        bad_words=[[257], [32, 257], [113], [32, 113]],  # "the", " the", "q", " q"
        min_tokens=3,
        top_k=4,
        top_p=0.9,
        min_p=0.1,
    )
    assert (asked.stop, asked.eos_ids, asked.logprobs) == (["a", "b"], (), 2)
    for _ in range(2):
        run.main(args)
    seeds = {one.sampling.seed for one in seen[1:]}
    assert len(seeds) == 2 and seen[1].eos_ids is None and max(seeds) < 2**53


def test_native_streams_text_and_says_the_counts(
    native: None, capsys: pytest.CaptureFixture[str], fake_bundle: Path
) -> None:
    assert run.main([str(fake_bundle), "--prompt", "Hello", "--max-tokens", "30", "--drafter", "model"]) == 0
    captured = capsys.readouterr()
    assert len(captured.out) > 20 and captured.out.endswith("\n")
    assert re.search(r"30 tokens, length; .* tokens/s", captured.err)
    assert re.search(r"drafter model: \d+ drafted, \d+ accepted, \d+ target passes", captured.err)


def test_native_scores(native: None, capsys: pytest.CaptureFixture[str], fake_bundle: Path) -> None:
    args = [str(fake_bundle), "--prompt-ids", IDS, "--score-ids", "1,2,3,4,5,6,7,8,9"]
    results = [_json(capsys, *args, "--width", width)[1]["positions"] for width in ("1", "2", "4", "8")]
    assert len(results[0]) == 9 and set(results[0][0]) == {"id", "top_id", "margin", "logprob"}
    assert all(positions == results[0] for positions in results)
    assert run.main(args) == 0
    assert capsys.readouterr().out.count("margin") == 9


def test_exit_codes_by_family(
    native: None, capsys: pytest.CaptureFixture[str], fake_bundle: Path, bundle_copy: Path, tmp_path: Path
) -> None:
    bundle = str(fake_bundle)
    for args in (
        [str(tmp_path), "--prompt", "x"],
        [bundle, "--prompt", "", "--raw"],
        [bundle, "--prompt-ids", "300"],
        [bundle, "--prompt-ids", ""],
        [bundle, "--prompt", "x", "--k", "8"],
        [bundle, "--prompt", "x", "--raw", "--system", "y"],
        [bundle, "--prompt", "x" * 5000],
    ):
        code, answer = _json(capsys, *args)
        assert (code, answer["error"]["type"]) == (2, "RequestError"), args
    (bundle_copy / "plan.json").write_text("{}")
    code, answer = _json(capsys, str(bundle_copy), "--prompt", "x")
    assert (code, answer["error"]["type"], answer["error"]["where"]) == (3, "ArtifactError", "plan.json")


@pytest.mark.parametrize(
    "args",
    [
        "",
        "--prompt x --prompt-ids 1",
        "--prompt x --k two",
        "--prompt x --drafter best",
        "--prompt x --schedule best",
        "--prompt-ids 1,x",
        "--prompt-ids 1_0",
        "--prompt-ids +1",
        "--prompt-ids=-1",
        f"--prompt-ids {2**31}",
        f"--prompt-ids 1 --score-ids {2**31}",
        "--prompt-ids 1 --raw",
        "--prompt-ids 1 --system x",
        "--prompt x --width 3",
        "--prompt x --threads 2",
        "--prompt x --backend wasm --threads two",
        "--prompt x --timeout nan",
        "--prompt x --timeout inf",
        "--prompt x --timeout 0",
        "--prompt x --timeout=-1",
    ],
)
def test_refused_command_lines(
    native: None, capsys: pytest.CaptureFixture[str], fake_bundle: Path, args: str
) -> None:
    code, answer = _json(capsys, str(fake_bundle), *args.split())
    assert (code, answer["error"]["type"]) == (2, "RequestError")
    assert answer["error"]["where"] and answer["error"]["action"]
    assert run.main([str(fake_bundle), *args.split()]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and f"RequestError: {answer['error']['message']}" in captured.err


def test_too_many_score_ids(native: None, capsys: pytest.CaptureFixture[str], fake_bundle: Path) -> None:
    many = ",".join(["1"] * CONTEXT)
    error = _json(capsys, str(fake_bundle), "--prompt-ids", IDS, "--score-ids", many)[1]["error"]
    assert (error["where"], error["action"]) == ("score_ids", f"Give at most {CONTEXT - 5} score ids")
    error = _json(capsys, str(fake_bundle), "--prompt-ids", many)[1]["error"]
    assert error["action"] == f"Shorten the prompt to {CONTEXT - 1} tokens"


@pytest.mark.parametrize(
    ("raised", "code", "kind"),
    [(OSError("no space"), 4, "DeviceFault"), (ValueError("odd"), 5, "ContractError")],
)
def test_unexpected_errors_are_typed(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    fake_bundle: Path,
    raised: Exception,
    code: int,
    kind: str,
) -> None:
    def fails(bundle: object) -> None:
        raise raised

    monkeypatch.setattr(native_run, "open_native", fails)
    found, answer = _json(capsys, str(fake_bundle), "--prompt", "x")
    assert (found, answer["error"]["type"]) == (code, kind)
    assert str(raised) in answer["error"]["message"]


def test_ctrl_c_before_any_work(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fake_bundle: Path
) -> None:
    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "_run_browser", interrupted)
    args = [str(fake_bundle), "--backend", "wasm", "--prompt-ids", IDS]
    code, result = _json(capsys, *args)
    assert (code, result["finish_reason"], result["token_ids"]) == (130, "cancelled", [])
    code, result = _json(capsys, *args, "--score-ids", "1")
    assert (code, result["finish_reason"], result["positions"]) == (130, "cancelled", [])
    assert run.main(args) == 130 and capsys.readouterr().out == ""


def test_stdout_that_cannot_be_written(tmp_path: Path) -> None:
    command = _command(tmp_path, "--prompt", "x", "--json")  # no bundle: the object is an error
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 4 and done.stderr.startswith("DeviceFault") and done.stderr.count("\n") == 1
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_native_cancel(native: None, fake_bundle: Path) -> None:
    heard: list[str] = []
    with NativeRun.open(fake_bundle, FakeBackend) as runner:
        request = {"prompt_ids": PROMPT_IDS, "max_tokens": 50, "drafter": "off", "k": 0}
        result = runner.generate(request, heard.append, lambda: len(heard) >= 5)
        assert result["finish_reason"] == "cancelled"
        assert result["token_ids"] == fake_greedy(PROMPT_IDS, 50)[: len(result["token_ids"])]
        assert "".join(heard) == result["text"]
        assert runner.generate(request)["token_ids"] == fake_greedy(PROMPT_IDS, 50)


def test_native_cancel_of_scoring(fake_bundle: Path) -> None:
    request = {"prompt_ids": PROMPT_IDS, "score_ids": [1, 2, 3, 4, 5], "width": 2}
    with NativeRun.open(fake_bundle, FakeBackend) as runner:
        whole = runner.score(request)
        answers = iter([False, False, True])  # the prompt, two ids, then Ctrl-C
        result = runner.score(request, lambda: next(answers))
    assert "finish_reason" not in whole and result["finish_reason"] == "cancelled"
    assert result["positions"] == whole["positions"][:2]


def test_only_checked_files(bundle_copy: Path) -> None:
    def refused(name: str) -> None:
        with pytest.raises(ArtifactError) as caught:
            NativeRun.open(bundle_copy, FakeBackend)
        assert caught.value.where == name

    for name in ("tokenizer.json", "plan.json", "chat_template.jinja"):
        path = bundle_copy / name
        before = path.read_bytes()
        path.write_bytes(before[:-2] + bytes([before[-2] ^ 1]) + before[-1:])
        refused(name)
        path.write_bytes(before)
    manifest = json.loads((bundle_copy / "manifest.json").read_text())
    manifest["files"] = [entry for entry in manifest["files"] if entry["path"] != "tokenizer.json"]
    (bundle_copy / "manifest.json").write_text(json.dumps(manifest))
    refused("tokenizer.json")


def test_missing_text_files(fake_bundle: Path, bundle_copy: Path) -> None:
    (bundle_copy / "chat_template.jinja").unlink()
    with pytest.raises(ArtifactError, match="chat_template"):
        NativeRun.open(bundle_copy, FakeBackend)
    (bundle_copy / "tokenizer.json").write_text("[]")
    with pytest.raises(ArtifactError):
        NativeRun.open(bundle_copy, FakeBackend)
    with pytest.raises(RequestError):
        NativeRun.open(fake_bundle, FakeBackend).generate(
            {"prompt_ids": [1], "drafter": "x", "max_tokens": 1, "k": 1}
        )


def _command(bundle: Path, *args: str) -> list[str]:
    return [sys.executable, "-m", "specdec_tools.run", str(bundle), *args]


@pytest.mark.browser
def test_browser_json(fake_bundle: Path) -> None:
    command = _command(
        fake_bundle, "--backend", "webgpu", "--adapter", "swiftshader", "--prompt-ids", IDS, "--json"
    )
    done = subprocess.run(
        [*command, "--max-tokens", "25", "--drafter", "model"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["token_ids"] == fake_greedy(PROMPT_IDS, 25)
    assert result["device"]["backend"] == "webgpu" and "swiftshader" in result["device"]["adapter"]


@pytest.mark.browser
def test_browser_threads(fake_bundle: Path) -> None:
    command = _command(fake_bundle, "--backend", "wasm", "--prompt-ids", IDS, "--json", "--max-tokens", "25")
    done = subprocess.run(
        [*command, "--threads", "3"], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["token_ids"] == fake_greedy(PROMPT_IDS, 25)
    assert (result["device"]["threads"], result["device"]["threads_reason"]) == (3, "")
    done = subprocess.run(
        [*command, "--threads", "0"], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 2 and json.loads(done.stdout)["error"]["where"] == "threads"


@pytest.mark.browser
def test_browser_errors_have_exit_codes(bundle_copy: Path) -> None:
    shard = bundle_copy / "weights" / "0000.bin"
    shard.write_bytes(bytes(len(shard.read_bytes())))
    command = _command(bundle_copy, "--backend", "wasm", "--prompt", "x")
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 3 and "weights/0000.bin" in done.stderr and done.stdout == ""
    environment = os.environ | {"SPECDEC_CHROME": "/no/such/browser"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert done.returncode == 2 and "SPECDEC_CHROME" in done.stderr


@pytest.mark.browser
def test_ctrl_c_cancels_and_prints_what_there_is(fake_bundle: Path) -> None:
    """The signal goes to the whole group, as a terminal sends it: browser and driver must not die of it."""
    prompt = max(range(256), key=lambda start: len(fake_greedy([start], 1500)))
    command = _command(fake_bundle, "--backend", "webgpu", "--prompt-ids", str(prompt), "--drafter", "off")
    running = subprocess.Popen(
        [*command, "--max-tokens", "1500"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        bufsize=0,  # what a buffer holds would be lost to communicate()
    )
    assert running.stdout
    first = running.stdout.read(20)  # some text has come
    os.killpg(running.pid, signal.SIGINT)
    rest, errors = running.communicate(timeout=60)
    assert running.returncode == 0, errors.decode()
    assert "cancelled" in errors.decode()
    said = (first + rest).decode()
    expected = bytes(i for i in fake_greedy([prompt], 1500) if i < 256).decode(errors="replace")
    assert expected.startswith(said.rstrip("\n\ufffd")) and len(said) < len(expected)


SCORE_AND_INTERRUPT = """
import os, signal, sys
from specdec_tools import browser, run
call = browser.PageSession.call
async def heard(self, method, args):
    if method == "score":
        first = []
        def progress(_):
            if not first:
                first.append(os.kill(os.getpid(), signal.SIGINT))
        self.on_progress = progress
    return await call(self, method, args)
browser.PageSession.call = heard
sys.exit(run.main(sys.argv[1:]))
"""


@pytest.mark.browser
def test_ctrl_c_cancels_scoring(fake_bundle: Path) -> None:
    """In the page: a cancel at the first pass heard of ends in what was scored so far.

    The fake model scores hundreds of ids in less time than a busy machine may take to hear of the first, so a run that was
    over before the signal is tried again; one that was not must have been cancelled.
    """
    ids = [str(i % 250) for i in range(CONTEXT - 10)]
    arguments = [
        "--prompt-ids",
        IDS,
        "--score-ids",
        ",".join(ids),
        "--width",
        "1",
        "--backend",
        "wasm",
        "--json",
    ]
    command = [sys.executable, "-c", SCORE_AND_INTERRUPT, str(fake_bundle), *arguments]
    for _ in range(5):
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        result = json.loads(done.stdout)
        assert done.returncode == 0, done.stderr
        if len(result["positions"]) < len(ids):
            break
    assert result.get("finish_reason") == "cancelled", done.stderr
    assert 0 < len(result["positions"]) < len(ids)


@pytest.mark.browser
def test_serve_command_prints_its_address(fake_bundle: Path) -> None:
    command = [sys.executable, "-m", "specdec_tools.serve", str(fake_bundle)]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert running.stdout
    try:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?bundle=/bundle/\n", running.stdout.readline())
        time.sleep(0.2)
    finally:
        running.send_signal(signal.SIGINT)
        running.wait(timeout=20)
        running.stdout.close()
    assert running.returncode == 0


def _chat(args: list[str], turns: str, capsys, monkeypatch) -> tuple[int, str, list[str]]:
    """Exit status, standard output, and the first line that was told of each turn."""
    monkeypatch.setattr(sys, "stdin", io.StringIO(turns))
    code = run.main([*args, "--chat", "--max-tokens", "9", "--schedule", "fixed"])
    out, err = capsys.readouterr()
    return code, out, [line for line in err.splitlines() if "first token" in line]


def _check_chat(told: tuple[int, str, list[str]], bundle: Path, system: str | None) -> None:
    """Each answer is that of a request with the whole chat; each turn after the first keeps what was read."""
    code, out, counts = told
    text = BundleText.open(bundle, open_bundle(bundle).plan.text, True)
    messages = [{"role": "system", "content": system}] if system else []
    expected = []
    for said in ("Hello there", "And again"):
        messages.append({"role": "user", "content": said})
        ids = text.encode(text.render(messages))
        answer = fake_greedy(ids, 9)
        expected.append(text.decode(answer))
        messages.append({"role": "assistant", "content": expected[-1]})
    assert code == 0 and out == "".join(f"{answer}\n" for answer in expected)
    assert len(counts) == 2 and "kept" not in counts[0] and " kept); first token" in counts[1], counts


def test_a_conversation_on_standard_input(native: None, capsys, monkeypatch, fake_bundle: Path) -> None:
    for drafter, system in (("off", None), ("model", "Be brief.")):
        args = [str(fake_bundle), "--drafter", drafter, *(["--system", system] if system else [])]
        told = _chat(args, "Hello there\n\n  And again  \n", capsys, monkeypatch)
        _check_chat(told, fake_bundle, system)
    for extra in (["--raw"], ["--json"], ["--score-ids", "1"], ["--prompt", "x"]):
        assert run.main([str(fake_bundle), "--chat", *extra]) == 2
    assert _chat([str(fake_bundle)], "x" * CONTEXT + "\nAnd again\n", capsys, monkeypatch)[0] == 2


@pytest.mark.browser
def test_a_conversation_in_the_page(capsys, monkeypatch, fake_bundle: Path) -> None:
    args = [str(fake_bundle), "--backend", "wasm", "--timeout", "60"]
    _check_chat(_chat(args, "Hello there\nAnd again\n", capsys, monkeypatch), fake_bundle, None)


def test_ctrl_c_in_a_conversation_ends_the_answer(
    native: None, capsys, monkeypatch, fake_bundle: Path
) -> None:
    """And the next turn goes on from what was said."""
    submit, seen = FakeBackend.submit, []

    def pressed(self, batch):
        seen.append(batch)
        if len(seen) == 4:
            os.kill(os.getpid(), signal.SIGINT)
        return submit(self, batch)

    monkeypatch.setattr(FakeBackend, "submit", pressed)
    told = _chat([str(fake_bundle), "--drafter", "off"], "Hello there\nAnd again\n", capsys, monkeypatch)
    assert told[0] == 0 and "cancelled" in told[2][0] and "9 tokens" in told[2][1] and "kept" in told[2][1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
