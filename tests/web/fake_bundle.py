"""A small bundle whose "model" is a hash: the whole page, pump and both executors run on it in seconds.

It keeps every convention of a compiled bundle (programs, named tensors, pages, feedback, shards, hashes). `fake_next`
and `fake_greedy` are the slow twins of its kernels.
"""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import sys
from pathlib import Path

from specdec_runtime.plan import (
    Buffer,
    Dispatch,
    Kernel,
    KernelArg,
    Model,
    Plan,
    PlanIds,
    PlanText,
    Program,
    Target,
    Tensor,
    dump_plan,
    load_plan,
)
from specdec_runtime.plan.schema import sampling_tensors
from specdec_tools.byte_map import byte_level_alphabet

SOURCES = Path(__file__).parent / "fake"
VOCAB, PADDED, PAGE, CONTEXT, WEIGHTS, SHARD = 300, 320, 16, 2048, 4096, 8192
BOS, IM_START, IM_END, EOS = 296, 297, 298, 299
MASK = 0xFFFFFFFF
TEMPLATE = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
MERGES = ["h e", "t he", "i n", "e r", "o n", "a n", "Ġ t", "Ġ a", "Ġt he", "r e", "Ġ s", "n d", "Ġ w", "Ġ b"]

KERNELS = {  # name -> (entry in WGSL, arguments as (name, access))
    "prefill": ("prefill", ("args r", "tokens r", "page_table r", "weights r", "kv rw")),
    "verify": ("verify", ("args r", "tokens r", "page_table r", "weights r", "kv rw", "out w", "logits w")),
    "step": ("step_rows", ("args r", "tokens r", "page_table r", "weights r", "kv rw", "out w")),
    "measure": ("measure", ("args r", "page_table r", "kv r", "stats w")),
    "feedback": ("feedback", ("args rw", "tokens rw", "out r")),
    "accept": ("accept", ("target.args rw", "target.out r", "tokens rw", "draft.args rw")),
    "score": ("score", ("args r", "logits r", "score_ids r", "score w")),
    "logprobs": ("logprobs", ("args r", "logits r", "out r", "top w")),
}
EXPORTS = (*KERNELS, "__heap_base", "__stack_pointer")
MAX_MEMORY = "-Wl,--max-memory=4294901760"  # without it the module is one thread's
ACCESS = {"r": "read", "w": "write", "rw": "read_write"}


def weights(seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.getrandbits(32) for _ in range(WEIGHTS)]


def _mix(x: int) -> int:
    x ^= x >> 16
    x = x * 0x7FEB352D & MASK
    x ^= x >> 15
    x = x * 0x846CA68B & MASK
    return x ^ (x >> 16)


def fake_next(h: int, token: int) -> int:
    chain = {0xC3: 0xA9, 0xF0: 0x9F, 0x9F: 0x98, 0x98: 0x80 + (h & 63)}
    if token in chain:
        return chain[token]
    r = h >> 7 & 63
    if r < 2:
        return (0xC3, 0xF0)[r]
    if r == 2 and h >> 13 & 3 == 0:
        return EOS
    return 32 if r < 14 else 97 + (h >> 9) % 26


def fake_greedy(prompt: list[int], max_tokens: int) -> list[int]:
    """What the fake model says after the prompt."""
    table, h, made = weights(), 0x9E3779B9, []
    ids = list(prompt)
    for position in range(CONTEXT):
        if position >= len(ids) or len(made) == max_tokens or made[-1:] == [EOS]:
            break
        h = _mix((h + table[ids[position] * 13 % WEIGHTS] + ids[position]) & MASK)
        if position >= len(prompt) - 1:
            made.append(fake_next(h, ids[position]))
            ids.append(made[-1])
    return made


def tokenizer_json() -> str:
    """Byte-level BPE: ids 0-255 are the bytes, then merges, then special tokens."""
    characters = {byte: character for character, byte in byte_level_alphabet().items()}
    vocab = {characters[byte]: byte for byte in range(256)}
    for merge in MERGES:
        vocab[merge.replace(" ", "")] = len(vocab)
    vocab |= {f"<unused{index}>": index for index in range(len(vocab), BOS)}
    names = {BOS: "<|bos|>", IM_START: "<|im_start|>", IM_END: "<|im_end|>", EOS: "<|eos|>"}
    added = [
        {"id": index, "content": content, "special": True}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for index, content in names.items()
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    bpe = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None}
    bpe |= {"end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False}
    whole = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None}
    whole |= {"pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level}
    return json.dumps(whole | {"model": bpe | {"vocab": vocab, "merges": MERGES}})


def _models(draft: bool) -> tuple[Model, ...]:
    sizes = {
        "vocab_size": VOCAB,
        "padded_vocab": PADDED,
        "max_context": CONTEXT,
        "num_layers": 1,
        "hidden": 1,
    }
    sizes |= {"ffn": 1, "num_heads": 1, "num_kv_heads": 1, "head_dim": 1, "page_size": PAGE}
    sizes |= {"num_pages": CONTEXT // PAGE, "prefill_width": 32}
    roles = {"target": (1, 2, 4, 8)} | ({"draft": (1, 2)} if draft else {})
    return tuple(
        Model(role=role, name=f"fake-{role}", architecture="fake", widths=widths, **sizes)  # type: ignore[arg-type]
        for role, widths in roles.items()
    )


class _TargetBuilder:
    """Buffers and tensors one for one, then kernels and programs by name."""

    def __init__(self, files: dict[str, tuple[str, ...]]) -> None:
        self.files = files
        self.buffers: list[Buffer] = []
        self.tensors: list[Tensor] = []

    def add(self, name: str, dtype: str, shape: tuple[int, ...], lifetime: str) -> None:
        count = 1
        for extent in shape:
            count *= extent
        files = self.files.get(name, ())
        self.tensors.append(Tensor(name, len(self.buffers), 0, dtype, shape))  # type: ignore[arg-type]
        self.buffers.append(Buffer(name, 4 * count, lifetime, files))  # type: ignore[arg-type]

    def add_role(self, role: str) -> None:
        self.add(f"{role}.args", "int32", (4,), "state")
        self.add(f"{role}.page_table", "int32", (CONTEXT // PAGE,), "state")
        self.add(f"{role}.out", "int32", (32, 2), "state")
        self.add(f"{role}.kv", "uint32", (CONTEXT,), "kv")
        self.add(f"{role}.weights", "uint32", (WEIGHTS,), "weight")

    def program(
        self, role: str, kind: str, width: int, kernels: tuple[str, ...], suffix: str = ""
    ) -> Program:
        index = {tensor.name: number for number, tensor in enumerate(self.tensors)}
        dispatches = []
        for name in kernels:
            names = [arg.split()[0] for arg in KERNELS[name][1]]
            tensors = [index[arg if arg == "tokens" or "." in arg else f"{role}.{arg}"] for arg in names]
            dispatches.append(Dispatch(list(KERNELS).index(name), tuple(tensors), (1, 1, 1)))
        return Program(f"{role}.{kind}{suffix}", role, width, tuple(dispatches))


def _programs(builder: _TargetBuilder, models: tuple[Model, ...]) -> tuple[Program, ...]:
    programs = []
    for model in models:
        programs.append(builder.program(model.role, "prefill", 32, ("prefill",)))
        for width in model.widths:
            if model.role == "draft":
                for kind in ("step", "sample"):  # no noise in the fake model
                    programs.append(builder.program("draft", kind, width, ("step", "feedback"), f"_{width}"))
                measured = ("step", "measure", "feedback")
                programs.append(builder.program("draft", "measure", width, measured, f"_{width}"))
                continue
            for kind in ("verify", "sample", "filter"):
                programs.append(builder.program("target", kind, width, ("verify", "feedback"), f"_{width}"))
            for kind in ("score", "logprobs"):
                programs.append(builder.program("target", kind, width, (kind,), f"_{width}"))
        if model.role == "draft":
            for width in model.widths:  # nothing is drawn and judged in the fake model: these are never run
                programs.append(builder.program("draft", "draw", width, ("step", "feedback"), f"_{width}"))
            for kind in ("accept", "judge", "judge_filter", "follow"):
                programs.append(builder.program("draft", kind, 8, ("accept",)))
    return tuple(programs)


def _kernel(name: str, gpu: bool, source: tuple[int, int]) -> Kernel:
    entry, args = KERNELS[name]
    listed = tuple(KernelArg(arg.split()[0], ACCESS[arg.split()[1]]) for arg in args)  # type: ignore[arg-type]
    bindings = tuple(range(len(args)))
    return Kernel(name, name, entry if gpu else name, listed, {}, True, (1, 1, 1), source, bindings)


def _target(name: str, models: tuple[Model, ...], files, sources: dict[str, tuple[int, int]]) -> Target:
    gpu = name == "gpu"
    builder = _TargetBuilder(files)
    builder.add("tokens", "int32", (CONTEXT + 64,), "state")
    for model in models:
        builder.add_role(model.role)
    builder.add("target.logits", "float32", (8, PADDED), "scratch")
    builder.add("target.score_ids", "int32", (8,), "state")
    builder.add("target.score", "float32", (8, 3), "state")
    for tensor, (dtype, shape) in sampling_tensors(PADDED).items():
        builder.add(tensor, dtype, shape, "state")
    if len(models) > 1:
        builder.add("draft.stats", "float32", (32, 2), "state")
    kernels = tuple(_kernel(kernel, gpu, sources.get(kernel, (0, 0))) for kernel in KERNELS)
    limits = {"maxStorageBuffersPerShaderStage": 8, "maxComputeInvocationsPerWorkgroup": 256} if gpu else {}
    return Target(
        name=name,
        module="kernels.wgsl" if gpu else "kernels.wasm",
        features=() if gpu else ("simd128",),
        limits=limits,
        buffers=tuple(builder.buffers),
        tensors=tuple(builder.tensors),
        kernels=kernels,
        programs=_programs(builder, models),
    )


def compile_wasm(
    source: Path, into: Path, *, exports: tuple[str, ...] = EXPORTS, flags: tuple[str, ...] = (MAX_MEMORY,)
) -> None:
    """A freestanding module that imports its memory and exports every kernel."""
    exported = [f"-Wl,--export={name}" for name in exports]
    command = [
        sys.executable,
        "-m",
        "ziglang",
        "cc",
        "-target",
        "wasm32-freestanding",
        "-O2",
        "-msimd128",
        "-nostdlib",
    ]
    link = ["-Wl,--no-entry", "-Wl,--import-memory", *flags, *exported]
    subprocess.run([*command, *link, "-o", str(into), str(source)], check=True, capture_output=True)


def _wgsl() -> tuple[str, dict[str, tuple[int, int]]]:
    """One module per kernel, end to end in one file, and where each lies."""
    parts = {}
    for block in (SOURCES / "kernels.wgsl").read_text().split("//! ")[1:]:
        head, body = block.split("\n", 1)
        parts[head.split()[0]] = (head.split()[1:], body)
    text, places = "", {}
    for name in KERNELS:
        needs, body = parts[name]
        module = parts["common"][1] + "".join(parts[need][1] for need in needs) + body
        places[name] = (len(text.encode()), len(module.encode()))
        text += module
    return text, places


def _write_shards(folder: Path, roles: list[str]) -> dict[str, tuple[str, ...]]:
    data = b"".join(word.to_bytes(4, "little") for word in weights())
    (folder / "weights").mkdir()
    files: dict[str, tuple[str, ...]] = {}
    number = 0
    for role in roles:
        names = []
        for start in range(0, len(data), SHARD):
            names.append(f"weights/{number:04d}.bin")
            (folder / names[-1]).write_bytes(data[start : start + SHARD])
            number += 1
        files[f"{role}.weights"] = tuple(names)
    return files


def write_manifest(folder: Path) -> None:
    """The manifest of what lies in the folder now."""
    files = []
    for path in sorted(folder.rglob("*"), key=lambda path: path.relative_to(folder).as_posix()):
        if path.is_file() and path.name != "manifest.json":
            data = path.read_bytes()
            name = path.relative_to(folder).as_posix()
            files.append({"path": name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()})
    top = {
        "format": "specdec-bundle",
        "version": 1,
        "name": "fake",
        "license": "Apache-2.0",
        "compiler": "0.1.0",
        "draft_provenance": {"status": "unproven", "provenance": None, "strata": None},
    }
    (folder / "manifest.json").write_text(json.dumps(top | {"files": files}))


def build_fake_bundle(
    folder: Path, *, draft: bool = True, add_bos: bool = False, template: bool = True
) -> Path:
    """The bundle, in a folder that does not exist yet."""
    folder.mkdir(parents=True)
    models = _models(draft)
    wgsl, places = _wgsl()
    files = _write_shards(folder, [model.role for model in models])
    (folder / "kernels.wgsl").write_text(wgsl)
    compile_wasm(SOURCES / "kernels.c", folder / "kernels.wasm")
    (folder / "tokenizer.json").write_text(tokenizer_json())
    if template:
        (folder / "chat_template.jinja").write_text(TEMPLATE)
    sha = hashlib.sha256(b"fake").hexdigest()
    plan = Plan(
        format="specdec-plan",
        version=1,
        name="fake",
        ids=PlanIds(sha, sha, sha, sha if template else None, sha),
        text=PlanText(BOS, add_bos, (EOS, IM_END), (BOS, IM_START, IM_END, EOS)),
        models=models,
        targets=(_target("cpu", models, files, {}), _target("gpu", models, files, places)),
    )
    text = dump_plan(plan)
    load_plan(text)
    (folder / "plan.json").write_text(text)
    write_manifest(folder)
    return folder
