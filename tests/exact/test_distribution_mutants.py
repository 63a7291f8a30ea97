"""Biased on purpose, native, in kernels and in the core: the test of distributions rejects each.

At the counts of CI; the subtlest at those of `make exact`. A kernel is built anew with one part changed and takes the place of the
bundle's own.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import pytest
from chi_square import fit
from laws import COUNTS, LIMIT, TINY_SEED, VOCAB, Way
from native_laws import draw, native_law
from runs import Native
from specdec_compiler.emit.code import build_native
from specdec_compiler.kernels import draw as draw_file
from specdec_compiler.kernels import judge, sample
from specdec_runtime.decode import round as round_file
from specdec_runtime.decode.verify import Verdict, accept_greedy
from tvm.script.ir_builder import tirx as T

ALL, CI = COUNTS["native"]
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


def drawn_anew_with_the_same_noise(patch: Patch) -> None:
    """Behind a draft that fell, the next cycle draws again, and in `block` the fallen one's noise had its say (docs/sampling.md)."""
    for file in (draw_file, judge):
        patch.setattr(file, "cycle_place", lambda position, offset: position)


JUDGE, SAMPLE = ("judge_verdict",), ("sample",)
REJECT, BLOCK, COUPLED = (Way(mode, "model", 3) for mode in ("reject", "block", "coupled"))
# the mutant, the kernels that are built anew, the way of drawing, sequences
MUTANTS: list[tuple[Callable[[Patch], None], tuple[str, ...], Way, int]] = [
    (residual_is_the_targets_own_law, JUDGE, REJECT, CI),
    (residual_is_the_targets_own_law, JUDGE, BLOCK, CI),
    (one_uniform_for_all_drafts_of_a_cycle, JUDGE, REJECT, CI),
    (one_noise_for_all_positions, SAMPLE, Way("coupled", "off"), CI),
    (one_noise_for_all_positions, SAMPLE, COUPLED, CI),
    (first_draft_stands_unasked, (), COUPLED, CI),
    (first_draft_stands_unasked, (), Way("coupled", "ngram", 3), CI),
    (drawn_anew_with_the_same_noise, ("judge_verdict", "draw_q"), BLOCK, ALL),
]


@pytest.fixture
def native(tiny_bundle) -> Native:
    return Native(tiny_bundle(TINY_SEED, VOCAB))


def build_anew(native: Native, ops: tuple[str, ...], library: Path) -> None:
    """The kernels of those ops, with whatever is patched."""
    target = native.bundle.plan.target("cpu")
    chosen = {kernel.entry: (kernel.op, dict(kernel.params)) for kernel in target.kernels if kernel.op in ops}
    library.write_bytes(build_native(chosen))
    built = ctypes.CDLL(str(library))
    for program in target.programs:
        calls = native.backend._programs[program.name]
        for i, dispatch in enumerate(program.dispatches):
            entry = target.kernels[dispatch.kernel].entry
            if entry in chosen:
                calls[i] = getattr(built, entry), calls[i][1]


@pytest.mark.parametrize("way", [REJECT, BLOCK, COUPLED], ids=str)
def test_kernels_built_anew_without_a_change_draw_the_same(native: Native, tmp_path: Path, way: Way) -> None:
    before = draw(native, way, 100, 0)
    build_anew(native, ("judge_verdict", "draw_q", "sample"), tmp_path / "kernels.so")
    assert draw(native, way, 100, 0) == before


NAMES = [f"{mutant.__name__}, {way}" for mutant, _, way, _ in MUTANTS]


@pytest.mark.parametrize(("mutant", "ops", "way", "count"), MUTANTS, ids=NAMES)
def test_mutant_is_rejected(
    native: Native,
    tmp_path: Path,
    monkeypatch: Patch,
    mutant: Callable[[Patch], None],
    ops: tuple[str, ...],
    way: Way,
    count: int,
) -> None:
    law = native_law(native, *way.law)  # by passes that draw nothing
    with monkeypatch.context() as patch:
        mutant(patch)
        if ops:
            build_anew(native, ops, tmp_path / "kernels.so")
        found = fit(draw(native, way, count, 0).counts, law)
    print(way, count, found)
    assert found.p < LIMIT, found
