"""The page table as a state machine, against a model that says what the device would hold."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from specdec_runtime.decode.pages import PagePool, PageTable
from specdec_runtime.faults import ContractError

NUM_PAGES = 6


class PagesMachine(RuleBasedStateMachine):
    """Two sequences on one pool, a third party that holds pages of the first, submits that land or fail."""

    @initialize(page_size=st.sampled_from([1, 2, 4]))
    def build(self, page_size):
        self.page_size = page_size
        self.pool = PagePool(NUM_PAGES)
        self.tables = [PageTable(self.pool, page_size) for _ in range(2)]
        self.lengths = [0, 0]
        self.devices = [{}, {}]  # logical -> physical, or absent where a failed submit left it unknown
        self.retained = []

    def room(self, which):
        used = len(self.tables[which].pages)
        return (used + self.pool.num_free) * self.page_size - self.lengths[which]

    @rule(which=st.integers(0, 1), rows=st.integers(1, 9), lands=st.booleans(), reached=st.booleans())
    def submit(self, which, rows, lands, reached):
        """Reserve, send, and then: success, failure before the writes, or failure after them."""
        table = self.tables[which]
        rows = min(rows, self.room(which))
        if rows < 1 or self.writes_a_shared_page(which):
            return
        table.reserve(self.lengths[which] + rows)
        for first, physical in table.pending():
            for offset, page in enumerate(physical):
                assert self.devices[which].get(first + offset) != page, "sent again for nothing"
                if lands or reached:
                    self.devices[which][first + offset] = page
                else:
                    self.devices[which].pop(first + offset, None)
                if not lands:
                    self.devices[which].pop(first + offset, None)
        if lands:
            table.landed()
            self.lengths[which] += rows
            table.advance(self.lengths[which])
            sent = [self.devices[which].get(logical) for logical in range(len(table.pages))]
            assert sent == table.pages, "the device knows every page of the sequence"

    def writes_a_shared_page(self, which):
        logical, slot = divmod(self.lengths[which], self.page_size)
        return slot and self.pool.is_shared(self.tables[which].pages[logical])

    @rule(which=st.integers(0, 1), share=st.floats(0, 1))
    def rollback(self, which, share):
        to_len = int(self.lengths[which] * share)
        before = list(self.tables[which].pages)
        kept = -(-to_len // self.page_size)
        free = self.pool.num_free
        self.tables[which].rollback(to_len)
        self.lengths[which] = to_len
        assert self.tables[which].pages == before[:kept], "kept pages stay where they are"
        freed = [page for page in before[kept:] if page not in self.retained]
        assert self.pool.num_free == free + len(freed), "pages that others hold are not freed"

    @precondition(lambda self: self.lengths[0] >= self.page_size)
    @rule(data=st.data())
    def retain(self, data):
        whole = self.tables[0].pages[: self.lengths[0] // self.page_size]
        page = data.draw(st.sampled_from(whole))
        if page not in self.retained:
            self.pool.retain(page)
            self.retained.append(page)

    @precondition(lambda self: self.retained)
    @rule()
    def release(self):
        self.pool.release(self.retained.pop())

    @invariant()
    def books_balance(self):
        if not hasattr(self, "pool"):
            return
        first, second = (table.pages for table in self.tables)
        assert len(set(first)) == len(first) and len(set(second)) == len(second)
        assert not set(first) & set(second), "no page has two writers"
        held = set(first) | set(second) | set(self.retained)
        assert self.pool.num_free == NUM_PAGES - len(held)
        for table, length in zip(self.tables, self.lengths, strict=True):
            assert table.length == length <= len(table.pages) * self.page_size


TestPages = PagesMachine.TestCase


def test_pages_go_out_in_order_and_come_back_first():
    pool = PagePool(4)
    table = PageTable(pool, 2)
    table.reserve(5)
    assert table.pages == [0, 1, 2]
    assert table.pending() == [(0, [0, 1, 2])]
    table.landed()
    table.advance(5)
    table.rollback(2)
    table.reserve(6)
    assert table.pages == [0, 1, 2]
    assert table.pending() == [], "the same pages at the same places need no write"


def test_only_what_changed_is_sent_in_runs():
    pool = PagePool(8)
    table = PageTable(pool, 1)
    table.reserve(4)
    table.pending()
    table.landed()
    table.advance(4)
    table.rollback(1)
    other = pool.take()
    table.reserve(5)
    assert table.pages[1] != 1 and other == 1
    assert table.pending() == [(1, table.pages[1:])]


def test_a_failed_submit_leaves_entries_unknown():
    """The entry may be on the device or not: even the old page must then be sent again."""
    pool = PagePool(3)
    table = PageTable(pool, 1)
    table.reserve(1)
    table.pending()
    table.landed()
    table.rollback(0)
    first = pool.take()
    table.reserve(1)
    assert table.pending() == [(0, [1])]  # and this submit fails
    pool.release(first)
    table.rollback(0)
    assert [pool.take(), pool.take()] == [1, 0]
    pool.release(0)
    table.reserve(1)
    assert table.pending() == [(0, [0])]


@pytest.mark.parametrize(
    "misuse",
    [
        lambda pool, table: PagePool(0).take(),
        lambda pool, table: pool.release(3),
        lambda pool, table: pool.retain(3),
        lambda pool, table: table.rollback(3),
        lambda pool, table: table.rollback(-1),
        lambda pool, table: table.advance(5),
        lambda pool, table: table.advance(1),
        lambda pool, table: table.reserve(9),
    ],
)
def test_misuse_is_a_contract_error(misuse):
    pool = PagePool(4)
    table = PageTable(pool, 2)
    table.reserve(2)
    table.advance(2)
    with pytest.raises(ContractError):
        misuse(pool, table)


def test_a_shared_page_is_not_written():
    pool = PagePool(4)
    table = PageTable(pool, 4)
    table.reserve(4)
    table.advance(4)
    pool.retain(table.pages[0])
    table.rollback(3)
    with pytest.raises(ContractError, match="shared"):
        table.reserve(4)


def test_rollback_costs_nothing_but_pages():
    """Within a page it touches no list at all, whatever the length."""
    table = PageTable(PagePool(64), 64)
    table.reserve(4096)
    table.advance(4096)
    pages = table.pages
    table.rollback(4095)
    table.rollback(4033)
    assert table.pages is pages and len(pages) == 64
    table.rollback(4032)
    assert len(pages) == 63
