"""specdec-distill: a draft for a champion, in stages that a second call goes on from."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from specdec_runtime.faults import RequestError, SpecdecError

from .recipe import read_distill_recipe


def _share(text: str) -> tuple[int, int]:
    """ "I/N" -> (I, N)."""
    index, slash, total = text.partition("/")
    if not (slash and index.isdecimal() and total.isdecimal() and int(index) < int(total)):
        raise RequestError(f"--share {text}", "--share", "give I/N with 0 <= I < N")
    return int(index), int(total)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="specdec-distill",
        description="Train a small draft on text that its champion writes (needs PyTorch: the extra 'distill').",
    )
    parser.add_argument("recipe", type=Path, help="a distillation recipe (.toml)")
    parser.add_argument(
        "-o", "--output", type=Path, required=True, help="folder for the stages and the draft"
    )
    parser.add_argument("--device", default=None, help="cuda or cpu (default: cuda where there is one)")
    parser.add_argument("--stage", choices=("text", "train", "export", "all"), default="all")
    parser.add_argument(
        "--share", default="0/1", help="with --stage text: write share I of N (seed + I), for N machines"
    )
    parser.add_argument(
        "--strata", type=Path, help="evaluation prompts to keep out of the text (default: models/strata)"
    )
    parser.add_argument("--commit", help="revision of the code for provenance.json (default: the checkout's)")
    args = parser.parse_args(argv)
    start = time.monotonic()

    def say(line: str) -> None:
        print(f"[{time.monotonic() - start:7.1f} s] {line}", file=sys.stderr, flush=True)

    try:
        from .run import distill
    except ImportError as error:
        print(f"specdec-distill needs PyTorch ({error}): pip install 'specdec[distill]'", file=sys.stderr)
        return 2
    try:
        options = {"strata": args.strata} if args.strata else {}
        result = distill(
            read_distill_recipe(args.recipe),
            args.output,
            say,
            stage=args.stage,
            device=args.device,
            share=_share(args.share),
            commit=args.commit,
            **options,
        )
    except SpecdecError as error:
        print(f"specdec-distill: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; the same command goes on from the last finished stage or checkpoint", file=sys.stderr)
        return 130
    print(json.dumps(result, indent=1))
    return 0
