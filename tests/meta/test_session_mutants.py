"""Mutants of the sessions must make their state machine fail."""

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from session_machine import Conversations
from specdec_runtime.decode import session
from specdec_runtime.decode.pages import PageTable
from specdec_runtime.decode.programs import Programs
from specdec_runtime.decode.sequence import Sequence
from specdec_runtime.decode.session import Memory, Session
from specdec_runtime.faults import SpecdecError
from test_session import test_a_draft_sent_back_by_two_does_not_write_a_shared_page

QUICK = settings(
    max_examples=150,
    stateful_step_count=20,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
)


def one_token_too_many_kept(patch):
    honest = session._common
    patch.setattr(session, "_common", lambda first, second: min(honest(first, second) + 1, len(first)))


def nothing_kept(patch):
    """Exact, and useless."""
    patch.setattr(session, "_common", lambda first, second: 0)


def last_token_of_the_prompt_not_computed(patch):
    restore = Memory._restore
    patch.setattr(Memory, "_restore", lambda self, held, ids: restore(self, held, [*ids, *ids[-1:]]))


def table_of_the_session_before_is_taken_for_its_own(patch):
    patch.setattr(PageTable, "resume", lambda self: setattr(self, "_clean", len(self.pages)))


def tokens_of_the_session_before_are_taken_for_its_own(patch):
    landed = Sequence.landed
    begin = Memory._open

    def trusting(self, name, ids):
        lease = begin(self, name, ids)
        if name is not None:
            landed(lease.sequence, min(len(self._tokens), len(ids)))
        return lease

    patch.setattr(Memory, "_open", trusting)


def the_page_that_is_not_whole_is_shared(patch):
    def share(self, other, to_len):
        to_len = min(to_len + 1, other.length)
        self.rollback(0)
        self.pages.extend(other.pages[: -(-to_len // self._page_size)])
        for page in self.pages:
            self._pool.retain(page)
        self.length = to_len

    patch.setattr(PageTable, "share", share)


def shared_pages_are_written(patch):
    patch.setattr(PageTable, "begins_in_shared", lambda self, length: False)


def shared_pages_are_not_counted(patch):
    def share(self, other, to_len):
        self.rollback(0)
        self.pages.extend(other.pages[: to_len // self._page_size])
        self.length = to_len

    patch.setattr(PageTable, "share", share)


def a_fault_is_forgiven(patch):
    close = Memory._close
    patch.setattr(Memory, "_close", lambda self, lease, keep: close(self, lease, True))


def a_fault_that_was_survived_is_forgiven(patch):
    class Deaf(Exception):
        pass

    patch.setattr(session, "DeviceFault", Deaf)


def device_believed_after_other_work(patch):
    patch.setattr(Memory, "_distrust", lambda self: None)


def drafts_kept_after_a_cancel(patch):
    """And pages of rows that came to nothing."""

    def close(self, lease, keep):
        with patch.context() as inner:
            if keep:
                inner.setattr(
                    PageTable, "rollback", lambda table, to_len: roll(table, 0) if not to_len else None
                )
            honest(self, lease, keep)

    honest, roll = Memory._close, PageTable.rollback
    patch.setattr(Memory, "_close", close)


def dropped_without_its_pages(patch):
    patch.setattr(Session, "release", lambda self: None)


def ids_of_the_prompt_only(patch):
    """The answer's KV is kept, its ids are not."""
    close = Memory._close

    def short(self, lease, keep):
        close(self, lease, keep)
        lease.session.ids = lease.session.ids[: lease.sequence.prompt_len]

    patch.setattr(Memory, "_close", short)


def kept_up_to_anywhere_on_any_device(patch):
    patch.setattr(Programs, "reuse_unit", lambda self, model: 1)


def the_session_used_last_is_evicted(patch):
    """Which is the running one."""

    def evict(self):
        for name, held in reversed(self._sessions.items()):
            del self._sessions[name]
            held.release()
            return True
        return False

    patch.setattr(Memory, "_evict", evict)


def nobody_is_evicted(patch):
    patch.setattr(Memory, "_evict", lambda self: False)


MUTANTS = [
    one_token_too_many_kept,
    nothing_kept,
    last_token_of_the_prompt_not_computed,
    table_of_the_session_before_is_taken_for_its_own,
    tokens_of_the_session_before_are_taken_for_its_own,
    the_page_that_is_not_whole_is_shared,
    shared_pages_are_written,
    shared_pages_are_not_counted,
    a_fault_is_forgiven,
    a_fault_that_was_survived_is_forgiven,
    device_believed_after_other_work,
    drafts_kept_after_a_cancel,
    dropped_without_its_pages,
    ids_of_the_prompt_only,
    kept_up_to_anywhere_on_any_device,
    the_session_used_last_is_evicted,
    nobody_is_evicted,
]


def test_the_machine_passes_unchanged():
    run_state_machine_as_test(Conversations, settings=QUICK)


@pytest.mark.parametrize("mutate", MUTANTS)
def test_mutant_is_killed(mutate, monkeypatch):
    mutate(monkeypatch)
    with pytest.raises((AssertionError, SpecdecError)):
        run_state_machine_as_test(Conversations, settings=QUICK)


def test_a_draft_kept_up_to_the_last_token_is_noticed(monkeypatch):
    """It may have to go back by two, into a page that is shared: rare, so it has a test of its own."""
    restore = Memory._restore

    def greedy(self, held, ids):
        restore(self, held, ids)
        table = held.tables["draft"]
        other, shared = self._longest(held, "draft", ids, len(ids) - 1, self._models["draft"].page_size)
        if other and shared > table.length:
            table.share(other, shared)

    monkeypatch.setattr(Memory, "_restore", greedy)
    with pytest.raises((AssertionError, SpecdecError)):
        test_a_draft_sent_back_by_two_does_not_write_a_shared_page()
