"""What every multi-way join has: the split of its budget, arrival, flushing, Cleanup, and state.

Arrival. A pushed batch is cut into slices that fit the working memory, by what each row takes up
(see `kernel.slices`). A slice is encoded, freed of rows that can match nothing, made room for,
combined with the rows in memory of all other relations in the order of their selectivity
(`probing`), and inserted into every index of its own. Making room is the algorithm's own
(`_make_room`).

Deferred work. While the inputs are silent, blocks are joined with blocks (`blockjoins`); this is
left after any block. When all inputs have ended, rows in memory that may be part of a result still
to come are written as blocks, and all blocks are joined. That each combination comes once is shown
in `cells`.

Memory (`holding`). Of the budget, `WORKING_SHARE` is set aside at the start for transient needs:
slices, combinations, output batches, batches that are put together. The rest holds rows, their
indexes, the input batch (half of it at most), the block catalogue, and what working memory lacks
for very wide rows. While blocks are joined, some of it holds these:
`BLOCK_SHARE` at the least, for which rows are flushed if need be, as the paper does (Algorithm 4,
line 13). So memory that only deferred work needs is not kept from the rows that arrive.
"""

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dovetail.kernel.keys import Codes
from dovetail.kernel.memory import Reservation
from dovetail.kernel.protocol import Context, Snapshot, Status
from dovetail.kernel.slices import SizedRows
from dovetail.multiway import state
from dovetail.multiway.blockjoins import BlockJoins, MinerOptions, Room
from dovetail.multiway.cells import Cell, newest_ticks
from dovetail.multiway.combining import Combinations, Combiner, PairCounter, bytes_each
from dovetail.multiway.holding import MIN_BYTES_PER_INPUT, Holding
from dovetail.multiway.output import Emitter
from dovetail.multiway.payload import Chunk, Payload
from dovetail.multiway.probing import ProbeOrder
from dovetail.multiway.rows import Arriving, JoinRows
from dovetail.multiway.spec import MultiWaySpec

_MOST_COMBINATIONS = 1 << 16


class MultiWayJoin(Holding):
    """The arriving phase, the work on disk, and snapshots."""

    name: ClassVar[str]
    default_options: ClassVar[MinerOptions] = MinerOptions()

    def __init__(
        self,
        spec: MultiWaySpec,
        context: Context,
        snapshot: Snapshot | None = None,
        options: MinerOptions | None = None,
    ) -> None:
        super().__init__(spec, context, options or self.default_options, snapshot)
        self._slice_bytes = self.working_bytes // 8
        if self.options.block_bytes is not None:  # as asked for, whatever that costs
            self._slice_bytes = min(self._slice_bytes, self.block_bytes)
        limit = min(self.working_bytes // 2 // bytes_each(len(spec)), _MOST_COMBINATIONS)
        self._combiner = Combiner(spec, max(16, limit))
        self._emitter = Emitter(spec.output, self.working_bytes // 8)
        self.order = ProbeOrder(spec)
        # not itself: a cycle would keep the memory of a join that is not used any more
        owner = weakref.proxy(self)
        room = Room(
            context, lambda: owner.block_room_bytes,
            lambda held, nbytes, what: owner._grow(held, nbytes, what),  # noqa: PLW0108
            lambda: owner._make_room_for_blocks(),  # noqa: PLW0108  a bound method is a cycle again
        )  # fmt: skip
        self.joins = BlockJoins(
            context, spec, self._encoders, (self._combiner, self._emitter), room, self.options
        )
        self._on_pairs: PairCounter | None = None  # on arrival
        #: How many rows wait in the input buffer, if the owner can tell.
        self.waiting: Callable[[], int] = lambda: 0
        self._status = Status.IDLE
        if snapshot is not None:
            self.wide.restore(snapshot.meta["widest"])
            self._restore(snapshot)

    # -- the protocol -----------------------------------------------------------------------

    def push(self, side: int, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Take a batch in, and emit what it completes at once. Re-opens a finished input."""
        self.joins.put_down()  # the rows that come need the memory
        self.ended[side] = False
        if not batch.num_rows:
            return
        rows = SizedRows(batch, 2 * self._encoders[side].index_bytes_per_row)
        if lacking := self.wide.lacking(side, rows):
            self._grow(self.wide.held, lacking, "what wide rows need")
        self._count_in(side, batch.num_rows)
        incoming = Reservation(self.ctx.budget, "input")
        self._grow(incoming, self.wide.counted_input(batch.nbytes), "an input batch")
        try:
            for piece in rows.slices(self._slice_bytes):
                for out in self._arrive(side, piece):
                    self.ctx.counters.emit("arriving", out.num_rows)
                    yield out
        finally:
            incoming.resize(0)

    def finish(self, side: int) -> None:
        """That input has ended, as far as is known."""
        self.ended[side] = True
        self._status = Status.MORE if self.pending() else self._resting()

    def status(self) -> Status:
        return self._status

    def poll(self, fuel: int) -> Iterator[pa.RecordBatch]:
        """Do deferred work until about `fuel` rows have been read or emitted.

        If the join is new or comes from a snapshot, also until something of it lasts.
        """
        for phase, work in self._deferred():
            counters = self.ctx.counters
            before = counters.bytes_read + counters.flushed_bytes
            for out in work:
                fuel -= out.num_rows
                counters.emit(phase, out.num_rows)
                yield out
            # reading a row costs too
            fuel -= 1 + (counters.bytes_read + counters.flushed_bytes - before) // 64
            if (fuel <= 0 and self.joins.lasting) or (
                self.waiting() > self.options.max_new_arrivals
            ):
                self._status = Status.MORE
                return
        self.joins.put_down()
        self._status = self._resting()
        if self._status is Status.DONE:
            for cell in self.cells:
                cell.forget_departures()
            self._account()

    def pending(self) -> int:
        """About how many rows have yet to be read; 0 exactly when there is nothing to do."""
        rows = sum(int(np.count_nonzero(marked)) for _, _, marked in self._to_set_down())
        return rows + sum(cell.unmet_rows(self.joins.boxes(cell)) for cell in self.cells)

    def snapshot(self) -> Snapshot:
        return state.snapshot(self)

    def count_only(self) -> None:
        """See `Emitter.count_only`."""
        self._emitter.count_only()

    def check(self) -> None:
        """Assert the invariants."""
        for table in self.tables:
            table.check()
        for cell in self.cells:
            cell.check()
        assert self._held_bytes() <= self._rows_held.nbytes
        assert self._catalogue_bytes() <= self._catalogue.nbytes
        total = self.ctx.budget.total_bytes
        assert total is None or self.ctx.budget.used_bytes <= total

    # -- for the algorithms -----------------------------------------------------------------

    def _cell_of(self, codes: Codes) -> NDArray[np.int64] | None:
        """The cell of each row, by the codes of its first attribute; None if there is one."""
        return None

    def _began_anew(self) -> None:
        """The first row since a flush has come."""

    def _combined(self, sources: Sequence[JoinRows], found: Combinations) -> None:
        """Combinations came about on arrival."""

    def _inserted(self, side: int, codes: list[Codes]) -> None:
        """Rows with these codes of each attribute are in memory now."""

    def _facts(self) -> dict[str, Any]:
        """What the algorithm itself has to keep."""
        return {}

    def _restore_facts(self, facts: dict[str, Any]) -> None:
        """The same, once the rows are back."""

    # -- arriving ---------------------------------------------------------------------------

    def _count_in(self, side: int, rows: int) -> None:
        counted = self.ctx.counters.rows_in
        counted += [0] * (len(self.spec) - len(counted))
        counted[side] += rows

    def _arrive(self, side: int, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        codes, valid = self._encoders[side].encode(rows)
        if valid is not None and not valid.all():
            self.ctx.counters.rows_unmatched_key += int((~valid).sum())
            if not valid.any():
                return
            codes, rows = [some[valid] for some in codes], rows.filter(pa.array(valid))
        order = np.argsort(codes[0], kind="stable")
        codes, rows = [some.take(order) for some in codes], rows.take(pa.array(order))
        index_bytes = self._encoders[side].arriving_bytes(len(order))
        self._grow(self._rows_held, rows.nbytes + index_bytes, "rows")
        ats = np.full(len(order), self.ctx.clock.tick())  # after the flushes that made room
        arriving = Arriving(codes, Payload([Chunk(rows)]))
        yield from self._meet(side, arriving)
        self.tables[side].insert(codes, ats, rows, arriving.bits)
        self._inserted(side, codes)
        self._settle()

    def _meet(self, side: int, arriving: Arriving) -> Iterator[pa.RecordBatch]:
        """Emit what the arriving rows complete."""
        sources: list[JoinRows] = list(self.tables)
        sources[side] = arriving
        rows = [len(source) for source in self.tables]
        if self._flushed:
            self.order.flushed(rows)
            self._began_anew()
            self._flushed = False
        self._combiner.take_found()
        self._combiner.on_pairs = self._on_pairs
        for found in self._combiner.combine(sources, side, self.order.plan(side, rows)):
            self._combined(sources, found)
            yield from self._emitter.add(sources, found)
        yield from self._emitter.drain()
        self._combiner.on_pairs = None  # blocks that are joined do not count
        self.order.found(self._combiner.take_found())

    # -- deferred work ----------------------------------------------------------------------

    def _deferred(self) -> Iterator[tuple[str, Iterator[pa.RecordBatch]]]:
        """What there is to do, in order; each piece is to be done before the next is asked for."""
        cleaning = all(self.ended)
        phase = "cleanup" if cleaning else "reactive"
        while cleaning and (waiting := next(self._to_set_down(), None)) is not None:
            self._set_down(*waiting)
            yield phase, iter(())
        while self.joins.begin(self.cells, cleaning=cleaning):
            yield phase, self.joins.step()

    def _to_set_down(self) -> Iterator[tuple[Cell, int, NDArray[np.bool_]]]:
        """Marks on rows in memory that may be part of results to come, if they were written."""
        fresh = [~table.copied for table in self.tables]
        cells = [self._cell_of(table.codes[0]) for table in self.tables]
        for cell in self.cells:
            inside = [
                marked if numbers is None else marked & (numbers == cell.number)
                for marked, numbers in zip(fresh, cells, strict=True)
            ]
            newest = newest_ticks(self.tables, inside)
            for relation, marked in enumerate(inside):
                if cell.has_unmet(relation, newest):
                    yield cell, relation, marked

    def _set_down(self, cell: Cell, relation: int, marked: NDArray[np.bool_]) -> None:
        """Write some of these rows, in the order of their first attribute."""
        some = np.flatnonzero(marked)[: self._rows_of(relation, self._group_bytes)]
        order = np.argsort(self.tables[relation].codes[0].take(some), kind="stable")
        self._flush(cell, relation, some[order], keep=self.options.keep_copies)
        self.joins.lasting = True

    def _resting(self) -> Status:
        return Status.DONE if all(self.ended) else Status.IDLE

    # -- state ------------------------------------------------------------------------------

    def _restore(self, snapshot: Snapshot) -> None:
        state.restore(self, snapshot)


__all__ = ["MIN_BYTES_PER_INPUT", "MultiWayJoin"]
