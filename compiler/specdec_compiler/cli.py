"""specdec-compile: build | inspect | verify | dump | tiny."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path

from specdec_runtime.bundle import open_bundle
from specdec_runtime.faults import SpecdecError, error_json, exit_code
from tqdm import tqdm


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit status (2 to 5 by error family, 130 when interrupted)."""
    args = _parser().parse_args(argv)
    ended = _end_in_order()
    try:
        args.run(args)
    except SpecdecError as error:
        if getattr(args, "json", False):
            print(json.dumps(error_json(error)))
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return exit_code(error)
    except BrokenPipeError:  # the reader (head, less) has seen enough
        sys.stderr.close()
        return 0
    except BaseException:
        if not ended:
            raise
        print("interrupted; nothing was left behind", file=sys.stderr)
        return ended[0]
    return 0


def _end_in_order() -> list[int]:
    """Make Ctrl-C and SIGTERM unwind the stack, so that half-written folders go; the list gets the exit status then.

    The exception may come out as another: TVM turns what is raised inside its callbacks into a RuntimeError.
    """
    ended: list[int] = []

    def end(number: int, _frame: object) -> None:
        ended.append(128 + number)
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    return ended


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="specdec-compile", description="Compile a recipe into a bundle for the browser."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    build = commands.add_parser("build", help="compile RECIPE into the bundle folder OUT")
    build.add_argument("recipe", type=Path)
    build.add_argument(
        "-o", "--out", type=Path, required=True, help="bundle folder (replaced if it is a bundle)"
    )
    build.add_argument("--quiet", action="store_true", help="no progress bar")
    build.add_argument(
        "--max-binding",
        type=int,
        metavar="BYTES",
        help="an embedding or head above this is bound by rows on WebGPU (default: what every device allows, 134217728)",
    )
    build.add_argument(
        "--allow-unproven-draft",
        action="store_true",
        help="build with a draft whose provenance.json is absent or wrong; the bundle says so",
    )
    build.add_argument(
        "--strata", type=Path, help="evaluation prompts a draft is compared with (default: models/strata)"
    )
    build.set_defaults(run=_build)

    inspect = commands.add_parser("inspect", help="show what a bundle holds and what memory it takes")
    inspect.add_argument("bundle", type=Path)
    inspect.add_argument("--json", action="store_true")
    inspect.set_defaults(run=_inspect)

    verify = commands.add_parser("verify", help="check every file of a bundle against its manifest")
    verify.add_argument("bundle", type=Path)
    verify.set_defaults(run=_verify)

    dump = commands.add_parser("dump", help="print a program after a phase of the pipeline")
    dump.add_argument("recipe", type=Path)
    dump.add_argument("--phase", required=True, help="import | fuse | target | memory | kernels")
    dump.add_argument("--program", default="target.verify_1", help="which program (default target.verify_1)")
    dump.add_argument("--target", choices=("cpu", "gpu"), default="gpu")
    dump.set_defaults(run=_dump)

    tiny = commands.add_parser("tiny", help="make a tiny random champion and draft with a recipe, for tests")
    tiny.add_argument("-o", "--out", type=Path, required=True)
    tiny.add_argument("--seed", type=int, required=True)
    tiny.add_argument("--vocab", type=int, default=384, help="vocabulary size, 300 to 1000 (default 384)")
    tiny.set_defaults(run=_tiny)
    return parser


def _build(args: argparse.Namespace) -> None:
    from .build import build_bundle
    from .drafts.gate import Gate
    from .drafts.strata import DEFAULT
    from .emit.rows import MAX_BINDING

    def warn(message: str) -> None:
        print(f"warning: {message}", file=sys.stderr)

    max_binding = MAX_BINDING if args.max_binding is None else args.max_binding
    bars: list[tqdm] = []  # made at the first step: an error before it shows no empty bar

    def progress(what: str, done: int, total: int) -> None:
        if not bars:
            bars.append(
                tqdm(total=total, unit="tensor", disable=args.quiet, file=sys.stderr, dynamic_ncols=True)
            )
        bars[0].set_description(what, refresh=False)
        bars[0].update(done - bars[0].n)

    try:
        gate = Gate(args.strata or DEFAULT, args.allow_unproven_draft, warn)
        manifest = build_bundle(args.recipe, args.out, progress, gate, max_binding)
    finally:
        for bar in bars:
            bar.close()
    size = sum(entry["bytes"] for entry in manifest["files"])
    print(f"{args.out}: {manifest['name']}, {len(manifest['files'])} files, {size / 1e6:.1f} MB")


def _inspect(args: argparse.Namespace) -> None:
    from .inspect import render, summary

    facts = summary(open_bundle(args.bundle))
    print(json.dumps(facts, indent=2) if args.json else render(facts))


def _verify(args: argparse.Namespace) -> None:
    bundle = open_bundle(args.bundle)
    size = bundle.verify()
    print(f"{args.bundle}: {len(bundle.files)} files, {size / 1e6:.1f} MB, all as the manifest says")


def _dump(args: argparse.Namespace) -> None:
    from .inspect import dump

    print(dump(args.recipe, args.phase, args.program, args.target))


def _tiny(args: argparse.Namespace) -> None:
    from .tiny import make_tiny

    make_tiny(args.out, args.seed, args.vocab)
    print(f"{args.out}: champion, draft, recipe.toml")


if __name__ == "__main__":
    sys.exit(main())
