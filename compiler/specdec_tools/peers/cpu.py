"""Our WASM backend beside wllama and native llama.cpp on this machine: the same GGUF, prompt ids and number of tokens, round by round.

Does not know how a side works (sides.py). Invariants: all sides are open before the first round and take turns within each; the
first round is thrown away; ratios are medians of each round's ratio, so that a busy minute hits both.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from specdec_compiler.recipe import read_recipe
from specdec_compiler.sources import locate
from specdec_runtime.bundle import Bundle, open_bundle
from specdec_runtime.faults import RequestError

from ..paths import WEB
from ..plot import Bar, Chart
from ..recipes import recipe_path
from ..serve import running_site
from ..text import BundleText
from .install import LLAMA_CPP_PYTHON, WLLAMA, llama_cpp, npm_peers, python_of
from .prompts import prompt_of
from .sides import About, Run, Side, llama_side, page_side

PEERS = {"wllama": f"wllama {WLLAMA}", "llama.cpp": f"llama.cpp (llama-cpp-python {LLAMA_CPP_PYTHON})"}
WLLAMA_FILES = ("index.js", "single-thread/wllama.wasm", "multi-thread/wllama.wasm")
OURS = "ours"


def write_site(gguf: Path, modules: Path, folder: Path) -> None:
    """Our page, wllama and the GGUF file into `folder`."""
    shutil.copytree(WEB, folder, dirs_exist_ok=True)
    for name in WLLAMA_FILES:
        place = folder / "peer" / "wllama" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(modules / "@wllama/wllama/esm" / name, place)
    shutil.copyfile(gguf, folder / "peer" / "model.gguf")


def gguf_of(bundle: Bundle, recipe: Path | None) -> Path:
    """The GGUF file that the bundle was made from."""
    chosen = read_recipe(recipe_path(bundle, recipe))
    path = locate(chosen.champion.source, chosen.folder)
    if path.suffix.lower() != ".gguf":
        raise RequestError(f"{path.name} is no GGUF file", "peers", "Use a bundle made from one")
    return path


async def bench_peers(
    folder: Path,
    recipe: Path | None,
    names: list[str],
    threads: list[int],
    rounds: int,
    tokens: int,
    prompt: int,
) -> dict[str, Any]:
    """Install what is missing, open every side, measure."""
    if unknown := [name for name in names if name not in PEERS]:
        raise RequestError(f"unknown peer {unknown[0]}", "peers", f"Choose among {', '.join(PEERS)}")
    bundle = open_bundle(folder)
    gguf, plan = gguf_of(bundle, recipe), bundle.plan
    prompt_ids = prompt_of(BundleText.open(bundle, plan.text, plan.ids.chat_template is not None), prompt)
    modules, native = npm_peers(), llama_cpp() if "llama.cpp" in names else None
    with tempfile.TemporaryDirectory() as scratch:
        write_site(gguf, modules, Path(scratch))
        with running_site(folder, web=Path(scratch)) as site:
            async with AsyncExitStack() as stack:
                sides: list[Side] = []
                for count in threads:
                    sides.append(await stack.enter_async_context(page_side(OURS, count, site.url)))
                    if "wllama" in names:
                        sides.append(await stack.enter_async_context(page_side("wllama", count, site.url)))
                    if native:
                        context = plan.target_model.max_context
                        opened = llama_side(python_of(native), gguf, context, count)
                        sides.append(await stack.enter_async_context(opened))
                return await measure(sides, prompt_ids, tokens, rounds)


async def measure(sides: list[Side], prompt_ids: list[int], tokens: int, rounds: int) -> dict[str, Any]:
    """`rounds` interleaved rounds of every side after one that does not count."""
    kept, notes = split_by_threads([side.about for side in sides])
    chosen = [side for side in sides if side.about in kept]
    runs: list[list[Run]] = [[] for _ in chosen]
    for index in range(rounds + 1):
        for side, found in zip(chosen, runs, strict=True):
            one = await side.run(prompt_ids, tokens)
            if index:
                found.append(one)
        print(f"round {index} of {rounds} done", file=sys.stderr, flush=True)
    memory = [await side.pss_bytes() for side in chosen]
    return {
        "prompt_tokens": len(prompt_ids),
        "tokens": tokens,
        "rounds": rounds,
        "load_average": round(os.getloadavg()[0], 2),
        "notes": notes,
        "facts": {f"{about.name} {about.threads}": about.facts for about in kept},
        "rows": rows(kept, runs, memory, len(prompt_ids)),
    }


def split_by_threads(abouts: list[About]) -> tuple[list[About], list[str]]:
    """The sides that have the threads they were asked for, and a note on each of the others."""
    kept, notes = [], []
    for about in abouts:
        got = about.facts.get("threads", about.threads)
        if got == about.threads:
            kept.append(about)
        else:
            notes.append(f"{about.name}: asked for {about.threads} threads, it has {got}: not measured")
    return kept, notes


def rows(
    abouts: list[About], runs: list[list[Run]], memory: list[int], prompt_tokens: int
) -> list[dict[str, Any]]:
    """Medians, ranges, and ours over each peer with the same number of threads."""
    ours = {about.threads: found for about, found in zip(abouts, runs, strict=True) if about.name == OURS}
    out = []
    for about, found, pss in zip(abouts, runs, memory, strict=True):
        decode = [run.decode_rate for run in found]
        row: dict[str, Any] = {
            "side": about.name,
            "threads": about.threads,
            "decode_tokens_per_s": round(statistics.median(decode), 2),
            "decode_range": [round(min(decode), 2), round(max(decode), 2)],
            "prefill_tokens_per_s": round(statistics.median(r.prefill_rate(prompt_tokens) for r in found), 2),
            "first_token_ms": round(statistics.median(run.first_ms for run in found), 1),
            "pss_mb": round(pss / 1e6, 1),
            "ids": found[0].ids,
        }
        if about.name != OURS and about.threads in ours:
            row |= _against(ours[about.threads], found)
        out.append(row)
    return out


def _against(ours: list[Run], theirs: list[Run]) -> dict[str, Any]:
    def ratio(rate: Callable[[Run], float]) -> float:
        return round(statistics.median(rate(a) / rate(b) for a, b in zip(ours, theirs, strict=True)), 3)

    same = [a == b for a, b in zip(ours[0].ids, theirs[0].ids, strict=False)]
    return {
        "ours_over_it_decode": ratio(lambda run: run.decode_rate),
        "ours_over_it_prefill": ratio(lambda run: run.prefill_rate(1)),
        "equal_leading_ids": [*same, False].index(False),
    }


COLUMNS = (
    ("side", "side"),
    ("threads", "threads"),
    ("decode_tokens_per_s", "decode tokens/s"),
    ("prefill_tokens_per_s", "prefill tokens/s"),
    ("first_token_ms", "first token ms"),
    ("pss_mb", "PSS MB"),
    ("ours_over_it_decode", "ours / it, decode"),
    ("ours_over_it_prefill", "ours / it, prefill"),
    ("equal_leading_ids", "equal first ids"),
)


def table(report: dict[str, Any]) -> str:
    """The rows as a Markdown table, notes below."""
    lines = ["| " + " | ".join(title for _, title in COLUMNS) + " |", "| --- " * len(COLUMNS) + "|"]
    for row in report["rows"]:
        lines.append("| " + " | ".join(str(row.get(key, "")) for key, _ in COLUMNS) + " |")
    return "\n".join([*lines, *report["notes"]])


def charts(report: dict[str, Any]) -> list[Chart]:
    """Decode with its range, prefill and memory."""

    def bars(key: str, marks: bool = False) -> list[Bar]:
        found = []
        for row in report["rows"]:
            low, high = row["decode_range"] if marks else (None, None)
            threads = f"{row['threads']} thread{'s' if row['threads'] > 1 else ''}"
            found.append(Bar(f"{row['side']}, {threads}", row[key], low, high, row["side"]))
        return found

    return [
        Chart("decode", "tokens/s", bars("decode_tokens_per_s", marks=True)),
        Chart(f"prefill, prompt of {report['prompt_tokens']}", "tokens/s", bars("prefill_tokens_per_s")),
        Chart("memory of the process that holds the model", "MB, PSS", bars("pss_mb")),
    ]
