"""specdec-bench: speeds of this machine, measured on real bundles, as a table and as JSON.

`specdec-bench model BUNDLE|SHAPE`, `kernels` and `pack` measure GPU kernels and passes (bench_gpu.py, bench_kernels.py), `peers` and
`peers-gpu` other runtimes; `strata` the drafters on the preregistered prompts (strata_cli.py);
`soak` memory over many requests (soak.py).
`specdec-bench run BUNDLE` decodes the same prompts on each backend with each drafter, interleaved round by round, and reports medians:
tokens a second, prefill, the split of a cycle into draft, verify and other, and Python's share of it in the browser.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from specdec_runtime.faults import RequestError, SpecdecError, error_json, exit_code

from . import bench_gpu, bench_kernels, schedule_sim, soak, strata_cli, strata_tables
from .bench_gpu import bench_model, pack
from .bench_gpu import table as gpu_table
from .bench_rows import bench_rows
from .bench_rows import table as rows_table
from .browser import ADAPTERS, BrowserOptions, page_session
from .json_file import read_json_file
from .native_run import NativeRun
from .peers import cli as peers_cli
from .peers import cpu as peers_cpu
from .peers import gpu as peers_gpu
from .plot import Bar, Chart, svg_path, write_svg
from .serve import running_site

PROMPTS = (
    "What is the capital of France, and what is it known for?",
    "Write a Python function that returns the n-th Fibonacci number.",
    "Repeat this exactly three times: the quick brown fox jumps over the lazy dog.",
    "Summarise: The ferry left at nine. A storm came up, so it returned to port and everybody waited.",
)
# (drafter, k, schedule)
MODES = (
    ("off", 0, "fixed"),
    *((drafter, 3, "fixed") for drafter in ("ngram", "model", "chain")),
    ("chain", 7, "break_even"),
)
Answer = Callable[[dict[str, Any]], Awaitable[tuple[dict[str, Any], dict[str, float]]]]


def row(runs: list[tuple[dict[str, Any], dict[str, float]]]) -> dict[str, Any]:
    """Medians over runs of one (backend, drafter); times in ms, rates in tokens a second."""

    def median(value: Callable[[dict[str, Any]], float]) -> float:
        return round(statistics.median(value(result) for result, _ in runs), 3)

    def total(name: str) -> int:
        return sum(result["speculation"][name] for result, _ in runs)

    share = [stats["python_ms"] / result["timing_ms"]["decode"] for result, stats in runs if stats]
    cycles = total("num_cycles")
    return {
        "tokens_per_s": median(lambda r: len(r["token_ids"]) / r["timing_ms"]["decode"] * 1000),
        "prefill_tokens_per_s": median(
            lambda r: (r["usage"]["prompt_tokens"] - 1) / r["timing_ms"]["prefill"] * 1000
        ),
        "draft_ms_per_cycle": median(lambda r: r["timing_ms"]["draft"] / r["speculation"]["num_cycles"]),
        "verify_ms_per_cycle": median(lambda r: r["timing_ms"]["verify"] / r["speculation"]["num_cycles"]),
        "other_ms_per_cycle": median(lambda r: r["timing_ms"]["other"] / r["speculation"]["num_cycles"]),
        "python_share_of_cycle": round(statistics.median(share), 4) if share else None,
        "tokens_per_target_pass": round(sum(len(r["token_ids"]) for r, _ in runs) / cycles, 3),
        "acceptance": round(total("num_accepted") / max(1, total("num_evaluated")), 3),
    }


def _label(drafter: str, k: int, schedule: str) -> str:
    return drafter if schedule == "fixed" else f"{drafter}, {schedule.replace('_', '-')}"


async def measure(answers: dict[str, Answer], max_tokens: int, rounds: int) -> dict[str, Any]:
    """Every backend x mode x prompt, `rounds` times, interleaved; one warm-up pass is thrown away."""
    runs: dict[tuple[str, str], list] = {(b, _label(*mode)): [] for b in answers for mode in MODES}
    for index in range(rounds + 1):
        for prompt in PROMPTS:
            for backend, answer in answers.items():
                for drafter, k, schedule in MODES:
                    request = {"prompt": prompt, "max_tokens": max_tokens, "drafter": drafter, "k": k}
                    run = await answer(request | {"schedule": schedule})
                    if index:
                        runs[backend, _label(drafter, k, schedule)].append(run)
        print(f"round {index} of {rounds} done", file=sys.stderr)
    devices = {backend: runs[backend, "off"][0][0]["device"] for backend in answers}
    return {
        "max_tokens": max_tokens,
        "rounds": rounds,
        "devices": devices,
        "rows": [{"backend": b, "drafter": m, **row(found)} for (b, m), found in runs.items()],
    }


async def bench_run(
    bundle: Path, backends: list[str], max_tokens: int, rounds: int, threads: int | None
) -> dict[str, Any]:
    """Open the backends side by side and measure."""
    answers: dict[str, Answer] = {}
    native = NativeRun.open(bundle)

    async def by_native(request: dict[str, Any]):
        return native.generate(request), {}

    if "native" in backends:
        answers["native"] = by_native
    with native, running_site(bundle) as site:
        if "wasm" not in backends:
            return await measure(answers, max_tokens, rounds)
        async with page_session(site.url, BrowserOptions("wasm", threads=threads)) as page:
            await page.load("bundle/")

            async def by_page(request: dict[str, Any]):
                result = await page.generate(request)
                return result, await page.stats()

            answers["wasm"] = by_page
            report = await measure(answers, max_tokens, rounds)
            return report | {"memory": await page.renderer_memory()}


COLUMNS = (
    ("backend", "backend"),
    ("drafter", "drafter"),
    ("tokens_per_s", "tokens/s"),
    ("prefill_tokens_per_s", "prefill/s"),
    ("verify_ms_per_cycle", "verify ms"),
    ("draft_ms_per_cycle", "draft ms"),
    ("other_ms_per_cycle", "other ms"),
    ("python_share_of_cycle", "Python share"),
    ("tokens_per_target_pass", "tokens/pass"),
    ("acceptance", "accepted"),
)


def table(report: dict[str, Any]) -> str:
    """The rows as a Markdown table."""
    lines = [
        "| " + " | ".join(title for _, title in COLUMNS) + " |",
        "| " + " | ".join("---" for _ in COLUMNS) + " |",
    ]
    for entry in report["rows"]:
        cells = ["" if entry[key] is None else str(entry[key]) for key, _ in COLUMNS]
        lines.append("| " + " | ".join(cells) + " |")
    if memory := report.get("memory"):
        lines += ["", f"Renderer, all its memory: {memory['pss_mib']:.0f} MiB (proportional set size)."]
    if threads := report["devices"].get("wasm", {}).get("threads"):
        lines += [f"WASM threads: {threads}."]
    return "\n".join(lines)


def charts(report: dict[str, Any]) -> list[Chart]:
    """Decode and prefill by backend and drafter."""

    def bars(key: str) -> list[Bar]:
        return [Bar(f"{r['backend']}, {r['drafter']}", r[key], group=r["backend"]) for r in report["rows"]]

    return [
        Chart("decode", "tokens/s", bars("tokens_per_s")),
        Chart("prefill", "tokens/s", bars("prefill_tokens_per_s")),
    ]


def _kind(report: dict[str, Any]) -> Any:
    """The module that wrote a saved report: it has `table` and `charts`."""
    for key, module in (
        ("strata_format", strata_tables),
        ("simulated", schedule_sim),
        ("passes", bench_gpu),
        ("prompts", peers_gpu),
        ("facts", peers_cpu),
    ):
        if key in report:
            return module
    if "devices" in report:
        return sys.modules[__name__]
    raise RequestError(
        "this is no report of specdec-bench", "FILE", "Give a file that --json or a page wrote"
    )


def _saved(path: Path) -> dict[str, Any]:
    report = read_json_file(path, "Name a saved report")
    _kind(report)
    return report


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="specdec-bench", description="Measure speeds on this machine.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="tokens a second on the CPU backends, by drafter")
    run.add_argument("bundle", type=Path)
    run.add_argument("--backends", default="native,wasm", help="comma-separated: native, wasm")
    run.add_argument("--max-tokens", type=int, default=96)
    run.add_argument("--rounds", type=int, default=3)
    run.add_argument("--threads", type=int, help="of wasm; left out: the machine's, up to 4")
    run.add_argument("--json", action="store_true", help="print the report as one JSON object")
    run.set_defaults(
        call=lambda a: asyncio.run(
            bench_run(a.bundle, a.backends.split(","), a.max_tokens, a.rounds, a.threads)
        )
    )
    run.set_defaults(show=table, charts=charts)

    rows = commands.add_parser("rows", help="ms of a pass by rows and threads, on the CPU backends")
    rows.add_argument("bundle", type=Path)
    rows.add_argument("--backends", default="native,wasm", help="comma-separated: native, wasm")
    rows.add_argument("--threads", type=_counts, default=[1, 2], metavar="1,2", help="of wasm")
    rows.add_argument("--rounds", type=int, default=15)
    rows.add_argument("--start", type=int, default=200, help="position the passes run at")
    rows.add_argument("--json", action="store_true", help="print the report as one JSON object")
    rows.set_defaults(call=_rows, show=rows_table)

    model = commands.add_parser(
        "model", help="GPU passes, rounds and kernels of a bundle or a shape, random weights"
    )
    model.add_argument("name", help="a bundle folder, or 135M, 1B, 3B, 8B")
    model.add_argument("--context", type=int, default=2048)
    model.add_argument("--adapter", choices=ADAPTERS, default="gpu")
    model.add_argument("--start", type=int, default=512, help="position the passes run at")
    model.add_argument("--no-kernels", action="store_true", help="whole passes only")
    model.add_argument("--timeout", type=float, default=600.0)
    model.add_argument("--json", action="store_true")
    model.set_defaults(call=_model, show=gpu_table, charts=bench_gpu.charts)

    kernels = commands.add_parser("kernels", help="us of every GPU kernel by rows, random weights")
    kernels.add_argument("name", help="a bundle folder, or 135M, 1B, 3B, 8B")
    kernels.add_argument("--context", type=int, default=2048)
    kernels.add_argument("--adapter", choices=ADAPTERS, default="gpu")
    kernels.add_argument("--start", type=int, default=512, help="position the passes run at")
    kernels.add_argument("--timeout", type=float, default=600.0)
    kernels.add_argument("--json", action="store_true")
    kernels.set_defaults(call=_kernels, show=bench_kernels.table, charts=bench_kernels.charts)

    schedule = commands.add_parser(
        "schedule", help="schedules on made-up machines: time over plain decoding's"
    )
    schedule.add_argument("--schedules", default="fixed,heuristic,break_even", help="comma-separated")
    schedule.add_argument("--seeds", type=int, default=5)
    schedule.add_argument("--json", action="store_true", help="print the report as one JSON object")
    schedule.set_defaults(call=lambda a: schedule_sim.report(a.schedules.split(","), a.seeds))
    schedule.set_defaults(show=schedule_sim.table, charts=schedule_sim.charts)

    packed = commands.add_parser("pack", help="write the bench page and plans for a machine elsewhere")
    packed.add_argument("names", nargs="+", metavar="NAME")
    packed.add_argument("-o", "--out", type=Path, required=True)
    packed.add_argument("--context", type=int, default=2048)
    packed.set_defaults(json=False, call=lambda a: pack(a.names, a.out, a.context), show="\n".join)

    saved = commands.add_parser("show", help="the table of a result saved elsewhere")
    saved.add_argument("file", type=Path)
    saved.set_defaults(
        json=False,
        call=lambda a: _saved(a.file),
        show=lambda report: _kind(report).table(report),
        charts=lambda report: _kind(report).charts(report),
    )
    peers_cli.add_commands(commands)
    strata_cli.add_command(commands)
    soak.add_command(commands)
    for command in commands.choices.values():
        if command.get_default("charts"):
            command.add_argument("--plot", type=svg_path, metavar="FILE.svg", help="also draw the report")
    return parser


def _counts(text: str) -> list[int]:
    return [int(count) for count in text.split(",")]


def _rows(args: argparse.Namespace) -> dict[str, Any]:
    return bench_rows(args.bundle, args.backends.split(","), args.threads, args.rounds, args.start)


def _model(args: argparse.Namespace) -> dict[str, Any]:
    options = BrowserOptions("webgpu", args.adapter, timeout_s=args.timeout)
    query = f"&start={args.start}" + ("&parts=passes,step,rounds" if args.no_kernels else "")
    return bench_model(args.name, args.context, options, query)


def _kernels(args: argparse.Namespace) -> dict[str, Any]:
    options = BrowserOptions("webgpu", args.adapter, timeout_s=args.timeout)
    return bench_kernels.bench_kernels(args.name, args.context, args.start, options)


def main(argv: list[str] | None = None) -> int:
    """Entry point; exit status by error family."""
    args = make_parser().parse_args(argv)
    try:
        report = args.call(args)
        print(json.dumps(report, indent=2) if args.json else args.show(report))
        if getattr(args, "plot", None):
            write_svg(args.plot, args.charts(report))
    except SpecdecError as error:
        if args.json:
            print(json.dumps(error_json(error)))
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return exit_code(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
