"""The base of joins of a stream with a staged table: arrival and memory.

A pushed batch is taken in by slices, cut by what each row really takes up (see `kernel.slices`).
A row whose key can match nothing (null; NaN in a band join) is settled as it comes. The others are
the algorithm's: it takes them in (`_take_in`), works on those that wait (`_work`), and settles them
with what `emission` has.
"""

import sys
from abc import abstractmethod
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from dovetail.errors import ArgumentError
from dovetail.kernel.blocks import RESIDENT, BlockStore
from dovetail.kernel.memory import MemorySplit, Reservation, require_share
from dovetail.kernel.protocol import Context, Snapshot, Status
from dovetail.kernel.runs import INDEX_BYTES_PER_ROW, Run
from dovetail.kernel.shell import Pieces, Reclaiming, Results, Shell
from dovetail.kernel.slices import SizedRows
from dovetail.semistream.cache.values import Cache
from dovetail.semistream.emission import Emission, numbers_of
from dovetail.semistream.shedding import FrequencyLookup
from dovetail.semistream.spec import STREAM, SemiStreamSpec
from dovetail.semistream.table.reading import CODE_BYTES, RELEASE_BYTES, StagedTable

WORKING_SHARE = 1 / 4
SLICE_SHARE = 1 / 2  #: of the working memory: the rows that are taken in at a time
MIN_BUDGET_BYTES = 256 << 10


def _wide_needs(widest: Sequence[int]) -> int:
    """A row as it comes, and as a result with a table row."""
    return 3 * sum(widest)


_SPLIT = MemorySplit(
    WORKING_SHARE,
    frozenset({"window", "cache", "notes", "switching buffer", "page pool"}),
    _wide_needs,
    waiting_share=WORKING_SHARE * SLICE_SHARE,
)


class SemiStreamJoin(Emission, Shell):
    """Arrival and memory, shared by every algorithm."""

    split: ClassVar[MemorySplit] = _SPLIT
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
        total = context.budget.total_bytes
        check_budget(total, table)
        Shell.__init__(self, context, 1)
        self.spec = spec
        self.table = table
        table.counters = context.counters
        context.budget.reserve("page index", table.nbytes)
        table.mapped.most_bytes = release_bytes_of(total)
        table.read_at_most(self.working_bytes // 8)
        if snapshot is not None:
            self.wide.restore(snapshot.meta["widest"])
            self._widest_row = snapshot.meta["widest_row"]
        self._window = Reservation(context.budget, "window")
        #: the rows so far, and the number that the next one gets: its place in the stream
        self.arrived = 0 if snapshot is None else int(snapshot.meta["arrived"])
        #: how often the table has each code, once shedding has asked for it
        self.frequencies: FrequencyLookup | None = None
        self.aside_bytes = 0  #: what they take, so that the window is made no larger than it can be

    # -- the protocol -----------------------------------------------------------------------

    def push(self, side: int, batch: pa.RecordBatch) -> Results:
        assert side == STREAM, "the table does not stream"
        self.table.counters = self.ctx.counters
        yield from super().push(side, batch)
        if batch.num_rows:
            self.table.mapped.release(self.working_bytes // 4)
            self._status = Status.MORE if self.pending() else self._resting()

    def poll(self, fuel: int) -> Results:
        self.table.counters = self.ctx.counters
        yield from super().poll(fuel)
        self.table.mapped.release(self.working_bytes // 4)

    def make_room_for(self, reservation: Reservation, nbytes: int, what: str) -> Results:
        """Reserve memory for what comes from outside; works rows off until there is room."""
        return self._counted("arriving", self._grow(reservation, nbytes, what))

    def oldest(self) -> int | None:
        """The number of the first row that waits; None if none does."""
        return None

    # -- for the algorithms -----------------------------------------------------------------

    @abstractmethod
    def _take_in(self, run: Run) -> Results:
        """Rows in code order, their arrival number as ATS: join them, now or later."""

    @abstractmethod
    def _work(self) -> Results:
        """One piece of deferred work; called only while there is some."""

    def _can_make_room(self) -> bool:
        return self.pending() > 0

    def _make_room(self) -> Results:
        """Shorten what waits, so that the budget has more room."""
        yield from self._work()

    def _reclaim(self, wanted: int) -> Reclaiming:
        if not self._can_make_room():
            return False
        yield from self._make_room()
        return True

    def _deferred(self) -> Pieces:
        while self.pending():
            yield "deferred", self._work()

    def _stops(self, fuel: int) -> bool:
        return fuel <= 0 and self.pending() > 0

    def _meta(self) -> dict[str, Any]:
        """The facts that are in every snapshot."""
        return {
            "arrived": self.arrived,
            "table": self.table.version,
            "widest": self.wide.widest,
            "widest_row": self._widest_row,
        }

    def _announced(self, rows: SizedRows) -> None:
        self._stream_row_bytes = rows.batch.nbytes / rows.batch.num_rows
        self._widest_row = max(self._widest_row, rows.widest)

    def _beside_bytes(self, side: int) -> int:
        return 2 * INDEX_BYTES_PER_ROW

    def _slices(self, rows: SizedRows) -> Iterator[pa.RecordBatch]:
        most_bytes, start = int(self.working_bytes * SLICE_SHARE), 0
        while start < rows.batch.num_rows:
            stop = rows.stop(start, most_bytes)
            stop = min(stop, start + self._slice_rows())  # which the slices before may change
            yield rows.batch.slice(start, stop - start)
            start = stop

    def _slice_rows(self) -> int:
        """The number of rows that are taken in at a time, if there is room for so many."""
        return sys.maxsize

    def _arrive(self, side: int, rows: pa.RecordBatch) -> Results:
        codes, valid = self.spec.encode(STREAM, rows)
        number = np.arange(self.arrived, self.arrived + rows.num_rows)
        self.arrived += rows.num_rows
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

    def _past(self, cache: Cache, run: Run) -> Generator[pa.RecordBatch, None, Run]:
        """Settle the rows whose value is cached; returns the others."""
        missed = np.ones(len(run), dtype=np.bool_)
        chosen, low, high = cache.lookup(run.codes)
        missed[chosen] = False
        self.ctx.counters.rows_cached += len(chosen)
        yield from self._settle(run.rows, chosen, low, high, cache)
        if not len(chosen):
            return run
        return Run(run.codes[missed], run.ats[missed], run.rows.filter(pa.array(missed)))

    def _hold(self, run: Run) -> Results:
        """Reserve memory for rows that will wait; works off others until there is room."""
        return self._grow(self._window, self._waiting_bytes(run), "rows")

    def _waiting_bytes(self, run: Run) -> int:
        """The bytes of rows while they wait, with what is kept for each."""
        raise NotImplementedError(f"no row waits in {self.name!r}")


def release_bytes_of(partition_bytes: int | None) -> int:
    """The bytes of mapped table rows that may be resident with this share of the budget."""
    return max(RELEASE_BYTES, _SPLIT.working_bytes(partition_bytes) // 4)


def check_budget(partition_bytes: int | None, table: StagedTable) -> None:
    """Refuse a share of the budget that this table's pages and their index do not fit."""
    pages = 8 * table.page_rows * (CODE_BYTES + INDEX_BYTES_PER_ROW)
    least = max(MIN_BUDGET_BYTES, pages) + table.nbytes
    require_share(partition_bytes, least, "this table's pages and their index need")


def first_number(runs: Iterable[tuple[Run, int]]) -> int | None:
    """The least number of the rows of some runs, each from its place on; None if there are none."""
    return min((int(numbers_of(run)[start:].min()) for run, start in runs), default=None)


def kept(run: Run, side: int, store: BlockStore) -> np.void:
    """The block of a run, which is written when it is first asked for."""
    if run.block is None:
        run.block = store.append(run, side, RESIDENT)
    return run.block
