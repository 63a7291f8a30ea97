"""Tiny random model pairs for tests: a champion, a draft that often agrees with it, and their recipe.

Knows the Hugging Face folder it writes and nothing of how it is read. Invariants: a seed always gives the
same bytes (NumPy's legacy generator, whose stream is frozen); shapes do not depend on the seed, so kernels
are compiled once; greedy text varies, meets an end token now and then, and the draft is right on a part of
it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from specdec_runtime.faults import ArtifactError, RequestError

from .drafts import (
    Champion,
    Generator,
    Provenance,
    SampleCounts,
    Training,
    champion_sha256,
    write_prompts,
    write_provenance,
)
from .drafts.provenance import HASHED_FILES
from .sources.floats import to_bf16
from .sources.safetensors_file import safetensors_bytes
from .tiny_tokenizer import MAX_VOCAB, SPECIAL, tiny_tokenizer

MIN_VOCAB = 300
DEFAULT_VOCAB = 384
BOS, EOS = 1, 2
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
_RECIPE = """# A tiny random pair for tests, made from seed {seed}.
name = "tiny-{seed}"
license = "CC0-1.0"

[champion]
source = "champion"
context = {context}

[draft]
source = "draft"

[pages]
size = {page_size}
"""


@dataclass(frozen=True)
class TinyShape:
    """Sizes of both models; the draft has draft_layers of the champion's layers."""

    hidden: int = 64
    ffn: int = 128
    num_layers: int = 2
    draft_layers: int = 1
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 16


def make_tiny(
    folder: Path | str,
    seed: int,
    vocab: int = DEFAULT_VOCAB,
    *,
    shape: TinyShape | None = None,
    context: int = 512,
    page_size: int = 32,
    tied: bool | None = None,
    add_bos: bool = False,
) -> Path:
    """Write folder/champion, folder/draft (Llama folders) and folder/recipe.toml; -> the recipe's path.

    vocab: 300..1000 ids. tied: whether the head is the embedding; None lets the seed choose (odd: tied).
    add_bos: whether prompts begin with <|im_start|>. Raises RequestError for a vocabulary or seed out of
    range, ArtifactError when the folder cannot be written.
    """
    if not 0 <= seed < 2**32:
        raise RequestError(
            f"the seed {seed} is not possible", "tiny: seed", "give a number from 0 to 4294967295"
        )
    if not MIN_VOCAB <= vocab <= MAX_VOCAB:
        message = f"a vocabulary of {vocab} ids is not possible"
        raise RequestError(message, "tiny: vocab", f"give a number from {MIN_VOCAB} to {MAX_VOCAB}")
    folder, shape = Path(folder), shape or TinyShape()
    tied = seed % 2 == 1 if tied is None else tied
    tokenizer = tiny_tokenizer(vocab)
    rng = np.random.RandomState(seed)
    champion = _random_weights(rng, shape, vocab, tied)
    draft = _disturbed(rng, champion, shape.draft_layers)
    try:
        for name, weights in (("champion", champion), ("draft", draft)):
            _write_model(folder / name, weights, shape, vocab, context, tied, add_bos, tokenizer)
        _write_provenance(folder / "draft", folder / "champion", seed)
        recipe = folder / "recipe.toml"
        recipe.write_text(_RECIPE.format(seed=seed, context=context, page_size=page_size), encoding="utf-8")
    except OSError as error:
        raise ArtifactError(
            f"cannot write: {error.strerror}", str(folder), "give a writable folder"
        ) from error
    return recipe


def _random_weights(
    rng: np.random.RandomState, shape: TinyShape, vocab: int, tied: bool
) -> dict[str, np.ndarray]:
    hidden, q_rows, kv_rows = (
        shape.hidden,
        shape.num_heads * shape.head_dim,
        shape.num_kv_heads * shape.head_dim,
    )

    def matrix(rows: int, columns: int, gain: float) -> np.ndarray:
        # An input of unit size gives an output of size `gain`.
        return (rng.standard_normal((rows, columns)) * gain / np.sqrt(columns)).astype(np.float32)

    def norm() -> np.ndarray:
        return (1 + 0.1 * rng.standard_normal(hidden)).astype(np.float32)

    weights = {"model.embed_tokens.weight": rng.standard_normal((vocab, hidden)).astype(np.float32)}
    for layer in range(shape.num_layers):
        # The first layer does most of the work, so that a draft of the first layers is right now and then.
        # The residual must outgrow the embedding, or a tied head would repeat the last token for ever.
        gain = (14.0 if tied else 3.0) if layer == 0 else 1.0
        at = f"model.layers.{layer}."
        weights |= {
            at + "input_layernorm.weight": norm(),
            at + "self_attn.q_proj.weight": matrix(q_rows, hidden, 1.5),
            at + "self_attn.k_proj.weight": matrix(kv_rows, hidden, 1.5),
            at + "self_attn.v_proj.weight": matrix(kv_rows, hidden, 1.0),
            at + "self_attn.o_proj.weight": matrix(hidden, q_rows, gain),
            at + "post_attention_layernorm.weight": norm(),
            at + "mlp.gate_proj.weight": matrix(shape.ffn, hidden, 1.5),
            at + "mlp.up_proj.weight": matrix(shape.ffn, hidden, 1.0),
            at + "mlp.down_proj.weight": matrix(hidden, shape.ffn, 1.5 * gain),
        }
    weights["model.norm.weight"] = norm()
    if not tied:
        weights["lm_head.weight"] = matrix(vocab, hidden, 3.0)
    # A slightly longer row makes the end token a little likelier than another.
    weights["model.embed_tokens.weight" if tied else "lm_head.weight"][EOS] *= np.float32(1.15)
    return weights


def _disturbed(
    rng: np.random.RandomState, champion: dict[str, np.ndarray], num_layers: int, noise: float = 0.05
) -> dict[str, np.ndarray]:
    """The champion's first layers with every weight moved by noise times its tensor's own spread."""
    kept = {
        name: values
        for name, values in champion.items()
        if not name.startswith("model.layers.") or int(name.split(".")[2]) < num_layers
    }
    return {
        name: (values + noise * values.std() * rng.standard_normal(values.shape)).astype(np.float32)
        for name, values in kept.items()
    }


def _write_model(
    folder: Path,
    weights: dict[str, np.ndarray],
    shape: TinyShape,
    vocab: int,
    context: int,
    tied: bool,
    add_bos: bool,
    tokenizer: bytes,
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    num_layers = sum(name.endswith("q_proj.weight") for name in weights)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "_name_or_path": f"tiny-{folder.name}",
        "vocab_size": vocab,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.ffn,
        "num_hidden_layers": num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": context,
        "tie_word_embeddings": tied,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "torch_dtype": "bfloat16",
    }
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", {"bos_token_id": BOS, "eos_token_id": [EOS]})
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": add_bos,
        "bos_token": SPECIAL[BOS],
        "eos_token": SPECIAL[EOS],
        "pad_token": SPECIAL[EOS],
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    _write_json(folder / "tokenizer_config.json", settings)
    (folder / "tokenizer.json").write_bytes(tokenizer)
    tensors = {name: ("BF16", to_bf16(values)) for name, values in weights.items()}
    (folder / "model.safetensors").write_bytes(safetensors_bytes(tensors))


def _write_provenance(draft: Path, champion: Path, seed: int) -> None:
    """An untrained draft's manifest: it says so, and that no prompt was seen."""
    hashes = {name: hashlib.sha256((draft / name).read_bytes()).hexdigest() for name in HASHED_FILES}
    manifest = Provenance(
        champion=Champion("tiny-champion", champion_sha256(champion)),
        code_commit="none",
        generator=Generator([seed], [], "none"),
        prompt_sources=[],
        sample_counts=SampleCounts(0, 0, 0),
        prompts_digest=write_prompts(draft, [], plain=True),
        training=Training("none: the champion's layers with noise", 0, 0, 0.0, seed, "none", []),
        licence="CC0-1.0",
        files=hashes,
        ablation={},
    )
    write_provenance(draft, manifest)


def _write_json(path: Path, data: dict[str, object]) -> None:
    path.write_text(json.dumps(data, indent=2, sort_keys=True) + "\n", encoding="utf-8")
