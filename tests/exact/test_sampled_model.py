"""The real model, native, mode coupled: 3 seeds x temperatures {0.3, 0.9, 1.5} x {top-p, top-k, min-p, penalties, bias, JSON schema}
x drafters {model, ngram, chain, forced} x k in {1, 3, 7}: the ids of all 648 combinations equal plain ones.

Seed, temperature and setting make 54 samplings. Each meets every one of 12 preregistered prompts in a plain run and in one
speculative run: its 12 pairs of drafter and k are dealt to the prompts, in another way for each sampling. `forced` are drafts
that the test chooses: the plain answer, right, wrong, or wrong in places; under the JSON schema also the grammar's own alone.
`model` and `chain` have 1, 2 or 4 rounds a submit. CI runs one combination of every setting and temperature, of 32 tokens: 18 that
have every pair of drafter and k."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from grammar_schemas import check
from runs import Native, check_books
from specdec_runtime.decode.interfaces import Drafter
from specdec_runtime.decode.sampling import Sampling
from specdec_tools.strata import Prompt, read_strata
from specdec_tools.strata_matrix import prompt_ids
from told import QUALITIES, ToldDrafter

pytestmark = pytest.mark.model
MAX_TOKENS, CI_TOKENS = 64, 32
# the first of every stratum but the long ones, and two more: their prefill is most of what a run of 64 tokens takes
PROMPTS = (
    *("chat-01", "chat-02", "ambiguity-01", "source_conflict-01", "untrusted_memory-01", "summary-01"),
    *("rewrite-01", "json-01", "json-03", "repetitive-01", "multilingual-01", "adversarial-01"),
)
SEEDS = (1, 20_26, 2**63 + 12)
TEMPERATURES = (0.3, 0.9, 1.5)
SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["question", "task", "statement"]},
        "language": {"const": "not determined"},
        "certain": {"type": "boolean"},
        "topics": {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 3},
        "answer": {"type": "string"},
    },
    "required": ["kind", "language", "certain", "topics", "answer"],
}
BIASES = {" the": -3.0, ",": 2.0, " I": 4.0, " and": -100.0, "\n": 1.5}
SETTINGS = {
    "top-p .9": {"top_p": 0.9},
    "top-k 40": {"top_k": 40},
    "min-p .05": {"min_p": 0.05},
    "penalties": {"repetition_penalty": 1.2, "frequency_penalty": 0.3, "presence_penalty": 0.4},
    "bias": {},
    "JSON schema": {},
}
WAYS = [*product(("model", "ngram", "chain", "forced"), (1, 3, 7))]
assert len(WAYS) == len(PROMPTS)


class Case(NamedTuple):
    """One combination, with all that is dealt to it."""

    setting: str
    temperature: float
    seed: int
    drafter: str
    k: int
    prompt: str
    rounds: int
    quality: str  # of forced drafts


def cases_of(setting: str, temperature: float) -> list[Case]:
    """36 combinations: with each of the seeds every prompt once, and every drafter with every k once."""
    found = []
    row, column = [*SETTINGS].index(setting), TEMPERATURES.index(temperature)
    for number, seed in enumerate(SEEDS):
        for place, (drafter, k) in enumerate(WAYS):
            prompt = PROMPTS[(place + 3 * number + column + 2 * row) % len(PROMPTS)]
            rounds = (1, 2, 4)[(number + column + row) % 3] if drafter in ("model", "chain") else 1
            quality = QUALITIES[(number + 2 * column + row + place) % 3]
            found.append(Case(setting, temperature, seed, drafter, k, prompt, rounds, quality))
    return found


@pytest.fixture(scope="module")
def native(smollm2_bundle: Path) -> Native:
    return Native(smollm2_bundle)


@pytest.fixture(scope="module")
def prompts(native: Native) -> dict[str, list[int]]:
    chosen: list[Prompt] = [prompt for prompt in read_strata() if prompt.id in PROMPTS]
    return {one["id"]: one["prompt_ids"] for one in prompt_ids(native.bundle, chosen, MAX_TOKENS)}


@pytest.fixture(scope="module")
def biases(native: Native) -> dict[int, float]:
    encoded = {text: native.text.encode(text) for text in BIASES}
    assert all(len(ids) == 1 for ids in encoded.values()), encoded
    return {encoded[text][0]: bias for text, bias in BIASES.items()}


def asked(case: Case, biases: dict[int, float]) -> dict[str, Any]:
    sampling = Sampling(case.temperature, seed=case.seed, **SETTINGS[case.setting])
    if case.setting == "bias":
        return {"sampling": replace(sampling, logit_bias=biases)}
    grammar = {"type": "json_schema", "schema": SCHEMA} if case.setting == "JSON schema" else None
    return {"sampling": sampling, "grammar": grammar}


def drafters_of(native: Native, case: Case, answer: list[int]) -> list[str | Drafter]:
    """What drafts in the runs of one combination."""
    if case.drafter != "forced":
        return [case.drafter]
    told = ToldDrafter(answer, case.quality, native.bundle.plan.target_model.vocab_size)
    return [told, "off"] if case.setting == "JSON schema" else [told]


def check_told(case: Case, counts: dict[str, Any]) -> None:
    """What was drafted is what the test chose (a grammar cuts and replaces)."""
    if case.drafter != "forced" or case.setting == "JSON schema":
        return
    accepted, evaluated = counts["num_accepted"], counts["num_evaluated"]
    assert evaluated > 0
    assert accepted == evaluated or case.quality != "right"
    assert accepted == 0 or case.quality != "wrong"


def compare(native: Native, case: Case, ids: list[int], most: int, ask: dict[str, Any]) -> tuple[dict, int]:
    """The plain run, and how many drafts were accepted to the same ids."""
    plain, accepted = native.run(ids, most, **ask), 0
    assert plain["speculation"]["mode"] == "coupled"
    for drafter in drafters_of(native, case, plain["token_ids"]):
        result = native.run(ids, most, drafter, case.k, rounds=case.rounds, **ask)
        assert result["token_ids"] == plain["token_ids"], case
        assert result["finish_reason"] == plain["finish_reason"]
        check_books(result, case.k)
        check_told(case, result["speculation"])
        accepted += result["speculation"]["num_accepted"]
    return plain, accepted


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("setting", SETTINGS)
def test_ids_equal_plain(
    native: Native, prompts, biases, request: pytest.FixtureRequest, setting: str, temperature: float
) -> None:
    cases, most = cases_of(setting, temperature), MAX_TOKENS
    everything = request.config.getoption("--all-exact")
    if not everything:
        number = 3 * [*SETTINGS].index(setting) + TEMPERATURES.index(temperature)
        cases, most = [cases[number * 7 % len(cases)]], CI_TOKENS
    answers: dict[str, set] = {}
    accepted: Counter = Counter()
    for case in cases:
        plain, num_accepted = compare(native, case, prompts[case.prompt], most, asked(case, biases))
        accepted[case.drafter] += num_accepted
        answers.setdefault(case.prompt, set()).add(json.dumps(plain["token_ids"]))
        if setting == "JSON schema" and plain["finish_reason"] == "stop":
            check(SCHEMA, native.text.decode(plain["token_ids"]))
    if everything:
        assert all(accepted[drafter] > 0 for drafter in ("model", "chain", "forced")), accepted
        assert temperature < 1 or all(len(found) == len(SEEDS) for found in answers.values())
