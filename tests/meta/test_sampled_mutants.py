"""Mutants of sampling in the decode core: each must make the suite of mode coupled fail."""

import pytest
from sampled_suite import run_sampled_suite
from specdec_runtime.decode import sampling_state
from specdec_runtime.decode.sampling_state import NOISE, Held, SamplingState
from specdec_runtime.decode.state import Generation
from specdec_runtime.drafters.draft_model import ModelDrafter
from specdec_runtime.faults import SpecdecError

MUTANTS = {}


def mutant(function):
    MUTANTS[function.__name__] = function
    return function


@mutant
def no_noise(patch):
    flags_of = sampling_state.flags_of
    patch.setattr(sampling_state, "flags_of", lambda sampling: flags_of(sampling) & ~NOISE)


@mutant
def half_a_seed(patch):
    words = sampling_state.seed_words
    patch.setattr(sampling_state, "seed_words", lambda seed: (words(seed)[0], 0))


@mutant
def temperature_is_not_inverted(patch):
    patch.setattr(sampling_state, "MAX_INVERSE", 1.0)


@mutant
def drafts_are_verified_without_noise(patch):
    honest = Generation._pass

    def wrong(self, num_rows, *more):
        calls = honest(self, num_rows, *more)
        return [name.replace("sample" if num_rows > 1 else "none", "verify") for name in calls]

    patch.setattr(Generation, "_pass", wrong)


@mutant
def drafts_are_first_choices(patch):
    begin = ModelDrafter.begin
    patch.setattr(
        ModelDrafter,
        "begin",
        lambda self, sequence, kind="step", cache=None: begin(self, sequence, "step", cache),
    )


@mutant
def a_request_writes_nothing(patch):
    verify_submit = Generation.verify_submit

    def wrong(self, proposal):
        batch = verify_submit(self, proposal)
        return batch._replace(writes=[write for write in batch.writes if "sampling" not in write[0]])

    patch.setattr(Generation, "verify_submit", wrong)


@mutant
def an_old_bias_stays(patch):
    """Only the ids of the new request are written, whatever the device holds."""

    def wrong(held, wanted, vocab):
        return [("sampling.bias", token_id, [bias]) for token_id, bias in wanted.ids.items()]

    patch.setattr(sampling_state, "bias_writes", wrong)


@mutant
def all_is_written_each_time(patch):
    writes = SamplingState.writes

    def wrong(self):
        for name in ("ints", "floats", "banned", "bias"):
            setattr(self._held, name, None)
        return writes(self)

    patch.setattr(SamplingState, "writes", wrong)


@mutant
def what_was_written_counts_as_landed(patch):
    writes = SamplingState.writes

    def wrong(self):
        written = writes(self)
        self.landed()
        return written

    patch.setattr(SamplingState, "writes", wrong)


@mutant
def nothing_is_undone_by_a_request_without_bias(patch):
    """A bias without its flag is written all the same, and then believed to be none."""
    landed = SamplingState.landed

    def wrong(self):
        landed(self)
        if self._wanted.bias is None:
            self._held.bias = sampling_state.Bias(0.0, {})

    patch.setattr(SamplingState, "landed", wrong)


def test_the_suite_passes_unchanged():
    assert Held().ints is None
    run_sampled_suite()


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_killed(name, monkeypatch):
    MUTANTS[name](monkeypatch)
    with pytest.raises((AssertionError, SpecdecError)) as caught:  # a TypeError would be a broken mutant
        run_sampled_suite()
    print(f"{name}: {str(caught.value).splitlines()[0]}")
