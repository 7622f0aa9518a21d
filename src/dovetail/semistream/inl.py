"""INL: index nested loops over the staged table, the classical rival.

Source: section 5.1 of the MESHJOIN paper: each stream row probes a clustered index, behind a buffer
pool of the same memory. Here the index is the fences of the leaves (see `leaves`), about 8 KiB of
rows each, and the pool holds leaves, the least recently used of which goes first. Rows that come
together and need the same leaf share the read, which the paper's row-at-a-time loop gets from its
pool; and what a few leaves find is put together into one batch of results. Leaves that are in the
pool have their turn first, and none that a batch has used goes for another of the same batch: rows
come sorted, so a pool smaller than what a batch needs would else forget every leaf just before it
is needed again.

Worked example. Rows with codes 3, 500 and 4, leaves of 100 codes: leaf 0 is read and settles 3 and
4, leaf 5 is read and settles 500. The next batch finds both leaves in the pool.
"""

from collections import OrderedDict
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import pyarrow as pa

from dovetail.kernel.blocks import BLOCK
from dovetail.kernel.memory import Reservation, give_back_freed
from dovetail.kernel.protocol import Context, Snapshot
from dovetail.kernel.runs import Rows, Run
from dovetail.semistream.base import SemiStreamJoin
from dovetail.semistream.leaves import Leaves
from dovetail.semistream.spec import SemiStreamSpec
from dovetail.semistream.table import CODE_BYTES, Page, StagedTable, stretches

INDEX_SHARE = 1 / 16  #: of the budget, that the fences of leaves may take
_UNBOUNDED_POOL_BYTES = 1 << 30
OBJECT_BYTES = 2 << 10  #: of a leaf, besides its buffers


def leaves_at_once(working_bytes: float, leaf_bytes: int) -> int:
    """How many leaves rows are settled from together: they, and a copy, are in working memory."""
    return max(1, int(working_bytes / 8 // max(1, leaf_bytes)))


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
        self._pool: OrderedDict[int, Page] = OrderedDict()
        self._read_bytes = 0  # since holes in the heap were given back
        self._used: set[int] = set()  # of the pool, by the rows at hand: its newest
        self._pooled = Reservation(context.budget, "page pool")
        rest = None if total is None else total - self._leaves.nbytes
        self._most_pooled = _UNBOUNDED_POOL_BYTES if rest is None else rest // 2
        if snapshot is not None:
            self._arrived = snapshot.meta["arrived"]

    def pending(self) -> int:
        return 0

    def _can_make_room(self) -> bool:
        return bool(self._pool)

    def _make_room(self) -> Iterator[pa.RecordBatch]:
        self._forget_oldest()
        return iter(())

    def _work(self) -> Iterator[pa.RecordBatch]:
        return iter(())

    def _take_in(self, run: Run) -> Iterator[pa.RecordBatch]:
        self._used.clear()
        first, stop = self._leaves.of(run.codes)
        if self.spec.ordered or not len(self._leaves):
            low, high = self._spans(run, np.arange(len(run)), first, stop)
            yield from self._settle_run(run, low, high, self.table)
            return
        # rows that one leaf serves; then those whose key is at a border or on many leaves
        single = stop - first == 1
        chosen, rest = np.flatnonzero(single), np.flatnonzero(~single)
        served = [(int(first[chosen[a]]), chosen[a:b]) for a, b in stretches(first[chosen])]
        served.sort(key=lambda one: one[0] not in self._pool)
        at_once = leaves_at_once(self.working_bytes, self._leaves.leaf_bytes)
        for start in range(0, len(served), at_once):
            some = sorted(served[start : start + at_once], key=lambda one: one[0])
            source = _together([self._leaf(leaf) for leaf, _ in some])
            rows = np.concatenate([rows for _, rows in some])
            low = np.searchsorted(source.codes, run.codes[rows], side="left")
            high = np.searchsorted(source.codes, run.codes[rows], side="right")
            yield from self._settle(run.rows, rows, low, high, source)
        low, high = self._spans(run, rest, first, stop)
        yield from self._settle(run.rows, rest, low, high, self.table)

    def _spans(self, run: Run, rows: Rows, first: Rows, stop: Rows) -> tuple[Rows, Rows]:
        """Positions in the table, from the first and last leaf of each row's range."""
        low, high = np.zeros(len(rows), dtype=np.int64), np.zeros(len(rows), dtype=np.int64)
        leaves = self._leaves
        if not len(leaves):
            return low, high
        for start, end in stretches(first[rows] * (len(leaves) + 1) + stop[rows]):
            head, tail = int(first[rows[start]]), int(stop[rows[start]]) - 1
            codes = run.codes[rows[start:end]]
            begin = np.searchsorted(self._leaf(head).codes, codes, side="left")
            finish = np.searchsorted(self._leaf(tail).codes, codes, side="right")
            low[start:end] = begin + leaves.start(head)
            high[start:end] = finish + leaves.start(tail)
        return low, np.maximum(low, high)

    def _leaf(self, number: int) -> Page:
        """A leaf of the pool, read if it is not there yet; kept there if there is room."""
        if number in self._pool:
            self._used.add(number)
            self._pool.move_to_end(number)
            return self._pool[number]
        expected = self._leaves.leaf_bytes + OBJECT_BYTES
        kept = self._try_reserve(expected)
        leaf = self._leaves.read(number)
        self._give_back(leaf.nbytes)
        if kept:
            self._pooled.shrink(expected)
            if self._pooled.try_grow(_held(leaf)):  # unless its rows are wider than most
                self._used.add(number)
                self._pool[number] = leaf
        return leaf

    def _try_reserve(self, nbytes: int) -> bool:
        """Room in the pool, for which leaves go that these rows have not used."""
        while self._pooled.nbytes + nbytes > self._most_pooled or not self._pooled.try_grow(nbytes):
            if len(self._pool) <= len(self._used):
                return False
            self._forget_oldest()
        return True

    def _forget_oldest(self) -> None:
        number, leaf = self._pool.popitem(last=False)
        self._used.discard(number)
        self._pooled.shrink(_held(leaf))

    def _give_back(self, nbytes: int) -> None:
        """After so much more was read: leaves are small, and in time the heap is full of holes."""
        self._read_bytes += nbytes
        if self._read_bytes > self._most_pooled // 2:
            self._read_bytes = 0
            give_back_freed()

    def snapshot(self) -> Snapshot:
        return Snapshot(self._meta(), np.zeros(0, dtype=BLOCK))

    def check(self) -> None:
        super().check()
        assert self._pooled.nbytes == sum(map(_held, self._pool.values()))
        assert self._used <= set(self._pool)
        assert all(len(leaf.codes) * CODE_BYTES <= leaf.nbytes for leaf in self._pool.values())


def _held(leaf: Page) -> int:
    """What a leaf takes in the pool."""
    return leaf.nbytes + OBJECT_BYTES


def _together(leaves: list[Page]) -> Page:
    """Leaves that follow each other, with or without gaps, as one."""
    if len(leaves) == 1:
        return leaves[0]
    codes = np.concatenate([leaf.codes for leaf in leaves])
    rows = pa.concat_batches([leaf.rows for leaf in leaves])
    return Page(codes, rows, sum(leaf.nbytes for leaf in leaves))
