"""Laws and draws of a bundle on this CPU."""

from __future__ import annotations

import numpy as np
from chi_square import Run
from laws import PROMPT, Drawn, Way, gather, law, seeds
from runs import Native
from specdec_runtime.decode.effects import Submit
from specdec_runtime.decode.options import read_sampling


def logits_after(native: Native, ids: list[int]) -> np.ndarray:
    """The target's, by the program of one row."""
    native.run(ids, 1)
    vocab = native.bundle.plan.target_model.vocab_size
    reads = [("target.logits", 0, vocab)]
    batch = Submit("verify", [("target.args", 0, [len(ids) - 1, 1, 0, 0])], ["target.verify_1"], reads)
    return np.array(native.backend.submit(batch).values[0])


def native_law(native: Native, sampling: str, length: int) -> dict[Run, float]:
    return law(lambda run: logits_after(native, [*PROMPT, *run]), sampling, length)


def draw(native: Native, way: Way, count: int, series: int) -> Drawn:
    """So many requests, each with a seed of its own."""
    asked = {name: value for name, value in way.fields.items() if name not in NOT_SAMPLING}
    ways = {"rounds": way.rounds, "steps": way.steps, "eos_ids": ()}

    def results():
        for seed in seeds(series, count):
            sampling = read_sampling({**asked, "seed": seed})
            yield native.run(PROMPT, way.max_tokens, way.drafter, way.k, sampling=sampling, **ways)

    return gather(way, results())


NOT_SAMPLING = {"prompt_ids", "max_tokens", "drafter", "k", "rounds", "plain_steps", "ignore_eos"}
