"""What forced drafts bring on the JSON stratum, natively: its 12 prompts, each with its grammar, with and without them.

.venv/bin/python tests/exact/forced_on_model.py bundles/smollm2-135m [--temperature T] [--max-tokens N] [--json FILE]

A turn is one prompt in every way, in an order that changes from turn to turn. All ids must be the plain ones, and an answer that
ended is validated. Prints a table, sums over the prompts; counts are the same on any machine but for `break_even`, which
chooses by the costs it measures.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from grammar_schemas import check
from json_grammars import SCHEMAS, grammar_of
from specdec_runtime.decode import grammar
from specdec_tools.native_run import NativeRun
from specdec_tools.strata import read_strata
from specdec_tools.strata_native import check_equal, ordered

PLAIN = "plain"
WAYS: dict[str, tuple[dict[str, Any], bool]] = {  # options, and whether forced tokens are drafted
    PLAIN: ({"drafter": "off", "k": 0}, False),
    "off, k 3": ({"drafter": "off", "k": 3}, True),
    "off, k 7": ({"drafter": "off", "k": 7}, True),
    **{
        f"chain, {schedule}, k {k}{' + forced' if forced else ''}": (
            {"drafter": "chain", "k": k, "schedule": schedule},
            forced,
        )
        for schedule, k in (("fixed", 3), ("break_even", 7))
        for forced in (False, True)
    },
}
HEADS = (
    "way",
    "tokens",
    "target passes",
    "tokens a pass",
    "forced, accepted",
    "drafted",
    "accepted",
    "draft passes",
)


@contextmanager
def forcing(wanted: bool) -> Iterator[None]:
    """Without: a row that leaves one id drafts nothing. The product always drafts it, so this is done to it from outside."""
    with mock.patch.object(grammar, "only_id", grammar.only_id if wanted else lambda words: None):
        yield


def measure(runner: NativeRun, asks: list[dict[str, Any]]) -> dict[str, Counter]:
    """Counts of each way, over all prompts."""
    found: dict[str, Counter] = {way: Counter() for way in WAYS}
    for turn, ask in enumerate(asks):
        prompt, results = ask["id"], {}
        for one in ordered([{"name": way} for way in WAYS], turn):
            options, forced = WAYS[one["name"]]
            with forcing(forced):
                results[one["name"]] = runner.generate({**ask["request"], **options})
        plain = results[PLAIN]
        for way, result in results.items():
            check_equal(prompt, way, result["token_ids"], PLAIN, plain["token_ids"])
            found[way].update(
                {name: n for name, n in result["speculation"].items() if name.startswith("num_")}
            )
            found[way].update(tokens=len(result["token_ids"]), ms=result["timing_ms"]["decode"])
        if plain["finish_reason"] == "stop":
            check(SCHEMAS[prompt] or {}, plain["text"])
        print(f"{prompt}: {plain['finish_reason']}, {plain['text']}", file=sys.stderr, flush=True)
    return found


def table(found: dict[str, Counter]) -> str:
    lines = ["| " + " | ".join((*HEADS, "tokens/s")) + " |", "| --- " * (len(HEADS) + 1) + "|"]
    for way, counts in found.items():
        passes, tokens = counts["num_target_passes"], counts["tokens"]
        names = ("num_forced_accepted", "num_drafted", "num_accepted", "num_draft_passes")
        numbers = [f"{tokens / passes:.2f}", *(str(counts[name]) for name in names)]
        cells = [way, str(tokens), str(passes), *numbers, f"{tokens / counts['ms'] * 1000:.1f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="What forced drafts bring on the JSON stratum.")
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--json", type=Path, help="also write the counts into this file")
    args = parser.parse_args()
    with NativeRun.open(args.bundle) as runner:
        asks = [
            {
                "id": prompt.id,
                "request": {
                    "messages": list(prompt.messages),
                    "max_tokens": min(args.max_tokens, prompt.max_tokens),
                    "grammar": grammar_of(prompt.id),
                    "temperature": args.temperature,
                    "seed": 1,
                },
            }
            for prompt in read_strata(names=["json"])
        ]
        found = measure(runner, asks)
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")
    print(table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
