"""python tests/golden/plan_example.py: put an excerpt of the tiny model's plan into docs/plan.md, between its tiny-plan markers.

Shown whole: the head, ids, text, models. Of each device target's lists: the programs SHOWN with their first and last dispatch, and
every kernel, tensor and buffer that these use; "..." says how many are left out. Invariants: keys are in the schema's order; the same
sources give the same text; what every edit of a kernel changes (the kernels hash, the place in the WGSL file) is a placeholder.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from specdec_compiler.build import build_bundle
from specdec_compiler.tiny import make_tiny
from specdec_runtime.plan import load_plan

DOC = Path(__file__).resolve().parents[2] / "docs" / "plan.md"
BEGIN = "<!-- tiny-plan:begin (made by tests/golden/plan_example.py; do not edit by hand) -->"
END = "<!-- tiny-plan:end -->"
SHOWN = ("target.verify_1", "target.score_1")  # programs
KERNELS_ID = "(sha256 of the compiler's sources and tools)"
SOURCE = ["(first byte)", "(number of bytes)"]
WIDTH = 112


def tiny_plan() -> dict[str, Any]:
    """plan.json of the pair that `specdec-compile tiny --seed 0` makes."""
    with tempfile.TemporaryDirectory() as folder:
        recipe = make_tiny(Path(folder), 0)
        build_bundle(recipe, Path(folder, "bundle"), lambda what, done, total: None)
        return dataclasses.asdict(load_plan(Path(folder, "bundle", "plan.json").read_bytes()))


def _stable(plan: dict[str, Any]) -> dict[str, Any]:
    """The plan with placeholders for what every edit of a kernel changes."""
    plan["ids"]["kernels"] = KERNELS_ID
    for kernel in plan["targets"][1]["kernels"]:
        kernel["source"] = SOURCE
    return plan


def excerpt(plan: dict[str, Any]) -> str:
    """The plan's shown parts, as JSON with comments and "..." in it."""
    plan = _stable(plan)
    lines = ["{"]
    for key in ("format", "version", "name"):
        lines.append(f' "{key}": {json.dumps(plan[key])},')
    lines += [f' "{key}": {_wrapped(plan[key], 1)},' for key in ("ids", "text")]
    lines += [' "models": [', ",\n".join(f"  {_wrapped(model, 2)}" for model in plan["models"]), " ],"]
    lines += [' "targets": [', ",\n".join(_target(target) for target in plan["targets"]), " ]", "}"]
    return "\n".join(lines)


def _target(target: dict[str, Any]) -> str:
    programs = {i: p for i, p in enumerate(target["programs"]) if p["name"] in SHOWN}
    dispatches = [d for p in programs.values() for d in (p["dispatches"][0], p["dispatches"][-1])]
    kernels = {d["kernel"] for d in dispatches}
    tensors = {i for d in dispatches for i in d["tensors"]}
    buffers = {target["tensors"][i]["buffer"] for i in tensors}
    head = [f'   "{key}": {_wrapped(target[key], 3)},' for key in ("name", "module", "features", "limits")]
    lists = [
        _list("buffers", target["buffers"], buffers),
        _list("tensors", target["tensors"], tensors),
        _list("kernels", target["kernels"], kernels),
        _list("programs", target["programs"], set(programs)),
    ]
    return "  {\n" + "\n".join(head) + "\n" + ",\n".join(lists) + "\n  }"


def _list(key: str, items: list[Any], shown: set[int]) -> str:
    """The shown items, each with its index; runs left out are counted."""
    lines, last = [], -1
    for i in sorted(shown):
        lines += _gap(i - last - 1)
        body = _program(items[i]) if key == "programs" else _wrapped(items[i], 4)
        lines.append(f"    /* {i} */ {body}" + ("," if i + 1 < len(items) else ""))
        last = i
    lines += _gap(len(items) - last - 1)
    return f'   "{key}": [\n' + "\n".join(lines) + "\n   ]"


def _gap(left_out: int, indent: int = 4) -> list[str]:
    return [f"{' ' * indent}... {left_out} more"] if left_out else []


def _program(program: dict[str, Any]) -> str:
    first, *rest = (f"      {json.dumps(dispatch)}" for dispatch in program["dispatches"])
    shown = [first + ",", *_gap(len(rest) - 1, 6), rest[-1]] if rest else [first]
    head = ", ".join(f'"{key}": {json.dumps(program[key])}' for key in ("name", "model", "width"))
    return "{" + head + ', "dispatches": [\n' + "\n".join(shown) + "\n    ]}"


def _wrapped(value: Any, indent: int) -> str:
    """JSON on one line where it fits, else the entries filled into lines."""
    whole = json.dumps(value)
    if len(whole) + indent < WIDTH or not isinstance(value, dict | list | tuple):
        return whole
    opening, closing = ("{", "}") if isinstance(value, dict) else ("[", "]")
    lines, pad = [""], " " * (indent + 1)
    for entry in _entries(value, indent + 1):
        if lines[-1] and len(pad) + len(lines[-1]) + len(entry) + 1 > WIDTH:
            lines.append("")
        lines[-1] += (" " if lines[-1] else "") + entry
    return f"{opening}\n" + "\n".join(pad + line for line in lines) + "\n" + " " * indent + closing


def _entries(value: Any, indent: int) -> list[str]:
    if isinstance(value, dict):
        found = [f"{json.dumps(key)}: {_wrapped(item, indent)}" for key, item in value.items()]
    else:
        found = [_wrapped(item, indent) for item in value]
    return [entry + "," for entry in found[:-1]] + found[-1:]


def parts(document: str) -> tuple[str, str, str]:
    """The document before the excerpt (marker included), the excerpt, and the rest."""
    before, marker, rest = document.partition(BEGIN)
    inside, end, after = rest.partition(END)
    if not marker or not end:
        raise ValueError(f"{DOC.name} lacks the markers {BEGIN} and {END}")
    return before + marker, inside, end + after


def block(plan: dict[str, Any]) -> str:
    """What belongs between the markers."""
    return "\n```jsonc\n" + excerpt(plan) + "\n```\n"


def update() -> bool:
    """Rewrite docs/plan.md; whether it changed."""
    old = DOC.read_text(encoding="utf-8")
    before, _, after = parts(old)
    new = before + block(tiny_plan()) + after
    DOC.write_text(new, encoding="utf-8")
    return new != old


if __name__ == "__main__":
    print(f"docs/plan.md: {'changed' if update() else 'as before'}")
    sys.exit(0)
