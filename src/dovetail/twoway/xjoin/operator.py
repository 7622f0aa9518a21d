"""XJoin: a symmetric join that spills, in three phases.

Source: Urhan and Franklin, "XJoin: A Reactively-Scheduled Pipelined Join Operator" (2000), as
retold in section 2 of the DINER paper and section E of the survey.

Vocabulary. Rows are hashed into partitions on their spread code, a contiguous range of codes each,
so a partition is a slice of every run. A partition is cut the same way into `cells`: memory is
given up by the partition, but what is on disk is kept, and joined, by the cell. ATS and DTS are
ticks of the logical clock.

Arriving phase. A row is joined with the other side's rows in memory and stored. When memory is
exhausted, the partition with the most rows, of either side, is flushed to disk as sorted blocks;
its DTS is the tick of the flush.

Reactive phase, while the inputs are silent. The disk part of one cell probes the memory part of the
same cell on the other side. It is left after any block. Each pass leaves a mark
`(dts, tick)`: every block flushed at `dts` or before has met every row that was in memory at
`tick` (the paper's DTSlast and ProbeTS). The next pass starts where the last one ended, or from
the first block if rows have come into that memory part since.

Cleanup phase, when both inputs have ended. Disk joins disk, cell by cell, as a block
nested loop over the part of the block rectangle that is not done. An input that re-opens (a stream
that was only silent) interrupts this after any block; what was done is never done again.

Each pair once. The pair (a, b) has been emitted if
1. both were in memory together: a.ATS < b.DTS and b.ATS < a.DTS; or
2. a's block met b in memory: some mark of a's cell has dts >= a.DTS and
   b.ATS <= tick < b.DTS (and the other way round); or
3. both lie in the finished rectangle of blocks.
Whole blocks share a DTS, so 1 and 2 come down to comparing ATS with a few numbers per block pair.

What is known of the blocks and the marks of a cell is kept in lists that are paged out to disk as
they grow (`kernel/catalogue.py`, `twoway/xjoin/cells.py`), so the disk part may become as large as
the disk, and a snapshot no larger than the budget.

Worked example. a arrives at tick 3 and is flushed at 5; b arrives at 7: they missed each other. At
tick 8 a reactive pass reads a's block and meets b: emitted, mark (5, 8). At 9 b is flushed. In
cleanup the pair comes up again: mark (5, 8) has 5 >= 5 and 7 <= 8 < 9, so it is left out.

Degenerate cases. One single key value: one partition holds everything; it is flushed whole, and
cleanup is a plain nested loop over its blocks. A budget near the minimum: blocks of a few rows.
"""

import json
from dataclasses import asdict
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dovetail.kernel.blocks import BLOCK, LOGGED, RESIDENT
from dovetail.kernel.catalogue import Pages, fan_out_for, split_tails
from dovetail.kernel.keys import Codes, spread
from dovetail.kernel.protocol import SIDES, Snapshot
from dovetail.kernel.runs import Run, merge_runs, own
from dovetail.kernel.shell import Pieces, Results, quietly
from dovetail.twoway.base import TwoWayJoin
from dovetail.twoway.xjoin.cells import Cell, Cleaning
from dovetail.twoway.xjoin.cleanup import Cleanup
from dovetail.twoway.xjoin.reactive import Reactive

_LEAST_BLOCK_BYTES = 64 << 10
_MAX_GROUP = 1 << 14  # outer blocks in one group; their numbers are 16 bits wide


class XJoin(TwoWayJoin):
    """Equality joins of any size within a budget."""

    name: ClassVar[str] = "xjoin"
    page_entries: ClassVar[int | None] = None  #: in a page of the catalogue; None: by the budget
    #: a power of two, each a cell of its own; None: by the budget, for blocks that suit a disk
    partition_count: ClassVar[int | None] = None

    def _build(self, snapshot: Snapshot | None) -> None:
        total = self.ctx.budget.total_bytes
        if snapshot is None:
            partitions, cells = self._count_partitions(total)
            fan_out = self.page_entries or fan_out_for(total, len(SIDES) * cells)
        else:
            partitions, cells = snapshot.meta["partitions"], len(snapshot.meta["cells"])
            fan_out = snapshot.meta["page_entries"]
        self._cells_each = cells // partitions
        self._bits = cells.bit_length() - 1
        self._block_bytes = self.working_bytes // 6
        self._pages = Pages(self.ctx.store, fan_out)
        self.cells = [Cell(self._pages, part) for part in range(cells)]
        super()._build(snapshot)
        self.reactive = Reactive(self.ctx, self.cells, self.memory, self._emitter)
        third = self.working_bytes // 3
        self.cleanup = Cleanup(self.ctx, self.cells, self._emitter, third)

    @classmethod
    def _count_partitions(cls, total_bytes: int | None) -> tuple[int, int]:
        """The number of partitions, and of cells in all: powers of two.

        Enough partitions that a flush gives up no more than it must, and enough cells that a cell's
        disk part is read in few passes; but no blocks smaller than `_LEAST_BLOCK_BYTES`.
        """
        if cls.partition_count is not None:
            return cls.partition_count, cls.partition_count
        if total_bytes is None:
            return 16, 16
        partitions = 1 << max(2, min((total_bytes // (512 << 10)).bit_length(), 5))
        flushed_bytes = total_bytes // (4 * partitions)  # about half the budget holds rows
        cells_each = 1 << max(0, min((flushed_bytes // _LEAST_BLOCK_BYTES).bit_length() - 1, 3))
        return partitions, partitions * cells_each

    # -- arriving ---------------------------------------------------------------------------

    def _put_down(self) -> None:
        self.cleanup.put_down()

    def _codes(self, codes: Codes) -> Codes:
        return spread(codes)

    def _take_in(self, side: int, run: Run) -> Results:
        yield from super()._take_in(side, run)
        self._inserted(side, run)

    def _inserted(self, side: int, run: Run) -> None:
        """Count rows that are in memory now."""
        counts = np.bincount(self._part_of(run.codes), minlength=len(self.cells))
        for part in np.flatnonzero(counts):
            self.cells[part].rows[side] += int(counts[part])
            self.cells[part].arrived[side] = int(run.ats[0])

    def _make_room(self, wanted: int = 0) -> bool:
        """Flush the partition with the most rows, of either side."""
        rows = np.array([cell.rows for cell in self.cells])
        by_partition = rows.reshape(-1, self._cells_each, len(SIDES)).sum(axis=1)
        partition, side = np.unravel_index(int(by_partition.argmax()), by_partition.shape)
        if not by_partition[partition, side]:
            return False
        self._flush(int(side), int(partition))
        return True

    def _flush(self, side: int, partition: int) -> None:
        first = partition * self._cells_each
        cells = range(first, first + self._cells_each)
        low, high = self._lowest(cells[0]), self._lowest(cells[-1] + 1) - 1
        memory = self.memory[side]
        dts = self.ctx.clock.tick()
        if memory.range_bytes(low, high) <= self.working_bytes // 4:
            run = merge_runs([own(part) for part in memory.take_range(low, high)])
            self._write(side, run, dts)
        else:  # merging would need the memory that is being given up
            for part in memory.take_range(low, high):
                self._write(side, part, dts)
        self.release_rows()
        for number in cells:
            self.cells[number].rows[side] = 0
            self.cells[number].flushed[side] = dts
        self.settle_catalogue()

    def _catalogue_bytes(self) -> int:
        return self._pages.nbytes

    def _write(self, side: int, run: Run, dts: int) -> None:
        """Put rows on disk in blocks of one cell each."""
        parts = self._part_of(run.codes)
        starts = np.flatnonzero(np.diff(parts, prepend=-1))
        for start, stop in zip(starts, [*starts[1:], len(run)], strict=True):
            number = int(parts[start])
            for begin, end in run.cuts(int(start), int(stop), self._block_bytes):
                piece = run.slice(begin, end)
                block = self.ctx.store.append(piece, side, LOGGED, number, dts)
                self.cells[number].add_block(side, block)
                self.ctx.counters.flushed_bytes += int(block["length"])
        self.ctx.counters.flushed_rows += len(run)

    def _lowest(self, part: int) -> int:
        """The lowest code of a cell."""
        return (part << (64 - self._bits)) - (1 << 63)

    def _part_of(self, codes: Codes) -> NDArray[np.int64]:
        return part_of(codes, self._bits)

    # -- deferred work ----------------------------------------------------------------------

    def _deferred(self) -> Pieces:
        yield from self.reactive.pieces()
        while all(self.ended) and self.cleanup.advance(self._next_unclean):
            yield "cleanup", self.cleanup.step()

    def _next_unclean(self) -> int | None:
        """The cell to clean up next, if any is left."""
        return next((part for part, cell in enumerate(self.cells) if cell.unclean()), None)

    def pending(self) -> int:
        return sum(cell.pending() for cell in self.cells)

    # -- state ------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        resident = self._persist_memory()
        meta = {
            "tick": self.ctx.clock.now,
            "cleaning": None if self.cleanup.at is None else asdict(self.cleanup.at),
            "partitions": len(self.cells) // self._cells_each,
            "page_entries": self._pages.fan_out,
            "cells": [cell.facts() for cell in self.cells],
            "logs": self.ctx.store.log_facts(),
            "widest": self.wide.widest,
        }
        tails = [tail for cell in self.cells for tail in cell.tails()]
        blocks = np.concatenate([np.array(resident, dtype=BLOCK), *tails])
        files = tuple(self.ctx.store.log_files)
        return Snapshot(json.loads(json.dumps(meta)), blocks, files)

    def _restore(self, snapshot: Snapshot) -> None:
        meta = snapshot.meta
        self.ctx.clock.now = meta["tick"]
        self.ctx.store.restore_logs(meta["logs"])
        for cell, facts in zip(self.cells, meta["cells"], strict=True):
            cell.restore(facts)
        if meta["cleaning"] is not None:
            self.cleanup.at = Cleaning(**meta["cleaning"])
        paged = snapshot.blocks[snapshot.blocks["kind"] >= LOGGED]
        for tail in split_tails(paged, "part", "side"):
            self.cells[int(tail[0]["part"])].restore_tail(tail)
        self._catalogue.grow(self._pages.nbytes)
        for block in snapshot.blocks[snapshot.blocks["kind"] == RESIDENT]:
            self._restore_run(int(block["side"]), block)
        quietly(self._settle_rows())

    def _restore_run(self, side: int, block: np.void) -> None:
        """Bring a run back, less the rows that were flushed after it was written."""
        run = self.ctx.store.read(block)
        flushed = np.array([cell.flushed[side] for cell in self.cells])
        parts = self._part_of(run.codes)
        alive = run.ats > flushed[parts]
        if not alive.all():
            run, parts = run.filter(alive), parts[alive]
        if len(run):
            self.memory[side].runs.append(run)
            counts = np.bincount(parts, minlength=len(self.cells))
            for part in np.flatnonzero(counts):
                self.cells[part].rows[side] += int(counts[part])

    def check(self) -> None:
        super().check()
        for side in SIDES:
            counts = np.zeros(len(self.cells), dtype=np.int64)
            for run in self.memory[side].runs:
                counts += np.bincount(self._part_of(run.codes), minlength=len(counts))
            assert counts.tolist() == [cell.rows[side] for cell in self.cells]
        for cell in self.cells:
            cell.check()


def part_of(codes: Codes, bits: int) -> NDArray[np.int64]:
    """The cell of each spread code, of as many cells as so many bits can tell apart."""
    return (codes >> np.int64(64 - bits)) + (1 << bits) // 2
