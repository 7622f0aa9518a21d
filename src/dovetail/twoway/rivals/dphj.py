"""DPHJ, the double pipelined hash join, with symmetric overflow resolution.

Source: Ives, Florescu, Friedman, Levy and Weld, "An Adaptive Query Execution System for Data
Integration" (SIGMOD 1999), as retold in section 2 of the DINER paper and section D of the survey.

First stage. An arriving row is joined with the other side's rows in memory and stored, as in SHJ.
When memory is exhausted, a bucket is flushed, here: a cell, and its rows of both sides at one tick
(the paper's incremental symmetric flush). From then on the bucket has *overflowed*: rows that come
for it are marked, are joined with nothing, and go straight to disk. The bucket with the most
rows goes first.

Second stage, when both inputs have ended. The disk parts of a bucket are joined, less the pairs of
which neither row is marked: those have met in the first stage. It is XJoin's cleanup, a rectangle
of blocks that can be left after any of them and grows when an input re-opens.

Marked rows lie in memory until there are enough to write: at least `BUFFER_SHARE` of all that is
held. They stay apart from the rows that are probed.

Each pair once. By XJoin's ticks: unmarked rows of a bucket share the DTS of its flush, so their
`[ATS, DTS)` intervals overlap and the pair is left out. The marked rows of a side are given a tick
of their own, as ATS, when they are written: it overlaps with no other row's.

Kept: both stages, symmetric flushing of bucket pairs, the marks, that a bucket once flushed never
comes back to memory. Differs: ticks of the logical clock instead of time; batches instead of
tuples. The paper's other strategy, left flush, pauses one input, which an operator that is pushed
its rows cannot do. There is no reactive phase: that is what XJoin added.
"""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from dovetail.kernel.blocks import RESIDENT
from dovetail.kernel.protocol import SIDES, Snapshot
from dovetail.kernel.runs import Run, SortedRuns, in_order
from dovetail.kernel.shell import Pieces
from dovetail.twoway.rivals.partitioned import Chosen, PartitionedJoin
from dovetail.twoway.xjoin.operator import part_of

BUFFER_SHARE = 1 / 8  #: of the bytes held: marked rows that are worth writing

_MARKED = 0  # the `part` of a resident block of marked rows


class Overflown:
    """The buckets that have overflowed."""

    def __init__(self, cells: int, bits: int) -> None:
        self.cells: Chosen = np.zeros(cells, dtype=np.bool_)
        self._bits = bits

    def rows_of(self, run: Run) -> Chosen:
        """Which of the rows belong to one of them."""
        return self.cells[part_of(run.codes, self._bits)]


class BucketRows(SortedRuns):
    """The rows of one side: those of buckets that have not overflowed, and, apart, marked ones."""

    def __init__(self, merge_bytes: int, overflown: "Overflown") -> None:
        super().__init__(merge_bytes)
        self.marked = SortedRuns(merge_bytes)
        self._overflown = overflown

    @property
    def nbytes(self) -> int:
        return sum(run.nbytes for run in self.runs) + self.marked.nbytes

    def insert(self, run: Run) -> None:
        late = self._overflown.rows_of(run)
        if not late.any():
            super().insert(run)
            return
        self.marked.insert(run.filter(late))
        if not late.all():
            super().insert(run.filter(~late))

    def check(self) -> None:
        super().check()
        self.marked.check()


class DoublePipelinedJoin(PartitionedJoin):
    """Equality joins of moderate size within a budget."""

    name: ClassVar[str] = "dphj"
    memory: tuple[BucketRows, BucketRows]

    def _new_memory(self, merge_bytes: int) -> tuple[BucketRows, BucketRows]:
        self.overflown = Overflown(len(self.cells), self._bits)
        self.marked_rows = np.zeros((len(self.cells), len(SIDES)), dtype=np.int64)  # in memory
        return BucketRows(merge_bytes, self.overflown), BucketRows(merge_bytes, self.overflown)

    # -- first stage ------------------------------------------------------------------------

    def _inserted(self, side: int, run: Run) -> None:
        late = self.overflown.rows_of(run)
        if not late.any():
            super()._inserted(side, run)
            return
        parts = self._part_of(run.codes[late])
        self.marked_rows[:, side] += np.bincount(parts, minlength=len(self.cells))
        if not late.all():
            super()._inserted(side, run.filter(~late))

    def _make_room(self, wanted: int = 0) -> bool:
        marked = sum(table.marked.nbytes for table in self.memory)
        rows = self.cell_rows.sum(axis=1)
        if marked and (not rows.any() or marked >= BUFFER_SHARE * self._held_bytes()):
            self._write_marked()
            return True
        if not rows.any():
            return False
        chosen = np.zeros(len(self.cells), dtype=np.bool_)
        chosen[int(rows.argmax())] = True
        self.flush_cells(SIDES, chosen)
        return True

    def flush_cells(self, sides: Sequence[int], chosen: Chosen) -> None:
        self.overflown.cells |= chosen
        super().flush_cells(sides, chosen)

    def _write_marked(self) -> None:
        """Put the marked rows of both sides on disk."""
        for side, table in enumerate(self.memory):
            runs, table.marked.runs = table.marked.runs, []
            if not runs:
                continue
            arrival, dts = self.ctx.clock.tick(), self.ctx.clock.tick()
            for run in runs:
                run.arrange()
            for part in in_order(runs, self.working_bytes // 4):
                stamped = np.full(len(part), arrival)
                self._write(side, Run(part.codes, stamped, part.rows), dts)
            for number in np.flatnonzero(self.marked_rows[:, side]):
                self.cells[number].flushed[side] = dts
            self.marked_rows[:, side] = 0
        self.release_rows()
        self.settle_catalogue()

    # -- second stage -----------------------------------------------------------------------

    def _deferred(self) -> Pieces:
        if not all(self.ended):
            return
        if self._marked_apart().any():
            self._write_marked()
        while self.cleanup.advance(self._next_unclean):
            yield "cleanup", self.cleanup.step()

    def _marked_apart(self) -> Chosen:
        """The buckets with marked rows in memory that have rows of the other side to meet."""
        on_disk = np.array([cell.disk_rows for cell in self.cells])
        there = on_disk + self.marked_rows
        return np.asarray(((self.marked_rows > 0) & (there[:, ::-1] > 0)).any(axis=1))

    def pending(self) -> int:
        rows = int(self.marked_rows[self._marked_apart()].sum())
        for cell in self.cells:
            if cell.unclean():
                rows += sum(cell.disk_rows[side] - cell.joined_rows[side] for side in SIDES)
        return rows

    # -- state ------------------------------------------------------------------------------

    def _persist_memory(self) -> list[np.void]:
        blocks = super()._persist_memory()
        for side, table in enumerate(self.memory):
            blocks += table.marked.persist(
                lambda run, side=side: self.ctx.store.append(run, side, RESIDENT, _MARKED)  # type: ignore[misc]
            )
        return blocks

    def snapshot(self) -> Snapshot:
        base = super().snapshot()
        overflowed = np.flatnonzero(self.overflown.cells).tolist()
        return Snapshot({**base.meta, "overflowed": overflowed}, base.blocks, base.files)

    def _restore(self, snapshot: Snapshot) -> None:
        self.overflown.cells[snapshot.meta["overflowed"]] = True
        super()._restore(snapshot)

    def _restore_run(self, side: int, block: np.void) -> None:
        if int(block["part"]) != _MARKED:
            super()._restore_run(side, block)
            return
        run = self.ctx.store.read(block)
        self.memory[side].marked.runs.append(run)
        parts = self._part_of(run.codes)
        self.marked_rows[:, side] += np.bincount(parts, minlength=len(self.cells))

    def check(self) -> None:
        super().check()
        for side, table in enumerate(self.memory):
            counts = np.zeros(len(self.cells), dtype=np.int64)
            for run in table.runs:
                late = self.overflown.rows_of(run)
                assert not late.any(), "an overflowed bucket is in memory again"
            for run in table.marked.runs:
                counts += np.bincount(self._part_of(run.codes), minlength=len(counts))
            assert np.array_equal(counts, self.marked_rows[:, side])
            assert not self.marked_rows[~self.overflown.cells].any()
