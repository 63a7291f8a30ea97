"""Mutants of stop strings, held-back text and log-probabilities: each must make the text suite fail."""

import codecs

import pytest
from specdec_runtime.decode import commit, round, state
from specdec_runtime.decode.commit import Limits, commit_token
from specdec_runtime.decode.logprobs import rows_of
from specdec_runtime.decode.text import StopText, StreamDecoder
from text_suite import run_text_suite

MUTANTS = {}


def mutant(function):
    MUTANTS[function.__name__] = function
    return function


@mutant
def stops_looked_for_in_one_token_alone(patch):
    push = StopText.push

    def forgetful(self, token_id):
        if push(self, token_id):
            return True
        self._pieces[-1] += self._held
        self._held = ""
        return False

    patch.setattr(StopText, "push", forgetful)


@mutant
def nothing_is_held_back(patch):
    push = StopText.push

    def early(self, token_id):
        before = sum(map(len, self._pieces)) + len(self._held)
        ended = push(self, token_id)
        if not ended:  # shown at once; what was shown is still looked at
            shown = "".join(self._pieces) + self._held
            self._pieces[-1] = shown[before:]
        return ended

    patch.setattr(StopText, "push", early)


@mutant
def the_shortest_end_is_held_back(patch):
    num_held = StopText._num_held
    patch.setattr(StopText, "_num_held", lambda self: min(1, num_held(self)))


@mutant
def too_much_is_held_back(patch):
    patch.setattr(StopText, "_num_held", lambda self: min(len(self._held), self._most_held))


@mutant
def held_text_is_lost_at_the_end(patch):
    patch.setattr(StopText, "finish", lambda self: "".join(self._pieces))


@mutant
def the_stop_string_is_text(patch):
    first = StopText._first

    def kept(self):
        found = first(self)
        return found and (found[0] + len(found[1]), found[1])

    patch.setattr(StopText, "_first", kept)


@mutant
def the_first_to_begin_ends_it(patch):
    def earliest(self):
        found = [(self._held.find(stop), stop) for stop in self._stops if stop in self._held]
        return min(found) if found else None

    patch.setattr(StopText, "_first", earliest)


@mutant
def half_a_character_is_shown(patch):
    def eager(self, token_id):
        return self._tokens.bytes(token_id).decode("utf-8", "replace")

    patch.setattr(StreamDecoder, "push", eager)


@mutant
def half_a_character_is_dropped(patch):
    def deaf(self, tokens):
        self._tokens, self._at_start = tokens, tokens.strips_first_space
        self._decoder = codecs.getincrementaldecoder("utf-8")("ignore")

    patch.setattr(StreamDecoder, "__init__", deaf)


@mutant
def length_beats_a_stop_string(patch):
    def swapped(sequence, token_id, limits):
        reason = commit_token(sequence, token_id, limits)
        return "length" if len(sequence) >= limits.max_len else reason

    patch.setattr(commit, "commit_token", swapped)


@mutant
def one_token_more_than_the_stop_string(patch):
    ended = []

    def late(sequence, token_id, limits):
        if limits.text is None:
            return commit_token(sequence, token_id, limits)
        if limits.text in ended:
            sequence.ids.append(token_id)
            return "stop"
        reason = commit_token(sequence, token_id, limits)
        if reason == "stop" and limits.text.stop and len(sequence) < limits.max_len:
            ended.append(limits.text)
            return None
        return reason

    patch.setattr(commit, "commit_token", late)


@mutant
def stops_forgotten_for_drafts(patch):
    run = commit.commit_run

    def forgetful(sequence, drafted, verdict, limits):
        if not drafted:
            return run(sequence, drafted, verdict, limits)
        outcome = run(
            sequence, drafted, verdict, Limits(limits.eos_ids, limits.max_len, None, limits.logprobs)
        )
        if limits.text is None:
            return outcome
        for token_id in outcome.ids:
            limits.text.push(token_id)
        return outcome._replace(pieces=limits.text.take())

    patch.setattr(round, "commit_run", forgetful)


@mutant
def log_probabilities_of_the_row_after(patch):
    patch.setattr(
        round, "rows_of", lambda values, first, count: rows_of([*values[12:], *values[:12]], first, count)
    )


@mutant
def log_probabilities_of_the_first_round_only(patch):
    patch.setattr(round, "rows_of", lambda values, first, count: rows_of(values, 0, count))


@mutant
def log_probabilities_of_what_was_cut(patch):
    def all_of_them(ids, verdict, num_top):
        padded = [*ids, *[0] * (len(verdict.tops) - len(ids))]
        return [
            commit.entry(token_id, row, num_top) for token_id, row in zip(padded, verdict.tops, strict=True)
        ]

    patch.setattr(commit, "_told", all_of_them)


@mutant
def log_probabilities_of_every_other_submit(patch):
    """In between the rows are what another submit left."""

    def every_other(self, num_rows, *_):
        width = self._programs.width(self.target.model, num_rows)
        self.calls = getattr(self, "calls", 0) + 1
        return [f"target.verify_{width}"] + ([f"target.logprobs_{width}"] if self.calls % 2 else [])

    patch.setattr(state.Generation, "_pass", every_other)


def test_the_suite_passes_without_mutants() -> None:
    run_text_suite()


@pytest.mark.parametrize("name", MUTANTS)
def test_the_suite_kills(name, monkeypatch) -> None:
    MUTANTS[name](monkeypatch)
    with pytest.raises((AssertionError, LookupError)):
        run_text_suite()
