"""specdec-numerics: how far the compiled model is from a float32 model of the same weights, beside llama.cpp.

Teacher forcing over foreign texts and the champion's own greedy answers (tests/numerics/texts). Needs the extra "numerics" (--pack:
only where no own answers are stored). Knows the order of work, not how rows are made or compared. Exit status: 0 every bound met,
1 a bound missed, 2-5 an error.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from contextlib import ExitStack, closing
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from specdec_compiler.build import open_models
from specdec_compiler.recipe import read_recipe
from specdec_compiler.sources import locate
from specdec_runtime.bundle import open_bundle
from specdec_runtime.faults import RequestError, SpecdecError, error_json, exit_code
from tqdm import tqdm

from specdec_tools import numerics_texts as texts
from specdec_tools.browser import ADAPTERS, BrowserOptions, check_adapter
from specdec_tools.numerics_metrics import MIN_FOREIGN, MIN_OWN
from specdec_tools.numerics_parts import PartRows, read_files
from specdec_tools.numerics_reference import TorchReference
from specdec_tools.numerics_report import Tally, machine, render
from specdec_tools.numerics_rows import LlamaCppRows, NativeRows, Rows, WasmRows
from specdec_tools.numerics_webgpu import browser_rows, check_kernels, pack
from specdec_tools.recipes import recipe_path
from specdec_tools.text import BundleText

WEBGPU_LAST = 8  # rows of a list: a row of logits is 200 kB, and has to cross from the browser


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    args = _parser().parse_args(argv)
    try:
        if args.write_own:
            print(_Session(args).write_own())
            return 0
        _check_options(args)
        if args.pack:
            print(_Session(args).pack())
            return 0
        report = _Session(args).run()
    except SpecdecError as error:
        if args.json:
            print(json.dumps(error_json(error)))
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return exit_code(error)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    text = json.dumps(report, indent=1)
    if args.out:
        args.out.write_text(text + "\n", encoding="utf-8")
    print(json.dumps(report) if args.json else render(report))
    return 0 if report["ok"] else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="specdec-numerics", description="Compare a bundle's logits with float32 PyTorch and llama.cpp."
    )
    parser.add_argument("bundle", type=Path, help="folder that specdec-compile build made")
    parser.add_argument("--backend", choices=("native", "wasm", "webgpu"), default="native")
    parser.add_argument("--recipe", type=Path, help="the bundle's recipe (default: found in models/recipes)")
    parser.add_argument(
        "--positions", type=_count, metavar="N", help="about N foreign positions (default: all)"
    )
    parser.add_argument(
        "--own", type=_count, metavar="M", help="at most M positions of own answers (default: all)"
    )
    parser.add_argument(
        "--last",
        type=_count,
        metavar="R",
        help=f"a sample: only the last R rows of each list of ids (webgpu: {WEBGPU_LAST}; else all rows of whole texts)",
    )
    parser.add_argument("--window", type=_count, default=64, metavar="W", help="ids of a sample's list (64)")
    parser.add_argument("--adapter", choices=ADAPTERS, default="auto", help="of webgpu")
    parser.add_argument(
        "--pack", type=Path, metavar="DIR", help="webgpu: write page and ids for a machine elsewhere, no more"
    )
    parser.add_argument(
        "--rows", type=Path, nargs="+", metavar="FILE", help="webgpu: what that page sent, in its order"
    )
    parser.add_argument("--texts", type=Path, default=texts.TEXTS, help="folder of texts and prompts.json")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write the JSON object to FILE")
    parser.add_argument(
        "--write-own", action="store_true", help="make own.json of the texts anew, compare nothing"
    )
    return parser


def _check_options(args: argparse.Namespace) -> None:
    if args.backend == "webgpu":
        args.last = args.last or WEBGPU_LAST
    elif args.pack or args.rows:
        name = "--pack" if args.pack else "--rows"
        raise RequestError(f"{name} is for WebGPU", name, "Add --backend webgpu")
    if args.pack and args.rows:
        raise RequestError("--pack makes what --rows reads", "--rows", "Give one of them")
    if args.last and args.last > args.window:
        raise RequestError(
            f"a list has {args.window} ids, not {args.last}", "--last", "Lower it, or raise --window"
        )


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("give a number of 1 or more")
    return number


class _Session:
    """One bundle with its recipe, its text side and the reference."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.bundle = open_bundle(args.bundle)
        self.recipe = read_recipe(recipe_path(self.bundle, args.recipe))
        plan = self.bundle.plan
        self.context = plan.target_model.max_context
        self.text = BundleText.open(self.bundle.folder, plan.text, plan.ids.chat_template is not None)
        self.sample = texts.Sample(args.last, args.window) if args.last else None
        if self.sample and self.sample.window > self.context:
            raise RequestError(
                f"the context has {self.context} ids", "--window", "Give no more than the context"
            )
        self.num_answered = 0
        self.seconds: dict[str, float] = {}  # by source

    @cached_property
    def reference(self) -> TorchReference:
        return TorchReference(open_models(self.recipe).champion)

    def _answer(self, prompt_ids: list[int], most: int) -> list[int]:
        self.num_answered += 1
        return self.reference.greedy(prompt_ids, most, tuple(self.bundle.plan.text.eos_ids))

    def write_own(self) -> Path:
        return texts.write_own(self.text, self.args.texts, self.recipe.champion.source, self._answer)

    def run(self) -> dict[str, Any]:
        start = time.perf_counter()
        args = self.args
        parts = (
            list(read_files(args.rows)) if args.rows else None
        )  # bad files are told before anything is computed
        runs = self._runs()
        given = self._given(runs, parts) if parts is not None else None
        _ = self.reference  # what it lacks is told before the work begins
        with ExitStack() as stack:
            found = self._sources(runs, given)
            sources = {name: stack.enter_context(closing(rows)) for name, rows in found.items()}
            tally = Tally(args.backend, list(sources))
            self._compare(runs, sources, tally)
        least = (1, 1) if self.sample else (MIN_FOREIGN, MIN_OWN)
        required = (
            min(args.positions or least[0], MIN_FOREIGN),
            min(args.own or least[1], MIN_OWN),
        )
        webgpu = found.get("webgpu")
        return {
            "bundle": self.bundle.name,
            "kernels": self.bundle.plan.ids.kernels,
            "backend": args.backend,
            **({"device": webgpu.device} if isinstance(webgpu, PartRows) else {}),
            **({"sample": f"{_rule(self.sample)}, {len(runs)} lists"} if self.sample else {}),
            **tally.report(required, sampled=self.sample is not None),
            "own_answers": f"{self.num_answered} made now" if self.num_answered else "stored",
            "machine": machine(),
            "seconds": round(time.perf_counter() - start, 1),
            "seconds_of": {name: round(seconds, 1) for name, seconds in self.seconds.items()},
        }

    def pack(self) -> str:
        """Writes the folder; what to open there, and how much the page will send."""
        check_kernels(self.bundle)
        runs = self._runs()
        page = pack(runs, self.args.pack)
        rows = sum(run.num_rows for run in runs)
        size = 4e-6 * rows * self.bundle.plan.target_model.vocab_size
        return f"{page}\n{len(runs)} lists, {rows} rows: {size:.1f} MB, {size * 4 / 3:.1f} MB as base64"

    def _runs(self) -> list[texts.TextRun]:
        args, source = self.args, self.recipe.champion.source
        if self.sample:
            runs = texts.sampled_runs(self.text, args.texts, args.positions, self.sample)
        else:
            runs = texts.foreign_runs(self.text, args.texts, self.context, args.positions)
        return runs + texts.own_runs(
            self.text, args.texts, source, self.context, args.own, self._answer, self.sample
        )

    def _given(self, runs: list[texts.TextRun], parts: list[bytes]) -> PartRows:
        rows = PartRows(self.bundle, runs, parts, ", ".join(map(str, self.args.rows)))
        check_adapter(rows.device, BrowserOptions("webgpu", self.args.adapter))
        return rows

    def _webgpu(self, runs: list[texts.TextRun]) -> PartRows:
        check_kernels(self.bundle)
        options = BrowserOptions("webgpu", self.args.adapter)
        start = time.perf_counter()
        total = sum(len(run.ids) for run in runs)
        with tqdm(total=total, desc="webgpu", unit=" rows", disable=None, leave=False) as bar:
            rows = browser_rows(self.bundle, runs, options, lambda done: bar.update(done - bar.n))
        self.seconds["webgpu"] = time.perf_counter() - start  # with the browser's start and the weights
        return rows

    def _sources(self, runs: list[texts.TextRun], given: PartRows | None) -> dict[str, Rows]:
        sources: dict[str, Rows] = {}
        if self.args.backend == "webgpu":
            sources["webgpu"] = given or self._webgpu(runs)
        sources["native"] = NativeRows(self.bundle)
        if self.args.backend == "wasm":
            sources["wasm"] = WasmRows(self.bundle)
        path = locate(self.recipe.champion.source, self.recipe.folder)
        if path.suffix.lower() == ".gguf":
            sources["llama.cpp"] = LlamaCppRows(path, self.context)
        return sources

    def _compare(self, runs: list[texts.TextRun], sources: dict[str, Rows], tally: Tally) -> None:
        total = sum(len(run.ids) for run in runs) * (len(sources) + 1)
        with tqdm(total=total, unit=" rows", disable=None, leave=False) as bar:
            for run in runs:
                reference = self._timed(bar, "reference", self.reference, run)
                found = {name: self._timed(bar, name, rows, run) for name, rows in sources.items()}
                tally.add(run, reference, found)

    def _timed(self, bar: tqdm, name: str, rows: Rows | TorchReference, run: texts.TextRun) -> np.ndarray:
        bar.set_description(f"{run.group}: {name}")
        start = time.perf_counter()
        logits = rows.rows(run.ids, run.first)
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
        bar.update(len(run.ids))
        return logits


def _rule(sample: texts.Sample) -> str:
    return f"the last {sample.rows} rows of lists of {sample.window} ids"


if __name__ == "__main__":
    raise SystemExit(main())
