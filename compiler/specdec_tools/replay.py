"""The strata replayed: `specdec-bench strata --backend replay` tries schedules for one device on another.

What the champion said and where its draft agreed is recorded once, natively. Then the real decode core, drafters and schedules run over
it on a device that is made up of costs. That is possible because a speculative answer is the plain one: at a position of it, the
draft's choice after the true tokens either is the next token or is not, whatever was drafted before. All times are sums of given
costs, and what comes of them is called a prediction. Knows no device and no clock. Invariant: the replayed ids are the recorded ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from specdec_runtime import drive
from specdec_runtime.bundle import Bundle
from specdec_runtime.decode.effects import Effect, Emit, Readback, Submit
from specdec_runtime.decode.options import read_request
from specdec_runtime.decode.programs import ANY, is_pass
from specdec_runtime.decode.round import decode
from specdec_runtime.drafters.registry import make_drafter
from specdec_runtime.faults import ArtifactError, ContractError, RequestError
from specdec_runtime.schedule.costs import Costs
from specdec_runtime.schedule.policy import FILE as POLICY_FILE
from specdec_runtime.schedule.registry import open_schedules

from .native_run import NativeRun, OnEmit, given_fields
from .schedule_sim import MACHINES, SHAPES, Machine

FORMAT = "specdec-answers"
ANSWERED = {
    "prompt_ids",
    "max_tokens",
    "temperature",
    "seed",
    "mode",
    "drafter",
    "k",
    "rounds",
    "plain_steps",
    "schedule",
}
DEPTHS = (7, 6, 5)  # drafts a round of the recorded runs


@dataclass(frozen=True)
class Answer:
    """One prompt's plain answer; stands[i]: whether the draft's choice for ids[i], after the true tokens before it, is ids[i]."""

    prompt: str
    stratum: str
    prompt_ids: list[int]
    ids: list[int]
    stands: list[bool]


@dataclass(frozen=True)
class Recording:
    """Answers at one temperature and seed, of at most max_tokens."""

    bundle: str
    weights: str  # the plan's identity of them
    temperature: float
    seed: int
    max_tokens: int
    answers: list[Answer]

    def write(self, path: Path) -> None:
        """Whole, or not at all."""
        part = path.with_name(path.name + ".part")
        part.write_text(json.dumps({"format": FORMAT, "version": 1, **asdict(self)}) + "\n", "ascii")
        part.replace(path)


def read_recording(path: Path) -> Recording:
    """ArtifactError for a file that `record` did not write."""
    try:
        data = json.loads(path.read_text("ascii"))
        if (data.pop("format"), data.pop("version")) != (FORMAT, 1):
            raise ValueError("another format")
        return Recording(**data | {"answers": [Answer(**answer) for answer in data["answers"]]})
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ArtifactError(
            f"no recorded answers: {error}", str(path), "Name a new file: it is made"
        ) from None


def recorded(
    path: Path,
    bundle: Bundle,
    config: dict[str, Any],
    sampling: dict[str, Any],
    told: Callable[[int, int], None],
) -> Recording:
    """The recording in the file; where there is none, it is made (minutes). ArtifactError for one of another bundle."""
    if not path.exists():
        if not path.parent.is_dir():
            raise RequestError("its folder does not exist", str(path), "Make it, or name another file")
        with NativeRun.open(bundle.folder) as native:
            made = record(native, config["prompts"], config["max_tokens"], sampling, told)
        made.write(path)
    found = read_recording(path)
    if found.weights != bundle.plan.ids.weights:
        raise ArtifactError(f"answers of another bundle ({found.bundle})", str(path), "Name a new file")
    return found


def record(
    native: NativeRun,
    prompts: Sequence[dict[str, Any]],
    max_tokens: int,
    sampling: dict[str, Any],
    told: Callable[[int, int], None] = lambda done, total: None,
) -> Recording:
    """Answers of the native backend with deep rounds of the draft model."""
    answers = []
    for number, prompt in enumerate(prompts):
        asked = {"prompt_ids": prompt["prompt_ids"], "max_tokens": max_tokens, **sampling}
        ids, stands = _answer_of(native, asked)
        answers.append(Answer(prompt["id"], prompt["stratum"], prompt["prompt_ids"], ids, stands))
        told(number + 1, len(prompts))
    plan, temperature = native.plan, sampling.get("temperature", 0.0)
    seed = sampling.get("seed", 1)
    return Recording(plan.name, plan.ids.weights, temperature, seed, max_tokens, answers)


def _answer_of(native: NativeRun, asked: dict[str, Any]) -> tuple[list[int], list[bool]]:
    """An answer, and what of it stands.

    The token that comes free after a round in which all drafts stood is not judged in that run: rounds of another depth end
    elsewhere. What none of them judged is taken to stand, as most after such a run do. One token more than asked is run: the last is
    never drafted.
    """
    known: dict[int, bool] = {}
    ids: list[int] = []
    most = asked["max_tokens"]
    for depth in DEPTHS:
        at = 0

        def heard(emit: Emit) -> None:
            nonlocal at
            judged = emit.num_accepted + (emit.num_accepted < emit.num_drafted)
            known.update((at + i, i < emit.num_accepted) for i in range(min(judged, len(emit.ids))))
            at += len(emit.ids)

        options = {"drafter": "model", "k": depth, "rounds": 1, "schedule": "fixed", "max_tokens": most + 1}
        ids = native.generate(asked | options, on_emit=heard)["token_ids"][:most]
        if all(at in known for at in range(len(ids))):
            break
    return ids, [known.get(at, True) for at in range(len(ids))]


class Player:
    """A device that says what was recorded, and takes as long as its costs say."""

    def __init__(self, costs: Costs, answer: Answer) -> None:
        self.info: dict[str, Any] = {"backend": "replay", "adapter": ""}
        self._costs, self._answer = costs, answer
        self._at = 0  # tokens of the answer that were said
        self._ahead_ms = 0.0  # what was given to it before and nobody waited for
        self.ms = 0.0  # wall time of all that decoding waited for, the host's work with it

    def submit(self, batch: Submit) -> Readback:
        passes = sum(map(self._call_ms, batch.calls))
        if batch.kind in ("prefill", "draft"):
            # reading the prompt into the target costs all runs the same
            self._ahead_ms += passes if batch.calls[0].startswith("draft.") else 0.0
            return Readback([[0] * count for _, _, count in batch.reads], [0.0] * len(batch.calls))
        inside = self._costs.sync - self._costs.outside + passes
        rounds = sum(map(is_pass, batch.calls)) if batch.kind == "round" else 0
        self.ms += inside + self._ahead_ms + self._costs.host(rounds or 1)
        if self._costs.chunks_in_ms:
            inside += self._ahead_ms
        self._ahead_ms = 0.0
        ms = [0.0] * (len(batch.calls) - 1) + [inside]
        return Readback(self._rounds(batch, rounds) if rounds else self._rows(batch), ms)

    def close(self) -> None:
        pass

    def _call_ms(self, call: str) -> float:
        costs, (role, name) = self._costs, call.split(".")
        if name == "prefill":
            return (costs.target_read if role == "target" else costs.draft_read) or 0.0
        if role == "target":
            return costs.rows(int(name.rsplit("_", 1)[1]))
        return costs.accept if call == "draft.accept" else costs.draft_step or 0.0

    def _true(self, at: int) -> int:
        ids = self._answer.ids
        return ids[at] if at < len(ids) else 0  # past the end: nobody's

    def _rows(self, batch: Submit) -> list[list[int]]:
        """Plain steps, or a pass over drafts that the host wrote."""
        rows = batch.reads[0][2] // 2
        drafted: list[int] = []
        if len(batch.calls) == 1 and rows > 1:
            ((_, first, values),) = [write for write in batch.writes if write[0] == "tokens"]
            drafted = values[len(self._answer.prompt_ids) + self._at - first :]
        said = [self._true(self._at + row) for row in range(rows)]
        right = next((i for i, draft in enumerate(drafted) if draft != said[i]), len(drafted))
        self._at += right + 1 if drafted else rows
        return [[number for token in said for number in (token, 1)]]

    def _rounds(self, batch: Submit, rounds: int) -> list[list[int]]:
        """Rounds of the draft model: its drafts, the target's rows, and where the last round began."""
        rows = batch.reads[1][2] // 2 // rounds
        drafts: list[int] = []
        said: list[int] = []
        start = 0
        for _ in range(rounds):
            start = self._at
            stood = 0
            stands = self._answer.stands[start : start + rows - 1]
            # the row of a known token lies between the drafts of two rounds
            drafts += [0, 1] if drafts else []
            for place in range(rows - 1):
                right = place < len(stands) and stands[place]
                stood += right and stood == place
                drafts += [self._true(start + place) if right else self._wrong(start + place), 1]
            said += [number for row in range(rows) for number in (self._true(start + row), 1)]
            self._at = start + stood + 1
        position = len(self._answer.prompt_ids) + start - 1
        return [drafts, said] + ([[position]] if rounds > 1 else [])

    def _wrong(self, at: int) -> int:
        return 1 if self._true(at) == 0 else 0


class ReplayRun:
    """A bundle whose answers were recorded, on a machine of given costs: what strata asks of a NativeRun, its times predicted."""

    load_ms = 0.0

    def __init__(self, bundle: Bundle, recording: Recording, machine_name: str) -> None:
        self._plan, self._recording = bundle.plan, recording
        self._machine: Machine = (MACHINES | SHAPES)[machine_name]
        policy = bundle.read(POLICY_FILE) if POLICY_FILE in bundle.files else None
        self.schedules = open_schedules(self._plan, policy_json=policy).with_costs(self._machine.costs, ANY)
        self._answers = {tuple(answer.prompt_ids): answer for answer in recording.answers}
        adapter = f"the costs of {machine_name!r} (a prediction)"
        self.backend = SimpleNamespace(info={"backend": "replay", "adapter": adapter})

    def __enter__(self) -> ReplayRun:
        return self

    def __exit__(self, *_) -> None:
        pass

    def generate(self, request: dict[str, Any], on_emit: OnEmit = lambda emit: None) -> dict[str, Any]:
        """As NativeRun.generate, for a recorded prompt; `timing_ms` is the machine's."""
        given = {name: value for name, value in request.items() if value is not None}
        asked, answer = given_fields(given), self._answer_to(given)
        steps = min(given.get("plain_steps", self._machine.steps), self._machine.steps)
        rounds = min(given.get("rounds", self._machine.rounds), self._machine.rounds)
        fields = {name: asked[name] for name in ("temperature", "seed", "k", "max_tokens") if name in asked}
        parsed = read_request(fields | {"prompt_ids": answer.prompt_ids}, steps, rounds)
        drafter = make_drafter(asked["drafter"], self._plan)
        schedule = self.schedules.make(asked["schedule"], parsed.k, parsed.sampling.draws)
        player, first_ms = Player(self._machine.costs, answer), []

        def heard(effect: Effect) -> None:
            if isinstance(effect, Emit):
                first_ms.append(player.ms)
                on_emit(effect)

        with closing(decode(self._plan, parsed, drafter, schedule=schedule)) as effects:
            result = drive.run(effects, player, heard)
        ids = result["token_ids"]
        if ids != answer.ids[: len(ids)]:
            raise ContractError(
                f"{answer.prompt}: other ids than those recorded", "replay", "Please report this"
            )
        decode_ms = {"first_token": first_ms[0] if first_ms else None, "prefill": 0.0, "decode": player.ms}
        return {**result, "timing_ms": decode_ms | {"draft": 0.0, "verify": player.ms, "other": 0.0}}

    def _answer_to(self, request: dict[str, Any]) -> Answer:
        recording, answer = self._recording, self._answers.get(tuple(request["prompt_ids"]))
        if answer is None:
            raise RequestError(
                "this prompt was not recorded", "--answers", "Record the same strata of this bundle"
            )
        temperature, seed = request.get("temperature", 0.0), request.get("seed", recording.seed)
        if temperature != recording.temperature or (temperature and seed != recording.seed):
            asked = f"temperature {recording.temperature:g}, seed {recording.seed}"
            raise RequestError(f"the answers were recorded at {asked}", "--answers", "Ask for the same")
        if unknown := sorted(set(request) - ANSWERED):
            message = f"recorded answers say nothing of {', '.join(unknown)}"
            raise RequestError(message, unknown[0], "Leave it out")
        if request.get("schedule") == "confidence":
            message = "how sure the draft was is not recorded"
            raise RequestError(message, "schedule", "Use another schedule")
        if request.get("mode", "coupled") != "coupled":
            raise RequestError("only coupled answers are the plain ones", "--modes", "Leave it out")
        if request["max_tokens"] > max(len(answer.ids), recording.max_tokens):
            message = f"the answers were recorded to {recording.max_tokens} tokens"
            raise RequestError(message, "--max-tokens", f"Give at most {recording.max_tokens}")
        return answer
