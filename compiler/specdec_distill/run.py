"""The stages in order: the champion writes, the draft learns, the folder is written. Knows every part, none of its inside."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from specdec_compiler.drafts import champion_sha256, evaluation_prompts, fingerprints
from specdec_compiler.drafts.strata import DEFAULT
from specdec_compiler.recipe import read_recipe
from specdec_compiler.sources import ModelSpec, Quantization, locate, open_source
from specdec_runtime.faults import ArtifactError

from .corpus import Corpus, join, load_corpus
from .draft import Draft, DraftShape
from .export import export, read_results
from .network import Llama, make_rope, read_weights
from .objective import Measure, Objective
from .recipe import DistillRecipe
from .texts import Desk, Say, Speech, held_out_text, stage_of, training_files, training_text
from .train import Champion, Phase, Trainer


def distill(
    recipe: DistillRecipe,
    folder: Path,
    say: Say,
    *,
    stage: str = "all",
    device: str | None = None,
    share: tuple[int, int] = (0, 1),
    strata: Path = DEFAULT,
    commit: str | None = None,
) -> dict[str, Any]:
    """Run the stages that are not done yet; the figures of what was run.

    stage: "text", "train", "export" or "all". share: (i, n): write the i-th of n shares of the text. strata: the evaluation prompts,
    from which the training prompts are held apart. commit: see export.py. Raises ArtifactError.
    """
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    os.environ.setdefault(
        "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
    )  # read once, at the first matrix product: for repeatable ones
    folder.mkdir(parents=True, exist_ok=True)
    spec = open_champion(recipe)
    net = load_network(spec, device)
    held_apart = fingerprints(text for _, text in evaluation_prompts(strata))
    desk = Desk(net, Speech(spec), recipe.text, folder, say, held_apart, _champion_sha256(recipe), *share)
    result: dict[str, Any] = {}
    if stage in ("text", "all"):
        corpus = training_text(desk)
        if desk.share == 0:
            held_out_text(replace(desk, shares=1))
        result["text"] = {"texts": len(corpus), "learned_tokens": corpus.num_learned}
    if stage in ("train", "all"):
        torch.use_deterministic_algorithms(True, warn_only=True)
        held_out = held_out_text(replace(desk, share=0, shares=1))
        result["train"] = train(recipe, net, load_text(folder), held_out, folder, device, say)
        results = {"device": _device_name(device), "phases": result["train"]}
        (folder / "results.json").write_text(json.dumps(results, indent=1))
    if stage in ("export", "all"):
        result["export"] = str(
            export(
                recipe, spec, load_text(folder), read_results(folder), folder, desk.champion_sha256, commit
            )
        )
    return result


def _device_name(device: str) -> str:
    return torch.cuda.get_device_name() if device.startswith("cuda") else "CPU"


def open_champion(recipe: DistillRecipe) -> ModelSpec:
    """The champion as its recipe names it; nothing of the compiler beyond the sources is loaded."""
    bundle = read_recipe(recipe.folder / recipe.champion)
    formats = Quantization(bundle.champion.quantize, bundle.champion.quantize_embedding)
    return open_source(bundle.champion.source, bundle.folder, formats)


def _champion_sha256(recipe: DistillRecipe) -> str:
    bundle = read_recipe(recipe.folder / recipe.champion)
    return champion_sha256(locate(bundle.champion.source, bundle.folder))


def load_network(spec: ModelSpec, device: str) -> Llama:
    """The champion's network: bf16 on a GPU, f32 on a CPU."""
    dtype = torch.bfloat16 if device.startswith("cuda") else torch.float32
    return Llama(spec.config, read_weights(spec, device, dtype), make_rope(spec.config, 4096, device))


def load_text(folder: Path) -> Corpus:
    """All shares' training texts. Raises ArtifactError unless they are the shares of one whole."""
    paths = training_files(folder, ".npz")
    stages: dict[str, set[tuple[int, int]]] = {}
    for path in paths:
        stage, *share = stage_of(path)
        stages.setdefault(stage, set()).add((share[0], share[1]))
    for stage, found in stages.items():
        total = max(n for _, n in found)
        if found != {(index, total) for index in range(total)}:
            message = f"the shares of stage {stage} are {sorted(found)}: not each of one number of shares"
            raise ArtifactError(message, str(folder), "write the missing ones, or remove what is not theirs")
    if not paths:
        raise ArtifactError("there is no text", str(folder), "run the stage text first")
    return join([load_corpus(path) for path in paths])


def train(
    recipe: DistillRecipe, net: Llama, corpus: Corpus, held_out: Corpus, folder: Path, device: str, say: Say
) -> dict[str, Any]:
    """The phases; each one's last figures."""
    settings = recipe.train
    champion = Champion(net, corpus, settings.batch_tokens, device)
    say(f"hidden states of {corpus.num_learned} positions of {len(corpus)} texts are ready")
    measure = Measure(net.weights["embed"])
    shape = DraftShape(tuple(recipe.draft.copy), recipe.draft.ffn)
    whole = Objective(tv=settings.tv)
    draft = Draft(shape, net, recipe.name)
    say(f"draft of {len(shape.copy)} layers, {draft.num_trained} weights of its own")
    trainer = Trainer(draft, champion, measure, settings, folder, device)
    results = {"whole": trainer.run(Phase("whole", settings.steps, whole), held_out, say)}
    log = trainer.log
    if settings.filter_steps:
        filtered = Draft(shape, net, recipe.name)
        trainer = Trainer(filtered, champion, measure, settings, folder, device)
        objective = Objective(tv=settings.tv, keep=settings.keep)
        reference = draft.network()
        phase = Phase("filtered", settings.filter_steps, objective, reference)
        results["filtered"] = trainer.run(phase, held_out, say)
        log = [*log, *trainer.log]
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in log))
    return results
