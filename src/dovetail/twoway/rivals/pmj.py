"""PMJ, the progressive merge join: sort-merge that joins its runs as they are made.

Source: Dittrich, Seeger and Taylor, "Progressive Merge Join: A Generic and Non-blocking Sort-based
Join Algorithm" (VLDB 2002), as retold in section 2 of the DINER paper and section H of the survey.

Arriving phase. Rows collect in memory; nothing is joined yet. When memory is full, the rows of
both sides are sorted and joined with each other, and go to disk as a pair of sorted runs (here: one
segment). So results come in bursts, once for every filling of memory.

Merging phase, when both inputs have ended. What is left in memory is joined and, if there is
anything on disk, becomes the last segment. Segments are then merged with fan-in F, and rows of
different segments are joined on the way: see `merging`. Symbols: F -> 2 * `Merger.fan_in`.

Each pair once. In memory, all pairs of rows with an ATS up to `joined_tick` have been emitted. On
disk, the rows of a segment are one group, and a merge joins rows of different groups only. Rows
that must leave memory before they could be joined (the budget shrank at a restore) are written as
a segment of their own for each side.

Kept: both phases, the blocking until memory is full, runs of both sides made together, fan-in, the
duplicate rule, band joins. Differs: ticks of the logical clock instead of time; batches instead of
tuples; the two sides share the memory instead of having a half each; rows are sorted batch by
batch and merged, rather than all at once; an input that re-opens leaves the merge where it is,
for the next time both have ended. What is known of segments is paged out to disk (`segments`).
"""

import json
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dovetail.kernel.blocks import BLOCK, RESIDENT
from dovetail.kernel.catalogue import Pages, fan_out_for
from dovetail.kernel.matching import PairFilter
from dovetail.kernel.probing import Rows
from dovetail.kernel.protocol import LEFT, RIGHT, SIDES, Snapshot
from dovetail.kernel.runs import Run, in_order
from dovetail.kernel.shell import Pieces, Reclaiming, Results
from dovetail.twoway.base import TwoWayJoin
from dovetail.twoway.rivals.merging import Merger

_ALL = 0  # the one part of the merger
_LISTS = 8  # of segments, and of the blocks of those that are merged, at a time


class ProgressiveMergeJoin(TwoWayJoin):
    """Equality and band joins of any size within a budget."""

    name: ClassVar[str] = "pmj"
    joins_bands: ClassVar[bool] = True
    page_entries: ClassVar[int | None] = None  #: in a page of the catalogue; None: by the budget

    def _build(self, snapshot: Snapshot | None) -> None:
        super()._build(snapshot)
        fan_out = (
            self.page_entries or fan_out_for(self.ctx.budget.total_bytes, _LISTS)
            if snapshot is None
            else snapshot.meta["page_entries"]
        )
        self._pages = Pages(self.ctx.store, fan_out)
        self.merger = Merger(
            self.ctx, self._pages, self._emitter, self.spec.codec, self.working_bytes,
            keeps_pages=True,
        )  # fmt: skip
        self.joined_tick = 0
        self.newest = [0, 0]  # tick of the last arrival in memory

    # -- arriving ---------------------------------------------------------------------------

    def _put_down(self) -> None:
        self.merger.rest()

    def _take_in(self, side: int, run: Run) -> Results:
        """Store rows; they are joined when memory is full."""
        yield from ()
        self.newest[side] = self.ctx.clock.now
        self.memory[side].insert(run)

    def _reclaim(self, wanted: int) -> Reclaiming:
        """Memory is full: join what is in it, and write it."""
        yield from self._join_memory()
        return self._make_room()

    def _join_memory(self) -> Results:
        """Join the rows in memory that have not been; reads no block, so it is not left midway."""
        if not self._unjoined_in_memory():
            return
        for run in self.memory[LEFT].runs:
            low, high = self.spec.codec.candidates(run.codes)
            for stored, span in self.memory[RIGHT].probe(low, high):
                keep = _one_newer(run, stored, self.joined_tick) if self.joined_tick else None
                yield from self._emitter.match(run, stored, span, LEFT, keep)
        yield from self._emitter.drain()
        self.joined_tick = self.ctx.clock.tick()

    def _unjoined_in_memory(self) -> bool:
        """Whether there are pairs in memory that have not met."""
        return all(len(memory) for memory in self.memory) and (max(self.newest) > self.joined_tick)

    def _make_room(self, wanted: int = 0) -> bool:
        """Write all that is in memory; rows that have not been joined, as groups apart."""
        if not any(len(memory) for memory in self.memory):
            return False
        number = self.ctx.clock.tick()
        for side in SIDES:
            runs, self.memory[side].runs = self.memory[side].runs, []
            if self._joined(side):
                self._write(side, runs, number)
                continue
            self._write(side, [run.filter(run.ats <= self.joined_tick) for run in runs], number)
            newer = [run.filter(run.ats > self.joined_tick) for run in runs]
            self._write(side, newer, self.ctx.clock.tick())
        self.release_rows()
        self.merger.settle(_ALL)
        self.settle_catalogue()
        return True

    def _joined(self, side: int) -> bool:
        """Whether none of a side's rows has come since memory was joined."""
        return self.newest[side] <= self.joined_tick

    def _write(self, side: int, runs: list[Run], number: int) -> None:
        """Write rows as one segment, which is a group of its own."""
        runs = [run for run in runs if len(run)]
        for run in runs:
            run.arrange()
        for part in in_order(runs, self.working_bytes // 4):
            self.ctx.counters.flushed_bytes += self.merger.add(_ALL, side, part, number)
        self.ctx.counters.flushed_rows += sum(len(run) for run in runs)

    def _catalogue_bytes(self) -> int:
        """Pages are looked at while merging only, and kept in the working memory."""
        return self._pages.tail_bytes

    # -- merging ----------------------------------------------------------------------------

    def _deferred(self) -> Pieces:
        if not all(self.ended):
            return
        if self._unjoined_in_memory():
            yield "cleanup", self._join_memory()
        if self._in_memory_apart():
            self._make_room()
        while True:
            if self.merger.merge is None:
                if not self.merger.unjoined:
                    return
                self.merger.begin(_ALL)
            for step in self.merger.steps():
                yield "cleanup", step

    def _in_memory_apart(self) -> bool:
        """Whether rows in memory have the other side's on disk to meet."""
        return any(len(self.memory[s]) and self.merger.rows(_ALL, 1 - s) for s in SIDES)

    def pending(self) -> int:
        apart = self._unjoined_in_memory() or self._in_memory_apart()
        in_memory = sum(len(memory) for memory in self.memory) if apart else 0
        return self.merger.pending() + in_memory

    # -- state ------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        self.merger.release()
        resident = self._persist_memory()
        meta = {
            "tick": self.ctx.clock.now,
            "joined_tick": self.joined_tick,
            "newest": self.newest,
            "merging": self.merger.facts(),
            "page_entries": self._pages.fan_out,
            "logs": self.ctx.store.log_facts(),
            "widest": self.wide.widest,
        }
        blocks = np.concatenate([np.array(resident, dtype=BLOCK), *self.merger.lists()])
        files = tuple(self.ctx.store.log_files)
        return Snapshot(json.loads(json.dumps(meta)), blocks, files)

    def _restore(self, snapshot: Snapshot) -> None:
        meta = snapshot.meta
        self.ctx.clock.now = meta["tick"]
        self.joined_tick = meta["joined_tick"]
        self.newest = list(meta["newest"])
        self.ctx.store.restore_logs(meta["logs"])
        resident = snapshot.blocks["kind"] == RESIDENT
        self.merger.restore(meta["merging"], snapshot.blocks[~resident])
        self._catalogue.grow(self._pages.tail_bytes)
        for block in snapshot.blocks[resident]:
            self.memory[int(block["side"])].runs.append(self.ctx.store.read(block))
        if not self._rows_held.try_grow(self._held_bytes()):
            self._make_room()  # without joining them, since no result can be emitted here

    def check(self) -> None:
        super().check()
        self.merger.check()
        for side in SIDES:
            for run in self.memory[side].runs:
                assert int(run.ats.max()) <= self.newest[side]


def _one_newer(probing: Run, stored: Run, tick: int) -> PairFilter:
    """Keeps the pairs of which a row has come after the tick."""

    def keep(probing_rows: Rows, stored_rows: Rows) -> NDArray[np.bool_]:
        newer = (probing.ats[probing_rows] > tick) | (stored.ats[stored_rows] > tick)
        return np.asarray(newer)

    return keep
