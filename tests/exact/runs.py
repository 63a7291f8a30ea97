"""One request on a native backend, for comparisons of ids. Every comparison in this folder is over all ids."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from specdec_compiler.native import open_backend
from specdec_runtime import drive
from specdec_runtime.backends.native import NativeBackend
from specdec_runtime.bundle import Bundle, open_bundle
from specdec_runtime.decode.choice import Schedule
from specdec_runtime.decode.effects import Constrain
from specdec_runtime.decode.grammar import Matcher
from specdec_runtime.decode.interfaces import Drafter
from specdec_runtime.decode.programs import ANY, Programs
from specdec_runtime.decode.request import Request
from specdec_runtime.decode.round import decode
from specdec_runtime.decode.sampling import PLAIN, Sampling
from specdec_runtime.decode.sampling_state import Held
from specdec_runtime.decode.text import TokenBytes
from specdec_runtime.drafters.registry import make_drafter
from specdec_tools.grammar import Matchers
from specdec_tools.text import BundleText

KS = (1, 2, 3, 4, 7)


class Native:
    """A bundle on this CPU."""

    def __init__(self, folder: Path):
        self.bundle: Bundle = open_bundle(folder)
        self.backend: NativeBackend = open_backend(self.bundle)
        self.held = Held()
        self._matchers: Matchers | None = None

    def run(
        self,
        prompt_ids: list[int],
        max_tokens: int,
        drafter: str | Drafter = "off",
        k: int = 0,
        *,
        steps: int = 1,
        rounds: int = 1,
        eos_ids: tuple[int, ...] | None = None,
        programs: Programs = ANY,
        schedule: Schedule | None = None,
        sampling: Sampling = PLAIN,
        stop: Sequence[str] = (),
        tokens: TokenBytes | None = None,
        logprobs: int = 0,
        grammar: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """The --json object of one request; its text only with stop strings."""
        plan = self.bundle.plan
        request = Request(
            prompt_ids, max_tokens, k, eos_ids, steps, rounds, sampling, stop, logprobs, grammar=grammar
        )
        drafts = make_drafter(drafter, plan) if isinstance(drafter, str) else drafter
        effects = decode(plan, request, drafts, programs, schedule, self.held, tokens)
        return drive.run(effects, self.backend, matchers=self._open_matcher)

    def _open_matcher(self, asked: Constrain) -> Matcher:
        if self._matchers is None:
            self._matchers = Matchers(self.text.byte_map)
        return self._matchers(asked)

    @cached_property
    def text(self) -> BundleText:
        plan = self.bundle.plan
        return BundleText.open(self.bundle, plan.text, plan.ids.chat_template is not None)


def vocab_for(seed: int) -> int:
    """Vocabulary sizes of many residues; odd ones need padding in every kernel."""
    return (301, 384, 517, 1000)[seed % 4]


def random_prompt(seed: int, vocab: int) -> list[int]:
    """3 to 80 ids with repeated stretches, so that n-grams find something."""
    rng = np.random.default_rng(seed)
    base = rng.integers(0, vocab, size=int(rng.integers(3, 30))).tolist()
    return (base * 3)[: int(rng.integers(3, 80))]


def check_books(result: dict[str, Any], k: int) -> None:
    """Counts that must hold in any run."""
    s, usage = result["speculation"], result["usage"]
    assert usage["completion_tokens"] == len(result["token_ids"])
    assert usage["prompt_tokens"] == len(result["prompt_ids"])
    passes, cycles, rounds = s["num_target_passes"], s["num_cycles"], s["rounds"]
    wasted = s["num_accepted"] + passes - len(result["token_ids"])
    assert cycles <= passes <= s["plain_steps"] * cycles + rounds - 1
    assert 0 <= s["num_accepted"] <= s["num_evaluated"] <= s["num_drafted"] <= k * cycles
    assert wasted >= 0
    if (
        result["finish_reason"] == "length"
    ):  # only rounds of the last submit may have been for nothing, and one token of one
        assert wasted <= (rounds if rounds > 1 else 0)
        if s["plain_steps"] == 1:
            assert wasted - (passes - cycles) in ((0, 1) if rounds > 1 else (0,))
