"""Biased on purpose, native, in kernels and in the core: the test of distributions rejects each at the counts of CI.

A kernel is built anew with one part changed and takes the place of the bundle's own.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import pytest
from laws import COUNTS, LIMIT, TINY_SEED, VOCAB, Way, fit
from native_laws import draw, native_law
from runs import Native
from specdec_compiler.emit.code import build_native
from specdec_compiler.kernels import judge, sample
from specdec_runtime.decode import round as round_file
from specdec_runtime.decode.verify import Verdict, accept_greedy
from tvm.script.ir_builder import tirx as T

COUNT = COUNTS["native"][1]
Patch = pytest.MonkeyPatch


def residual_is_the_targets_own_law(patch: Patch) -> None:
    """After a draft fell the token is drawn from p: what was drafted often comes too often."""

    def residual(self, token_id, weight):
        part = judge._part(self.z[self.base + token_id], self.p_top, self.exp)
        return weight * T.bind(part * self.p_scale)

    patch.setattr(judge._Rows, "residual", residual)


def one_uniform_for_all_drafts_of_a_cycle(patch: Patch) -> None:
    honest = judge._Count._uniform
    patch.setattr(judge._Count, "_uniform", lambda self, i: honest(self, 0))


def one_noise_for_all_positions(patch: Patch) -> None:
    honest = sample.random_bits
    patch.setattr(sample, "random_bits", lambda ints, position, *rest: honest(ints, T.int32(0), *rest))


def first_draft_stands_unasked(patch: Patch) -> None:
    def accept(drafted, out):
        found = accept_greedy(drafted, out)
        return Verdict(1, out[2]) if drafted and not found.num_accepted else found

    patch.setattr(round_file, "accept_greedy", accept)


MUTANTS: list[tuple[Callable[[Patch], None], str | None, Way]] = [  # the kernels, if any, that are built anew
    (residual_is_the_targets_own_law, "judge_verdict", Way("reject", "model", 3)),
    (residual_is_the_targets_own_law, "judge_verdict", Way("block", "model", 3)),
    (one_uniform_for_all_drafts_of_a_cycle, "judge_verdict", Way("reject", "model", 3)),
    (one_noise_for_all_positions, "sample", Way("coupled", "off")),
    (one_noise_for_all_positions, "sample", Way("coupled", "model", 3)),
    (first_draft_stands_unasked, None, Way("coupled", "model", 3)),
    (first_draft_stands_unasked, None, Way("coupled", "ngram", 3)),
]


@pytest.fixture
def native(tiny_bundle) -> Native:
    return Native(tiny_bundle(TINY_SEED, VOCAB))


def build_anew(native: Native, op: str, library: Path) -> None:
    """The kernels of an op, with whatever is patched."""
    target = native.bundle.plan.target("cpu")
    chosen = {kernel.entry: (kernel.op, dict(kernel.params)) for kernel in target.kernels if kernel.op == op}
    library.write_bytes(build_native(chosen))
    built = ctypes.CDLL(str(library))
    for program in target.programs:
        calls = native.backend._programs[program.name]
        for i, dispatch in enumerate(program.dispatches):
            entry = target.kernels[dispatch.kernel].entry
            if entry in chosen:
                calls[i] = getattr(built, entry), calls[i][1]


@pytest.mark.parametrize("op", ["judge_verdict", "sample"])
def test_kernels_built_anew_without_a_change_draw_the_same(native: Native, tmp_path: Path, op: str) -> None:
    way = Way("reject" if op == "judge_verdict" else "coupled", "model", 3)
    before = draw(native, way, 100, 0)
    build_anew(native, op, tmp_path / "kernels.so")
    assert draw(native, way, 100, 0) == before


@pytest.mark.parametrize(
    ("mutant", "op", "way"), MUTANTS, ids=lambda part: getattr(part, "__name__", str(part))
)
def test_mutant_is_rejected(
    native: Native,
    tmp_path: Path,
    monkeypatch: Patch,
    mutant: Callable[[Patch], None],
    op: str | None,
    way: Way,
) -> None:
    law = native_law(native, *way.law)  # by passes of its own, which draw nothing
    with monkeypatch.context() as patch:
        mutant(patch)
        if op:
            build_anew(native, op, tmp_path / "kernels.so")
        found = fit(draw(native, way, COUNT, 0).counts, law)
    print(found)
    assert found.p < LIMIT, found
