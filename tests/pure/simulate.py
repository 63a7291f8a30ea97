"""Running the decode core on the scripted backend: models from a seed, one call to generate, an independent recount.

`recount` derives every counter from the recorded submits and the committed ids alone, by rules written a second time,
so that a count can be wrong in the core or here but not silently in both.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from specdec_runtime import drive
from specdec_runtime.backends.scripted import Script, ScriptedBackend
from specdec_runtime.decode.effects import Emit
from specdec_runtime.decode.request import Request
from specdec_runtime.decode.round import decode
from specdec_runtime.drafters.registry import make_drafter
from specdec_runtime.plan import Plan

NextId = Callable[[tuple[int, ...]], int]


def seeded(seed: int, vocab_size: int, memory: int = 0) -> NextId:
    """A fixed random function of the prefix, or of its last `memory` tokens (which makes it repeat itself)."""

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
) -> Run:
    """One request on a fresh backend (or a used one); cancel_at counts this request's submits."""
    backend = backend or ScriptedBackend(plan, target, draft, script)
    first, emits = len(backend.submits), []

    def should_cancel() -> bool:
        return cancel_at is not None and len(backend.submits) - first >= cancel_at

    effects = decode(plan, Request(prompt, max_tokens, k, eos_ids), make_drafter(drafter, plan))
    result = drive.run(
        effects, backend, lambda effect: emits.append(effect) if isinstance(effect, Emit) else None, should_cancel
    )
    return Run(result, backend, emits)


def passes(run: Run) -> list[tuple[int, int]]:
    """(start, rows) of every target pass, from what was written to the device."""
    found = []
    for batch in run.backend.submits:
        if batch.kind in ("verify", "round"):
            args = [values for name, _, values in batch.writes if name == "target.args"]
            assert len(args) == 1, "a target pass writes its args once"
            found.append((args[0][0], args[0][1]))
    return found


def recount(run: Run, eos_ids) -> dict[str, int]:
    """Counters from the rows of each pass and the committed ids; for runs without faults or NaN rows."""
    prompt_len = run.result["usage"]["prompt_tokens"]
    committed = prompt_len
    counts = dict.fromkeys(
        ("num_cycles", "num_drafted", "num_accepted", "num_evaluated", "num_target_passes", "num_draft_passes"), 0
    )
    starts = [start for start, _ in passes(run)] + [len(run.ids) + prompt_len - 1]
    for number, (start, rows) in enumerate(passes(run)):
        assert start == committed - 1, "row 0 of a pass is the last committed token"
        gained = starts[number + 1] - start
        ended_on_draft = run.ids[start + gained - prompt_len] in eos_ids and gained <= rows - 1
        is_last = number + 2 == len(starts)
        accepted = gained - 1
        if is_last and ended_on_draft:
            accepted = gained if run.emits[-1].num_accepted == gained else gained - 1
        counts["num_cycles"] += 1
        counts["num_target_passes"] += 1
        counts["num_drafted"] += rows - 1
        counts["num_accepted"] += accepted
        rejected = gained > accepted and accepted < rows - 1
        counts["num_evaluated"] += accepted + rejected
        committed += gained
    steps = [call for batch in run.backend.submits for call in batch.calls if call.startswith("draft.step")]
    counts["num_draft_passes"] = len(steps)
    return counts
