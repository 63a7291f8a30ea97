"""Grammars on tiny random pairs, native: speculative ids equal plain ones, greedy and sampled, and every answer is what the grammar
says or ends at the length limit. A random model writes what no trained one would: it tries the grammar's corners."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from grammar_schemas import check, schemas
from json_grammars import SCHEMAS, grammar_of
from runs import Native, check_books, random_prompt, vocab_for
from specdec_runtime.decode.sampling import Sampling
from specdec_runtime.faults import RequestError
from specdec_runtime.grammars import lowered
from specdec_tools.strata import read_strata

MAX_TOKENS = 60
WAYS = [("off", 4), ("ngram", 3), ("model", 1), ("model", 3), ("chain", 7)]
SAMPLINGS = [
    Sampling(),
    Sampling(temperature=1.0, seed=5),
    Sampling(temperature=0.8, seed=6, top_p=0.9, repetition_penalty=1.3),
    Sampling(temperature=1.0, mode="reject", seed=7),
    Sampling(temperature=0.9, mode="block", seed=8, top_k=20),
]
REGEX = r"(?:[a-z]{2,4}-)*\d+(?:\.\d{1,2})?"
EBNF = 'root ::= "yes" | "no" | list\nlist ::= "[" [0-9]+ ("," [0-9]+)* "]"\n'


@pytest.fixture(scope="session")
def natives(tiny_bundle) -> list[Native]:
    return [Native(tiny_bundle(seed, vocab_for(seed))) for seed in range(2)]


def answers(native: Native, grammar: dict, sampling: Sampling, prompt: list[int]) -> str | None:
    """The text, the same in every way; None where it ended at the length limit."""
    plain = native.run(prompt, MAX_TOKENS, grammar=grammar, sampling=sampling)
    for drafter, k in WAYS:
        result = native.run(prompt, MAX_TOKENS, drafter, k, grammar=grammar, sampling=sampling)
        assert result["token_ids"] == plain["token_ids"], (drafter, k)
        assert result["speculation"]["mode"] == sampling.promise
        check_books(result, k)
    stopped = plain["token_ids"][-1] in native.bundle.plan.text.eos_ids
    assert plain["finish_reason"] == ("stop" if stopped else "length")
    return native.text.decode(plain["token_ids"]) if stopped else None


def test_schemas(natives: list[Native], pytestconfig: pytest.Config) -> None:
    count, ended = (200 if pytestconfig.getoption("--all-exact") else 24), 0
    for number, schema in enumerate(schemas(count)):
        native = natives[number % 2]
        prompt = random_prompt(number, vocab_for(number % 2))
        text = answers(
            native, {"type": "json_schema", "schema": schema}, SAMPLINGS[number % len(SAMPLINGS)], prompt
        )
        if text is not None:
            check(schema, text)
            ended += 1
    assert ended > count / 4


def test_json_regex_and_ebnf(natives: list[Native]) -> None:
    ended = 0
    for number, sampling in enumerate(SAMPLINGS):
        prompt = random_prompt(50 + number, vocab_for(0))
        text = answers(natives[0], {"type": "json"}, sampling, prompt)
        if text is not None:
            check({"type": ["object", "array"]}, text)
        for grammar, pattern in (
            ({"type": "regex", "pattern": REGEX}, REGEX),
            ({"type": "ebnf", "grammar": EBNF}, r"yes|no|\[\d+(,\d+)*\]"),
        ):
            text = answers(natives[0], grammar, sampling, prompt)
            if text is not None:
                assert re.fullmatch(pattern, text), (grammar, text)
                ended += 1
    assert ended > 0


def test_forced_tokens_cost_no_pass_of_their_own(natives: list[Native]) -> None:
    """A constant: after its first ids, whatever the tokenizer leaves one choice for is drafted."""
    grammar = {"type": "json_schema", "schema": {"const": {"0123456789": "~~~~~~~~ ^^^^^^^^ ||||||||"}}}
    prompt = random_prompt(1, vocab_for(0))
    plain = natives[0].run(prompt, MAX_TOKENS, grammar=grammar)
    forced = natives[0].run(prompt, MAX_TOKENS, "off", 7, grammar=grammar)
    assert forced["token_ids"] == plain["token_ids"] and plain["finish_reason"] == "stop"
    spec = forced["speculation"]
    assert spec["num_forced"] == spec["num_forced_accepted"] == spec["num_drafted"] > 20
    assert spec["num_target_passes"] < plain["speculation"]["num_target_passes"] / 3


@pytest.mark.parametrize("grammar", ["root ::= missing", "root ::= (", 'other ::= "a"'])
def test_what_the_engine_cannot_read_is_a_request_error(natives: list[Native], grammar: str) -> None:
    with pytest.raises(RequestError, match="cannot be read"):
        natives[0].run([1, 2], 4, grammar={"type": "ebnf", "grammar": grammar})


def test_every_prompt_of_the_json_stratum_has_a_grammar() -> None:
    """Those that forced_on_model.py asks with."""
    assert [*SCHEMAS] == [prompt.id for prompt in read_strata(names=["json"])]
    assert all(lowered(grammar_of(prompt)) for prompt in SCHEMAS)


def test_the_engine_lives_beside_the_compiler(tmp_path: Path) -> None:
    """One process has both TVM and the engine."""
    import tvm
    from specdec_tools.grammar import bindings

    assert tvm.__version__ and bindings().GrammarCompiler
