"""The rows that a multi-way join holds, in memory and in blocks, and how they go to disk.

What is held in memory is reserved before: rows and their indexes, the input batch, the catalogue of
blocks. If a reservation is refused, the algorithm makes room (`_make_room`) until it is granted.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import numpy as np

from dovetail.errors import MemoryBudgetError
from dovetail.kernel.blocks import LOGGED, NEVER
from dovetail.kernel.catalogue import Pages, fan_out_for
from dovetail.kernel.memory import Reservation, format_at_least, format_bytes
from dovetail.kernel.protocol import Context, Snapshot
from dovetail.kernel.runs import Run
from dovetail.kernel.slices import WideRows, cuts
from dovetail.multiway.blockjoins import MinerOptions
from dovetail.multiway.cells import Cell
from dovetail.multiway.keyindex import Slots
from dovetail.multiway.rows import Encoder, Table
from dovetail.multiway.spec import MultiWaySpec

WORKING_SHARE = 1 / 8  #: set aside at the start
BLOCK_SHARE = 3 / 16  #: what joining blocks takes at the least; rows in memory make room for it
MIN_BYTES_PER_INPUT = 32 << 10
_UNBOUNDED_WORKING_BYTES = 64 << 20
_UNBOUNDED_BLOCK_BYTES = 32 << 20
_PAPER_BLOCK_BYTES = 10 << 10
_MOVABLE = frozenset({"rows", "outer"})  # what can be given up for rows that come
_BLOCKS_IN_BUDGET = 200  # as in the paper: 10 KB of 10,000 rows of 200 bytes


class Holding(ABC):
    """Tables in memory, cells on disk, and the budget."""

    def __init__(
        self,
        spec: MultiWaySpec,
        context: Context,
        options: MinerOptions,
        snapshot: Snapshot | None,
    ) -> None:
        self.spec = spec
        self.ctx = context
        self.options = options
        self.working_bytes = _working_bytes(spec, context)
        context.budget.reserve("working", self.working_bytes)
        total = context.budget.total_bytes
        self.wide = WideRows(
            context.budget, len(spec), _wide_needs, _working_share, _room_for_blocks, _MOVABLE
        )
        # one of each relation fits
        self._most_block_bytes = 2 * self.block_room_bytes // (3 * (len(spec) + 1))
        self.block_bytes = self._choose_block_bytes()
        if options.block_bytes is not None:  # as asked for, whatever that costs
            self._most_block_bytes = self.block_bytes
        self._group_bytes = self.working_bytes // 2
        self._encoders = [Encoder(spec, number) for number in range(len(spec))]
        merge_bytes = (1 << 62) if total is None else self._group_bytes
        self.tables = [Table(encoder, merge_bytes) for encoder in self._encoders]
        attributes = [len(encoder) for encoder in self._encoders]
        cells = self._cell_count(snapshot)
        fan_out = (
            fan_out_for(total, cells * sum(attributes))
            if snapshot is None
            else int(snapshot.meta["page_entries"])
        )
        self.pages = Pages(context.store, fan_out)
        self.cells = [Cell.empty(number, attributes, self.pages) for number in range(cells)]
        self._rows_held = Reservation(context.budget, "rows")
        self._catalogue = Reservation(context.budget, "catalogue")
        self.ended = [False] * len(spec)
        self._flushed = False  # since the last row came
        self._wanted_bytes = 0  # that room is being made for

    @property
    def block_room_bytes(self) -> int:
        """What joining blocks takes at the least."""
        total = self.ctx.budget.total_bytes
        if total is None:
            return _UNBOUNDED_BLOCK_BYTES
        return _room_for_blocks(total, self.wide.widest)

    def _choose_block_bytes(self) -> int:
        total, most = self.ctx.budget.total_bytes, self._most_block_bytes
        if self.options.block_bytes is not None:
            return max(1, min(self.options.block_bytes, most))
        if total is None:
            return most
        return min(max(_PAPER_BLOCK_BYTES, total // _BLOCKS_IN_BUDGET), most)

    @abstractmethod
    def _make_room(self) -> bool:
        """Give up some of the rows in memory; False when there are none to give up."""

    def _cell_count(self, snapshot: Snapshot | None) -> int:
        """How many parts the join falls into."""
        return 1

    def _removed(self, relation: int) -> None:  # noqa: B027
        """Rows of a relation have left memory."""

    # -- memory -----------------------------------------------------------------------------

    def _held_bytes(self) -> int:
        return sum(table.nbytes for table in self.tables)

    def _catalogue_bytes(self) -> int:
        return self.pages.nbytes + sum(cell.nbytes for cell in self.cells)

    def _settle(self) -> None:
        """Bring the reservation in line with what is held: merging changes sizes a little."""
        while (excess := self._held_bytes() - self._rows_held.nbytes) > 0:
            if self._rows_held.try_grow(excess):
                return
            if not self._make_room():
                self._refuse(excess, "rows")
        self._rows_held.shrink(-excess)

    def _grow(self, reservation: Reservation, nbytes: int, what: str) -> None:
        self._wanted_bytes = nbytes
        while not reservation.try_grow(nbytes):
            if not self._make_room():
                self._refuse(nbytes, what)
        self._wanted_bytes = 0

    def _refuse(self, nbytes: int, what: str) -> None:
        budget = self.ctx.budget
        least = int((budget.used_bytes + nbytes) / (1 - WORKING_SHARE)) + 1
        raise MemoryBudgetError(
            f"{what} of {format_bytes(nbytes)} does not fit: this partition's share of the budget "
            f"is {format_bytes(budget.total_bytes or 0)}, of which "
            f"{format_bytes(self.working_bytes)} are working memory. A share of "
            f"{format_at_least(least)} would do. Raise memory= or lower partitions=."
        )

    def _make_room_for_blocks(self) -> bool:
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

    def _rows_to_flush(self, relation: int) -> int:
        """The rows of a block, and more of them where an arrival needs more room.

        Several flushes before the next arrival would all be decided on the same counters, and each
        costs as much as there are rows in memory. `MinerOptions.block_bytes` fixes the size.
        """
        nbytes, total = self.block_bytes, self.ctx.budget.total_bytes
        if total is not None and self.options.block_bytes is None:
            unsettled = max(0, self._held_bytes() - self._rows_held.nbytes)
            lacking = self.ctx.budget.used_bytes + self._wanted_bytes + unsettled - total
            if lacking > nbytes:
                nbytes = max(nbytes, min(lacking + nbytes // 2, self._group_bytes))
        return self._rows_of(relation, nbytes)

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
        self._account()

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
        self._rows_held.shrink(max(0, self._rows_held.nbytes - self._held_bytes()))
        self._flushed = True
        self._removed(relation)

    def _account(self) -> None:
        """Reserve what the catalogue takes up; a block of few bytes may need more than it gave."""
        while (excess := self._catalogue_bytes() - self._catalogue.nbytes) > 0:
            if self._catalogue.try_grow(excess):
                return
            compacted = any(table.payload.compact() for table in self.tables)
            if not compacted and not self._make_room():
                self._refuse(excess, "the catalogue of blocks")
            self._rows_held.shrink(max(0, self._rows_held.nbytes - self._held_bytes()))
        self._catalogue.shrink(-excess)


def _working_share(partition_bytes: int) -> int:
    return int(partition_bytes * WORKING_SHARE)


def _wide_needs(widest: Sequence[int]) -> int:
    """A result, and a block that is read."""
    return sum(widest) + max(widest)


def _room_for_blocks(partition_bytes: int, widest: Sequence[int]) -> int:
    """What joining blocks takes at the least: of each input one, if rows are wide."""
    return max(int(partition_bytes * BLOCK_SHARE), sum(widest))


def _working_bytes(spec: MultiWaySpec, context: Context) -> int:
    total = context.budget.total_bytes
    if total is None:
        return _UNBOUNDED_WORKING_BYTES
    least = MIN_BYTES_PER_INPUT * len(spec)
    if total < least:
        raise MemoryBudgetError(
            f"a partition's share of the budget is {format_bytes(total)}, but a join of "
            f"{len(spec)} inputs needs at least {format_bytes(least)} a partition: raise memory= "
            "or lower partitions="
        )
    return _working_share(total)
