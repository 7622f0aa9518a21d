"""Leaves: a staged table cut finer than its pages, for lookups of single rows.

A page is made for scans. Who looks up one row reads less: a *leaf*, as many neighbouring rows as
take about 8 KB with their codes, as the leaves of a database's index do. A leaf is a range of
positions, so no leaf is written anywhere; the first code of each, its fence, is found by one read
of all codes, 8 bytes a row, when the index is made.

The fences are an index in memory: 8 bytes for 8 KB of table. Where that is more than it may take,
leaves are made larger, and at most a page, whose fences the table has anyway.

Leaves that are needed together are fetched together, as a *lot*: their codes lie one after the
other in one array and their rows in one batch. They are counted as if each were read by itself.
"""

from dataclasses import dataclass
from typing import cast

import numpy as np
import pyarrow as pa

from dovetail.kernel.keys import Codes
from dovetail.kernel.probing import Rows
from dovetail.kernel.slices import Sizes
from dovetail.semistream.table.gathering import positions_of, sizes_at, take_rows
from dovetail.semistream.table.reading import CODE_BYTES, StagedTable

LEAF_BYTES = 8 << 10
_OFFSETS = {
    **dict.fromkeys((pa.lib.Type_STRING, pa.lib.Type_BINARY, pa.lib.Type_LIST), np.int32),
    **dict.fromkeys(
        (pa.lib.Type_LARGE_STRING, pa.lib.Type_LARGE_BINARY, pa.lib.Type_LARGE_LIST), np.int64
    ),
}


def rows_of_leaf(
    table_rows: int, row_bytes: float, page_rows: int, most_bytes: float | None = None
) -> int:
    """The rows of a leaf such that the fences of all leaves take at most `most_bytes`."""
    rows = int(LEAF_BYTES // (row_bytes + CODE_BYTES))
    if most_bytes is not None:
        rows = max(rows, -(-table_rows // max(1, int(most_bytes // CODE_BYTES))))
    return max(1, min(rows, page_rows))


@dataclass(frozen=True)
class Lot:
    """Leaves with codes and payload, copied out of the table; those with lower codes first."""

    leaves: Rows  #: their numbers
    starts: Rows  #: where each begins; one more than there are leaves
    sizes: Rows  #: the bytes of each
    codes: Codes
    rows: pa.RecordBatch
    nbytes: int

    @classmethod
    def of(
        cls, leaves: Rows, counts: Rows, codes: Codes, rows: pa.RecordBatch, sizes: Rows | None
    ) -> "Lot":
        """`counts`: the rows of each leaf; `sizes`: None if they are not known."""
        starts = np.concatenate([[0], np.cumsum(counts)])
        if sizes is None:
            sizes = sizes_of(rows, starts)
        return cls(leaves, starts, sizes, codes, rows, int(rows.nbytes) + codes.nbytes)

    def begins(self, leaves: Rows) -> Rows:
        """Where some of its leaves begin."""
        return self.starts[np.searchsorted(self.leaves, leaves)]

    def take(self, positions: Rows, columns: tuple[int, ...] | None = None) -> pa.RecordBatch:
        return take_rows(self.rows, positions, columns)

    def row_sizes(self, positions: Rows) -> Sizes:
        return sizes_at(self.rows, positions)


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
        """The bytes of the index besides the table's own."""
        return 0 if self.fences is self.table.fences else self.fences.nbytes

    def __len__(self) -> int:
        return len(self.fences)

    def starts(self, leaves: Rows) -> Rows:
        """The positions of some leaves' first rows."""
        return np.minimum(leaves * self.rows, self.table.rows)

    def of(self, codes: Codes) -> tuple[Rows, Rows]:
        """For each code the first and the last leaf that may hold it, if there are any leaves."""
        first = np.maximum(np.searchsorted(self.fences, codes, side="left") - 1, 0)
        last = np.searchsorted(self.fences, codes, side="right") - 1
        return first, np.maximum(last, first)

    def fitting(self, leaves: Rows, most_bytes: int) -> Rows:
        """The first of some leaves, as many as take up so many bytes, or one of them."""
        if not self.table.uneven:
            return leaves
        begins, ends = self.starts(leaves), self.starts(leaves + 1)
        sizes = self.table.row_sizes(positions_of(begins, ends - begins))
        held = np.concatenate([[0], np.cumsum(sizes)])[np.cumsum(ends - begins)]
        return leaves[: max(1, int(np.searchsorted(held, most_bytes, side="right")))]

    def read(self, leaves: Rows) -> Lot:
        """Some leaves whole, codes and payload; their numbers in ascending order."""
        begins, ends = self.starts(leaves), self.starts(leaves + 1)
        codes, rows = self.table.ranges(begins, ends)
        lot = Lot.of(leaves, ends - begins, codes, rows, None)
        self.table.counters.bytes_read += int(lot.sizes.sum()) - codes.nbytes
        return lot

    @property
    def leaf_bytes(self) -> int:
        """The bytes of a leaf of mean rows."""
        return int(self.rows * (self.table.row_bytes + CODE_BYTES))

    def _derived(self, pages: int) -> Codes:
        found = []
        for first in range(0, self.table.pages, pages):
            codes = self.table.codes(first, min(first + pages, self.table.pages))
            found.append(codes[-self.table.page_start(first) % self.rows :: self.rows].copy())
        return np.concatenate(found)


def sizes_of(rows: pa.RecordBatch, starts: Rows) -> Rows:
    """The bytes of the leaves that begin at `starts`, with codes; each as if it were alone.

    The last of `starts` is the end.
    """
    return sum((_sizes(column, starts) for column in rows.columns), CODE_BYTES * np.diff(starts))


def _sizes(column: pa.Array, starts: Rows) -> Rows:
    """The bytes of parts of a column; bits for nulls only where a part has some."""
    counts = np.diff(starts)
    kind = column.type
    if pa.types.is_primitive(kind) or pa.types.is_fixed_size_binary(kind):
        sizes = -(-counts * kind.bit_width // 8)
    elif pa.types.is_struct(kind):
        sizes = sum((_sizes(child, starts) for child in column.flatten()), 0 * counts)
    elif kind.id in _OFFSETS:
        item = np.dtype(_OFFSETS[kind.id])
        offsets = np.frombuffer(column.buffers()[1], item)[column.offset + starts].astype(np.int64)
        inner = _sizes(column.values, offsets) if pa.types.is_nested(kind) else np.diff(offsets)
        sizes = item.itemsize * counts + inner
    else:
        ranges = zip(starts[:-1].tolist(), counts.tolist(), strict=True)
        return np.array([column.slice(start, count).nbytes for start, count in ranges])
    if column.null_count:
        nulls = np.concatenate([[0], np.cumsum(column.is_null().to_numpy(zero_copy_only=False))])
        sizes = sizes + np.where(np.diff(nulls[starts]) > 0, -(-counts // 8), 0)
    return cast("Rows", sizes)
