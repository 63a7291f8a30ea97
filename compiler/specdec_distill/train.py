"""Training: the champion's hidden states once, then steps over batches, with checkpoints and a log.

Knows the corpus and the objective; not where texts come from. Invariants: the same recipe and corpus give the same batches, on a CPU
the same weights (on a GPU the order of some sums is not fixed); a run that was stopped goes on from its last checkpoint with the
batches that follow, and never from another recipe's.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from specdec_runtime.faults import ArtifactError

from .agree import calibration, lookups, runs
from .corpus import LENGTHS, Batch, Corpus, batch_of, batches, num_batches
from .draft import Draft, DraftShape
from .network import Llama
from .objective import Measure, Objective
from .recipe import TrainRecipe

KS = (1, 3, 7)
CHECKPOINT_S = 60.0
Say = Callable[[str], None]


def learned_states(net: Llama, batch: Batch) -> torch.Tensor:
    """Final hidden states of the batch's positions to learn from: [positions, D]."""
    return net.hidden(batch.ids).flatten(0, 1).index_select(0, batch.learned)


class Champion:
    """The champion's final hidden states of every position to learn from, computed once: [positions, D] in its own type."""

    @torch.no_grad()
    def __init__(self, net: Llama, corpus: Corpus, tokens: int, device: str) -> None:
        self.net, self.corpus = net, corpus
        lens = np.diff(corpus.bounds)
        self._first = np.concatenate([[0], np.cumsum(lens - corpus.starts)])
        embed = net.weights["embed"]
        self._states = torch.empty(int(self._first[-1]), embed.shape[1], dtype=embed.dtype, device=device)
        for batch in batches(corpus, tokens, 0, device):
            states = learned_states(net, batch)
            self._states.index_copy_(0, self._where(batch), states)

    def states(self, batch: Batch) -> torch.Tensor:
        """[learned positions of the batch, D]."""
        return self._states.index_select(0, self._where(batch))

    def _where(self, batch: Batch) -> torch.Tensor:
        spans = [np.arange(self._first[text], self._first[text + 1]) for text in batch.texts]
        return torch.from_numpy(np.concatenate(spans)).to(self._states.device, non_blocking=True)


@dataclass
class Phase:
    """One training run of one draft."""

    name: str
    steps: int
    objective: Objective
    reference: Llama | None = None


class Trainer:
    """Trains a draft in phases' steps; holds optimizer, checkpoint and log."""

    def __init__(
        self,
        draft: Draft,
        champion: Champion,
        measure: Measure,
        recipe: TrainRecipe,
        folder: Path,
        device: str,
    ) -> None:
        self._draft, self._champion, self._measure = draft, champion, measure
        self._recipe, self._folder, self._device = recipe, folder, device
        self._identity = identity_of(recipe, draft.shape, champion.corpus)
        self._optimizer = torch.optim.AdamW(
            draft.trained.values(), lr=recipe.lr, betas=(0.9, 0.95), weight_decay=0.0, fused=device == "cuda"
        )
        self._sums = torch.zeros(2, device=device)  # of kl and agreement since the last line of the log
        self.log: list[dict[str, Any]] = []

    def run(self, phase: Phase, held_out: Corpus, say: Say) -> dict[str, Any]:
        """All steps of a phase, from its checkpoint if there is one; the last measurement."""
        step = self._restore(phase)
        start, saved, begun = step, time.monotonic(), time.monotonic()
        for batch in self._batches(step):
            if step >= phase.steps:
                break
            self._sums += self._step(phase, batch, step)
            step += 1
            if step % self._recipe.eval_every == 0 and step < phase.steps:
                kl, same = (self._sums / self._recipe.eval_every).tolist()
                self._sums.zero_()
                rate = (step - start) / (time.monotonic() - begun)
                self.log.append({"phase": phase.name, "step": step, "kl": kl, "agreement": same})
                say(
                    f"{phase.name}: step {step} of {phase.steps}, kl {kl:.3f}, agreement {same:.3f}, {rate:.1f} steps/s"
                )
            if time.monotonic() - saved > CHECKPOINT_S:
                self._save(phase, step)
                saved = time.monotonic()
        self._save(phase, step)
        result = evaluate(
            self._draft.network(),
            self._champion.net,
            self._measure,
            held_out,
            self._recipe.batch_tokens,
            self._device,
        )
        self.log.append({"phase": phase.name, "step": step, "held_out": result})
        say(f"{phase.name}: held out {json.dumps(result['all'])}")
        return result

    def _batches(self, done: int) -> Iterator[Batch]:
        """Epoch after epoch, from the batch after `done` on."""
        corpus, tokens = self._champion.corpus, self._recipe.batch_tokens
        epoch, first = divmod(done, num_batches(corpus, tokens))
        for number in count(epoch):
            yield from batches(corpus, tokens, self._recipe.seed + number, self._device, first)
            first = 0

    def _step(self, phase: Phase, batch: Batch, step: int) -> torch.Tensor:
        for group in self._optimizer.param_groups:
            group["lr"] = self._rate(step, phase.steps)
        teacher = self._champion.states(batch)
        student = learned_states(self._draft.network(), batch)
        reference = None
        if phase.reference is not None:
            with torch.no_grad():
                reference = learned_states(phase.reference, batch)
        kl, same = self._measure.backward(student, teacher, phase.objective, reference)
        torch.nn.utils.clip_grad_norm_(self._draft.trained.values(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return torch.stack([kl, same])

    def _rate(self, step: int, steps: int) -> float:
        """Linear warm-up, then a cosine to a twentieth."""
        if step < self._recipe.warmup:
            return self._recipe.lr * (step + 1) / self._recipe.warmup
        share = (step - self._recipe.warmup) / max(1, steps - self._recipe.warmup)
        return self._recipe.lr * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * min(1.0, share))))

    def _path(self, phase: Phase) -> Path:
        return self._folder / f"{phase.name}.pt"

    def _save(self, phase: Phase, step: int) -> None:
        path = self._path(phase)
        part = path.with_name(path.name + ".part")
        trained = {name: tensor.detach() for name, tensor in self._draft.trained.items()}
        goes_on = step < phase.steps
        optimizer = self._optimizer.state_dict() if goes_on else None
        state = {"step": step, "trained": trained, "optimizer": optimizer, "log": self.log}
        torch.save({**state, "sums": self._sums, "made_from": self._identity}, part)
        part.rename(path)

    def _restore(self, phase: Phase) -> int:
        path = self._path(phase)
        if not path.exists():
            return 0
        state = read_checkpoint(path, self._identity, self._device)
        with torch.no_grad():
            for name, tensor in self._draft.trained.items():
                tensor.copy_(state["trained"][name])
        if state["optimizer"] is not None:  # else the phase was at its end
            self._optimizer.load_state_dict(state["optimizer"])
        self.log, self._sums = state["log"], state["sums"]
        return state["step"]


def identity_of(recipe: TrainRecipe, shape: DraftShape, corpus: Corpus) -> str:
    """What a checkpoint was made from, in one hash."""
    text = hashlib.sha256(
        corpus.ids.tobytes() + corpus.bounds.tobytes() + corpus.starts.tobytes()
    ).hexdigest()
    made_from = [asdict(recipe), asdict(shape), text]
    return hashlib.sha256(json.dumps(made_from, sort_keys=True).encode()).hexdigest()


def read_checkpoint(path: Path, identity: str, device: str) -> dict[str, Any]:
    """Raises ArtifactError for one that another recipe or other texts made."""
    state = torch.load(path, map_location=device, weights_only=True)
    if state["made_from"] != identity:
        message = "the checkpoint here is of another recipe, draft shape or text"
        raise ArtifactError(message, str(path), "use another folder, or remove what is in it")
    return state


@torch.no_grad()
def evaluate(
    net: Llama, champion: Llama, measure: Measure, corpus: Corpus, tokens: int, device: str
) -> dict[str, Any]:
    """On texts written at temperature 0: mean KL, agreement, and per k tokens a pass and acceptance, over all and by kind; and
    how often the draft is right by how sure it is, and lookups by the length of their match (the recipe's schedule.confidence and
    schedule.ngram)."""
    agreements: dict[str, list[list[bool]]] = {}
    judged: list[tuple[float, bool]] = []
    kl_sum, positions = 0.0, 0
    lens = np.diff(corpus.bounds)
    order = np.argsort(lens, kind="stable").tolist()
    while order:
        length = next(size for size in LENGTHS if size >= lens[order[0]])
        fitting = [index for index in order[: max(1, tokens // length)] if lens[index] <= length]
        order = order[len(fitting) :]
        batch = batch_of(corpus, fitting, length, device)
        student, teacher = (learned_states(n, batch) for n in (net, champion))
        kl, same, sure = measure.agreement(student, teacher)
        judged += zip(sure.tolist(), same.bool().tolist(), strict=True)
        kl_sum, positions = kl_sum + float(kl.sum()), positions + len(kl)
        parts = same.bool().cpu().split([int(lens[i] - corpus.starts[i]) for i in fitting])
        for index, part in zip(fitting, parts, strict=True):
            agreements.setdefault(corpus.kinds[index], []).append(part.tolist())
    every = [text for texts in agreements.values() for text in texts]
    return {
        "all": {"kl": kl_sum / positions, "texts": len(every), **_figures(every)},
        "kinds": {kind: _figures(texts) for kind, texts in sorted(agreements.items())},
        "confidence": calibration(judged),
        "ngram": lookups((corpus.text(i).tolist(), int(corpus.starts[i])) for i in range(len(corpus))),
    }


def _figures(agreements: list[list[bool]]) -> dict[str, float]:
    flat = [same for text in agreements for same in text]
    figures = {"agreement": sum(flat) / len(flat)}
    for k in KS:
        counted = runs(agreements, k)
        figures[f"tokens_per_pass_{k}"] = counted.tokens_per_pass
        figures[f"acceptance_{k}"] = counted.acceptance
    return {name: round(value, 4) for name, value in figures.items()}
