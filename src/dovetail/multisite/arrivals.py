"""Rows as they arrive, cut into intervals and put in the order of their times.

The paper leaves rows that come out of order aside (Sect. 2.1). Here an interval is closed
`lateness` after it has ended; rows that come by then are sorted in, so results are those of the
ordered stream, that much later. Rows that come later still are counted and left out.
"""

import numpy as np
import pyarrow as pa

from dovetail.errors import ArgumentError
from dovetail.multisite.matching import select
from dovetail.multisite.query import Query, Stream, check_times, times_of
from dovetail.multisite.rows import empty
from dovetail.multisite.snapshots import Kept


class Arrivals(Kept):
    """The input buffer of one stream (`B_i`)."""

    KEPT = ("late", "next", "waiting")

    def __init__(self, stream: Stream, query: Query, first_interval: int = 1) -> None:
        self.late = 0  #: rows that were left out
        self._stream = stream
        self._query = query
        self._next = first_interval
        self._waiting: list[pa.RecordBatch] = []

    @property
    def nbytes(self) -> int:
        """The rows that wait for their interval to end."""
        return sum(int(rows.nbytes) for rows in self._waiting)

    def push(self, rows: pa.RecordBatch) -> None:
        """Rows of any times, in the order of their arrival."""
        column = rows.column(self._stream.time)
        check_times(self._stream, column)
        in_time = self._query.interval_of(times_of(column)) >= self._next
        self.late += rows.num_rows - int(np.count_nonzero(in_time))
        rows = select(rows, in_time)
        if rows.num_rows:
            self._waiting.append(rows)

    def take(self, interval: int) -> pa.RecordBatch | None:
        """The rows of an interval, in order; rows of equal times in the order of their arrival."""
        if interval != self._next:
            raise ArgumentError(f"interval {interval} was asked for, but {self._next} is next")
        self._next += 1
        if not self._waiting:
            return None
        rows = self._waiting[0] if len(self._waiting) == 1 else pa.concat_batches(self._waiting)
        times = times_of(rows.column(self._stream.time))
        mine = self._query.interval_of(times) <= interval
        self._waiting = [] if mine.all() else [select(rows, ~mine)]
        chosen = np.flatnonzero(mine)
        if not len(chosen):
            return None
        order = chosen[np.argsort(times[chosen], kind="stable")]
        return rows.take(pa.array(order))


def interval_rows(
    query: Query, stream: Stream, interval: int, rows: pa.RecordBatch | None
) -> pa.RecordBatch:
    """The rows of an interval with the names that columns have inside; complains about others."""
    if rows is None:
        return empty(stream.qualified)
    if rows.schema.names != stream.schema.names:
        raise ArgumentError(
            f"stream {stream.name!r} has columns {stream.schema.names}, but was given "
            f"{rows.schema.names}"
        )
    column = rows.column(stream.time)
    times = times_of(column)
    bounds = query.boundary(interval - 1), query.boundary(interval)
    if column.null_count or (times < bounds[0]).any() or (times >= bounds[1]).any():
        raise ArgumentError(
            f"interval {interval} of stream {stream.name!r} has a time that is null or outside "
            f"[{bounds[0]}, {bounds[1]}): cut rows by time, see dovetail.sites.Arrivals"
        )
    if (np.diff(times) < 0).any():
        raise ArgumentError(
            f"interval {interval} of stream {stream.name!r} is not in the order of its times: "
            "sort it, see dovetail.sites.Arrivals"
        )
    return pa.RecordBatch.from_arrays(rows.columns, schema=stream.qualified)
