"""The base of multi-way joins: the split of the budget, arrival, flushing, Cleanup, state.

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

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dovetail.kernel.keys import Codes
from dovetail.kernel.protocol import Context, Snapshot, Status
from dovetail.kernel.shell import Pieces, Results
from dovetail.kernel.slices import SizedRows
from dovetail.multiway import state
from dovetail.multiway.blockjoins import BlockJoins, MinerOptions
from dovetail.multiway.cells import Cell, newest_ticks
from dovetail.multiway.combining import Combinations, Combiner, Matches, bytes_each
from dovetail.multiway.holding import MemoryAndDisk
from dovetail.multiway.output import CombinationEmitter
from dovetail.multiway.payload import Chunk, Payload
from dovetail.multiway.probing import ProbeOrder
from dovetail.multiway.rows import Arriving, JoinRows
from dovetail.multiway.spec import MultiWaySpec

_MOST_COMBINATIONS = 1 << 16


class MultiWayJoin(MemoryAndDisk):
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
        if self.options.block_bytes is not None:  # as asked for, whatever that costs
            self._slice_bytes = min(self._slice_bytes, self.block_bytes)
        limit = min(self.working_bytes // 2 // bytes_each(len(spec)), _MOST_COMBINATIONS)
        self._combiner = Combiner(spec, max(16, limit))
        self._emitter = CombinationEmitter(spec.output, self.working_bytes // 8)
        self.order = ProbeOrder(spec)
        self.joins = BlockJoins(
            context, spec, self._encoders, (self._combiner, self._emitter), self.room, self.options
        )
        #: How many rows wait in the input buffer, if the owner can tell.
        self.waiting: Callable[[], int] = lambda: 0
        self._build()
        if snapshot is not None:
            self.wide.restore(snapshot.meta["widest"])
            self._restore(snapshot)

    # -- the protocol -----------------------------------------------------------------------

    def poll(self, fuel: int) -> Results:
        """See `Operator`; if the join is new or restored, also until something of it lasts."""
        yield from super().poll(fuel)
        if self._status is Status.DONE:
            for cell in self.cells:
                cell.forget_departures()
            self.settle_catalogue()

    def pending(self) -> int:
        """About how many rows have yet to be read; 0 exactly when there is nothing to do."""
        rows = sum(int(np.count_nonzero(marked)) for _, _, marked in self._to_set_down())
        return rows + sum(cell.unmet_rows(self.joins.boxes(cell)) for cell in self.cells)

    def snapshot(self) -> Snapshot:
        return state.snapshot(self)

    def check(self) -> None:
        super().check()
        for table in self.tables:
            table.check()
        for cell in self.cells:
            cell.check()

    # -- for the algorithms -----------------------------------------------------------------

    def _build(self) -> None:
        """Build the algorithm's own structures, empty."""

    def _beside_bytes(self, side: int) -> int:
        return 2 * self._encoders[side].index_bytes_per_row

    def _slices(self, rows: SizedRows) -> Iterator[pa.RecordBatch]:
        return rows.slices(self._slice_bytes)

    def _cell_of(self, codes: Codes) -> NDArray[np.int64] | None:
        """The cell of each row, by the codes of its first attribute; None if there is one."""
        return None

    def _began_anew(self) -> None:
        """The first row since a flush has come."""

    def _new_matches(self) -> Matches:
        """What counts the pairs that match when some rows arrive."""
        return Matches(len(self.spec.edges))

    def _combined(self, sources: Sequence[JoinRows], found: Combinations) -> None:
        """Combinations came about on arrival."""

    def _inserted(self, side: int, codes: list[Codes]) -> None:
        """Rows with these codes of each attribute are in memory now."""

    def _facts(self) -> dict[str, Any]:
        """The algorithm's own facts for a snapshot."""
        return {}

    def _restore_facts(self, facts: dict[str, Any]) -> None:
        """Restore the algorithm's own facts, once the rows are back."""

    # -- arriving ---------------------------------------------------------------------------

    def _arrive(self, side: int, rows: pa.RecordBatch) -> Results:
        codes, valid = self._encoders[side].encode(rows)
        if valid is not None and not valid.all():
            self.ctx.counters.rows_unmatched_key += int((~valid).sum())
            if not valid.any():
                return
            codes, rows = [some[valid] for some in codes], rows.filter(pa.array(valid))
        order = np.argsort(codes[0], kind="stable")
        codes, rows = [some.take(order) for some in codes], rows.take(pa.array(order))
        index_bytes = self._encoders[side].arriving_bytes(len(order))
        yield from self._grow(self._rows_held, rows.nbytes + index_bytes, "rows")
        ats = np.full(len(order), self.ctx.clock.tick())  # after the flushes that made room
        arriving = Arriving(codes, Payload([Chunk(rows)]))
        yield from self._meet(side, arriving)
        self.tables[side].insert(codes, ats, rows, arriving.bits)
        self._inserted(side, codes)
        yield from self._settle_rows()

    def _meet(self, side: int, arriving: Arriving) -> Results:
        """Emit what the arriving rows complete."""
        sources: list[JoinRows] = list(self.tables)
        sources[side] = arriving
        rows = [len(source) for source in self.tables]
        if self._flushed:
            self.order.flushed(rows)
            self._began_anew()
            self._flushed = False
        matches = self._new_matches()
        for found in self._combiner.combine(sources, side, self.order.plan(side, rows), matches):
            self._combined(sources, found)
            yield from self._emitter.add(sources, found)
        yield from self._emitter.drain()
        self.order.found(matches.by_edge)  # those of blocks do not count

    # -- deferred work ----------------------------------------------------------------------

    def _put_down(self) -> None:
        self.joins.put_down()

    def _stops(self, fuel: int) -> bool:
        waits = self.waiting() > self.options.max_new_arrivals
        return waits or (fuel <= 0 and self.joins.lasting)

    def _deferred(self) -> Pieces:
        cleaning = all(self.ended)
        phase = "cleanup" if cleaning else "reactive"
        while cleaning and (waiting := next(self._to_set_down(), None)) is not None:
            self._set_down(*waiting)
            yield phase, iter(())
        while self.joins.begin(self.cells, self, cleaning=cleaning):
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

    # -- state ------------------------------------------------------------------------------

    def _restore(self, snapshot: Snapshot) -> None:
        state.restore(self, snapshot)
