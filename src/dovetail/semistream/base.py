"""What every join of a stream with a staged table does besides emitting: arrival and memory.

A pushed batch is taken in by slices, cut by what each row really takes up (see `kernel.slices`).
A row whose key can match nothing (null; NaN in a band join) is settled as it comes. The others are
the algorithm's: it takes them in (`_take_in`), works on those that wait (`_work`), and settles them
with what `emission` has.
"""

import sys
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from dovetail.errors import ArgumentError, MemoryBudgetError
from dovetail.kernel.memory import Reservation, format_at_least, format_bytes
from dovetail.kernel.protocol import Context, Snapshot, Status
from dovetail.kernel.runs import INDEX_BYTES_PER_ROW, Run
from dovetail.kernel.slices import SizedRows, WideRows
from dovetail.semistream.emission import Emission, numbers_of
from dovetail.semistream.shedding import FrequencyLookup
from dovetail.semistream.spec import STREAM, SemiStreamSpec
from dovetail.semistream.table import CODE_BYTES, RELEASE_BYTES, StagedTable

WORKING_SHARE = 1 / 4
SLICE_SHARE = 1 / 2  #: of the working memory: the rows that are taken in at a time
MIN_BUDGET_BYTES = 256 << 10
_UNBOUNDED_WORKING_BYTES = 64 << 20
#: what can be given up for rows that come
_MOVABLE = frozenset({"window", "cache", "notes", "switching buffer", "page pool"})


class SemiStreamJoin(Emission):
    """Arrival and memory, shared by every algorithm."""

    name: ClassVar[str]
    #: deferred work is due as soon as there is any, not only while the stream is silent
    eager: ClassVar[bool] = True
    joins_conditions: ClassVar[bool] = False  #: bands and arbitrary conditions

    def __init__(
        self,
        spec: SemiStreamSpec,
        context: Context,
        table: StagedTable,
        snapshot: Snapshot | None = None,
    ) -> None:
        if not self.joins_conditions and (spec.within is not None or not spec.stream_keys):
            raise ArgumentError(
                f"algorithm {self.name!r} joins on equal keys only; 'meshjoin' and 'ameshjoin' "
                "take bands and arbitrary conditions"
            )
        self.spec = spec
        self.ctx = context
        self.table = table
        table.counters = context.counters
        total = context.budget.total_bytes
        check_budget(total, table)
        self.working_bytes = _working_bytes(total)
        context.budget.reserve("working", self.working_bytes)
        context.budget.reserve("page index", table.nbytes)
        table.release_bytes = release_bytes_of(total)
        table.read_at_most(self.working_bytes // 8)
        self.wide = WideRows(context.budget, 1, _wide_needs, _working_share, lambda *_: 0, _MOVABLE)
        if snapshot is not None:
            self.wide.restore(snapshot.meta["widest"])
            self._widest_row = snapshot.meta["widest_row"]
        self._window = Reservation(context.budget, "window")
        self._ended = False
        self._status = Status.IDLE
        self._arrived = 0  # rows so far, which gives each its place in the stream
        #: how often the table has each code, once shedding has asked for it
        self.frequencies: FrequencyLookup | None = None
        self.aside_bytes = 0  #: what they take, so that the window is made no larger than it can be

    # -- the protocol -----------------------------------------------------------------------

    def push(self, side: int, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        assert side == STREAM, "the table does not stream"
        self._ended = False
        self.table.counters = self.ctx.counters
        if not batch.num_rows:
            return
        rows = SizedRows(batch, 2 * INDEX_BYTES_PER_ROW)
        lacking = self.wide.lacking(STREAM, rows)
        self.ctx.counters.rows_in[STREAM] += batch.num_rows
        yield from self.make_room_for(self.wide.held, lacking, "what wide rows need")
        self._stream_row_bytes = batch.nbytes / batch.num_rows
        self._widest_row = max(self._widest_row, rows.widest)
        incoming = Reservation(self.ctx.budget, "input")
        counted = self.wide.counted_input(batch.nbytes)
        yield from self.make_room_for(incoming, counted, "an input batch")
        try:
            for piece in self._slices(rows):
                for out in self._arrive(piece):
                    yield self._count("arriving", out)
        finally:
            incoming.resize(0)
        self.table.release(self.working_bytes // 4)
        self._status = Status.MORE if self.pending() else self._resting()

    def make_room_for(
        self, reservation: Reservation, nbytes: int, what: str
    ) -> Iterator[pa.RecordBatch]:
        """Reserve memory for what comes from outside; works rows off until there is room."""
        while not reservation.try_grow(nbytes):
            if not self._can_make_room():
                self._refuse(nbytes, what)
            for out in self._make_room():
                yield self._count("arriving", out)

    def finish(self, side: int) -> None:
        self._ended = True
        self._status = Status.MORE if self.pending() else self._resting()

    def status(self) -> Status:
        return self._status

    def poll(self, fuel: int) -> Iterator[pa.RecordBatch]:
        self.table.counters = self.ctx.counters
        while self.pending():
            before = self.ctx.counters.bytes_read
            for out in self._work():
                fuel -= out.num_rows
                yield self._count("deferred", out)
            fuel -= 1 + (self.ctx.counters.bytes_read - before) // 64
            if fuel <= 0 and self.pending():
                self.table.release(self.working_bytes // 4)
                self._status = Status.MORE
                return
        self.table.release(self.working_bytes // 4)
        self._status = self._resting()

    @abstractmethod
    def pending(self) -> int: ...

    @abstractmethod
    def snapshot(self) -> Snapshot: ...

    @property
    def arrived(self) -> int:
        """The rows so far, and the number that the next one gets."""
        return self._arrived

    def oldest(self) -> int | None:
        """The number of the first row that waits; None if none does."""
        return None

    def check(self) -> None:
        total = self.ctx.budget.total_bytes
        assert total is None or self.ctx.budget.used_bytes <= total

    # -- for the algorithms -----------------------------------------------------------------

    @abstractmethod
    def _take_in(self, run: Run) -> Iterator[pa.RecordBatch]:
        """Rows in code order, their arrival number as ATS: join them, now or later."""

    @abstractmethod
    def _work(self) -> Iterator[pa.RecordBatch]:
        """One piece of deferred work; called only while there is some."""

    def _can_make_room(self) -> bool:
        return self.pending() > 0

    def _make_room(self) -> Iterator[pa.RecordBatch]:
        """Shorten what waits, so that the budget has more room."""
        yield from self._work()

    def _resting(self) -> Status:
        return Status.DONE if self._ended else Status.IDLE

    def _meta(self) -> dict[str, Any]:
        """What every snapshot says."""
        return {
            "arrived": self._arrived,
            "table": self.table.version,
            "widest": self.wide.widest,
            "widest_row": self._widest_row,
        }

    def _count(self, phase: str, out: pa.RecordBatch) -> pa.RecordBatch:
        self.ctx.counters.emit(phase, out.num_rows)
        return out

    def _slices(self, rows: SizedRows) -> Iterator[pa.RecordBatch]:
        most_bytes, start = int(self.working_bytes * SLICE_SHARE), 0
        while start < rows.batch.num_rows:
            stop = rows.stop(start, most_bytes)
            stop = min(stop, start + self._slice_rows())  # which the slices before may change
            yield rows.batch.slice(start, stop - start)
            start = stop

    def _slice_rows(self) -> int:
        """How many rows are taken in at a time, if there is room for so many."""
        return sys.maxsize

    def _arrive(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        codes, valid = self.spec.encode(STREAM, rows)
        number = np.arange(self._arrived, self._arrived + rows.num_rows)
        self._arrived += rows.num_rows
        if valid is not None and not valid.all():
            self.ctx.counters.rows_unmatched_key += int((~valid).sum())
            if self.spec.ordered:
                number[~valid] = ~number[~valid]  # they wait for their turn
            else:
                yield from self._unmatched(rows, np.flatnonzero(~valid))
                codes, number, rows = codes[valid], number[valid], rows.filter(pa.array(valid))
                if not len(codes):
                    return
        order = np.argsort(codes)
        yield from self._take_in(Run(codes[order], number[order], rows.take(pa.array(order))))

    def _hold(self, run: Run) -> Iterator[pa.RecordBatch]:
        """Reserve memory for rows that will wait; works off others until there is room."""
        while not self._window.try_grow(self._waiting_bytes(run)):
            if not self._can_make_room():
                self._refuse(self._waiting_bytes(run), "rows")
            yield from self._make_room()

    def _waiting_bytes(self, run: Run) -> int:
        """What these rows take up while they wait, with what is kept of them."""
        raise NotImplementedError(f"no row waits in {self.name!r}")

    def _refuse(self, nbytes: int, what: str) -> None:
        budget = self.ctx.budget
        slice_share = WORKING_SHARE * SLICE_SHARE  # beside it, a slice of rows has to wait
        least = (budget.used_bytes + nbytes) / (1 - WORKING_SHARE - slice_share)
        raise MemoryBudgetError(
            f"{what} of {format_bytes(nbytes)} does not fit: this partition's share of the budget "
            f"is {format_bytes(budget.total_bytes or 0)}, of which "
            f"{format_bytes(self.working_bytes)} are working memory. A share of "
            f"{format_at_least(int(least) + 1)} would do. Raise memory= or lower partitions=."
        )


def _working_bytes(partition_bytes: int | None) -> int:
    return _UNBOUNDED_WORKING_BYTES if partition_bytes is None else _working_share(partition_bytes)


def _wide_needs(widest: Sequence[int]) -> int:
    """A row as it comes, and as a result with a table row."""
    return 3 * sum(widest)


def _working_share(partition_bytes: int) -> int:
    return int(partition_bytes * WORKING_SHARE)


def release_bytes_of(partition_bytes: int | None) -> int:
    """How much of a table's rows may be resident with this share of the budget."""
    return max(RELEASE_BYTES, _working_bytes(partition_bytes) // 4)


def check_budget(partition_bytes: int | None, table: StagedTable) -> None:
    """Refuse a share of the budget that this table's pages and their index do not fit."""
    pages = 8 * table.page_rows * (CODE_BYTES + INDEX_BYTES_PER_ROW)
    least = max(MIN_BUDGET_BYTES, pages) + table.nbytes
    if partition_bytes is not None and partition_bytes < least:
        raise MemoryBudgetError(
            f"a partition's share of the budget is {format_bytes(partition_bytes)}, but this "
            f"table's pages and their index need at least {format_at_least(least)} a partition: "
            "raise memory= or lower partitions="
        )


def first_number(runs: Iterable[tuple[Run, int]]) -> int | None:
    """The least number of the rows of some runs, each from its place on; None if there are none."""
    return min((int(numbers_of(run)[start:].min()) for run, start in runs), default=None)
