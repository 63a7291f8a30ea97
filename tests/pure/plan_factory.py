"""Small plans for tests, as the JSON objects a compiler would write.

The kernels are fictitious, everything else is consistent: `load_plan` accepts what `make_plan` makes.
Page size, context and widths are parameters, because the interesting cases lie where pages, chunks and
contexts end.
"""

import hashlib
import json

from specdec_runtime.plan import Plan, load_plan
from specdec_runtime.plan.schema import DTYPE_BYTES, MAX_ROWS, Model, host_tensors, program_widths


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def make_model(role: str, **sizes) -> dict:
    """One model object; sizes override the defaults."""
    model = {
        "role": role,
        "name": f"tiny-{role}",
        "architecture": "llama",
        "vocab_size": 13,
        "padded_vocab": 16,
        "max_context": 48,
        "num_layers": 2,
        "hidden": 32,
        "ffn": 64,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 8,
        "page_size": 4,
        "prefill_width": 8,
        "widths": [1, 2, 4, 8] if role == "target" else [1, 2],
    }
    model |= sizes
    pages = -(-model["max_context"] // model["page_size"])
    return {"num_pages": pages, **model}


def make_target(name: str, models: list[dict]) -> dict:
    """One device target: a weight, a KV and a state buffer, one kernel, every program one dispatch of it."""
    parsed = tuple(Model(**{**model, "widths": tuple(model["widths"])}) for model in models)
    named = dict(host_tensors(parsed))
    named["target.logits"] = ("float32", (MAX_ROWS, models[0]["padded_vocab"]))
    tensors = [{"name": "embed", "buffer": 0, "offset": 0, "dtype": "uint8", "shape": [16, 32]}]
    offset = 0
    for tensor, (dtype, shape) in named.items():
        size = DTYPE_BYTES[dtype]
        for length in shape:
            size *= length
        tensors.append({"name": tensor, "buffer": 1, "offset": offset, "dtype": dtype, "shape": list(shape)})
        offset += -(-size // 256) * 256
    index_of = {tensor["name"]: index for index, tensor in enumerate(tensors)}
    gpu = name == "gpu"
    kernel = {
        "name": "pass",
        "op": "matmul_q4",
        "entry": "pass_main",
        "args": [
            {"name": "weight", "access": "read"},
            {"name": "args", "access": "read"},
            {"name": "logits", "access": "write"},
        ],
        "params": {"n": 16, "format": "q4"},
        "row_invariant": True,
        "workgroup": [32, 1, 1] if gpu else [1, 1, 1],
        "source": [0, 512] if gpu else [0, 0],
        "bindings": [0, 1, 2],
    }
    programs = []
    for model in parsed:
        bound = [0, index_of[f"{model.role}.args"], index_of["target.logits"]]
        for program, width in program_widths(model).items():
            dispatch = {"kernel": 0, "tensors": list(bound), "grid": [1, width, 1] if gpu else [1, 1, 1]}
            programs.append({"name": program, "model": model.role, "width": width, "dispatches": [dispatch]})
    limits = {
        "maxBufferSize": 2**28,
        "maxStorageBuffersPerShaderStage": 8,
        "maxComputeInvocationsPerWorkgroup": 256,
    }
    return {
        "name": name,
        "module": "kernels.wgsl" if gpu else "kernels.wasm",
        "features": ["packed_4x8_integer_dot_product"] if gpu else ["simd128"],
        "limits": limits if gpu else {},
        "buffers": [
            {"name": "weights", "bytes": 512, "lifetime": "weight", "files": ["weights/0000.bin"]},
            {"name": "state", "bytes": offset, "lifetime": "state", "files": []},
            {"name": "kv", "bytes": 1024, "lifetime": "kv", "files": []},
        ],
        "tensors": tensors,
        "kernels": [kernel],
        "programs": programs,
    }


def make_plan(targets=("cpu",), draft: dict | None = None, eos_ids=(2,), **sizes) -> dict:
    """A whole plan object. `draft`: sizes of a draft model, None for none; `sizes` are the target's."""
    models = [make_model("target", **sizes)]
    if draft is not None:
        shared = {"vocab_size": models[0]["vocab_size"], "padded_vocab": models[0]["padded_vocab"]}
        models.append(make_model("draft", **{**shared, **draft}))
    return {
        "format": "specdec-plan",
        "version": 1,
        "name": "tiny",
        "ids": {name: sha(name) for name in ("recipe", "weights", "tokenizer", "chat_template", "kernels")},
        "text": {"bos_id": 1, "add_bos": True, "eos_ids": list(eos_ids), "special_ids": [0, 1, 2]},
        "models": models,
        "targets": [make_target(name, models) for name in targets],
    }


def load_made(**options) -> Plan:
    """The same, read and checked."""
    return load_plan(json.dumps(make_plan(**options)))
