"""The evaluation on the native backend: what web/bench/strata.js does in a page, to the same record of raw measurements.

Does not know tables or browsers. Invariants: a configuration's place in the order changes from turn to turn; all ids are compared with
those of the first configuration, and the first difference ends the run, with what was measured and the error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from specdec_runtime.bundle import Bundle
from specdec_runtime.decode.effects import Emit
from specdec_runtime.faults import ContractError, SpecdecError, error_json

from .native_run import NativeRun
from .replay import ReplayRun
from .strata_matrix import Config, references

WARM_TOKENS = 8
REPORT = "This is a bug in specdec: please report it"


def turns_of(prompts: list[dict[str, Any]], pairs: int) -> list[dict[str, Any]]:
    """Strata side by side; `pairs` turns of each, its prompts one after the other and then from the first again."""
    strata: dict[str, list[dict[str, Any]]] = {}
    for prompt in prompts:
        strata.setdefault(prompt["stratum"], []).append(prompt)
    return [group[i % len(group)] for i in range(pairs) for group in strata.values()]


def ordered(configs: list[Config], turn: int) -> list[Config]:
    """A configuration's place changes from turn to turn: forwards and backwards, each time from another one on."""
    start = (turn // 2) % len(configs)
    turned = configs[start:] + configs[:start]
    return turned[::-1] if turn % 2 else turned


@dataclass
class Tally:
    """Counts by position in a round: drafts offered, judged and accepted."""

    drafted: list[int] = field(default_factory=list)
    evaluated: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)

    def add(self, num_ids: int, drafted: int, accepted: int) -> None:
        judged = accepted + (accepted < drafted and num_ids > accepted)  # an end cuts what comes after it
        for counts, count in ((self.drafted, drafted), (self.evaluated, judged), (self.accepted, accepted)):
            counts.extend([0] * (count - len(counts)))
            for i in range(count):
                counts[i] += 1


def _measure(
    native: NativeRun | ReplayRun, prompt: dict[str, Any], config: Config, tokens: int
) -> tuple[list[int], dict]:
    tally, first = Tally(), 0

    def heard(emit: Emit) -> None:
        nonlocal first
        first = first or len(emit.ids)
        tally.add(len(emit.ids), emit.num_drafted, emit.num_accepted)

    most = min(tokens, prompt["max_tokens"])
    request = {"prompt_ids": prompt["prompt_ids"], "max_tokens": most, **config["options"]}
    result = native.generate(request, on_emit=heard)
    timing = result["timing_ms"]
    return result["token_ids"], {
        "prompt": prompt["id"],
        "config": config["name"],
        "tokens": len(result["token_ids"]),
        "finish": result["finish_reason"],
        "first": first,
        "first_ms": timing["first_token"],
        "total_ms": timing["prefill"] + timing["decode"],
        "prefill_ms": timing["prefill"],
        "draft_ms": timing["draft"],
        "verify_ms": timing["verify"],
        "seed": result["seed"],
        "speculation": result["speculation"],
        **vars(tally),
    }


def check_equal(prompt: str, name: str, ids: list[int], plain: str, expected: list[int]) -> None:
    """All ids, or a ContractError that names the prompt and the first position."""
    if ids == expected:
        return
    pairs = zip(ids, expected, strict=False)
    at = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(ids), len(expected)))
    message = f'{prompt}: "{name}" differs from "{plain}" at position {at} of the answer'
    raise ContractError(message, "strata", REPORT)


def run_native(
    bundle: Bundle,
    config: dict[str, Any],
    told: Callable[[int, int], None],
    replayed: ReplayRun | None = None,
) -> dict[str, Any]:
    """The whole matrix on this CPU, or replayed; Ctrl-C and a difference leave what there is, marked partial."""
    with replayed or NativeRun.open(bundle.folder) as native:
        outcome = {
            **{key: value for key, value in config.items() if key not in ("bundle", "load", "prompts")},
            "tokens": None,
            "browser": None,
            "device": native.backend.info,
            "load_ms": native.load_ms,
            "memory": memory_plan(bundle, "cpu"),
            "costs": None,
            "prompts": [
                {"id": p["id"], "stratum": p["stratum"], "prompt_tokens": len(p["prompt_ids"])}
                for p in config["prompts"]
            ],
            "runs": [],
            "partial": True,
        }
        try:
            _turns(native, config, outcome, told)
            outcome["partial"] = False
        except KeyboardInterrupt:
            pass
        except SpecdecError as error:
            outcome |= error_json(error)
    return outcome


def _turns(
    native: NativeRun | ReplayRun,
    config: dict[str, Any],
    outcome: dict[str, Any],
    told: Callable[[int, int], None],
) -> None:
    configs, turns = config["configs"], turns_of(config["prompts"], config["pairs"])
    expected = references(configs)
    for one in configs:
        _measure(native, turns[0], one, WARM_TOKENS)
    outcome["costs"] = native.schedules.costs.json()  # as the first scheduled run measured them
    for turn, prompt in enumerate(turns):
        runs = {
            one["name"]: _measure(native, prompt, one, prompt["max_tokens"]) for one in ordered(configs, turn)
        }
        for name, plain in expected.items():
            check_equal(prompt["id"], name, runs[name][0], plain, runs[plain][0])
        outcome["runs"] += [{"turn": turn, **record} for _, record in runs.values()]
        told(turn + 1, len(turns))


def memory_plan(bundle: Bundle, target: str) -> dict[str, int]:
    """Bytes by kind: all of it is allocated at load, so the plan is the peak."""
    found: dict[str, int] = dict.fromkeys(("weight", "kv", "state", "scratch", "total"), 0)
    for buffer in bundle.plan.target(target).buffers:
        found[buffer.lifetime] += buffer.bytes
        found["total"] += buffer.bytes
    return found
