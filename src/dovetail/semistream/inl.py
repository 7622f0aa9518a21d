"""INL: index nested loops over the staged pages, the classical rival.

Source: section 5.1 of the MESHJOIN paper: each stream row probes a clustered index, behind a buffer
pool of the same memory. Here the index is the fences of the sorted pages, and the pool holds whole
pages, the least recently used of which goes first. Rows that come together and need the same page
share the read, which the paper's row-at-a-time loop gets from its pool.

Worked example. Rows with codes 3, 500 and 4, pages of 100 codes: page 0 is read and settles 3 and
4, page 5 is read and settles 500. The next batch finds both pages in the pool.
"""

from collections import OrderedDict
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import pyarrow as pa

from dovetail.kernel.blocks import BLOCK
from dovetail.kernel.keys import Codes
from dovetail.kernel.memory import Reservation
from dovetail.kernel.protocol import Context, Snapshot
from dovetail.kernel.runs import Rows, Run
from dovetail.semistream.base import SemiStreamJoin
from dovetail.semistream.spec import SemiStreamSpec
from dovetail.semistream.table import CODE_BYTES, Page, StagedTable, stretches

_UNBOUNDED_POOL_BYTES = 1 << 30


class IndexNestedLoops(SemiStreamJoin):
    """Equality joins; every row is settled as it comes, so nothing is ever deferred."""

    name: ClassVar[str] = "inl"

    def __init__(
        self,
        spec: SemiStreamSpec,
        context: Context,
        table: StagedTable,
        snapshot: Snapshot | None = None,
    ) -> None:
        super().__init__(spec, context, table, snapshot)
        self._pool: OrderedDict[int, Page] = OrderedDict()
        self._pooled = Reservation(context.budget, "page pool")
        if snapshot is not None:
            self._arrived = snapshot.meta["arrived"]

    def pending(self) -> int:
        return 0

    def _can_make_room(self) -> bool:
        return bool(self._pool)

    def _make_room(self) -> Iterator[pa.RecordBatch]:
        self._forget_oldest()
        return iter(())

    def _work(self) -> Iterator[pa.RecordBatch]:
        return iter(())

    def _take_in(self, run: Run) -> Iterator[pa.RecordBatch]:
        first, stop = self.table.pages_of(run.codes, run.codes)
        if self.spec.ordered or not self.table.pages:
            low, high = self._spans(run, np.arange(len(run)), first, stop)
            yield from self._settle_run(run, low, high, self.table)
            return
        # rows that one page serves; then those whose key is at a border or on many pages
        single = stop - first == 1
        chosen, rest = np.flatnonzero(single), np.flatnonzero(~single)
        for start, end in stretches(first[chosen]):
            rows = chosen[start:end]
            number = int(first[rows[0]])
            page = self._page(number)
            codes = self._codes(number)
            base = self.table.page_start(number) if page is None else 0
            begin = base + np.searchsorted(codes, run.codes[rows], side="left")
            finish = base + np.searchsorted(codes, run.codes[rows], side="right")
            yield from self._settle(run.rows, rows, begin, finish, page or self.table)
        low, high = self._spans(run, rest, first, stop)
        yield from self._settle(run.rows, rest, low, high, self.table)

    def _spans(self, run: Run, rows: Rows, first: Rows, stop: Rows) -> tuple[Rows, Rows]:
        """Positions in the table, from the first and last page of each row's range."""
        low, high = np.zeros(len(rows), dtype=np.int64), np.zeros(len(rows), dtype=np.int64)
        if not self.table.pages:
            return low, high
        for start, end in stretches(first[rows] * (self.table.pages + 1) + stop[rows]):
            head, tail = int(first[rows[start]]), int(stop[rows[start]]) - 1
            codes = run.codes[rows[start:end]]
            begin = np.searchsorted(self._codes(head), codes, side="left")
            finish = np.searchsorted(self._codes(tail), codes, side="right")
            low[start:end] = begin + self.table.page_start(head)
            high[start:end] = finish + self.table.page_start(tail)
        return low, np.maximum(low, high)

    def _codes(self, number: int) -> Codes:
        page = self._page(number)
        return self.table.codes(number, number + 1) if page is None else page.codes

    def _page(self, number: int) -> Page | None:
        """A page of the pool, read if it is not there yet; None if there is no room for it."""
        if number in self._pool:
            self._pool.move_to_end(number)
            return self._pool[number]
        expected = int(self.table.page_rows * (self.table.row_bytes + CODE_BYTES))
        limit = self.ctx.budget.total_bytes
        most = _UNBOUNDED_POOL_BYTES if limit is None else limit // 2
        if expected > most:
            return None
        while self._pooled.nbytes + expected > most or not self._pooled.try_grow(expected):
            if not self._pool:
                return None
            self._forget_oldest()
        page = self.table.page(number)
        self._pooled.shrink(expected)
        if not self._pooled.try_grow(page.nbytes):  # its rows are wider than most
            return None
        self._pool[number] = page
        return page

    def _forget_oldest(self) -> None:
        _, page = self._pool.popitem(last=False)
        self._pooled.shrink(page.nbytes)

    def snapshot(self) -> Snapshot:
        return Snapshot(self._meta(), np.zeros(0, dtype=BLOCK))

    def check(self) -> None:
        super().check()
        assert self._pooled.nbytes == sum(page.nbytes for page in self._pool.values())
        assert all(len(page.codes) * CODE_BYTES <= page.nbytes for page in self._pool.values())
