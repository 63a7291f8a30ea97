"""specdec-bench strata: the preregistered prompts, plain and speculative in turns, and what comes of it.

Does not measure and does not compute. Invariant: whatever was measured is written before an error of the run is raised.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from specdec_runtime.bundle import Bundle, open_bundle
from specdec_runtime.decode.sampling import COUPLED, MODES
from specdec_runtime.faults import RequestError, error_from_json

from . import strata_predict
from .browser import ADAPTERS, BrowserOptions
from .json_file import read_json_file
from .peers.cli import count, counts, names
from .replay import ReplayRun, recorded
from .schedule_sim import MACHINES, SHAPES
from .strata import FOLDER, MOST_TOKENS, chosen_strata, read_strata
from .strata_matrix import chosen_drafters, make_configs, page_config, read_configs, sampled
from .strata_native import run_native
from .strata_page import pack_page, run_page
from .strata_report import check_report, summary
from .strata_tables import charts, table


def add_command(commands: Any) -> None:
    """Add it to specdec-bench's parser."""
    strata = commands.add_parser(
        "strata", help="speculative against plain decoding on the preregistered prompts"
    )
    strata.add_argument("bundle", type=Path, nargs="?", help="left out with --show")
    strata.add_argument(
        "--show", dest="saved", type=Path, metavar="FILE", help="report a saved run: measure nothing"
    )
    strata.add_argument("--backend", choices=("wasm", "webgpu", "native", "replay"), default="wasm")
    strata.add_argument(
        "--answers", type=Path, metavar="FILE", help="of replay: recorded answers; made, natively, if missing"
    )
    strata.add_argument(
        "--machine",
        choices=[*MACHINES, *SHAPES],
        default="gpu, 8 rounds",
        help="of replay: whose costs its times are made of",
    )
    strata.add_argument("--adapter", choices=ADAPTERS, default="gpu", help="of webgpu")
    strata.add_argument("--threads", type=count, help="of wasm; left out: the machine's, up to 4")
    strata.add_argument("--drafters", type=names, help="comma-separated (default: all of the bundle's)")
    strata.add_argument(
        "--k", type=counts, default=[4], metavar="N", help="most drafts a round; 2,4 runs both"
    )
    strata.add_argument("--rounds", type=counts, default=[], metavar="R", help="speculative rounds a submit")
    strata.add_argument(
        "--schedule", type=names, default=[], metavar="NAME", help="fixed,break_even runs both"
    )
    strata.add_argument("--plain-steps", type=counts, help="plain runs (default: 1, on webgpu 1 and 8)")
    strata.add_argument(
        "--configs", type=Path, metavar="FILE", help="a JSON list of options, in place of the above"
    )
    strata.add_argument("--temperature", type=float, default=0.0, help="sample in all runs (default: greedy)")
    strata.add_argument("--seed", type=int, default=1, help="of all runs")
    strata.add_argument(
        "--modes", type=names, help=f"above temperature 0: {','.join(MODES)} runs all (default: {COUPLED})"
    )
    strata.add_argument("--strata", type=names, help="comma-separated (default: all)")
    strata.add_argument("--folder", type=Path, default=FOLDER, help="prompts of your own, in the same format")
    strata.add_argument(
        "--pairs", type=count, default=12, help="turns a stratum: each is a prompt, plain and not"
    )
    strata.add_argument(
        "--max-tokens", type=count, default=MOST_TOKENS, help="most of an answer, if fewer than the file's"
    )
    strata.add_argument("--timeout", type=float, default=3600.0)
    strata.add_argument(
        "--predict", type=Path, metavar="COSTS.json", help="also predict another shape's speed-up"
    )
    strata.add_argument(
        "--pack", type=Path, metavar="DIR", help="pack for a machine elsewhere into this new folder"
    )
    strata.add_argument("--part-mb", type=count, default=41, help="the most MB of a packed part")
    strata.add_argument(
        "--json", dest="json_file", type=Path, metavar="FILE", help="write raw runs and figures"
    )
    strata.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables")
    strata.set_defaults(call=_strata, show=_shown, charts=charts, json=False)


def _strata(args: argparse.Namespace) -> dict[str, Any]:
    costs = strata_predict.read_costs(args.predict) if args.predict else None
    if args.pack and (args.json_file or args.markdown or args.plot or costs or args.saved):
        raise RequestError("packing measures nothing", "--pack", "Leave out what reports a measurement")
    raw = _saved(args.saved) if args.saved else _run(args)
    if args.pack:
        return raw
    if costs and raw["runs"]:
        rows = strata_predict.predictions(raw, costs)
        raw["prediction"] = {"costs": asdict(costs), "rows": rows}
    _write(raw, args)
    if "error" in raw:
        if raw["runs"]:
            print(table(raw))
        raise error_from_json(raw["error"])
    check_report(raw)
    return raw


def _saved(path: Path) -> dict[str, Any]:
    raw = read_json_file(path, "Name a saved run")
    check_report(raw)
    return raw


def _config(bundle: Bundle, args: argparse.Namespace, load: dict[str, Any]) -> dict[str, Any]:
    steps = args.plain_steps or ([1, 8] if args.backend in ("webgpu", "replay") else [1])
    if args.configs:
        configs = read_configs(args.configs)
    else:
        drafters = chosen_drafters(bundle, args.drafters)
        configs = make_configs(steps, drafters, args.k, args.rounds, args.schedule)
    configs = sampled(configs, args.temperature, args.seed, args.modes)
    prompts = read_strata(args.folder, args.strata and chosen_strata(args.strata))
    return page_config(bundle, prompts, configs, args.pairs, args.max_tokens, load)


def _run(args: argparse.Namespace) -> dict[str, Any]:
    if args.bundle is None:
        raise RequestError("no bundle is named", "BUNDLE", "Name a bundle folder, or --show FILE")
    bundle = open_bundle(args.bundle)
    load = {"backend": args.backend} | ({"threads": args.threads} if args.threads else {})
    config = _config(bundle, args, load)
    if args.pack:
        if args.backend in ("native", "replay"):
            raise RequestError(
                f"a page has no {args.backend} backend", "--backend", "Pack for wasm or webgpu"
            )
        return pack_page(bundle, config, args.pack, args.part_mb)
    if args.backend == "native":
        raw = run_native(bundle, config, _progress)
    elif args.backend == "replay":
        raw = run_native(bundle, config, _progress, _replayed(bundle, config, args))
    else:
        adapter = args.adapter if args.backend == "webgpu" else "auto"
        raw = run_page(
            bundle, config, BrowserOptions(args.backend, adapter, timeout_s=args.timeout), _progress
        )
    print(file=sys.stderr)
    return raw


def _replayed(bundle: Bundle, config: dict[str, Any], args: argparse.Namespace) -> ReplayRun:
    if args.answers is None:
        raise RequestError("no recorded answers are named", "--answers", "Name a file: it is made if missing")
    sampling = {"temperature": args.temperature, "seed": args.seed} if args.temperature else {}
    return ReplayRun(bundle, recorded(args.answers, bundle, config, sampling, _progress), args.machine)


def _progress(done: int, total: int) -> None:
    print(f"\rturn {done} of {total}", end="", file=sys.stderr, flush=True)


def _write(raw: dict[str, Any], args: argparse.Namespace) -> None:
    texts = []
    if args.json_file:
        figures = {"summary": summary(raw)} if raw.get("runs") else {}
        texts.append((args.json_file, json.dumps({**raw, **figures}, indent=1)))
    if args.markdown and raw.get("runs"):
        texts.append((args.markdown, table(raw)))
    for path, text in texts:
        try:
            path.write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise RequestError(f"it cannot be written: {error.strerror}", str(path), "Name another") from None


def _shown(report: dict[str, Any]) -> str:
    return table(report) if "runs" in report else json.dumps(report, indent=1)
