"""What every join of a stream with a staged table has: the spec, arrival, and emission.

Vocabulary. A *row* is a stream row; a *position* is the place of a table row in the staged table. A
row's candidates are the positions `[low, high)`: the table is sorted by code, so they lie together.
A row is *settled* once it has met the whole table; only then is it known to have no match.

Semantics. `inner` and `left` emit pairs, `left` also rows without a match, with nulls; `semi` emits
the rows with a match and `anti` the rows without, each once. A row whose key can match nothing
(null; NaN in a band join) is settled as it comes.

Conditions. Equality and bands (`within`) come from the codec. A `condition` of any kind is a
function of two batches, pair by pair, and applies to the candidates that the keys leave. With no
key at all every row is a candidate of every other.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dovetail.errors import ArgumentError, MemoryBudgetError
from dovetail.kernel.keys import Codes, KeyCodec
from dovetail.kernel.matching import OutputLayout
from dovetail.kernel.memory import Reservation, format_bytes
from dovetail.kernel.protocol import Context, Snapshot, Status
from dovetail.kernel.runs import INDEX_BYTES_PER_ROW, Rows, Run, Span
from dovetail.semistream.shedding import FrequencyLookup
from dovetail.semistream.table import CODE_BYTES, StagedTable

INNER, LEFT_OUTER, SEMI, ANTI = HOWS = ("inner", "left", "semi", "anti")
STREAM, TABLE = 0, 1  #: the sides
WORKING_SHARE = 1 / 4
MIN_BUDGET_BYTES = 256 << 10
_UNBOUNDED_WORKING_BYTES = 64 << 20
_MOST_PAIRS = 1 << 17

Condition = Callable[[pa.RecordBatch, pa.RecordBatch], NDArray[np.bool_]]


@dataclass(frozen=True)
class SemiStreamSpec:
    """Which table rows belong to a stream row, and what a result looks like."""

    stream: pa.Schema
    table: pa.Schema  #: the staged columns
    stream_keys: tuple[str, ...]
    table_keys: tuple[str, ...]
    how: str = INNER
    within: int | float | None = None
    condition: Condition | None = None
    ordered: bool = False  #: results in the order in which the rows came
    columns: tuple[str, ...] | None = None  #: of the table, to show; None is all

    def __post_init__(self) -> None:
        if self.how not in HOWS:
            raise ArgumentError(f"how={self.how!r} is none of {', '.join(HOWS)}")

    @cached_property
    def schemas(self) -> tuple[pa.Schema, pa.Schema]:
        return self.stream, self.table

    @cached_property
    def key_columns(self) -> tuple[list[int], list[int]]:
        return (
            [self.stream.get_field_index(name) for name in self.stream_keys],
            [self.table.get_field_index(name) for name in self.table_keys],
        )

    @cached_property
    def codec(self) -> KeyCodec:
        types = tuple(self.stream.field(index).type for index in self.key_columns[STREAM])
        return KeyCodec(types, self.within)

    @cached_property
    def exact(self) -> bool:
        """Whether every candidate is a match."""
        if self.condition is not None:
            return False
        floats = any(pa.types.is_floating(type_) for type_ in self.codec.types)
        return self.codec.exact and not (self.within is not None and floats)

    @cached_property
    def layout(self) -> OutputLayout:
        """A key of one name on both sides appears once, with the stream's value."""
        if self.how in (SEMI, ANTI):
            return OutputLayout(self.stream, ())
        shared = {a for a, b in zip(self.stream_keys, self.table_keys, strict=True) if a == b}
        shown = self.table.names if self.columns is None else self.columns
        columns = tuple(
            i for i, name in enumerate(self.table.names) if name in shown and name not in shared
        )
        fields = [self.table.field(index) for index in columns]
        if self.how == LEFT_OUTER:
            fields = [field.with_nullable(True) for field in fields]
        return OutputLayout(pa.schema([*self.stream, *fields]), columns)

    def encode(self, side: int, rows: pa.RecordBatch) -> tuple[Codes, NDArray[np.bool_] | None]:
        """The codes of a batch of one side, and which of its rows can match at all."""
        if not self.stream_keys:
            return np.zeros(rows.num_rows, dtype=np.int64), None
        return self.codec.encode([rows.column(index) for index in self.key_columns[side]])

    def candidates(self, codes: Codes) -> tuple[Codes, Codes]:
        return self.codec.candidates(codes) if self.stream_keys else (codes, codes)


class Source(Protocol):
    """Where table rows are taken from: the staged table or a cache of it."""

    def take(self, positions: Rows, columns: tuple[int, ...] | None = None) -> pa.RecordBatch:
        """The rows at these positions; a negative one is a row of nulls."""


class SemiStreamJoin(ABC):
    """Arrival and emission, shared by every algorithm."""

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
        self.working_bytes = (
            _UNBOUNDED_WORKING_BYTES if total is None else int(total * WORKING_SHARE)
        )
        context.budget.reserve("working", self.working_bytes)
        context.budget.reserve("page index", table.nbytes)
        table.release_bytes = self.working_bytes // 4
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
        self.ctx.counters.rows_in[STREAM] += batch.num_rows
        if not batch.num_rows:
            return
        incoming = Reservation(self.ctx.budget, "input")
        self._stream_row_bytes = batch.nbytes / batch.num_rows
        yield from self.make_room_for(incoming, batch.nbytes, "an input batch")
        try:
            for piece in self._slices(batch):
                for out in self._arrive(piece):
                    yield self._count("arriving", out)
        finally:
            incoming.resize(0)
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
                self._status = Status.MORE
                return
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
        return {"arrived": self._arrived, "table": self.table.version}

    def _count(self, phase: str, out: pa.RecordBatch) -> pa.RecordBatch:
        self.ctx.counters.emit(phase, out.num_rows)
        return out

    def _slices(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        row_bytes = batch.nbytes // batch.num_rows + 2 * INDEX_BYTES_PER_ROW
        step = self._slice_rows(row_bytes)
        for start in range(0, batch.num_rows, step):
            yield batch.slice(start, step)

    def _slice_rows(self, row_bytes: int) -> int:
        """How many rows are taken in at a time."""
        return max(1, self.working_bytes // 4 // row_bytes)

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

    def _hold(self, nbytes: int) -> Iterator[pa.RecordBatch]:
        """Reserve memory for rows that will wait; works off others until there is room."""
        while not self._window.try_grow(nbytes):
            if not self._can_make_room():
                self._refuse(nbytes, "rows")
            yield from self._make_room()

    # -- emission ---------------------------------------------------------------------------

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
        """All that there is to emit for the rows `chosen`, whose candidates are all known.

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
        for row, position in Span(numbers, low, high).pairs(self._most_pairs()):
            row, position = self._verified(rows, chosen, row, position, source)
            matched[row] = True
            last = int(row[-1]) if len(row) else done
            # the last row may go on in the next piece
            settled, done = numbers[done:last], max(done, last)
            yield from self._emit(rows, chosen, row, position, settled[~matched[settled]], source)
            if self.spec.how == SEMI:
                yield from self._stream_rows(rows, chosen[settled[matched[settled]]])
        settled = numbers[done:]
        empty = np.zeros(0, dtype=np.int64)
        yield from self._emit(rows, chosen, empty, empty, settled[~matched[settled]], source)
        if self.spec.how == SEMI:
            yield from self._stream_rows(rows, chosen[settled[matched[settled]]])

    def _meet(
        self, rows: pa.RecordBatch, chosen: Rows, low: Rows, high: Rows, source: Source,
        matched: NDArray[np.bool_],
    ) -> Iterator[pa.RecordBatch]:  # fmt: skip
        """What these candidates add: the rows `chosen` may have more of them elsewhere.

        `matched` says of all of `rows` which have matched so far, and is brought up to date.
        """
        if self.spec.exact and self.spec.how in (SEMI, ANTI):
            fresh = chosen[~matched[chosen]]
            matched[chosen] = True
            if self.spec.how == SEMI:
                yield from self._stream_rows(rows, fresh)
            return
        for row, position in Span(np.arange(len(chosen)), low, high).pairs(self._most_pairs()):
            row, position = self._verified(rows, chosen, row, position, source)
            hit = np.unique(chosen[row])
            fresh = hit[~matched[hit]]
            matched[hit] = True
            none = np.zeros(0, dtype=np.int64)
            yield from self._emit(rows, chosen, row, position, none, source)
            if self.spec.how == SEMI:
                yield from self._stream_rows(rows, fresh)

    def _leave(self, rows: pa.RecordBatch, matched: NDArray[np.bool_]) -> Iterator[pa.RecordBatch]:
        """What is left to emit when rows have met the whole table."""
        if self.spec.how in (LEFT_OUTER, ANTI) and not matched.all():
            yield from self._unmatched(rows, np.flatnonzero(~matched))

    def _unmatched(self, rows: pa.RecordBatch, chosen: Rows) -> Iterator[pa.RecordBatch]:
        if self.spec.how == ANTI:
            yield from self._stream_rows(rows, chosen)
        elif self.spec.how == LEFT_OUTER:
            none = np.zeros(0, dtype=np.int64)
            yield from self._emit(rows, chosen, none, none, np.arange(len(chosen)), self.table)

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
        self, rows: pa.RecordBatch, chosen: Rows, row: Rows, position: Rows, unmatched: Rows,
        source: Source,
    ) -> Iterator[pa.RecordBatch]:  # fmt: skip
        """Pairs, and rows known to have none, merged in the order of `chosen`."""
        how = self.spec.how
        if how == SEMI:
            return
        if how == ANTI:
            yield from self._stream_rows(rows, chosen[unmatched])
            return
        if how == LEFT_OUTER and len(unmatched):
            row = np.concatenate([row, unmatched])
            position = np.concatenate([position, np.full(len(unmatched), -1)])
            order = np.argsort(row, kind="stable")
            row, position = row[order], position[order]
        limit = self._most_pairs()
        for start in range(0, len(row), limit):
            stream = rows.take(pa.array(chosen[row[start : start + limit]]))
            table = source.take(position[start : start + limit], self.spec.layout.right_columns)
            columns = [*stream.columns, *table.columns]
            yield pa.RecordBatch.from_arrays(columns, schema=self.spec.layout.schema)

    def _stream_rows(self, rows: pa.RecordBatch, chosen: Rows) -> Iterator[pa.RecordBatch]:
        limit = self._most_pairs()
        for start in range(0, len(chosen), limit):
            yield rows.take(pa.array(chosen[start : start + limit]))

    def _most_pairs(self) -> int:
        row_bytes = self.table.row_bytes + self._stream_row_bytes + 16
        return max(1, min(int(self.working_bytes // 4 / row_bytes), _MOST_PAIRS))

    #: of the rows that came last: the mean
    _stream_row_bytes: float = 64.0

    def _refuse(self, nbytes: int, what: str) -> None:
        budget = self.ctx.budget
        least = (budget.used_bytes + nbytes) / (1 - WORKING_SHARE)
        raise MemoryBudgetError(
            f"{what} of {format_bytes(nbytes)} does not fit: this partition's share of the budget "
            f"is {format_bytes(budget.total_bytes or 0)}, of which "
            f"{format_bytes(self.working_bytes)} are working memory. A share of "
            f"{_rounded_up(int(least) + 1)} would do. Raise memory=, lower partitions=, or "
            "make the input batches smaller (spark.sql.execution.arrow.maxRecordsPerBatch)."
        )


def _rounded_up(nbytes: int) -> str:
    """A size as people read it that is no less: who asks for just that much has to get by."""
    step = max(1, 1000 ** min(4, (len(str(nbytes)) - 1) // 3) // 10)
    return format_bytes(-(-nbytes // step) * step)


def check_budget(partition_bytes: int | None, table: StagedTable) -> None:
    """Refuse a share of the budget that this table's pages and their index do not fit."""
    pages = 8 * table.page_rows * (CODE_BYTES + INDEX_BYTES_PER_ROW)
    least = max(MIN_BUDGET_BYTES, pages) + table.nbytes
    if partition_bytes is not None and partition_bytes < least:
        raise MemoryBudgetError(
            f"a partition's share of the budget is {format_bytes(partition_bytes)}, but this "
            f"table's pages and their index need at least {_rounded_up(least)} a partition: raise "
            "memory= or lower partitions="
        )


def in_stream_order(run: Run) -> Rows:
    """The rows of a run in the order in which they came."""
    return np.argsort(_numbers(run), kind="stable")


def first_number(runs: Iterable[tuple[Run, int]]) -> int | None:
    """The least number of the rows of some runs, each from its place on; None if there are none."""
    return min((int(_numbers(run)[start:].min()) for run, start in runs), default=None)


def _numbers(run: Run) -> Rows:
    """Of each row, how many came before it; those that can match nothing are marked as such."""
    return np.where(run.ats < 0, ~run.ats, run.ats)
