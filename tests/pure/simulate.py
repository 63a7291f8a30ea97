"""Running the decode core on the scripted backend: models from a seed, one call to generate, a recount.

`recount` derives every counter from the recorded submits and the committed ids alone, by rules written a
second time, so that a count can be wrong in the core or here but not silently in both.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specdec_runtime import drive
from specdec_runtime.backends.scripted import Script, ScriptedBackend
from specdec_runtime.decode.choice import Schedule
from specdec_runtime.decode.effects import Emit
from specdec_runtime.decode.programs import ANY, Programs
from specdec_runtime.decode.request import Request
from specdec_runtime.decode.round import decode
from specdec_runtime.decode.sampling import PLAIN, Sampling
from specdec_runtime.decode.sampling_state import Held
from specdec_runtime.decode.text import TokenBytes
from specdec_runtime.drafters.registry import make_drafter
from specdec_runtime.plan import Plan

NextId = Callable[[tuple[int, ...]], int]


def seeded(seed: int, vocab_size: int, memory: int = 0) -> NextId:
    """A fixed random function of the prefix, or of its last `memory` tokens (then it repeats itself)."""

    def next_id(prefix: tuple[int, ...]) -> int:
        seen = prefix[-memory:] if memory else prefix
        digest = hashlib.blake2b(repr((seed, seen)).encode(), digest_size=4).digest()
        return int.from_bytes(digest, "little") % vocab_size

    return next_id


def mostly(model: NextId, other: NextId, percent: int) -> NextId:
    """Agrees with `model` on about `percent` of the prefixes: a draft of that quality."""
    coin = seeded(99, 100)
    return lambda prefix: model(prefix) if coin(prefix) < percent else other(prefix)


def always_ending(model: NextId, at: int, eos_id: int) -> NextId:
    """`model`, but the token for position `at` is EOS and no other is."""

    def next_id(prefix: tuple[int, ...]) -> int:
        if len(prefix) == at:
            return eos_id
        token_id = model(prefix)
        return token_id if token_id != eos_id else (eos_id + 1) % 7

    return next_id


def plain_ids(model: NextId, prompt: list[int], limit: int, max_context: int, eos_ids=()) -> list[int]:
    """The answer by definition: one token after another, with no machinery at all."""
    ids = list(prompt)
    while len(ids) < min(len(prompt) + limit, max_context):
        ids.append(model(tuple(ids)))
        if ids[-1] in eos_ids:
            break
    return ids[len(prompt) :]


@dataclass
class Run:
    result: dict
    backend: ScriptedBackend
    emits: list[Emit]

    @property
    def ids(self) -> list[int]:
        return self.result["token_ids"]


def generate(
    plan: Plan,
    target: NextId,
    prompt: list[int],
    max_tokens: int = 12,
    drafter: str = "off",
    k: int = 4,
    draft: NextId | None = None,
    script: Script | None = None,
    eos_ids=None,
    backend: ScriptedBackend | None = None,
    cancel_at: int | None = None,
    steps: int = 1,
    programs: Programs = ANY,
    rounds: int = 1,
    schedule: Schedule | None = None,
    sampling: Sampling = PLAIN,
    held: Held | None = None,
    stop: Sequence[str] = (),
    tokens: TokenBytes | None = None,
    logprobs: int = 0,
) -> Run:
    """One request on a fresh backend (or a used one); cancel_at counts this request's submits."""
    backend = backend or ScriptedBackend(plan, target, draft, script)
    first, emits = len(backend.submits), []

    def should_cancel() -> bool:
        return cancel_at is not None and len(backend.submits) - first >= cancel_at

    request = Request(prompt, max_tokens, k, eos_ids, steps, rounds, sampling, stop=stop, logprobs=logprobs)
    effects = decode(plan, request, make_drafter(drafter, plan), programs, schedule, held, tokens)
    result = drive.run(
        effects,
        backend,
        lambda effect: emits.append(effect) if isinstance(effect, Emit) else None,
        should_cancel,
    )
    return Run(result, backend, emits)


@dataclass(frozen=True)
class Pass:
    """The target's part of one round (or of plain steps in one submit) as the device saw it."""

    start: int
    rows: int
    drafts: list[int]
    steps: int = 1  # passes of one row, each fed by the one before
    number: int = 0  # of the round in its submit
    rounds: int = 1  # of that submit
    on_device: bool = False  # the drafts were made there


def passes(run: Run) -> list[Pass]:
    """Every round whose tokens were committed, from what was written to the device and read back."""
    found = []
    num_ids = len(run.result["prompt_ids"]) + len(run.ids)
    for batch, readback in zip(run.backend.submits, run.backend.readbacks, strict=True):
        if batch.kind not in ("verify", "round") or readback is None:
            continue
        args = [values for name, _, values in batch.writes if name == "target.args"]
        assert len(args) == 1, "a target pass writes its args once"
        start, rows = args[0][:2]
        num_passes = sum(call.startswith("target.") for call in batch.calls)
        if batch.kind == "round":
            found += [each for each in rounds_of(batch, readback, start, rows) if each.start + 1 < num_ids]
            continue
        if num_passes > 1:
            assert rows == 1 and args[0][2] == 1 and set(batch.calls) == {batch.calls[0]}, "steps feed steps"
            found.append(Pass(start, rows, [], num_passes))
            continue
        assert num_passes == 1, "one target pass a cycle"
        drafts = []
        for name, first, values in batch.writes:
            if name == "tokens":
                drafts = values[start + 1 - first :]
        assert rows == len(drafts) + 1, "k drafts are verified over k + 1 rows"
        found.append(Pass(start, rows, drafts))
    return found


def rounds_of(batch, readback, start: int, rows: int) -> list[Pass]:
    """The rounds of one submit: each begins where the target's rows of the one before lead to."""
    drafted, out = readback.values[:2]
    num_rounds = sum(call.startswith("target.") for call in batch.calls)
    assert len(out) == 2 * rows * num_rounds and batch.calls.count("draft.accept") == num_rounds - 1
    found = []
    for number in range(num_rounds):
        drafts = drafted[2 * number * rows :: 2][: rows - 1]
        assert rows == len(drafts) + 1, "k drafts are verified over k + 1 rows"
        found.append(Pass(start, rows, drafts, 1, number, num_rounds, on_device=True))
        said = out[2 * number * rows :: 2][:rows]
        agreed = [draft == token for draft, token in zip(drafts, said, strict=False)]
        start += [*agreed, False].index(False) + 1
    return found


def passes_of(batch) -> int:
    """The target's passes in a submit that decodes."""
    return sum(call.startswith("target.") for call in batch.calls) if batch.kind in ("verify", "round") else 0


def recount(run: Run) -> dict[str, int]:
    """The counters of a run without faults, from its passes and its ids."""
    ids = run.result["prompt_ids"] + run.ids
    seen = passes(run)
    ends = [*(seen_pass.start + 1 for seen_pass in seen[1:]), len(ids)][: len(seen)]
    drafted = accepted = evaluated = 0
    for seen_pass, end in zip(seen, ends, strict=True):
        gained = ids[seen_pass.start + 1 : end]
        agreed = 0
        for draft_id, committed_id in zip(seen_pass.drafts, gained, strict=False):
            if draft_id != committed_id:
                break
            agreed += 1
        drafted += len(seen_pass.drafts)
        accepted += agreed
        evaluated += agreed + (agreed < len(gained) and agreed < len(seen_pass.drafts))
    calls = [call for batch in run.backend.submits for call in batch.calls]
    return {
        "num_cycles": len(seen),
        "num_drafted": drafted,
        "num_accepted": accepted,
        "num_evaluated": evaluated,
        "num_target_passes": sum(passes_of(batch) for batch in run.backend.submits),
        "num_draft_passes": sum(call.startswith(("draft.step", "draft.sample")) for call in calls),
    }
