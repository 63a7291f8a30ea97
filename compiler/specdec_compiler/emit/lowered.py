"""Everything about a pair of models that does not depend on their weights' values: kernels, programs, modules. Cached by shape.

The result is plain data (JSON and bytes), so that a bundle whose shapes were compiled before costs no TVM at all.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import tvm
from specdec_models import (
    ProgramShape,
    RuntimeConfig,
    build_accept,
    build_follow,
    build_judge,
    build_logprobs,
    build_program,
    build_score,
)
from specdec_runtime.plan.schema import MAX_ROWS

from ..cache import cached
from ..kernels import OPS, kernel_name
from ..pipeline import run_phases
from .code import build_wasm, build_wgsl
from .programs import ReadProgram, read_program
from .rows import MAX_BINDING, shard_rows

PREFILL_WIDTH = 32
WIDTHS = {"target": (1, 2, 4, 8), "draft": (1, 2)}


@dataclass(frozen=True)
class Part:
    """One model of the pair: its role, whose weights it uses ("target" | "draft"), its runtime sizes.

    borrowed: of a draft with weights of its own, those that are the target's all the same ("embed", "head", "rope").
    """

    role: str
    weights: str
    config: RuntimeConfig
    borrowed: tuple[str, ...] = ()

    def owner(self, weight: str) -> str:
        """The role under whose name a weight is stored."""
        return "target" if weight.partition(".")[0] in self.borrowed else self.weights


@dataclass(frozen=True)
class Lowered:
    """Per device target ("cpu", "gpu"): kernels, programs over named places, scratch sizes; and the two modules' bytes.

    kernels: dicts with the plan's kernel fields. programs: {name, model, width, dispatches: [{kernel, places, grid}]} where a place
    is what Place.plain gives.
    """

    targets: dict[str, dict[str, Any]]
    wasm: bytes
    wgsl: bytes


@dataclass(frozen=True)
class ProgramSpec:
    """One program of a part: how its module is made, and which plan tensors its results are ("" = scratch)."""

    name: str
    width: int
    build: Callable[[], tvm.IRModule]
    results: tuple[str, ...]


def part_programs(part: Part) -> list[ProgramSpec]:
    """THE list of programs of a model: prefill, a pass with a head for each width, the same with a sampled id; the target's with all
    processors, its scores and log-probabilities; the draft's measured steps and what lies between two rounds."""
    role, config = part.role, part.config
    results = (f"{role}.logits", f"{role}.out", f"{role}.done")
    kind = "verify" if role == "target" else "step"
    prefill = partial(build_program, config, ProgramShape(PREFILL_WIDTH, False))
    programs = [ProgramSpec(f"{role}.prefill", PREFILL_WIDTH, prefill, ("",))]
    for width in WIDTHS[role]:
        make = partial(build_program, config, ProgramShape(width, True))
        programs.append(ProgramSpec(f"{role}.{kind}_{width}", width, make, results))
    for width in WIDTHS[role]:
        make = partial(build_program, config, ProgramShape(width, True, choice="sample"))
        programs.append(ProgramSpec(f"{role}.sample_{width}", width, make, results))
    if role == "target":
        for width in WIDTHS[role]:
            make = partial(build_program, config, ProgramShape(width, True, choice="filter"))
            filtered = ("target.logits", "target.z", "target.out", "target.done")
            programs.append(ProgramSpec(f"target.filter_{width}", width, make, filtered))
        for width in WIDTHS[role]:
            make = partial(build_score, config, width)
            programs.append(ProgramSpec(f"target.score_{width}", width, make, ("target.score",)))
        for width in WIDTHS[role]:
            make = partial(build_logprobs, config, width)
            programs.append(ProgramSpec(f"target.logprobs_{width}", width, make, ("target.top",)))
    else:
        measured = ("draft.logits", "draft.out", "draft.stats", "draft.done")
        for width in WIDTHS[role]:
            make = partial(build_program, config, ProgramShape(width, True, measured=True))
            programs.append(ProgramSpec(f"draft.measure_{width}", width, make, measured))
        programs.append(ProgramSpec("draft.accept", MAX_ROWS, partial(build_accept, config), ("draft.done",)))
        drawn = ("draft.logits", "draft.q", "draft.out", "draft.done")
        for width in WIDTHS[role]:
            make = partial(build_program, config, ProgramShape(width, True, choice="draw"))
            programs.append(ProgramSpec(f"draft.draw_{width}", width, make, drawn))
        judged = ("target.z", "target.verdict", "draft.done")
        programs.append(ProgramSpec("draft.judge", MAX_ROWS, partial(build_judge, config), judged))
        make = partial(build_judge, config, filtered=True)
        programs.append(ProgramSpec("draft.judge_filter", MAX_ROWS, make, judged[1:]))
        programs.append(ProgramSpec("draft.follow", MAX_ROWS, partial(build_follow, config), ("draft.done",)))
    return programs


def plan_steps(spec: ProgramSpec, part: Part, target: str, max_binding: int) -> ReadProgram:
    """One program through every phase: its kernel calls, on the GPU with matrices over `max_binding` bytes by rows."""
    planned = run_phases(spec.build(), target)
    program = read_program(planned, target, part.role, part.owner, spec.results)
    return shard_rows(program, max_binding) if target == "gpu" else program


def lower(parts: tuple[Part, ...], max_binding: int = MAX_BINDING) -> Lowered:
    """Lower every program of every part for both targets; from the cache when these shapes were seen."""
    key = [max_binding, [asdict(part) for part in parts]]
    path = cached("lowered", key, lambda: _archive(_lower(parts, max_binding)), _is_whole)
    with zipfile.ZipFile(path) as archive:
        return Lowered(json.loads(archive.read("targets.json")), archive.read("wasm"), archive.read("wgsl"))


def _is_whole(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is None
    except (zipfile.BadZipFile, EOFError):
        return False


def _archive(lowered: Lowered) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("targets.json", json.dumps(lowered.targets))
        archive.writestr("wasm", lowered.wasm)
        archive.writestr("wgsl", lowered.wgsl)
    return data.getvalue()


def _lower(parts: tuple[Part, ...], max_binding: int) -> Lowered:
    cpu, gpu = _Target("cpu", parts, max_binding), _Target("gpu", parts, max_binding)
    wasm = build_wasm(cpu.instances)
    kernels = build_wgsl(gpu.instances)
    text, gpu_kernels = b"", []
    for name, wgsl in kernels.items():
        body = wgsl.text.encode()
        arg_index = {arg: i for i, (arg, _) in enumerate(OPS[gpu.instances[name][0]].form("gpu").args)}
        entry = gpu.kernel(name) | {
            "entry": wgsl.entry,
            "workgroup": list(wgsl.workgroup),
            "source": [len(text), len(body)],
            "bindings": [arg_index[arg] for arg in wgsl.bindings],
        }
        gpu_kernels.append(entry)
        text += body
    grids = [list(kernels[name].grid) for name in gpu.instances]
    return Lowered(
        {
            "cpu": cpu.describe([cpu.kernel(name) for name in cpu.instances], cpu.parts()),
            "gpu": gpu.describe(gpu_kernels, grids),
        },
        wasm,
        text,
    )


class _Target:
    """Programs of all parts for one device, and the kernel instances they use, in first-use order."""

    def __init__(self, target: str, parts: tuple[Part, ...], max_binding: int):
        self.target, self.max_binding = target, max_binding
        self.instances: dict[str, tuple[str, dict[str, int | str]]] = {}
        self.programs: list[tuple[str, str, int, ReadProgram]] = []
        for part in parts:
            self.add_part(part)
        for _, _, _, program in self.programs:
            for step in program.steps:
                self.instances.setdefault(kernel_name(step.op, step.params), (step.op, step.params))

    def add_part(self, part: Part) -> None:
        for program in part_programs(part):
            read = plan_steps(program, part, self.target, self.max_binding)
            self.programs.append((program.name, part.role, program.width, read))

    def kernel(self, name: str) -> dict[str, Any]:
        op, params = self.instances[name]
        args = OPS[op].form(self.target).args
        return {
            "name": name,
            "op": op,
            "entry": name,
            "args": [{"name": arg, "access": access} for arg, access in args],
            "params": params,
            "row_invariant": OPS[op].row_invariant,
            "workgroup": [1, 1, 1],
            "source": [0, 0],
            "bindings": list(range(len(args))),
        }

    def parts(self) -> list[list[int]]:
        """The CPU's grids: into how many parts each kernel may be cut."""
        return [[OPS[op].form("cpu").parts(params), 1, 1] for op, params in self.instances.values()]

    def describe(self, kernels: list[dict[str, Any]], grids: list[list[int]]) -> dict[str, Any]:
        index = {name: i for i, name in enumerate(self.instances)}
        scratch: list[int] = []
        programs = []
        for name, role, width, program in self.programs:
            scratch = [max(sizes) for sizes in zip_longest(scratch, program.storage_bytes, fillvalue=0)]
            dispatches = []
            for step in program.steps:
                kernel = index[kernel_name(step.op, step.params)]
                places = [place.plain() for place in step.places]
                dispatches.append({"kernel": kernel, "places": places, "grid": grids[kernel]})
            programs.append({"name": name, "model": role, "width": width, "dispatches": dispatches})
        return {"kernels": kernels, "programs": programs, "scratch_bytes": scratch}
