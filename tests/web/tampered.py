"""Bundles whose GPU programs are not row-invariant: a small kernel, put into chosen programs, changes what a row gives.

Knows the plan's host tensors only, no kernel of the compiler. `strong` changes are large enough to change ids; else one bit of
each value, as another order of additions would.
"""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

from fake_bundle import write_manifest
from specdec_runtime.plan import load_plan

# Which rows a program changes: a WGSL condition on `row` (the slot) and `rows` (how many are valid).
ALL_ROWS, ODD_SLOTS = "true", "row % 2 == 1"

_HEAD = """
@group(0) @binding(0) var<storage, read> args: array<i32>;
@group(0) @binding(1) var<storage, read> table: array<i32>;
@group(0) @binding(2) var<storage, read_write> values: array<u32>;
@compute @workgroup_size(64) fn tamper(@builtin(global_invocation_id) thread: vec3<u32>) {
  let rows = args[1];
  for (var row = 0; row < rows; row++) {
    if (!(CONDITION)) { continue; }
    BODY
  }
}
"""
_LOGITS = """for (var i = i32(thread.x); i < VOCAB; i += 64) {
      let at = row * PADDED + i;
      CHANGE
    }"""
# the K of the page where a pass begins: coarse, but true of any layout within a page
_KEYS = """if (row > 0) { break; }
    for (var i = i32(thread.x); i < WORDS; i += 64) {
      let at = table[args[0] / PAGE] * WORDS + i;
      CHANGE
    }"""
# the fake bundle: one word a position
_FAKE_KV = """let i = i32(thread.x);
    if (i > 0) { break; }
    let position = args[0] + row;
    let at = table[position / PAGE] * PAGE + position % PAGE;
    CHANGE"""
_ONE_BIT = "values[at] = values[at] ^ 1u;"
_STRONG = {
    _LOGITS: "values[at] = bitcast<u32>(bitcast<f32>(values[at]) * (1.0 + 0.05 * f32((i * 37 + PROGRAM) % 11)));",
    _KEYS: "values[at] = values[at] ^ (0x03000300u >> u32(i % 2));",  # upper bits of two f16 mantissas
    _FAKE_KV: _ONE_BIT,  # it is a hash: any bit changes everything after it
}


def tampered(
    bundle: Path,
    folder: Path,
    changes: dict[str, tuple[str, str]],
    strong: bool = False,
) -> Path:
    """A copy of the bundle. changes: program -> ("target.logits", "target.kv.0" or "target.kv", condition)."""
    shutil.copytree(bundle, folder)
    plan = json.loads((folder / "plan.json").read_text())
    target = next(target for target in plan["targets"] if target["name"] == "gpu")
    module = (folder / target["module"]).read_bytes()
    index = {tensor["name"]: number for number, tensor in enumerate(target["tensors"])}
    for number, (program, (tensor, condition)) in enumerate(changes.items()):
        shape = target["tensors"][index[tensor]]["shape"]
        source = _source(plan["models"][0], tensor, shape, condition, strong, number).encode()
        names = ("target.args", "target.page_table", tensor)
        access = ("read", "read", "read_write")
        kernel = {
            "name": f"tamper_{number}",
            "op": "tamper",
            "entry": "tamper",
            "args": [{"name": n.replace(".", "_"), "access": a} for n, a in zip(names, access, strict=True)],
            "params": {},
            "row_invariant": True,  # so it says
            "workgroup": [64, 1, 1],
            "source": [len(module), len(source)],
            "bindings": [0, 1, 2],
        }
        module += source
        dispatch = {
            "kernel": len(target["kernels"]),
            "tensors": [index[n] for n in names],
            "grid": [1, 1, 1],
        }
        target["kernels"].append(kernel)
        dispatches = next(p for p in target["programs"] if p["name"] == program)["dispatches"]
        dispatches.insert(_before_choice(target, dispatches, index["target.logits"]), dispatch)
    (folder / target["module"]).write_bytes(module)
    text = json.dumps(plan)
    load_plan(text)
    (folder / "plan.json").write_text(text)
    write_manifest(folder)
    return folder


def _before_choice(target: dict, dispatches: list[dict], logits: int) -> int:
    """Where all KV and logits are written and no id is chosen yet: before the first reader of the logits."""
    for at, dispatch in enumerate(dispatches):
        args = target["kernels"][dispatch["kernel"]]["args"]
        if any(
            tensor == logits and arg["access"] == "read"
            for tensor, arg in zip(dispatch["tensors"], args, strict=True)
        ):
            return at
    return len(dispatches)


def _source(model: dict, tensor: str, shape: list[int], condition: str, strong: bool, number: int) -> str:
    body = {"target.logits": _LOGITS, "target.kv": _FAKE_KV}.get(tensor, _KEYS)
    text = _HEAD.replace("CONDITION", condition).replace("BODY", body)
    text = text.replace("CHANGE", _STRONG[body] if strong else _ONE_BIT)
    sizes = {
        "WORDS": math.prod(shape[shape.index(model["num_pages"]) + 1 :]) if body == _KEYS else 0,
        "PADDED": model["padded_vocab"],
        "VOCAB": model["vocab_size"],
        "PAGE": model["page_size"],
        "PROGRAM": number + 1,
    }
    for name, value in sizes.items():
        text = text.replace(name, str(value))
    return text
