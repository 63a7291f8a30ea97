"""What a person asks of a bundle (inspect) or of the pipeline (dump)."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from specdec_runtime.bundle import Bundle
from specdec_runtime.faults import RequestError
from specdec_runtime.plan.schema import Plan, Target

from .build import model_parts, open_models, write_weights
from .emit.lowered import Part, ProgramSpec, part_programs, plan_steps
from .emit.rows import MAX_BINDING
from .emit.weights import NullWriter
from .kernels import OPS, kernel_name
from .pipeline import PHASES, run_phases
from .recipe import read_recipe


def summary(bundle: Bundle) -> dict[str, Any]:
    """Facts of a bundle as plain data; all sizes in bytes."""
    plan = bundle.plan
    return {
        "name": plan.name,
        "license": bundle.license,
        "draft_provenance": asdict(bundle.draft_provenance),
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
        "borrowed": _borrowed(plan),
        "draft_vocabulary": _draft_vocabulary(plan),
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
    lines += _provenance_lines(facts)
    for target in facts["targets"]:
        memory = ", ".join(f"{kind} {size / 1e6:.1f} MB" for kind, size in target["memory_bytes"].items())
        lines += ["", f"  {target['name']}: {target['module']}, {target['num_kernels']} kernels; {memory}"]
        lines += [
            f"    {p['name']:18} {p['width']:3} rows  {p['num_dispatches']:4} dispatches"
            for p in target["programs"]
        ]
    return "\n".join(lines)


_STATUS = {
    "champion": "the champion's own layers",
    "proven": "proven: its provenance holds, and it was trained on no evaluation prompt",
    "untrained": "untrained, by its provenance",
    "unproven": "UNPROVEN: built with --allow-unproven-draft",
}


def _provenance_lines(facts: dict[str, Any]) -> list[str]:
    """What the compiler found out about the draft, and which of its weights are the champion's."""
    about = facts["draft_provenance"]
    if about["status"] == "none":
        return []
    manifest = f" (provenance.json {about['provenance'][:12]})" if about["provenance"] else ""
    lines = [f"  draft is {_STATUS[about['status']]}{manifest}"]
    if facts["draft_vocabulary"]:
        lines.append(f"  draft proposes {facts['draft_vocabulary']} of the ids only")
    if facts["borrowed"]:
        lines.append(f"  draft uses the champion's {', '.join(facts['borrowed'])}")
    return lines


def _borrowed(plan: Plan) -> list[str]:
    """The champion's weights that the programs of a draft with weights of its own bind."""
    target = plan.targets[0]
    used = {
        target.tensors[tensor].name
        for program in target.programs
        if program.model == "draft"
        for dispatch in program.dispatches
        for tensor in dispatch.tensors
        if target.buffers[target.tensors[tensor].buffer].lifetime == "weight"
    }
    if not any(name.startswith("draft.") for name in used):
        return []
    return sorted({name.split(".")[1] for name in used if name.startswith("target.")})


def _draft_vocabulary(plan: Plan) -> int | None:
    """How many ids the draft's head covers, where it is not all."""
    sizes = [tensor.shape[0] for tensor in plan.targets[0].tensors if tensor.name == "draft.vocabulary"]
    return sizes[0] if sizes else None


def dump(recipe_path: Path, phase: str, program: str, target: str) -> str:
    """One program after one phase, as TVMScript; phase "kernels" prints the TIR of its kernels. Raises RequestError."""
    if phase not in (*PHASES, "kernels"):
        raise RequestError(
            f"there is no phase {phase!r}", "--phase", f"use one of {', '.join((*PHASES, 'kernels'))}"
        )
    recipe = read_recipe(recipe_path)
    models = open_models(recipe)
    formats = write_weights(models, NullWriter(), lambda _: None)
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
