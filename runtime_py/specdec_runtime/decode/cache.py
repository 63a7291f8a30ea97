"""One model's KV cache for one sequence: a length, a page table, and the writes a pass needs.

Knows the names of the model's host tensors; does not know which tokens the positions hold (sequence.py
does). Invariants: a pass appends at `cached_len`; `cached_len` grows only by `landed`, after the submit
succeeded, and shrinks only by `rollback`.
"""

from __future__ import annotations

from specdec_runtime.decode.effects import Write
from specdec_runtime.decode.pages import PagePool, PageTable
from specdec_runtime.decode.programs import prefill_program
from specdec_runtime.plan.schema import Model


class ModelCache:
    """The KV of one model; `table` where it outlives the request (session.py)."""

    def __init__(
        self, model: Model, feeding: tuple[str, int] | None = None, table: PageTable | None = None
    ) -> None:
        self.model = model
        self.feeding = feeding or prefill_program(model)  # name and width of the program that reads prompts
        self._args = f"{model.role}.args"
        self._page_table = f"{model.role}.page_table"
        self._table = table or PageTable(PagePool(model.num_pages), model.page_size)

    @property
    def cached_len(self) -> int:
        """Positions whose KV is valid."""
        return self._table.length

    def feed(self, num_rows: int, num_more: int = 0, feedback: int = 0) -> list[Write]:
        """Writes for a pass of num_rows rows at cached_len, with room for num_more rows fed back after it."""
        start = self._table.length
        self._table.reserve(start + num_rows + num_more)
        writes: list[Write] = [(self._args, 0, [start, num_rows, feedback, 0])]  # 0: the first row of `out`
        writes.extend((self._page_table, first, pages) for first, pages in self._table.pending())
        return writes

    def landed(self, num_rows: int) -> None:
        """The submit that carried the last `feed` succeeded and appended num_rows rows in all."""
        self._table.landed()
        self._table.advance(self._table.length + num_rows)

    def rollback(self, to_len: int) -> None:
        """Keep the first to_len positions; a cache that is shorter stays as it is."""
        self._table.rollback(min(to_len, self._table.length))
