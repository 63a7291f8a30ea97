"""Tiny random pairs, native: greedy ids with speculation equal those without, for every drafter and k."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from runs import KS, Native, check_books, random_prompt, vocab_for
from specdec_compiler.build import build_bundle
from specdec_compiler.tiny import make_tiny

MAX_TOKENS = 40


def test_ids_equal_plain(tiny_bundle, tiny_seed: int) -> None:
    vocab = vocab_for(tiny_seed)
    native = Native(tiny_bundle(tiny_seed, vocab))
    prompt = random_prompt(tiny_seed, vocab)
    plain = native.run(prompt, MAX_TOKENS)
    assert plain["speculation"]["num_drafted"] == 0
    for drafter in ("model", "ngram", "chain"):
        for k in KS:
            result = native.run(prompt, MAX_TOKENS, drafter, k)
            assert result["token_ids"] == plain["token_ids"], (drafter, k)
            assert result["finish_reason"] == plain["finish_reason"]
            check_books(result, k)


@pytest.fixture(scope="module")
def self_drafting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle whose draft is the champion itself: all of its layers, on the same kernels."""
    folder = tmp_path_factory.mktemp("self")
    make_tiny(folder, 7, 384)
    recipe = (folder / "recipe.toml").read_text()
    before, _, after = recipe.partition("[draft]")
    rest = after.split("\n[", 1)[1] if "\n[" in after else ""
    (folder / "recipe.toml").write_text(f"{before}[draft]\nfrom_layers = 2\n\n[{rest}" if rest else recipe)
    build_bundle(folder / "recipe.toml", folder / "bundle", lambda *_: None)
    return folder / "bundle"


@pytest.mark.parametrize("k", KS)
def test_champion_as_its_own_draft_is_always_accepted(self_drafting: Path, k: int) -> None:
    native = Native(self_drafting)
    prompt = random_prompt(3, 384)
    plain = native.run(prompt, 48)
    result = native.run(prompt, 48, "model", k)
    s = result["speculation"]
    assert result["token_ids"] == plain["token_ids"]
    assert s["num_drafted"] > 0 and s["num_accepted"] == s["num_evaluated"]


def _shifted_rows(native: Native) -> None:
    """Verify reads its rows one position early."""
    submit = native.backend.submit

    def wrong(batch):
        writes = [
            (name, at, [values[0] - 1, *values[1:]])
            if name == "target.args" and values[1] > 1 and values[0] > 0
            else (name, at, values)
            for name, at, values in batch.writes
        ]
        return submit(batch._replace(writes=writes))

    native.backend.submit = wrong  # type: ignore[method-assign]


def _rollback_one_too_few(native: Native) -> None:
    """After a verify, the next pass starts one position late: a rejected draft's KV stays in use."""
    submit, last = native.backend.submit, [0]

    def wrong(batch):
        writes = []
        for name, at, values in batch.writes:
            if name == "target.args" and batch.kind != "prefill":
                start, rows, *rest = values
                kept = start + 1 if 0 < start < last[0] and rows > 1 else start
                last[0] = start + rows
                values = [kept, rows - (kept - start), *rest]
            writes.append((name, at, values))
        return submit(batch._replace(writes=writes))

    native.backend.submit = wrong  # type: ignore[method-assign]


@pytest.mark.parametrize("mutate", [_shifted_rows, _rollback_one_too_few])
def test_mutants_are_noticed(tiny_bundle, mutate) -> None:
    """The equality check above must fail on an engine that is wrong in these ways."""
    noticed = 0
    for seed in range(4):
        vocab = vocab_for(seed)
        prompt = random_prompt(seed, vocab)
        plain = Native(tiny_bundle(seed, vocab)).run(prompt, MAX_TOKENS)
        mutant = Native(tiny_bundle(seed, vocab))
        mutate(mutant)
        noticed += mutant.run(prompt, MAX_TOKENS, "model", 4)["token_ids"] != plain["token_ids"]
    assert noticed, "the suite would not notice this mutant"


def test_every_row_program_is_declared_row_invariant(tiny_bundle) -> None:
    plan = Native(tiny_bundle(0, 301)).bundle.plan
    for target in plan.targets:
        assert all(kernel.row_invariant for kernel in target.kernels)
        assert {dataclasses.astuple(a) for k in target.kernels for a in k.args}  # args are read back
