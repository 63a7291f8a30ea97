"""The float32 reference: transformers' Llama in PyTorch, its weights the dequantized ones of a ModelSpec.

Knows no plan and no kernel. torch and transformers are optional (extra "numerics") and imported when needed. Invariant: every
parameter comes from the ModelSpec (strict state dict); attention is the plain one; nothing is narrower than float32.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
from specdec_compiler.quantize import QuantWeight, dequantize
from specdec_compiler.sources import ModelConfig, ModelSpec
from specdec_runtime.faults import ContractError, RequestError

_TOP = {"embed": "model.embed_tokens", "norm": "model.norm", "head": "lm_head"}
_PARTS = {
    "attn_norm": "input_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "mlp_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}


def needed(module: str) -> Any:
    """An optional module, or the error that says how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        action = 'Install the extra: pip install -e ".[numerics]"'
        raise RequestError(f"{module} cannot be imported: {error}", "numerics", action) from None


class TorchReference:
    """Whole sequences at once, and greedy answers."""

    def __init__(self, spec: ModelSpec) -> None:
        self._torch = needed("torch")
        self._torch.set_num_threads(
            1
        )  # the same sums on every machine, and no waiting for threads on a busy one
        self._model = _load(self._torch, needed("transformers"), spec)

    def rows(self, ids: list[int], first: int = 0) -> np.ndarray:
        """Logits f32 [len(ids) - first, vocab], row i predicting the id after ids[first + i]."""
        with self._torch.inference_mode():
            return self._model(self._torch.tensor([ids]), use_cache=False).logits[0, first:].numpy()

    def greedy(self, prompt: list[int], most: int, eos_ids: tuple[int, ...]) -> list[int]:
        """The argmax until an end id, which is included, or `most` ids."""
        ids = self._torch.tensor([prompt])
        out = self._model.generate(
            ids,
            attention_mask=self._torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=most,
            eos_token_id=list(eos_ids) or None,
            pad_token_id=0,
        )
        return out[0, len(prompt) :].tolist()


def _load(torch: Any, transformers: Any, spec: ModelSpec) -> Any:
    config = _config(transformers, spec.config)
    model = transformers.LlamaForCausalLM(config).to(torch.float32).eval()
    state = {stored_name(name): torch.from_numpy(_floats(spec.tensor(name))) for name in spec.names()}
    if spec.config.tied_embedding:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state, strict=True)
    # How the base of the rope is given changed between versions of transformers: look at what arrived.
    second = float(model.model.rotary_emb.inv_freq[1])
    expected = spec.config.rope_theta ** (-2 / spec.config.head_dim)
    if abs(second / expected - 1) > 1e-5:
        raise ContractError(f"the rope turns with {second}, not {expected}", "numerics reference")
    return model


def _config(transformers: Any, c: ModelConfig) -> Any:
    if c.architecture != "llama":
        raise RequestError(f"there is no reference for {c.architecture}", c.name, "Use a Llama model")
    return transformers.LlamaConfig(
        vocab_size=c.vocab_size,
        hidden_size=c.hidden,
        intermediate_size=c.ffn,
        num_hidden_layers=c.num_layers,
        num_attention_heads=c.num_heads,
        num_key_value_heads=c.num_kv_heads,
        head_dim=c.head_dim,
        rms_norm_eps=c.norm_eps,
        max_position_embeddings=c.context,
        rope_parameters={"rope_type": "default", "rope_theta": c.rope_theta},
        tie_word_embeddings=c.tied_embedding,
        attn_implementation="eager",
    )


def stored_name(name: str) -> str:
    if name in _TOP:
        return f"{_TOP[name]}.weight"
    _, layer, part = name.split(".")
    return f"model.layers.{layer}.{_PARTS[part]}.weight"


def _floats(weight: QuantWeight | np.ndarray) -> np.ndarray:
    return dequantize(weight) if isinstance(weight, QuantWeight) else np.array(weight, np.float32)
