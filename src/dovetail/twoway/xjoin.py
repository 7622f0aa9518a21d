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

Worked example. a arrives at tick 3 and is flushed at 5; b arrives at 7: they missed each other. At
tick 8 a reactive pass reads a's block and meets b: emitted, mark (5, 8). At 9 b is flushed. In
cleanup the pair comes up again: mark (5, 8) has 5 >= 5 and 7 <= 8 < 9, so it is left out.

Degenerate cases. One single key value: one partition holds everything; it is flushed whole, and
cleanup is a plain nested loop over its blocks. A budget near the minimum: blocks of a few rows.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dovetail.kernel.blocks import BLOCK, FLUSHED, NEVER, RESIDENT, BlockList
from dovetail.kernel.keys import Codes, spread
from dovetail.kernel.matching import PairFilter
from dovetail.kernel.memory import Reservation
from dovetail.kernel.protocol import LEFT, RIGHT, SIDES, Context, Snapshot, Status
from dovetail.kernel.runs import Rows, Run, merge_runs, own
from dovetail.twoway.base import TwoWayJoin, TwoWaySpec

#: A catalogue entry, and the spare room that a growing list keeps.
_ENTRY_BYTES = 5 * BLOCK.itemsize // 4
_LEAST_BLOCK_BYTES = 64 << 10
_MAX_GROUP = 1 << 14  # outer blocks in one group; their numbers are 16 bits wide


@dataclass
class Cleaning:
    """Where the cleanup of one cell stands.

    The rectangle `target[LEFT] x target[RIGHT]` of blocks is worked off as two strips: first the
    left side's new blocks against all of the right's, then the right's new blocks against the
    left's old ones. A strip's `outer` side is read in groups `[start, stop)` that fit the working
    memory, and each group meets the inner blocks from `inner` on.
    """

    part: int
    target: tuple[int, int]
    outer: int = LEFT
    start: int = 0
    stop: int = 0
    inner: int = 0


class Cell:
    """What XJoin knows of one cell."""

    def __init__(self) -> None:
        self.rows = [0, 0]  # in memory
        self.arrived = [0, 0]  # tick of the last arrival
        self.flushed = [0, 0]  # tick of the last flush
        self.blocks = (BlockList(), BlockList())  # in the order of their DTS
        self.joined = [0, 0]  # the finished rectangle of blocks
        #: by the side of the blocks: (dts, tick), the ticks ascending
        self.marks: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])

    def next_reactive(self, side: int) -> int | None:
        """The first block of `side` that has not met all of the other side's memory part."""
        ticks = self.blocks[side].entries["dts"]
        arrived = self.arrived[1 - side]
        if not self.rows[1 - side] or not len(ticks):
            return None
        start = 0
        if self.marks[side] and self.marks[side][-1][1] >= arrived:
            start = int(np.searchsorted(ticks, self.marks[side][-1][0], side="right"))
        # a block flushed after the last arrival met all that arrived while it was in memory
        return start if start < len(ticks) and ticks[start] <= arrived else None

    def met_until(self, side: int, block: np.void, before: int) -> int:
        """Rows of the other side with an ATS up to this met the block while they were in memory.

        Only rows that were in memory until `before` (their DTS) are asked about.
        """
        ticks = [t for dts, t in self.marks[side] if dts >= int(block["dts"]) and t < before]
        return max(ticks, default=-1)

    def mark(self, side: int, dts: int, tick: int) -> None:
        """Record a pass; an earlier mark that this one covers is dropped."""
        marks = self.marks[side]
        while marks and marks[-1][0] <= dts and marks[-1][1] > self.flushed[1 - side]:
            marks.pop()
        marks.append((dts, tick))

    def prune_marks(self) -> None:
        """Drop the marks about rows that were flushed into the finished rectangle."""
        for side in SIDES:
            done = self.blocks[1 - side].entries["dts"][: self.joined[1 - side]]
            last = int(done[-1]) if len(done) else -1
            self.marks[side][:] = [mark for mark in self.marks[side] if mark[1] > last]

    def unclean(self) -> bool:
        """Whether blocks of both sides exist that have not met each other."""
        left, right = len(self.blocks[LEFT]), len(self.blocks[RIGHT])
        return bool(left and right) and (self.joined[LEFT] < left or self.joined[RIGHT] < right)


class XJoin(TwoWayJoin):
    """Equality joins of any size within a budget."""

    name: ClassVar[str] = "xjoin"

    def __init__(
        self, spec: TwoWaySpec, context: Context, snapshot: Snapshot | None = None
    ) -> None:
        if snapshot is None:
            partitions, cells = _partition_counts(context.budget.total_bytes)
        else:
            partitions, cells = snapshot.meta["partitions"], len(snapshot.meta["cells"])
        self._cells_each = cells // partitions
        self._bits = cells.bit_length() - 1
        self.cells = [Cell() for _ in range(cells)]
        self._catalogue = Reservation(context.budget, "catalogue")
        self._cleaning: Cleaning | None = None
        self._outer_group: tuple[Run, NDArray[np.int16]] | None = None
        super().__init__(spec, context, snapshot)

    @property
    def _block_bytes(self) -> int:  # needed already while restoring, if that has to flush
        return self.working_bytes // 6

    # -- arriving ---------------------------------------------------------------------------

    def push(self, side: int, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        self._outer_group = None  # the rows that come need the working memory
        return super().push(side, batch)

    def _codes(self, codes: Codes) -> Codes:
        return spread(codes)

    def _inserted(self, side: int, run: Run) -> None:
        counts = np.bincount(self._part_of(run.codes), minlength=len(self.cells))
        for part in np.flatnonzero(counts):
            self.cells[part].rows[side] += int(counts[part])
            self.cells[part].arrived[side] = int(run.ats[0])

    def _make_room(self) -> bool:
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
        before = self._held_bytes()
        dts = self.ctx.clock.tick()
        if memory.range_bytes(low, high) <= self.working_bytes // 4:
            run = merge_runs([own(part) for part in memory.take_range(low, high)])
            blocks = self._write(side, run, dts)
        else:  # merging would need the memory that is being given up
            parts = memory.take_range(low, high)
            blocks = sum(self._write(side, part, dts) for part in parts)
        self._rows_held.shrink(min(before - self._held_bytes(), self._rows_held.nbytes))
        self._catalogue.grow(blocks * _ENTRY_BYTES)
        for number in cells:
            self.cells[number].rows[side] = 0
            self.cells[number].flushed[side] = dts

    def _write(self, side: int, run: Run, dts: int) -> int:
        """Put rows on disk in blocks of one cell each; returns how many."""
        blocks = 0
        step = max(1, self._block_bytes * len(run) // run.nbytes)
        parts = self._part_of(run.codes)
        starts = np.flatnonzero(np.diff(parts, prepend=-1))
        for start, stop in zip(starts, [*starts[1:], len(run)], strict=True):
            number = int(parts[start])
            for begin in range(int(start), int(stop), step):
                piece = run.slice(begin, min(begin + step, int(stop)))
                block = self.ctx.store.append(piece, side, FLUSHED, number, dts)
                self.cells[number].blocks[side].append(block)
                blocks += 1
                self.ctx.counters.flushed_bytes += int(block["length"])
        self.ctx.counters.flushed_rows += len(run)
        return blocks

    def _lowest(self, part: int) -> int:
        """The lowest code of a cell."""
        return (part << (64 - self._bits)) - (1 << 63)

    def _part_of(self, codes: Codes) -> NDArray[np.int64]:
        return (codes >> np.int64(64 - self._bits)) + len(self.cells) // 2

    # -- deferred work ----------------------------------------------------------------------

    def poll(self, fuel: int) -> Iterator[pa.RecordBatch]:
        for phase, work in self._deferred():
            before = self.ctx.counters.bytes_read
            for out in work:
                fuel -= out.num_rows
                self.ctx.counters.emit(phase, out.num_rows)
                yield out
            fuel -= 1 + (self.ctx.counters.bytes_read - before) // 64  # reading a row costs too
            if fuel <= 0:
                self._status = Status.MORE
                return
        self._status = self._resting()

    def _deferred(self) -> Iterator[tuple[str, Iterator[pa.RecordBatch]]]:
        """What there is to do, in order; each piece is to be done before the next is asked for."""
        # the largest memory part first: the likeliest to produce results
        order = sorted(
            ((cell.rows[1 - side], part, side) for part, cell in enumerate(self.cells)
             for side in SIDES if cell.next_reactive(side) is not None),
            reverse=True,
        )  # fmt: skip
        for _, part, side in order:
            while (index := self.cells[part].next_reactive(side)) is not None:
                yield "reactive", self._react(part, side, index)
        while all(self.ended) and self._next_cleaning():
            yield "cleanup", self._clean()

    def pending(self) -> int:
        rows = 0
        for cell in self.cells:
            for side in SIDES:
                start = cell.next_reactive(side)
                if start is not None:
                    rows += int(cell.blocks[side].entries["rows"][start:].sum())
            if cell.unclean():
                for side in SIDES:
                    entries = cell.blocks[side].entries[cell.joined[side] :]
                    rows += int(entries["rows"].sum())
        return rows

    def _react(self, part: int, side: int, index: int) -> Iterator[pa.RecordBatch]:
        """What one flush wrote to a cell meets the other side's rows of it in memory."""
        cell = self.cells[part]
        entries = cell.blocks[side].entries
        dts = int(entries[index]["dts"])
        # blocks of one flush share a DTS, so a mark needs all of them
        for block in entries[index : int(np.searchsorted(entries["dts"], dts, side="right"))]:
            met = max(dts, cell.met_until(side, block, NEVER))
            run = self.ctx.store.read(block)
            for stored, span in self.memory[1 - side].probe(run.codes, run.codes):
                yield from self._emitter.match(run, stored, span, side, _arrived_after(stored, met))
        yield from self._emitter.drain()
        cell.mark(side, dts, self.ctx.clock.tick())

    def _next_cleaning(self) -> bool:
        """Make `_cleaning` name a group of outer blocks and an inner block, if any is left."""
        while True:
            if self._cleaning is None:
                parts = (p for p, known in enumerate(self.cells) if known.unclean())
                part = next(parts, None)
                if part is None:
                    return False
                known = self.cells[part]
                target = (len(known.blocks[LEFT]), len(known.blocks[RIGHT]))
                self._cleaning = Cleaning(part, target, start=known.joined[LEFT])
                self._open_group(self._cleaning)
            at = self._cleaning
            inner_end = at.target[RIGHT] if at.outer == LEFT else (self.cells[at.part].joined[LEFT])
            if at.start < at.target[at.outer] and at.inner < inner_end:
                return True
            self._outer_group = None
            if at.start < at.target[at.outer] and inner_end:
                at.start, at.inner = at.stop, 0
                self._open_group(at)
            elif at.outer == LEFT:
                at.outer, at.inner = RIGHT, 0
                at.start = self.cells[at.part].joined[RIGHT]
                self._open_group(at)
            else:
                self.cells[at.part].joined[:] = at.target
                self.cells[at.part].prune_marks()
                self._cleaning = None

    def _open_group(self, at: Cleaning) -> None:
        """Let the group hold as many outer blocks as a third of the working memory takes."""
        lengths = self.cells[at.part].blocks[at.outer].entries["length"]
        room = self.working_bytes // 3
        at.stop = at.start
        while at.stop < min(at.target[at.outer], at.start + _MAX_GROUP) and (
            at.stop == at.start or room >= int(lengths[at.stop])
        ):
            room -= int(lengths[at.stop])
            at.stop += 1

    def _clean(self) -> Iterator[pa.RecordBatch]:
        """The open group of outer blocks meets one inner block."""
        at = self._cleaning
        assert at is not None
        cell = self.cells[at.part]
        outer_blocks = cell.blocks[at.outer].entries[at.start : at.stop]
        inner_side = 1 - at.outer
        inner_block = cell.blocks[inner_side].entries[at.inner]
        at.inner += 1
        limits = [_unjoined(cell, inner_side, inner_block, block) for block in outer_blocks]
        if not any(limits):
            return
        if self._outer_group is None:
            self._outer_group = _merge_group([self.ctx.store.read(b) for b in outer_blocks])
        outer, origin = self._outer_group
        inner = self.ctx.store.read(inner_block)
        span = outer.probe(inner.codes, inner.codes)
        if span is not None:
            keep = _not_yet_joined(inner, inner_block, outer, origin, outer_blocks["dts"], limits)
            yield from self._emitter.match(inner, outer, span, inner_side, keep)
        yield from self._emitter.drain()

    # -- state ------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        resident = self._persist_memory()
        flushed = [cell.blocks[side].entries for cell in self.cells for side in SIDES]
        meta = {
            "tick": self.ctx.clock.now,
            "cleaning": None if self._cleaning is None else asdict(self._cleaning),
            "partitions": len(self.cells) // self._cells_each,
            "cells": [
                {
                    "arrived": cell.arrived,
                    "flushed": cell.flushed,
                    "joined": cell.joined,
                    "marks": cell.marks,
                }
                for cell in self.cells
            ],
        }
        blocks = np.concatenate([np.array(resident, dtype=BLOCK), *flushed])
        return Snapshot(json.loads(json.dumps(meta)), blocks)

    def _restore(self, snapshot: Snapshot) -> None:
        meta = snapshot.meta
        self.ctx.clock.now = meta["tick"]
        for cell, facts in zip(self.cells, meta["cells"], strict=True):
            cell.arrived = list(facts["arrived"])
            cell.flushed = list(facts["flushed"])
            cell.joined = list(facts["joined"])
            for side in SIDES:
                cell.marks[side][:] = [(dts, tick) for dts, tick in facts["marks"][side]]
        if meta["cleaning"] is not None:
            self._cleaning = Cleaning(**meta["cleaning"])
        flushed = snapshot.blocks[snapshot.blocks["kind"] == FLUSHED]
        self._catalogue.grow(_ENTRY_BYTES * len(flushed))
        for block in flushed:
            self.cells[int(block["part"])].blocks[int(block["side"])].append(block)
        for block in snapshot.blocks[snapshot.blocks["kind"] == RESIDENT]:
            self._restore_run(int(block["side"]), block)
        self._settle()

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
            for side in SIDES:
                blocks = cell.blocks[side].entries
                assert (np.diff(blocks["dts"]) >= 0).all()
                assert (blocks["ats_max"] < blocks["dts"]).all()
                assert cell.joined[side] <= len(blocks)
                ticks = [tick for _, tick in cell.marks[side]]
                assert ticks == sorted(ticks)


def _unjoined(
    cell: Cell, probing_side: int, probing: np.void, stored: np.void
) -> tuple[int, int] | None:
    """What is left to join between two blocks, by their zone maps and the marks.

    Only pairs whose rows (probing, stored) have an ATS above the two numbers may be new. None:
    no pair is.
    """
    if probing["code_max"] < stored["code_min"] or stored["code_max"] < probing["code_min"]:
        return None
    probing_dts, stored_dts = int(probing["dts"]), int(stored["dts"])
    stored_after = cell.met_until(probing_side, probing, before=stored_dts)
    probing_after = cell.met_until(1 - probing_side, stored, before=probing_dts)
    if probing["ats_max"] <= probing_after or stored["ats_max"] <= stored_after:
        return None
    if probing["ats_max"] < stored_dts and stored["ats_max"] < probing_dts:
        return None  # every pair of these was in memory together
    return probing_after, stored_after


def _merge_group(runs: list[Run]) -> tuple[Run, NDArray[np.int16]]:
    """Several blocks as one run, and for each of its rows the number of the block it is from."""
    codes = np.concatenate([run.codes for run in runs])
    origin = np.repeat(np.arange(len(runs), dtype=np.int16), [len(run) for run in runs])
    return merge_runs(runs), origin[np.argsort(codes, kind="stable")]


def _arrived_after(stored: Run, tick: int) -> PairFilter:
    return lambda _, rows: stored.ats[rows] > tick


def _not_yet_joined(
    probing: Run,
    block: np.void,
    stored: Run,
    origin: NDArray[np.int16],
    stored_dts: NDArray[np.int64],
    limits: list[tuple[int, int] | None],
) -> PairFilter:
    """The rule of the module docstring, for one block against a merged group of blocks."""
    dts = int(block["dts"])
    probing_after = np.array([NEVER if limit is None else limit[0] for limit in limits])
    stored_after = np.array([NEVER if limit is None else limit[1] for limit in limits])

    def keep(probing_rows: Rows, stored_rows: Rows) -> NDArray[np.bool_]:
        probing_ats, stored_ats = probing.ats[probing_rows], stored.ats[stored_rows]
        source = origin[stored_rows]
        together = (probing_ats < stored_dts[source]) & (stored_ats < dts)
        new = (probing_ats > probing_after[source]) & (stored_ats > stored_after[source])
        return np.asarray(new & ~together)

    return keep


def _partition_counts(total_bytes: int | None) -> tuple[int, int]:
    """How many partitions, and how many cells in all: powers of two.

    Enough partitions that a flush gives up no more than it must, and enough cells that a cell's
    disk part is read in few passes; but no blocks smaller than `_LEAST_BLOCK_BYTES`.
    """
    if total_bytes is None:
        return 16, 16
    partitions = 1 << max(2, min((total_bytes // (512 << 10)).bit_length(), 5))
    flushed_bytes = total_bytes // (4 * partitions)  # about half the budget holds rows
    cells_each = 1 << max(0, min((flushed_bytes // _LEAST_BLOCK_BYTES).bit_length() - 1, 3))
    return partitions, partitions * cells_each
