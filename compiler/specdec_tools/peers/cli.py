"""The commands of specdec-bench that run other people's runtimes: peers (CPU, here) and peers-gpu (WebGPU, here or packed)."""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path
from typing import Any

from specdec_runtime.faults import RequestError

from ..browser import ADAPTERS, BrowserOptions
from . import cpu, gpu

LEAST_TOKENS = 16  # a submit of ours gives up to 8 at once


def names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def counts(text: str) -> list[int]:
    """Comma-separated whole numbers of at least 1."""
    try:
        numbers = [int(each) for each in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers") from None
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError("give numbers of 1 or more")
    return numbers


def least_tokens(text: str) -> int:
    number = count(text)
    if number < LEAST_TOKENS:
        raise argparse.ArgumentTypeError(f"give {LEAST_TOKENS} or more: the first ids are no decoding speed")
    return number


def count(text: str) -> int:
    (number,) = counts(text)
    return number


def add_commands(commands: Any) -> None:
    """Add both to specdec-bench's parser."""
    peers = commands.add_parser("peers", help="our WASM backend beside wllama and llama.cpp, on this CPU")
    peers.add_argument("bundle", type=Path)
    peers.add_argument("--recipe", type=Path, help="the bundle's recipe (default: found in models/recipes)")
    peers.add_argument("--peers", type=names, default="wllama,llama.cpp", help="comma-separated")
    peers.add_argument("--threads", type=counts, default="1,2", help="comma-separated thread counts")
    peers.add_argument("--rounds", type=count, default=5)
    peers.add_argument("--max-tokens", type=least_tokens, default=64)
    peers.add_argument("--prompt-tokens", type=count, default=150)
    peers.add_argument("--json", action="store_true", help="print the report as one JSON object")
    peers.set_defaults(call=_peers, show=cpu.table, charts=cpu.charts)

    other = commands.add_parser("peers-gpu", help="our bundle beside transformers.js, on WebGPU")
    other.add_argument("bundle", type=Path)
    other.add_argument("--recipe", type=Path, help="the bundle's recipe (default: found in models/recipes)")
    other.add_argument("-o", "--out", type=Path, help="pack for a machine elsewhere into this new folder")
    other.add_argument("--part-mb", type=count, default=41, help="the most MB of a packed part")
    other.add_argument("--dtypes", type=names, default="q4", help="of the peer's model: q4, q4f16 or both")
    other.add_argument("--adapter", choices=ADAPTERS, default="gpu")
    other.add_argument("--rounds", type=count, default=5)
    other.add_argument("--max-tokens", type=least_tokens, default=64)
    other.add_argument("--prompt-tokens", type=counts, default="32,256", help="comma-separated lengths")
    other.add_argument("--timeout", type=float, default=1800.0)
    other.add_argument("--json", action="store_true", help="print the report as one JSON object")
    other.set_defaults(call=_peers_gpu, show=_shown, charts=gpu.charts)


def _peers(a: argparse.Namespace) -> dict[str, Any]:
    return asyncio.run(
        cpu.bench_peers(a.bundle, a.recipe, a.peers, a.threads, a.rounds, a.max_tokens, a.prompt_tokens)
    )


def _peers_gpu(a: argparse.Namespace) -> dict[str, Any]:
    asked = gpu.query(a.dtypes, a.rounds, a.max_tokens)
    if a.out and a.plot:
        raise RequestError("packing measures nothing", "--plot", "Leave it out")
    if a.out:
        return gpu.pack_gpu(a.bundle, a.recipe, a.dtypes, a.prompt_tokens, a.out, a.part_mb, asked)
    options = BrowserOptions("webgpu", a.adapter, timeout_s=a.timeout)
    return gpu.run_here(a.bundle, a.recipe, a.dtypes, a.prompt_tokens, options, asked)


def _shown(report: dict[str, Any]) -> str:
    return gpu.table(report) if "prompts" in report else json.dumps(report, indent=1)
