"""INL: index nested loops over the staged table, the classical rival.

Source: section 5.1 of the MESHJOIN paper: each stream row probes a clustered index, behind a buffer
pool of the same memory. Here the index is the fences of the leaves (see `leaves`), about 8 KB of
rows each, and the pool holds leaves, the least recently used of which goes first. Rows that come
together and need the same leaf share the read, which the paper's row-at-a-time loop gets from its
pool. Leaves that are in the pool have their turn first, and none that a batch has used goes for
another of the same batch: rows come sorted, so a pool smaller than what a batch needs would else
forget every leaf just before it is needed again.

Leaves that are missing are read some hundreds at a time, and the rows that need them settled
together; what is read is counted leaf by leaf all the same. A row whose key is at the border of a
leaf or on many finds its place in the first and the last of them, and its matches in the table.

Worked example. Rows with codes 3, 500 and 4, leaves of 100 codes: leaf 0 is read and settles 3 and
4, leaf 5 is read and settles 500. The next batch finds both leaves in the pool.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from dovetail.kernel.blocks import BLOCK
from dovetail.kernel.memory import give_back_freed
from dovetail.kernel.probing import Rows
from dovetail.kernel.protocol import Context, Snapshot
from dovetail.kernel.runs import Run
from dovetail.semistream.base import SemiStreamJoin
from dovetail.semistream.inl.leaves import Leaves, Lot
from dovetail.semistream.inl.pool import Pool
from dovetail.semistream.spec import SemiStreamSpec
from dovetail.semistream.table.reading import StagedTable

INDEX_SHARE = 1 / 16  #: of the budget, that the fences of leaves may take
_UNBOUNDED_POOL_BYTES = 1 << 30


def leaves_at_once(working_bytes: float, leaf_bytes: int) -> int:
    """How many leaves rows are settled from together: they, and a copy, are in working memory."""
    return max(1, int(working_bytes / 8 // max(1, leaf_bytes)))


@dataclass(frozen=True)
class _Sought:
    """Rows in code order, and where their matches are as far as it is known: `[low, high)`."""

    run: Run
    first: Rows  #: the first leaf of each row
    last: Rows
    low: Rows
    high: Rows


class IndexNestedLoops(SemiStreamJoin):
    """Equality joins; every row is settled as it comes, so nothing is ever deferred."""

    name: ClassVar[str] = "inl"

    def __init__(
        self,
        spec: SemiStreamSpec,
        context: Context,
        table: StagedTable,
        snapshot: Snapshot | None = None,
        *,
        index_bytes: int | None = None,
    ) -> None:
        """`index_bytes`: what the index may take, if not its share."""
        super().__init__(spec, context, table, snapshot)
        total = context.budget.total_bytes
        if total is not None and index_bytes is None:
            index_bytes = int(total * INDEX_SHARE)
        self._leaves = Leaves(table, index_bytes, self.working_bytes // 4)
        context.budget.reserve("leaf index", self._leaves.nbytes)
        rest = None if total is None else total - self._leaves.nbytes
        self._at_once = leaves_at_once(self.working_bytes, self._leaves.leaf_bytes)
        self._pool = Pool(
            context.budget,
            _UNBOUNDED_POOL_BYTES if rest is None else rest // 2,
            self._at_once * self._leaves.leaf_bytes,
        )
        self._read_bytes = 0  # since holes in the heap were given back

    def pending(self) -> int:
        return 0

    def _can_make_room(self) -> bool:
        return len(self._pool) > 0

    def _make_room(self) -> Iterator[pa.RecordBatch]:
        self._pool.forget_oldest()
        return iter(())

    def _work(self) -> Iterator[pa.RecordBatch]:
        return iter(())

    def _take_in(self, run: Run) -> Iterator[pa.RecordBatch]:
        nowhere = np.zeros((2, len(run)), dtype=np.int64)
        sought = _Sought(run, *self._leaves.of(run.codes), *nowhere)
        if not len(self._leaves):
            yield from self._settle_run(run, sought.low, sought.high, self.table)
            return
        self._pool.begin()
        needed = np.unique(np.concatenate([sought.first, sought.last]))
        here = self._pool.use(needed)
        for lot, leaves in self._pool.lots_of(needed[here]):
            yield from self._look_up(sought, lot, leaves)
        missing = needed[~here]
        while len(missing):
            most_bytes = self._at_once * self._leaves.leaf_bytes
            lot = self._read(self._leaves.fitting(missing[: self._at_once], most_bytes))
            yield from self._look_up(sought, lot, lot.leaves)
            missing = missing[len(lot.leaves) :]
        if self.spec.ordered:
            yield from self._settle_run(run, sought.low, sought.high, self.table)
        else:
            rest = np.flatnonzero(sought.first != sought.last)
            yield from self._settle(run.rows, rest, sought.low[rest], sought.high[rest], self.table)

    def _look_up(self, sought: _Sought, lot: Lot, leaves: Rows) -> Iterator[pa.RecordBatch]:
        """Look for the rows that need some leaves of a lot; settles those that need one leaf."""
        codes = sought.run.codes
        rows, moved = self._find(sought.first, lot, leaves)
        sought.low[rows] = np.searchsorted(lot.codes, codes[rows], side="left") + moved
        alone = sought.last[rows] == sought.first[rows]
        chosen, back = rows[alone], moved[alone]
        rows, moved = self._find(sought.last, lot, leaves)
        sought.high[rows] = np.searchsorted(lot.codes, codes[rows], side="right") + moved
        if not self.spec.ordered:
            low, high = sought.low[chosen] - back, sought.high[chosen] - back
            yield from self._settle(sought.run.rows, chosen, low, high, lot)

    def _find(self, needed: Rows, lot: Lot, leaves: Rows) -> tuple[Rows, Rows]:
        """The rows that need one of some leaves, and how much further that one is in the table.

        `needed` has a leaf of each row.
        """
        begin = int(np.searchsorted(needed, leaves[0], side="left"))
        end = int(np.searchsorted(needed, leaves[-1], side="right"))
        at = np.searchsorted(leaves, needed[begin:end])
        rows = np.flatnonzero(leaves[at] == needed[begin:end])
        moved = self._leaves.starts(leaves) - lot.begins(leaves)
        return begin + rows, moved[at[rows]]

    def _read(self, leaves: Rows) -> Lot:
        """Some leaves that are not in the pool, of which those stay there that there is room for.

        Where that is for the first of them only, these are read alone.
        """
        room = self._pool.room_for(len(leaves), self._leaves.leaf_bytes)
        lot = self._leaves.read(leaves[:room] if room else leaves)
        self._give_back(int(lot.sizes.sum()))
        self._pool.add(lot, room, self._leaves.leaf_bytes)
        return lot

    def _give_back(self, nbytes: int) -> None:
        """After so much more was read: leaves are small, and in time the heap is full of holes."""
        self._read_bytes += nbytes
        if self._read_bytes > self._pool.most_bytes // 2:
            self._read_bytes = 0
            give_back_freed()

    def snapshot(self) -> Snapshot:
        return Snapshot(self._meta(), np.zeros(0, dtype=BLOCK))

    def check(self) -> None:
        super().check()
        self._pool.check()
