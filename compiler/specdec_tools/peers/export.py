"""Our champion for transformers.js: its weights as a Hugging Face folder, from there 4-bit ONNX by ONNX Runtime's own model builder.

Does not know how it is run. Invariants: the weights are the dequantized ones of the recipe's own source: both runtimes have one model;
the folder is made aside and renamed, and its name carries source, options and versions, so that it is made once.

The graph is the fast kind that is published for WebGPU: MatMulNBits in groups of 32, GroupQueryAttention over a KV cache, the
head for the last row only. The embedding shares the head's 4-bit matrix, else the download would be 100 MB larger.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from specdec_compiler.quantize import QuantWeight, dequantize
from specdec_compiler.sources import ModelConfig, ModelSpec
from specdec_runtime.faults import RequestError

from ..numerics_reference import stored_name
from .install import EXPORT, call, exporter, peers_folder, python_of

PRECISIONS = {"q4": True, "q4f16": False}  # dtype of transformers.js to "activations are float32"
FIX_GRAPH = Path(__file__).with_name("fix_graph.py")
OPTIONS = {
    "hf_token": "false",
    "op_types_to_quantize": "MatMul/Gather",
    "shared_embeddings": "true",
    "algo_config": "rtn",
    "is_symmetric": "true",
    "block_size": "32",
    "prune_lm_head": "true",
}


def config_json(config: ModelConfig, eos_ids: tuple[int, ...]) -> dict[str, Any]:
    """The config.json of a Llama model, as both the builder and transformers.js read it."""
    if config.architecture != "llama":
        raise RequestError(f"no peer export for {config.architecture}", config.name, "Use a Llama model")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden,
        "intermediate_size": config.ffn,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta,
        "max_position_embeddings": config.context,
        "tie_word_embeddings": config.tied_embedding,
        "hidden_act": "silu",
        "eos_token_id": list(eos_ids),
        "torch_dtype": "float32",
    }


def write_hf(spec: ModelSpec, folder: Path) -> None:
    """Weights, config and tokenizer as a Hugging Face folder, in float32."""
    folder.mkdir(parents=True)
    config = json.dumps(config_json(spec.config, spec.text.eos_ids), indent=1)
    (folder / "config.json").write_text(config)
    (folder / "tokenizer.json").write_bytes(spec.text.tokenizer_json)
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    save_file(
        {stored_name(name): _floats(spec.tensor(name)) for name in spec.names()}, folder / "model.safetensors"
    )


def _floats(weight: QuantWeight | np.ndarray) -> np.ndarray:
    full = dequantize(weight) if isinstance(weight, QuantWeight) else weight
    return np.ascontiguousarray(full, np.float32)


def _for_page(spec: ModelSpec) -> dict[str, Any]:
    """config.json as the page needs it: weights lie beside the graph, and the KV cache has the activations' type."""
    page = {"use_external_data_format": True, "kv_cache_dtype": {"q4": "float32", "q4f16": "float16"}}
    return {**config_json(spec.config, spec.text.eos_ids), "transformers.js_config": page}


def onnx_model(spec: ModelSpec, source: str, dtype: str) -> Path:
    """The folder that transformers.js loads (config.json, onnx/model_<dtype>.onnx and its data); made once."""
    key = json.dumps([source, OPTIONS, dtype, EXPORT, FIX_GRAPH.read_text(), _for_page(spec)])
    place = peers_folder() / f"onnx-{dtype}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
    if place.is_dir():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent) as scratch:
        made = _build(spec, Path(scratch), dtype)
        made.rename(place)
    return place


def _build(spec: ModelSpec, scratch: Path, dtype: str) -> Path:
    python = python_of(exporter())
    write_hf(spec, scratch / "hf")
    built = scratch / "built"
    options = {
        **OPTIONS,
        "use_webgpu_fp32": str(PRECISIONS[dtype]).lower(),
        "filename": f"model_{dtype}.onnx",
    }
    command = [
        python,
        "-m",
        "onnxruntime_genai.models.builder",
        "-m",
        spec.config.name,
        "-i",
        str(scratch / "hf"),
    ]
    command += ["-o", str(built), "-p", "int4", "-e", "webgpu", "-c", str(scratch / "cache")]
    call(
        [*command, "--extra_options", *(f"{name}={value}" for name, value in options.items())],
        "model builder",
    )
    made = scratch / "made"
    (made / "onnx").mkdir(parents=True)
    graph = f"model_{dtype}.onnx"
    fixed = [str(built / graph), str(made / "onnx" / graph), str(spec.config.head_dim)]
    call([python, str(FIX_GRAPH), *fixed], "fix_graph.py")
    (made / "config.json").write_text(json.dumps(_for_page(spec), indent=1))
    (made / "generation_config.json").write_text(json.dumps({"eos_token_id": list(spec.text.eos_ids)}))
    return made
