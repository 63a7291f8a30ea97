"""Stage 3: the draft folder a recipe names: packed weights, fingerprints of all prompts, provenance.json.

Knows the trained weights and where the text came from. Invariant: what is written holds: the hashes are of the files beside it, the
prompts are all that the training text has.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

from specdec_compiler.drafts import (
    Champion,
    Generator,
    PromptSource,
    Provenance,
    SampleCounts,
    Training,
    write_draft_folder,
    write_prompts,
    write_provenance,
)
from specdec_compiler.sources import ModelConfig, ModelSpec
from specdec_compiler.sources.hf import stored_name
from specdec_compiler.sources.packed import Formats
from specdec_runtime.faults import ArtifactError

from .corpus import Corpus
from .draft import DraftShape
from .prompts import Prompt
from .recipe import DistillRecipe
from .texts import read_prompts_file, stage_of, training_files
from .train import identity_of, read_checkpoint

FORMATS = Formats("q8", "q4")  # measured: 4 bits cost attention more agreement than the feed-forward part
OBJECTIVES = {
    "whole": "kl(champion || draft), full vocabulary",
    "filtered": "the same, on the positions AdaSPEC's filter keeps",
}


def export(
    recipe: DistillRecipe,
    spec: ModelSpec,
    corpus: Corpus,
    trained: dict[str, Any],
    folder: Path,
    champion_sha256: str,
    commit: str | None,
) -> Path:
    """Write folder/draft from the phase with the most tokens a pass (k = 3) on the held-out texts; -> that folder.

    trained: results.json of the training stage. champion_sha256: as drafts.champion_sha256 gives it. commit: the revision of the code
    that trained it (default: the checkout's).
    """
    results = trained["phases"]
    best = max(results, key=lambda phase: results[phase]["all"]["tokens_per_pass_3"])
    shape = DraftShape(tuple(recipe.draft.copy), recipe.draft.ffn)
    state = read_checkpoint(folder / f"{best}.pt", identity_of(recipe.train, shape, corpus), "cpu")
    out = folder / "draft"
    tensors = {stored_name(name): tensor.float().numpy() for name, tensor in state["trained"].items()}
    files = write_draft_folder(out, _hf_config(shape.config(spec.config, recipe.name)), tensors, FORMATS)
    prompt_files = training_files(folder, ".prompts")
    prompts = [prompt for path in prompt_files for prompt in read_prompts_file(path)[1]]
    digest = write_prompts(out, [text for prompt in prompts for text in prompt.texts])
    settings = recipe.train
    losses = [round(line["kl"], 4) for line in state["log"] if "kl" in line and line["phase"] == best]
    losses.append(round(results[best]["all"]["kl"], 4))
    write_provenance(
        out,
        Provenance(
            champion=Champion(spec.config.name, champion_sha256),
            code_commit=commit or _revision(),
            generator=Generator(
                sorted({recipe.text.seed + stage_of(path)[1] for path in prompt_files}),
                recipe.text.temperatures,
                "argmax(logits / T + Gumbel noise); T = 0: argmax",
            ),
            prompt_sources=_sources(prompts),
            sample_counts=SampleCounts(len(prompts), len(corpus), corpus.num_learned),
            prompts_digest=digest,
            training=Training(
                OBJECTIVES[best],
                state["step"],
                settings.batch_tokens,
                settings.lr,
                settings.seed,
                trained["device"],
                losses,
            ),
            licence=recipe.license,
            files=files,
            ablation={phase: result["all"] for phase, result in results.items()},
        ),
    )
    return out


def _hf_config(c: ModelConfig) -> dict[str, Any]:
    return {
        "vocab_size": c.vocab_size,
        "hidden_size": c.hidden,
        "intermediate_size": c.ffn,
        "num_hidden_layers": c.num_layers,
        "num_attention_heads": c.num_heads,
        "num_key_value_heads": c.num_kv_heads,
        "head_dim": c.head_dim,
        "rope_theta": c.rope_theta,
        "rms_norm_eps": c.norm_eps,
        "max_position_embeddings": c.context,
        "tie_word_embeddings": True,
    }


def _sources(prompts: list[Prompt]) -> list[PromptSource]:
    """By kind, with a hash over that kind's prompts in order; those the champion wrote or that hold its text are "self"."""
    sources = []
    for kind in sorted({prompt.kind for prompt in prompts}):
        texts = [prompt.texts for prompt in prompts if prompt.kind == kind]
        digest = hashlib.sha256(json.dumps(texts).encode()).hexdigest()
        own = kind == "self" or kind == "follow_up" or kind.endswith("_passage")
        sources.append(PromptSource(kind, "self" if own else "template", digest, len(texts)))
    return sources


def _revision() -> str:
    try:
        found = subprocess.run(
            ["git", "rev-parse", "HEAD"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        raise ArtifactError(
            "the code is in no git checkout", "provenance code_commit", "give --commit REVISION"
        ) from None
    return found.stdout.strip()


def read_results(folder: Path) -> dict[str, Any]:
    """What the training stage wrote. Raises ArtifactError where it has not run."""
    try:
        return json.loads((folder / "results.json").read_text())
    except FileNotFoundError:
        raise ArtifactError(
            "nothing was trained here yet", str(folder), "run the stage train first"
        ) from None
