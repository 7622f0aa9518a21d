"""Slices of batches, of bounded size, cut by the actual bytes of each row.

Rows of one batch may be of any widths: a mean says nothing of the widest. So batches are cut by the
rows' own sizes, which follow from the offsets of their columns, and a slice has *at most so many
bytes, or one row*. Where rows are all about as wide as each other, their mean is used, which costs
nothing (`unevenness`).

The one row. Working memory is divided for rows of which many fit; a row wider than such a part
takes more than its part wherever it goes (its copy on arrival, a block that is read, a result).
`WideRows` keeps the widest row of each input in mind and reserves what working memory lacks for as
many copies as an operator makes. A row for which that cannot be had is refused, before anything of
its batch is taken in, with the least budget that would do.

An input batch is counted as well, but not without limit (`counted_input`): the caller of `push` has
it in memory already, and flushing all rows for a large batch would not make it smaller. On Spark,
`spark.sql.execution.arrow.maxBytesPerBatch` bounds it.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dovetail.errors import MemoryBudgetError
from dovetail.kernel.memory import (
    Budget,
    MemorySplit,
    Reservation,
    format_at_least,
    format_bytes,
)

Sizes = NDArray[np.int64]  #: bytes, of a row each

_EVEN, _FEW_BYTES = 4, 64  # a row up to so many times the mean row and so many bytes is no outlier
_LOOKED_AT_BYTES = 1 << 10  # wider rows are few for their bytes, and may differ by less:
_ALIKE = 9 / 8  # times the mean row
_BIT = 1 / 8  # whether a value is null
_VIEW_BYTES, _INLINE_BYTES = 16, 12  # of a value that is a view, and what has room in it
_GROWTH_SHARE = 1 / 16  # of a budget: what the catalogue of blocks may grow by,
_FIRST_SHARE, _FIRST_BYTES = 1 / 8, 10 << 10  # and what it takes at first, the less of both
_OFFSETS = {
    pa.lib.Type_STRING: np.int32, pa.lib.Type_LARGE_STRING: np.int64,
    pa.lib.Type_BINARY: np.int32, pa.lib.Type_LARGE_BINARY: np.int64,
    pa.lib.Type_LIST: np.int32, pa.lib.Type_LARGE_LIST: np.int64, pa.lib.Type_MAP: np.int32,
}  # fmt: skip


# -- what rows take up ----------------------------------------------------------------------


def variable_bytes(columns: Iterable[pa.Array]) -> Sizes | None:
    """The bytes of each row's values of variable length; None if there is no such column."""
    return sizes_in(columns)[1]


def sizes_in(columns: Iterable[pa.Array]) -> tuple[float, Sizes | None]:
    """The fixed bytes of a row, and the variable bytes of each; None if there are none."""
    fixed, total = 0.0, None
    for column in columns:
        width, found = _column_sizes(column)
        fixed += width
        if found is not None:
            total = found if total is None else np.add(total, found, dtype=np.int64)
    return fixed, total


def unevenness(lengths: Sizes | None) -> Sizes | None:
    """The lengths if they are too uneven for their mean to stand for them; else None."""
    if lengths is None or not len(lengths):
        return None
    return lengths if is_uneven(int(lengths.max()), float(lengths.mean())) else None


def is_uneven(widest: int, mean: float) -> bool:
    """Whether rows are too uneven for their mean to stand for them, by the widest."""
    if widest > _LOOKED_AT_BYTES:
        return widest > _ALIKE * mean + _FEW_BYTES
    return widest > _EVEN * (mean + _FEW_BYTES)


def _column_sizes(column: pa.Array) -> tuple[float, Sizes | None]:
    kind = column.type
    if kind.id in _OFFSETS:
        # straight from the buffer: this is asked of every run, and Arrow takes its time
        item = np.dtype(_OFFSETS[kind.id])
        offsets = _buffer(column, 1, item, 1)
        if not pa.types.is_nested(kind):
            return item.itemsize + _BIT, np.diff(offsets)
        values = column.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
        return item.itemsize + _BIT, _of_elements(values, offsets[:-1], offsets[1:])
    if pa.types.is_struct(kind):
        fixed, found = sizes_in(column.field(index) for index in range(kind.num_fields))
        return fixed + _BIT, found
    if pa.types.is_fixed_size_list(kind):
        size = kind.list_size
        begins = size * np.arange(len(column), dtype=np.int64)
        values = column.values.slice(size * column.offset, size * len(column))
        return _BIT, _of_elements(values, begins, begins + size)
    if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        item = np.dtype(np.int32 if pa.types.is_list_view(kind) else np.int64)
        begins, counts = _buffer(column, 1, item), _buffer(column, 2, item)
        return 2 * item.itemsize + _BIT, _of_elements(column.values, begins, begins + counts, 0)
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        views = np.frombuffer(column.buffers()[1] or b"", np.int32).reshape(-1, 4)
        lengths = views[column.offset : column.offset + len(column), 0].astype(np.int64)
        return _VIEW_BYTES + _BIT, np.where(lengths > _INLINE_BYTES, lengths, 0)
    if pa.types.is_dictionary(kind):
        width, found = _column_sizes(column.dictionary)
        width += kind.index_type.bit_width / 8
        if found is None or not len(found):
            return width, None
        numbers = column.indices.fill_null(0).to_numpy(zero_copy_only=False)
        return width, found.take(numbers)
    try:
        return kind.bit_width / 8 + _BIT, None
    except ValueError:  # a kind without a width of its own: the mean value stands for all
        return column.nbytes / max(1, len(column)), None


def _buffer(column: pa.Array, number: int, item: "np.dtype[Any]", more: int = 0) -> NDArray[Any]:
    """The numbers of a column's buffer that belong to its rows, and so many more."""
    data = column.buffers()[number]
    if not len(column):
        return np.zeros(more, dtype=item)
    return np.frombuffer(data, item, len(column) + more, column.offset * item.itemsize)


def _of_elements(
    values: pa.Array, begins: NDArray[Any], ends: NDArray[Any], first: int | None = None
) -> Sizes:
    """The bytes of lists whose elements are at `[begin, end)` of some values.

    `first` is the place of the first value; None: that of the first list's.
    """
    if first is None:
        first = int(begins[0]) if len(begins) else 0
    fixed, found = _column_sizes(values)
    sizes: Sizes = np.ceil((ends - begins) * fixed).astype(np.int64)
    if found is not None:
        before = np.concatenate([[0], np.cumsum(found)])
        sizes += before[ends - first] - before[begins - first]
    return sizes


# -- cutting --------------------------------------------------------------------------------


def cuts(sizes: Sizes, most_bytes: int) -> Iterator[tuple[int, int, int]]:
    """Rows `[start, stop)` that take up so many bytes at most, or are one row; and their size."""
    ends = np.cumsum(sizes)
    start = before = 0
    while start < len(ends):
        stop = max(start + 1, int(np.searchsorted(ends, before + most_bytes, side="right")))
        after = int(ends[stop - 1])
        yield start, stop, after - before
        start, before = stop, after


class SizedRows:
    """The rows of a batch and their sizes, with `beside` bytes each of what is kept of them."""

    def __init__(self, batch: pa.RecordBatch, beside: int = 0) -> None:
        self.batch = batch
        self._beside = beside
        self.nbytes = int(batch.nbytes) + beside * batch.num_rows
        self._known: tuple[int, Sizes | None] | None = None  # looked at only if it matters
        self._known_ends: Sizes | None = None

    @property
    def widest(self) -> int:
        """The size of the widest row."""
        fixed, variable = self._sizes
        return fixed + (0 if variable is None else int(variable.max(initial=0)))

    def stop(self, start: int, most_bytes: int) -> int:
        """Where a slice from `start` on ends: at most so many bytes, or one row."""
        if self.nbytes <= most_bytes:
            return int(self.batch.num_rows)
        fixed, variable = self._sizes
        if variable is None:
            return min(start + max(1, most_bytes // fixed), int(self.batch.num_rows))
        ends = self._ends
        before = int(ends[start - 1]) if start else 0
        return max(start + 1, int(np.searchsorted(ends, before + most_bytes, side="right")))

    def slices(self, most_bytes: int, *, even: bool = False) -> Iterator[pa.RecordBatch]:
        """Slices of at most so many bytes, or of one row; if `even`, of about one size.

        Else the last one may be a sliver, which costs as much as a whole slice.
        """
        if self.nbytes <= most_bytes:
            yield self.batch
            return
        if even:
            fixed, variable = self._sizes
            total = fixed * self.batch.num_rows if variable is None else int(self._ends[-1])
            most_bytes = min(most_bytes, total // -(-total // most_bytes) + self.widest)
        start = 0
        while start < self.batch.num_rows:
            stop = self.stop(start, most_bytes)
            yield self.batch.slice(start, stop - start)
            start = stop

    @property
    def _sizes(self) -> tuple[int, Sizes | None]:
        if self._known is None:
            fixed, variable = sizes_in(self.batch.columns)
            self._known = math.ceil(fixed) + self._beside, variable
        return self._known

    @property
    def _ends(self) -> Sizes:
        if self._known_ends is None:
            fixed, variable = self._sizes
            assert variable is not None
            self._known_ends = np.cumsum(variable + fixed)
        return self._known_ends


# -- rows that are wide for a budget --------------------------------------------------------


class WideRows:
    """The reservation for rows too wide for working memory; it is never given back.

    Working memory has room for the copies that are made of rows, beside those that are kept, as
    long as none is wider than its part of it.
    """

    def __init__(self, budget: Budget, inputs: int, split: MemorySplit) -> None:
        self._budget = budget
        self._split = split
        self._movable = split.movable | {"working", "wide rows", "input"}
        self.widest = [0] * inputs  #: of each input; those that are narrow enough are not noted
        self.held = Reservation(budget, "wide rows")

    def lacking(self, side: int, rows: SizedRows) -> int:
        """Take note of a batch; returns how many bytes more are to be reserved (`held`).

        Raises `MemoryBudgetError` if it has a row that the budget has no room for.
        """
        total = self._budget.total_bytes
        if total is None or rows.nbytes <= max(self.widest[side], self._narrow(total)):
            return 0
        row = rows.widest
        if row <= max(self.widest[side], self._narrow(total)):
            return 0
        widest = [max(row, known) if at == side else known for at, known in enumerate(self.widest)]
        if not self._fits(total, widest):
            self._refuse(row, widest)
        self.widest = widest
        return max(0, self._wanted(total, widest) - self.held.nbytes)

    def restore(self, widest: Sequence[int]) -> None:
        """Bring back what `widest` was."""
        self.widest = list(widest)
        total = self._budget.total_bytes
        if total is not None:
            if not self._fits(total, self.widest):
                self._refuse(max(self.widest), self.widest)
            self.held.grow(self._wanted(total, self.widest))

    def counted_input(self, nbytes: int) -> int:
        """The bytes of an input batch that count: at most half of what is not reserved for good."""
        total = self._budget.total_bytes
        if total is None:
            return nbytes
        room = self._room(total, self.widest)
        return max(0, min(nbytes, room // 2, room - max(self.widest)))

    def _narrow(self, total: int) -> int:
        """The widest row that working memory has room for."""
        return self._split.working_bytes(total) // self._split.wide_needs([1] * len(self.widest))

    def _wanted(self, total: int, widest: Sequence[int]) -> int:
        """The bytes that rows of these widths need beyond working memory."""
        narrow = self._narrow(total)
        if max(widest) <= narrow:
            return 0
        needed = self._split.wide_needs([max(row, narrow) for row in widest])
        return max(0, needed - self._split.working_bytes(total))

    def _room(self, total: int, widest: Sequence[int]) -> int:
        """The bytes of a budget beside working memory and all that stays reserved."""
        stays = sum(
            held for name, held in self._budget.components.items() if name not in self._movable
        )
        stays = max(stays, min(int(_FIRST_SHARE * total), _FIRST_BYTES))
        taken = self._split.working_bytes(total) + self._wanted(total, widest) + stays
        return total - taken - int(_GROWTH_SHARE * total)

    def _fits(self, total: int, widest: Sequence[int]) -> bool:
        needed = max(self._split.beside(total, widest), *widest)
        return self._room(total, widest) >= needed

    def _refuse(self, row: int, widest: Sequence[int]) -> NoReturn:
        least = self._budget.total_bytes or 1
        step = least
        while not self._fits(least + step, widest):
            step *= 2
        while step > 1:  # least does not suffice, least + step does
            step = -(-step // 2)
            if not self._fits(least + step, widest):
                least += step
        raise too_wide(row, self._budget, least + step)


def too_wide(row: int, budget: Budget, least: int) -> MemoryBudgetError:
    """The error for a row that a partition's share of the budget has no room for."""
    shares = budget.shares
    of = f" over {shares} partitions" if shares > 1 else ""
    return MemoryBudgetError(
        f"a row of {format_bytes(row)} does not fit: this partition's share of the budget is "
        f"{format_bytes(budget.total_bytes or 0)}, and to join rows as wide as that takes at least "
        f"{format_at_least(least)}. memory={format_at_least(least * shares)!r}{of} would do; fewer "
        "partitions= make shares larger, too. Or leave wide columns out before the join."
    )


__all__ = ["SizedRows", "WideRows", "cuts", "is_uneven", "sizes_in", "unevenness", "variable_bytes"]
