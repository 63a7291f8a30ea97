"""What a person asks of a bundle (inspect) or of the pipeline (dump)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from specdec_runtime.bundle import Bundle
from specdec_runtime.faults import RequestError
from specdec_runtime.plan.schema import Target

from .build import model_parts, open_models, weight_owners
from .emit.lowered import Part, ProgramSpec, part_programs, plan_steps
from .emit.rows import MAX_BINDING
from .emit.weights import NullWriter, write_model
from .kernels import OPS, kernel_name
from .pipeline import PHASES, run_phases
from .recipe import read_recipe


def summary(bundle: Bundle) -> dict[str, Any]:
    """Facts of a bundle as plain data; all sizes in bytes."""
    plan = bundle.plan
    return {
        "name": plan.name,
        "license": bundle.license,
        "download_bytes": sum(file.bytes for file in bundle.files.values()),
        "ids": {
            key: getattr(plan.ids, key)
            for key in ("recipe", "weights", "tokenizer", "chat_template", "kernels")
        },
        "models": [
            {
                "role": m.role,
                "name": m.name,
                "architecture": m.architecture,
                "num_layers": m.num_layers,
                "hidden": m.hidden,
                "vocab_size": m.vocab_size,
                "max_context": m.max_context,
                "page_size": m.page_size,
                "num_pages": m.num_pages,
            }
            for m in plan.models
        ],
        "targets": [_target_facts(target) for target in plan.targets],
    }


def _target_facts(target: Target) -> dict[str, Any]:
    memory = dict.fromkeys(("weight", "kv", "state", "scratch"), 0)
    for buffer in target.buffers:
        memory[buffer.lifetime] += buffer.bytes
    return {
        "name": target.name,
        "module": target.module,
        "features": list(target.features),
        "memory_bytes": memory,
        "num_kernels": len(target.kernels),
        "row_invariant": all(kernel.row_invariant for kernel in target.kernels),
        "programs": [
            {"name": p.name, "width": p.width, "num_dispatches": len(p.dispatches)} for p in target.programs
        ],
    }


def render(facts: dict[str, Any]) -> str:
    """The summary as text."""
    lines = [f"{facts['name']} ({facts['license']}), download {facts['download_bytes'] / 1e6:.1f} MB", ""]
    for m in facts["models"]:
        sizes = f"{m['num_layers']} layers, hidden {m['hidden']}, vocabulary {m['vocab_size']}"
        pages = f"context {m['max_context']} in {m['num_pages']} pages of {m['page_size']}"
        lines.append(f"  {m['role']:7} {m['name']} ({m['architecture']}): {sizes}, {pages}")
    for target in facts["targets"]:
        memory = ", ".join(f"{kind} {size / 1e6:.1f} MB" for kind, size in target["memory_bytes"].items())
        lines += ["", f"  {target['name']}: {target['module']}, {target['num_kernels']} kernels; {memory}"]
        lines += [
            f"    {p['name']:18} {p['width']:3} rows  {p['num_dispatches']:4} dispatches"
            for p in target["programs"]
        ]
    return "\n".join(lines)


def dump(recipe_path: Path, phase: str, program: str, target: str) -> str:
    """One program after one phase, as TVMScript; phase "kernels" prints the TIR of its kernels. Raises RequestError."""
    if phase not in (*PHASES, "kernels"):
        raise RequestError(
            f"there is no phase {phase!r}", "--phase", f"use one of {', '.join((*PHASES, 'kernels'))}"
        )
    recipe = read_recipe(recipe_path)
    models = open_models(recipe)
    formats = {
        role: write_model(spec, role, models.context, NullWriter(), lambda _: None)
        for role, spec in weight_owners(models)
    }
    part, spec = _program(model_parts(recipe, models, formats), program)
    if phase != "kernels":
        return run_phases(spec.build(), target, phase).script()
    steps = plan_steps(spec, part, target, MAX_BINDING).steps
    kernels = {kernel_name(step.op, step.params): step for step in steps}
    build = {name: OPS[step.op].form(target).build(name, step.params) for name, step in kernels.items()}
    return "\n\n".join(function.script() for function in build.values())


def _program(parts: tuple[Part, ...], wanted: str) -> tuple[Part, ProgramSpec]:
    programs = {program.name: (part, program) for part in parts for program in part_programs(part)}
    if wanted not in programs:
        raise RequestError(
            f"there is no program {wanted!r}", "--program", f"use one of {', '.join(programs)}"
        )
    return programs[wanted]
