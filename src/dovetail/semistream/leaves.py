"""Leaves: a staged table cut finer than its pages, for lookups of single rows.

A page is made for scans. Who looks up one row reads less: a *leaf*, as many neighbouring rows as
take about 8 KiB with their codes, as the leaves of a database's index do. A leaf is a range of
positions, so no leaf is written anywhere; the first code of each, its fence, is found by one read
of all codes, 8 bytes a row, when the index is made.

The fences are an index in memory: 8 bytes for 8 KiB of table. Where that is more than it may take,
leaves are made larger, and at most a page, whose fences the table has anyway.
"""

import numpy as np

from dovetail.kernel.keys import Codes
from dovetail.kernel.runs import Rows
from dovetail.semistream.table import CODE_BYTES, Page, StagedTable

LEAF_BYTES = 8 << 10


def rows_of_leaf(
    table_rows: int, row_bytes: float, page_rows: int, most_bytes: float | None = None
) -> int:
    """How many rows a leaf has, so that the fences of all take no more than `most_bytes`."""
    rows = int(LEAF_BYTES // (row_bytes + CODE_BYTES))
    if most_bytes is not None:
        rows = max(rows, -(-table_rows // max(1, int(most_bytes // CODE_BYTES))))
    return max(1, min(rows, page_rows))


class Leaves:
    """The leaves of one table, and where to look for a code."""

    def __init__(self, table: StagedTable, most_bytes: int | None, reading_bytes: int) -> None:
        """Reads all codes, no more than `reading_bytes` at a time, unless leaves are pages."""
        self.table = table
        self.rows = rows_of_leaf(table.rows, table.row_bytes, table.page_rows, most_bytes)
        #: the first code of each leaf
        self.fences: Codes = table.fences
        if self.rows < table.page_rows and table.pages:
            self.fences = self._derived(max(1, reading_bytes // (CODE_BYTES * table.page_rows)))

    @property
    def nbytes(self) -> int:
        """What the index takes besides the table's own."""
        return 0 if self.fences is self.table.fences else self.fences.nbytes

    def __len__(self) -> int:
        return len(self.fences)

    def start(self, leaf: int) -> int:
        """The position of a leaf's first row."""
        return min(leaf * self.rows, self.table.rows)

    def of(self, codes: Codes) -> tuple[Rows, Rows]:
        """For each code the leaves `[first, stop)` that may hold it; at least one, if there are."""
        first = np.maximum(np.searchsorted(self.fences, codes, side="left") - 1, 0)
        stop = np.searchsorted(self.fences, codes, side="right")
        return first, np.minimum(np.maximum(stop, first + 1), len(self))

    def read(self, leaf: int) -> Page:
        """A leaf whole, codes and payload."""
        return self.table.piece(self.start(leaf), self.start(leaf + 1))

    @property
    def leaf_bytes(self) -> int:
        """What a leaf of rows of the mean size takes."""
        return int(self.rows * (self.table.row_bytes + CODE_BYTES))

    def _derived(self, pages: int) -> Codes:
        found = []
        for first in range(0, self.table.pages, pages):
            codes = self.table.codes(first, min(first + pages, self.table.pages))
            found.append(codes[-self.table.page_start(first) % self.rows :: self.rows].copy())
        return np.concatenate(found)
