"""Emission of a lookup join: candidates of stream rows become results.

Vocabulary. A *row* is a stream row; a *position* is the place of a table row in the staged table. A
row's candidates are the positions `[low, high)`: the table is sorted by code, so they lie together.
A row is *settled* once it has met the whole table; only then is it known to have no match.
"""

from abc import ABC
from collections.abc import Iterator
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dovetail.kernel.probing import Rows, Span
from dovetail.kernel.runs import Run
from dovetail.kernel.slices import Sizes, cuts, is_uneven
from dovetail.semistream.spec import ANTI, INNER, LEFT_OUTER, SEMI, SemiStreamSpec
from dovetail.semistream.table.gathering import sizes_at
from dovetail.semistream.table.reading import StagedTable

_MOST_PAIRS = 1 << 17
_NONE: Rows = np.zeros(0, dtype=np.int64)


class Source(Protocol):
    """A source of table rows: the staged table, or a cache of it."""

    def take(self, positions: Rows, columns: tuple[int, ...] | None = None) -> pa.RecordBatch:
        """The rows at these positions; a negative one is a row of nulls."""

    def row_sizes(self, positions: Rows) -> Sizes:
        """The bytes of each of these rows."""


class Emission(ABC):
    """The results of rows whose candidates are known, in batches that fit the working memory."""

    spec: SemiStreamSpec
    table: StagedTable
    working_bytes: int
    _stream_row_bytes: float = 64.0  # of the rows that came last: the mean
    _widest_row: int = 0  # of all rows that ever came

    def _settle_run(
        self, run: Run, low: Rows, high: Rows, source: Source, start: int = 0
    ) -> Iterator[pa.RecordBatch]:
        """Settle the rows of a run from `start` on, in the order that was asked for."""
        chosen = np.arange(start, start + len(low))
        if self.spec.ordered:
            high = np.where(run.ats[chosen] < 0, low, high)  # keys that match nothing
            order = in_stream_order(run)
            chosen, low, high = chosen[order], low[order], high[order]
        yield from self._settle(run.rows, chosen, low, high, source)

    def _settle(
        self, rows: pa.RecordBatch, chosen: Rows, low: Rows, high: Rows, source: Source
    ) -> Iterator[pa.RecordBatch]:
        """Emit all results of the rows `chosen`, whose candidates are all known.

        In the order of `chosen`: a row's results come together.
        """
        if not len(chosen):
            return
        if self.spec.exact and self.spec.how in (SEMI, ANTI):
            wanted = (high > low) == (self.spec.how == SEMI)
            yield from self._stream_rows(rows, chosen[wanted])
            return
        matched = np.zeros(len(chosen), dtype=np.bool_)
        numbers = np.arange(len(chosen))
        done = 0
        for row, position in self._pairs(rows, chosen, Span(numbers, low, high), source):
            row, position = self._verified(rows, chosen, row, position, source)
            matched[row] = True
            last = int(row[-1]) if len(row) else done
            # the last row may go on in the next piece
            settled, done = slice(done, last), max(done, last)
            known = numbers[settled], matched[settled]
            yield from self._emit(rows, chosen, row, position, known, source)
        yield from self._emit(rows, chosen, _NONE, _NONE, (numbers[done:], matched[done:]), source)

    def _meet(
        self, rows: pa.RecordBatch, chosen: Rows, low: Rows, high: Rows, source: Source,
        matched: NDArray[np.bool_],
    ) -> Iterator[pa.RecordBatch]:  # fmt: skip
        """Emit the results of some candidates; the rows `chosen` may have more of them elsewhere.

        `matched` says of all of `rows` which have matched so far, and is brought up to date.
        """
        if self.spec.exact and self.spec.how in (SEMI, ANTI):
            fresh = chosen[~matched[chosen]]
            matched[chosen] = True
            if self.spec.how == SEMI:
                yield from self._stream_rows(rows, fresh)
            return
        span = Span(np.arange(len(chosen)), low, high)
        for row, position in self._pairs(rows, chosen, span, source):
            row, position = self._verified(rows, chosen, row, position, source)
            hit = np.unique(row)
            fresh = hit[~matched[chosen[hit]]]
            matched[chosen[fresh]] = True
            known = fresh, np.ones(len(fresh), dtype=np.bool_)
            yield from self._emit(rows, chosen, row, position, known, source)

    def _leave(self, rows: pa.RecordBatch, matched: NDArray[np.bool_]) -> Iterator[pa.RecordBatch]:
        """Emit the rows without a match, once rows have met the whole table."""
        if self.spec.how in (LEFT_OUTER, ANTI) and not matched.all():
            yield from self._unmatched(rows, np.flatnonzero(~matched))

    def _unmatched(self, rows: pa.RecordBatch, chosen: Rows) -> Iterator[pa.RecordBatch]:
        known = np.arange(len(chosen)), np.zeros(len(chosen), dtype=np.bool_)
        yield from self._emit(rows, chosen, _NONE, _NONE, known, self.table)

    def _verified(
        self, rows: pa.RecordBatch, chosen: Rows, row: Rows, position: Rows, source: Source
    ) -> tuple[Rows, Rows]:
        """The pairs that really match."""
        if self.spec.exact:
            return row, position
        stream = rows.take(pa.array(chosen[row]))
        table = source.take(position)
        keys, table_keys = self.spec.key_columns
        mask: NDArray[np.bool_] | None = None
        if keys:
            mask = self.spec.codec.verify(
                [stream.column(index) for index in keys],
                [table.column(index) for index in table_keys],
            )
        if self.spec.condition is not None:
            met = np.asarray(self.spec.condition(stream, table))
            mask = met if mask is None else mask & met
        return (row, position) if mask is None else (row[mask], position[mask])

    def _emit(
        self, rows: pa.RecordBatch, chosen: Rows, row: Rows, position: Rows,
        known: tuple[Rows, NDArray[np.bool_]], source: Source,
    ) -> Iterator[pa.RecordBatch]:  # fmt: skip
        """Pairs, and rows of which it is known now whether they match, in the order of `chosen`."""
        how, (settled, matched) = self.spec.how, known
        if how in (SEMI, ANTI):
            yield from self._stream_rows(rows, chosen[settled[matched == (how == SEMI)]])
            return
        if how == INNER and not len(row):
            return
        if how == LEFT_OUTER and not matched.all():
            unmatched = settled[~matched]
            row = np.concatenate([row, unmatched])
            position = np.concatenate([position, np.full(len(unmatched), -1)])
            order = np.argsort(row, kind="stable")
            row, position = row[order], position[order]
        for part in self._parts(rows, chosen[row], position, source):
            stream = rows.take(pa.array(chosen[row[part]]))
            table = source.take(position[part], self.spec.layout.right_columns)
            columns = [*stream.columns, *table.columns]
            yield pa.RecordBatch.from_arrays(columns, schema=self.spec.layout.schema)

    def _stream_rows(self, rows: pa.RecordBatch, chosen: Rows) -> Iterator[pa.RecordBatch]:
        for part in self._parts(rows, chosen):
            yield rows.take(pa.array(chosen[part]))

    # -- in parts that fit the working memory -------------------------------------------------

    def _pairs(
        self, rows: pa.RecordBatch, chosen: Rows, span: Span, source: Source
    ) -> Iterator[tuple[Rows, Rows]]:
        """The pairs of a span, a part of them at a time."""
        for row, position in span.pairs(self._most_pairs()):
            for part in self._parts(rows, chosen[row], position, source):
                yield row[part], position[part]

    def _parts(
        self, rows: pa.RecordBatch, chosen: Rows, positions: Rows | None = None,
        source: Source | None = None,
    ) -> Iterator[slice]:  # fmt: skip
        """Gather stream rows, each with a table row or alone, in parts that fit, or of one each."""
        uneven = is_uneven(self._widest_row, self._stream_row_bytes)
        if not (uneven or self.table.uneven):
            limit = self._most_pairs()
            for start in range(0, len(chosen), limit):
                yield slice(start, start + limit)
            return
        stream, table = int(self._stream_row_bytes), int(self.table.row_bytes)
        sizes = np.full(len(chosen), 16)
        sizes += sizes_at(rows, chosen) if uneven else stream
        if source is not None and positions is not None:
            sizes += source.row_sizes(positions) if self.table.uneven else table
        for start, stop, _ in cuts(sizes, self.working_bytes // 2):
            yield slice(start, stop)

    def _most_pairs(self) -> int:
        row_bytes = self.table.row_bytes + self._stream_row_bytes + 16
        return max(1, min(int(self.working_bytes // 2 / row_bytes), _MOST_PAIRS))


def in_stream_order(run: Run) -> Rows:
    """The rows of a run in the order in which they came."""
    return np.argsort(numbers_of(run), kind="stable")


def numbers_of(run: Run) -> Rows:
    """Of each row, how many came before it; those that can match nothing are marked as such."""
    return np.where(run.ats < 0, ~run.ats, run.ats)
