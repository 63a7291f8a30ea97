"""Mutants of the page table must make its state machine fail."""

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from specdec_runtime.decode.pages import PagePool, PageTable
from specdec_runtime.faults import SpecdecError
from test_pages import PagesMachine

QUICK = settings(max_examples=100, deadline=None, derandomize=True, database=None, phases=[Phase.generate])


def partly_used_page_freed(patch):
    def floor(self, to_len):
        self.length = to_len
        while len(self.pages) > to_len // self._page_size:
            self._pool.release(self.pages.pop())
        self._clean = min(self._clean, len(self.pages))

    patch.setattr(PageTable, "rollback", floor)


def pages_never_freed(patch):
    def keep(self, to_len):
        self.length = to_len

    patch.setattr(PageTable, "rollback", keep)


def shared_page_freed(patch):
    def release(self, page):
        self._holders[page] = 0
        self._free.append(page)

    patch.setattr(PagePool, "release", release)


def entries_believed_after_rollback(patch):
    """The device's copy is taken for current although other pages came back."""
    honest = PageTable.rollback

    def forgetful(self, to_len):
        clean = self._clean
        honest(self, to_len)
        self._clean = clean

    patch.setattr(PageTable, "rollback", forgetful)


def everything_sent_again(patch):
    honest = PageTable.pending

    def wasteful(self):
        honest(self)
        return [(0, list(self.pages))] if self.pages else []

    patch.setattr(PageTable, "pending", wasteful)


def page_handed_out_twice(patch):
    honest = PagePool.release

    def twice(self, page):
        honest(self, page)
        if not self._holders[page]:
            self._free.append(page)

    patch.setattr(PagePool, "release", twice)


def test_the_machine_passes_unchanged():
    run_state_machine_as_test(PagesMachine, settings=QUICK)


@pytest.mark.parametrize(
    "mutate",
    [
        partly_used_page_freed,
        pages_never_freed,
        shared_page_freed,
        entries_believed_after_rollback,
        everything_sent_again,
        page_handed_out_twice,
    ],
)
def test_mutant_is_killed(mutate, monkeypatch):
    mutate(monkeypatch)
    with pytest.raises((AssertionError, SpecdecError)):
        run_state_machine_as_test(PagesMachine, settings=QUICK)
