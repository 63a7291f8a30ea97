"""Paged KV bookkeeping: a pool of physical pages, and one table of logical pages a model and a sequence.

Several sequences may share a pool, and whole pages of it; the device has one table a model, which is that of the running one.

Knows page numbers only: no layer, no byte, no device. Invariants, held after every method:
- a physical page is free or held, never both; a table's pages are distinct and held;
- `length` counts the positions whose KV is valid; `pages` cover at least `length` positions;
- after `rollback(to_len)` the table holds exactly ceil(to_len / page_size) pages; nothing is zeroed or
  moved, so the cost is the pages given back;
- a page that somebody else holds too is never written: only whole pages may be shared;
- `pending()` is exactly what the device's copy of the table may lack. An entry counts as unknown from the
  moment it is sent until `landed()`: a submit that failed may or may not have written it.
"""

from __future__ import annotations

from collections.abc import Callable

from specdec_runtime.faults import ContractError

UNKNOWN = -1


def first_order(num_pages: int) -> list[int]:
    """The free stack at the start: pages leave in ascending order."""
    return list(range(num_pages - 1, -1, -1))


def never() -> bool:
    """A pool that nobody else has pages of."""
    return False


class PagePool:
    """Physical pages of one model's KV, with a count of holders each.

    make_room is asked when none is free: it gives pages back and returns True, or says that there are none to give.
    """

    def __init__(self, num_pages: int, make_room: Callable[[], bool] = never) -> None:
        self._free = first_order(num_pages)
        self._holders = [0] * num_pages
        self._make_room = make_room

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_held(self) -> int:
        """Pages that somebody holds; a shared one counts once."""
        return len(self._holders) - len(self._free)

    def take(self) -> int:
        """A free page, now held once."""
        while not self._free and self._make_room():
            pass
        if not self._free:
            raise ContractError(
                "the KV page pool is empty", "decode/pages.py", "A room check let too much in"
            )
        page = self._free.pop()
        self._holders[page] = 1
        return page

    def retain(self, page: int) -> None:
        """One more holder of a page that is already held."""
        if not self._holders[page]:
            raise ContractError(f"page {page} is free and cannot be shared", "decode/pages.py")
        self._holders[page] += 1

    def release(self, page: int) -> None:
        """One holder less; the last one frees the page."""
        if not self._holders[page]:
            raise ContractError(f"page {page} is given back twice", "decode/pages.py")
        self._holders[page] -= 1
        if not self._holders[page]:
            self._free.append(page)

    def is_shared(self, page: int) -> bool:
        return self._holders[page] > 1


class PageTable:
    """Logical page -> physical page for one sequence.

    device: what the device's table is known to hold, by logical page; one list for all tables that are sent there.
    """

    def __init__(self, pool: PagePool, page_size: int, device: list[int] | None = None) -> None:
        self.length = 0
        self.pages: list[int] = []
        self._pool = pool
        self._page_size = page_size
        self._device = [] if device is None else device
        self._clean = 0  # entries below this one are on the device

    def reserve(self, to_len: int) -> None:
        """Hold enough pages for positions length .. to_len - 1 to be written."""
        if self.begins_in_shared(self.length):
            raise ContractError(f"position {self.length} lies in a shared page", "decode/pages.py")
        while len(self.pages) * self._page_size < to_len:
            self.pages.append(self._pool.take())

    def advance(self, to_len: int) -> None:
        """Positions up to to_len now have valid KV."""
        if not self.length <= to_len <= len(self.pages) * self._page_size:
            raise ContractError(f"KV length cannot go from {self.length} to {to_len}", "decode/pages.py")
        self.length = to_len

    def rollback(self, to_len: int) -> None:
        """Forget positions from to_len on, and give back the pages that held only those."""
        if not 0 <= to_len <= self.length:
            raise ContractError(f"KV of length {self.length} cannot roll back to {to_len}", "decode/pages.py")
        self.length = to_len
        num_pages = -(-to_len // self._page_size)
        while len(self.pages) > num_pages:
            self._pool.release(self.pages.pop())
        self._clean = min(self._clean, num_pages)

    def resume(self) -> None:
        """Another table may have been sent since: every entry is compared anew."""
        self._clean = 0

    def begins_in_shared(self, length: int) -> bool:
        """Would position `length` be written into a page that somebody else holds too?"""
        partial = length // self._page_size
        return length % self._page_size > 0 and self._pool.is_shared(self.pages[partial])

    def share(self, other: PageTable, to_len: int) -> None:
        """Hold the first to_len positions of another sequence, whole pages of it, in place of what this one held."""
        if to_len % self._page_size or to_len > other.length:
            raise ContractError(f"{to_len} positions are no whole pages to share", "decode/pages.py")
        pages = other.pages[: to_len // self._page_size]
        for page in pages:
            self._pool.retain(page)
        self.rollback(0)
        self.pages.extend(pages)
        self.length = to_len

    def pending(self) -> list[tuple[int, list[int]]]:
        """Runs (first logical page, physical pages) to send with the next submit; from now on unknown."""
        runs: list[tuple[int, list[int]]] = []
        device = self._device
        device.extend([UNKNOWN] * (len(self.pages) - len(device)))
        for index in range(self._clean, len(self.pages)):
            page = self.pages[index]
            if device[index] == page:
                continue
            device[index] = UNKNOWN
            if runs and runs[-1][0] + len(runs[-1][1]) == index:
                runs[-1][1].append(page)
            else:
                runs.append((index, [page]))
        return runs

    def landed(self) -> None:
        """The submit that carried `pending()` succeeded, and no page changed since."""
        self._device[self._clean : len(self.pages)] = self.pages[self._clean :]
        self._clean = len(self.pages)
