"""Our bundle beside transformers.js on WebGPU: the page of web/bench/peer.html as a folder, packed for a machine elsewhere or run here.

Does not know how a side is measured (web/bench/sides.js). Invariant: the folder is all the page needs: no address outside it is asked.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from specdec_compiler.build import open_models
from specdec_compiler.recipe import read_recipe
from specdec_runtime.bundle import Bundle, open_bundle
from specdec_runtime.faults import DeviceFault, RequestError

from ..bench_gpu import page_result
from ..browser import BrowserOptions
from ..paths import WEB
from ..plot import Bar, Chart
from ..recipes import recipe_path
from ..serve import running_site
from ..text import BundleText
from .export import PRECISIONS, onnx_model
from .install import npm_peers
from .prompts import prompt_of

PAGE = "bench/peer.html"
ORT = ("ort-wasm-simd-threaded.asyncify.mjs", "ort-wasm-simd-threaded.asyncify.wasm")
MB = 1_000_000


def peer_files(bundle: Bundle, recipe: Path | None, dtypes: list[str]) -> dict[str, Path]:
    """What lies in peer/ beside the page, by name; made and installed when it is not there."""
    for dtype in dtypes:
        if dtype not in PRECISIONS:
            raise RequestError(f"unknown dtype {dtype}", "dtypes", f"Choose among {', '.join(PRECISIONS)}")
    chosen = read_recipe(recipe_path(bundle, recipe))
    spec = open_models(chosen).champion
    modules = npm_peers()
    files = {"transformers.min.js": modules / "@huggingface/transformers/dist/transformers.min.js"}
    files |= {name: modules / "onnxruntime-web/dist" / name for name in ORT}
    for dtype in dtypes:
        folder = onnx_model(spec, chosen.champion.source, dtype)
        made = [path for path in folder.rglob("*") if path.is_file()]
        files |= {f"model/{path.relative_to(folder)}": path for path in made}
    return files


def write_site(bundle: Bundle, files: dict[str, Path], lengths: list[int], folder: Path) -> None:
    """Page, bundle, peer and prompts into `folder`."""
    shutil.copytree(WEB, folder, dirs_exist_ok=True)
    shutil.copytree(bundle.folder, folder / "bundle")
    (folder / "peer").mkdir()
    for name, path in files.items():
        (folder / "peer" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, folder / "peer" / name)
    text = BundleText.open(bundle, bundle.plan.text, bundle.plan.ids.chat_template is not None)
    prompts = [{"name": f"{n} tokens", "prompt_ids": prompt_of(text, n)} for n in lengths]
    (folder / "peer" / "prompts.json").write_text(json.dumps(prompts))


class Parts:
    """A file for writing that is cut into p1, p2, ... of at most `limit` bytes."""

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder, self.limit, self.sizes = folder, limit, []
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def names(self) -> list[str]:
        return [f"p{i + 1}" for i in range(len(self.sizes))]

    def write(self, data: bytes) -> int:
        rest = memoryview(data)
        while rest:
            if not self.sizes or self.sizes[-1] == self.limit:
                self.sizes.append(0)
                (self.folder / self.names[-1]).write_bytes(b"")
            now = rest[: self.limit - self.sizes[-1]]
            with (self.folder / self.names[-1]).open("ab") as part:
                part.write(now)
            self.sizes[-1] += len(now)
            rest = rest[len(now) :]
        return len(data)


def query(dtypes: list[str], rounds: int, tokens: int) -> str:
    sides = ",".join(["ours", *(f"transformers-{dtype}" for dtype in dtypes)])
    return f"sides={sides}&rounds={rounds}&tokens={tokens}"


def squeeze(site: Path, out: Path, limit: int) -> list[str]:
    """A folder as one compressed tar in parts p1, p2, ... of at most `limit` bytes in `out`; returns their names."""
    parts = Parts(out, limit)
    squeezed = gzip.GzipFile(fileobj=parts, mode="wb", compresslevel=6)  # type: ignore[arg-type]
    with squeezed, tarfile.open(fileobj=squeezed, mode="w|") as tar:
        tar.add(site, arcname=".")
    return parts.names


def check_new(out: Path) -> None:
    if out.is_dir() and any(out.iterdir()):
        raise RequestError("the folder is not empty", str(out), "Name a new folder")


def pack(bundle: Bundle, files: dict[str, Path], lengths: list[int], out: Path, limit: int) -> list[str]:
    """The site in parts; returns their names."""
    check_new(out)
    with tempfile.TemporaryDirectory() as scratch:
        write_site(bundle, files, lengths, Path(scratch) / "site")
        return squeeze(Path(scratch) / "site", out, limit)


def packed(names: list[str], out: Path, page: str) -> dict[str, Any]:
    """What to do with the parts."""
    sizes = [round((out / name).stat().st_size / MB, 1) for name in names]
    return {
        "parts": dict(zip(names, sizes, strict=True)),
        "unpack": f"cat {' '.join(names)} | tar -xz -C SITE",
        "open": page,
    }


def pack_gpu(
    folder: Path,
    recipe: Path | None,
    dtypes: list[str],
    lengths: list[int],
    out: Path,
    part_mb: int,
    asked: str,
) -> dict[str, Any]:
    """Pack for a machine elsewhere; says how to unpack, and what to open."""
    bundle = open_bundle(folder)
    names = pack(bundle, peer_files(bundle, recipe, dtypes), lengths, out, part_mb * MB)
    return packed(names, out, f"/{PAGE}?{asked}")


def run_here(
    folder: Path,
    recipe: Path | None,
    dtypes: list[str],
    lengths: list[int],
    options: BrowserOptions,
    asked: str,
) -> dict[str, Any]:
    """Run the page in this machine's browser."""
    bundle = open_bundle(folder)
    files = peer_files(bundle, recipe, dtypes)
    with tempfile.TemporaryDirectory() as scratch:
        site = Path(scratch) / "site"
        write_site(bundle, files, lengths, site)
        with running_site(site / "bundle", web=site) as server:
            result = asyncio.run(page_result(f"{server.url}{PAGE}?{asked}", options))
    if "error" in result:
        raise DeviceFault(result["error"].splitlines()[0], "the peers' page", "Try --adapter swiftshader")
    return result


def table(result: dict[str, Any]) -> str:
    """A result of the page as Markdown."""
    lines = [f"{side}: {json.dumps(about)}" for side, about in result["about"].items()]
    lines += [
        "",
        "| prompt tokens | side | decode tokens/s | prefill tokens/s | first token ms | ours / it, decode ",
    ]
    lines[-1] += "| ours / it, prefill | equal first ids |"
    lines.append("| --- " * 8 + "|")
    for prompt in result["prompts"]:
        ratios = {ratio["against"]: ratio for ratio in prompt["ratios"]}
        for side, row in prompt["sides"].items():
            cells = [prompt["prompt_tokens"], side]
            cells += [f"{row[key]:.1f}" for key in ("decode_tokens_per_s", "prefill_tokens_per_s", "ttft_ms")]
            if ratio := ratios.get(side):
                cells += [f"{ratio['decode']:.2f}", f"{ratio['prefill']:.2f}", ratio["equal_leading_ids"]]
            else:
                cells += ["", "", ""]
            lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def charts(result: dict[str, Any]) -> list[Chart]:
    """Decode and prefill by side, a panel a prompt."""
    found = []
    for prompt in result["prompts"]:
        for key, what in (("decode_tokens_per_s", "decode"), ("prefill_tokens_per_s", "prefill")):
            bars = [Bar(side, row[key], group=side) for side, row in prompt["sides"].items()]
            found.append(Chart(f"{what}, prompt of {prompt['prompt_tokens']}", "tokens/s", bars))
    return found
