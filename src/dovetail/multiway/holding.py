"""The rows of a multi-way join, in memory and in blocks on disk, and flushes between the two.

What is held in memory is reserved before: rows and their indexes, the input batch, the catalogue of
blocks. If a reservation is refused, the algorithm makes room (`_make_room`) until it is granted.
"""

from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np

from dovetail.kernel.blocks import LOGGED, NEVER
from dovetail.kernel.catalogue import Pages, fan_out_for
from dovetail.kernel.memory import Budget, MemorySplit, require_share
from dovetail.kernel.protocol import Context, Snapshot
from dovetail.kernel.room import Room
from dovetail.kernel.runs import Run
from dovetail.kernel.shell import Reclaiming, Results, SpillingShell
from dovetail.kernel.slices import WideRows, cuts
from dovetail.multiway.blockjoins import MinerOptions
from dovetail.multiway.cells import Cell
from dovetail.multiway.keyindex import Slots
from dovetail.multiway.rows import Encoder, RelationRows
from dovetail.multiway.spec import MultiWaySpec

WORKING_SHARE = 1 / 8  #: set aside at the start
BLOCK_SHARE = 3 / 16  #: what joining blocks takes at the least; rows in memory make room for it
MIN_BYTES_PER_INPUT = 32 << 10
_UNBOUNDED_BLOCK_BYTES = 32 << 20


def _wide_needs(widest: Sequence[int]) -> int:
    """A result, and a block that is read."""
    return sum(widest) + max(widest)


def _room_for_blocks(partition_bytes: int, widest: Sequence[int]) -> int:
    """The least memory for joining blocks: a row of each input, if rows are wide."""
    return max(int(partition_bytes * BLOCK_SHARE), sum(widest))


class MemoryAndDisk(SpillingShell):
    """Tables in memory, cells on disk, and the budget."""

    split: ClassVar[MemorySplit] = MemorySplit(
        WORKING_SHARE, frozenset({"rows", "outer"}), _wide_needs, beside=_room_for_blocks
    )

    def __init__(
        self,
        spec: MultiWaySpec,
        context: Context,
        options: MinerOptions,
        snapshot: Snapshot | None,
    ) -> None:
        total = context.budget.total_bytes
        inputs = len(spec)
        require_share(total, MIN_BYTES_PER_INPUT * inputs, f"a join of {inputs} inputs needs")
        super().__init__(context, inputs)
        self.spec = spec
        self.options = options
        wide = self.wide  # not the join itself: a cycle would keep its memory
        #: the memory for joining blocks
        self.room = Room(context.budget, least=lambda: _block_room(context.budget, wide))
        # one of each relation fits
        self._most_block_bytes = 2 * self.room.least_bytes // (3 * (len(spec) + 1))
        self.block_bytes = self._choose_block_bytes(options.block_bytes, self._most_block_bytes)
        if options.block_bytes is not None:  # as asked for, whatever that costs
            self._most_block_bytes = self.block_bytes
        self._group_bytes = self.working_bytes // 2
        self._encoders = [Encoder(spec, number) for number in range(len(spec))]
        merge_bytes = (1 << 62) if total is None else self._group_bytes
        self.tables = [RelationRows(encoder, merge_bytes) for encoder in self._encoders]
        attributes = [len(encoder) for encoder in self._encoders]
        cells = self._cell_count(snapshot)
        fan_out = (
            fan_out_for(total, cells * sum(attributes))
            if snapshot is None
            else int(snapshot.meta["page_entries"])
        )
        self.pages = Pages(context.store, fan_out)
        self.cells = [Cell.empty(number, attributes, self.pages) for number in range(cells)]
        self._flushed = False  # since the last row came

    def _cell_count(self, snapshot: Snapshot | None) -> int:
        """The number of cells of the join."""
        return 1

    def _removed(self, relation: int) -> None:
        """Rows of a relation have left memory."""

    # -- memory -----------------------------------------------------------------------------

    def _held_bytes(self) -> int:
        return sum(table.nbytes for table in self.tables)

    def _catalogue_bytes(self) -> int:
        return self.pages.nbytes + sum(cell.nbytes for cell in self.cells)

    def lend(self) -> bool:
        """In Cleanup, what is still in memory has nothing left to meet, but for copies."""
        return self._drop_copies() if all(self.ended) else self._make_room()

    def _drop_copies(self) -> bool:
        """Let the rows go that are on disk as well, of the relation that has most of them."""
        table = max(self.tables, key=lambda table: int(table.copied.sum()))
        slots = np.flatnonzero(table.copied)
        if not len(slots):
            return False
        relation = self.tables.index(table)
        dts = self.ctx.clock.tick()
        for cell in self.cells:
            cell.relations[relation].drop_copies(dts)
        table.remove(slots)
        self._left(relation)
        return True

    def _rows_of(self, relation: int, nbytes: int) -> int:
        """About how many rows of a relation take up so many bytes."""
        table = self.tables[relation]
        return max(1, nbytes * len(table) // max(1, table.nbytes))

    def _rows_to_flush(self, relation: int, wanted: int) -> int:
        """The rows of a block, and more of them where an arrival needs more room."""
        most = self._group_bytes if self.options.block_bytes is None else self.block_bytes
        return self._rows_of(relation, self._bytes_to_flush(self.block_bytes, most, wanted))

    # -- flushing ---------------------------------------------------------------------------

    def _flush(
        self, cell: Cell, relation: int, slots: Slots, attribute: int = 0, *, keep: bool = False
    ) -> None:
        """Write rows of one cell, in the order given, which is that of an attribute.

        They leave memory, or stay as copies that can go without being written.
        """
        table = self.tables[relation]
        dts = NEVER if keep else self.ctx.clock.tick()
        for some in self._in_blocks(relation, slots):
            codes = [by_slot.take(some) for by_slot in table.codes]
            run = Run(codes[attribute], table.ats.take(some), table.payload.gather(some))
            entry = self.ctx.store.append(run, relation, LOGGED, dts=dts)
            cell.relations[relation].append(entry, [(int(c.min()), int(c.max())) for c in codes])
            self.ctx.counters.flushed_bytes += int(entry["length"])
        self.ctx.counters.flushed_rows += len(slots)
        if keep:
            table.copied[slots] = True
        else:
            table.remove(slots)
            self._left(relation)
        self.settle_catalogue()

    def _in_blocks(self, relation: int, slots: Slots) -> Iterator[Slots]:
        """Rows in parts of which each makes up a block."""
        sizes = self.tables[relation].payload.sizes
        if sizes is not None:
            for start, stop, _ in cuts(sizes.take(slots), self._most_block_bytes):
                yield slots[start:stop]
            return
        step = self._rows_of(relation, self._most_block_bytes)
        for start in range(0, len(slots), step):
            yield slots[start : start + step]

    def _left(self, relation: int) -> None:
        """Rows of a relation are in memory no more."""
        self.release_rows()
        self._flushed = True
        self._removed(relation)

    def _account(self) -> Results:
        """Reserve what the catalogue takes up; a block of few bytes may need more than it gave."""
        what = "the catalogue of blocks"
        return self._adjust(self._catalogue, self._catalogue_bytes, what, self._compact)

    def _compact(self, wanted: int) -> Reclaiming:
        """Let go of what rows in memory hold of others that have left, or else of rows."""
        made = any(table.payload.compact() for table in self.tables)
        if not made:
            made = yield from self._reclaim(wanted)
        self.release_rows()
        return made


def _block_room(budget: Budget, wide: WideRows) -> int:
    """The least memory for joining blocks."""
    if budget.total_bytes is None:
        return _UNBOUNDED_BLOCK_BYTES
    return _room_for_blocks(budget.total_bytes, wide.widest)
