"""DINER: a symmetric join that keeps the rows in memory that are likeliest to produce results.

Source: Bornea, Vassalos, Kotidis and Deligiannakis, "Adaptive Join Operators for Result Rate
Optimization on Streaming Inputs", sections 3 and 5. Equality and bands.

Vocabulary. Each relation's rows in memory fall into a lower, a middle and an upper region of codes
(`regions`), in an index with a join bit for each row (`index`). What is flushed makes
blocks in code order, numbered by their flush (`lists`); which of them have met is kept in
`meeting`, and they are joined in `joins`. ATS and DTS are ticks of the logical clock.

Arriving phase (Algorithms 1 and 3). A row is joined with the other side's rows in memory, sets the
join bits of all concerned, is counted in its region, and stored. Rows come in slices, and room for
a slice is made before it is joined. Bits and counters are brought up to date once for each slice.

Flushing (Algorithm 2, `flushing`). The victim is the relation with more rows in memory, and
of it the region with the least results for its rows; on a tie the upper one, then the lower one.
Its outermost rows make up a block, and its bound moves so that it holds about a block again. In the
middle region a clock hand goes round and takes the rows whose bit is not set, clearing the bits of
the others. The first flush takes from all rows as if they were middle, and sets both bounds. A
region that cannot fill the block is followed by the one with the next least benefit.

A block is a 200th of the memory, as in the paper, where rows come a few at a time. Where a slice
needs more room than that, one flush makes all of it, in one larger block (a sixth of the working
memory at most): several flushes between two arrivals would all be decided on the same counters, and
cost as much each. `DinerOptions.block_bytes` fixes the size.

An input that has ended (footnote 1). No more rows come that rows of the other input could meet, so
the latter are flushed first, and blocks of the ended input are loaded back, the newest first, to be
met by arriving rows. Loaded rows are a second copy: they are dropped without being written.

Reactive phase (Algorithm 4), while the inputs are silent: blocks meet blocks. It is left after any
inner block, when the fuel is spent or more than `max_new_arrivals` rows wait (`waiting`). On Spark
the number of waiting rows is not known, so time slices take the place of that rule.

Cleanup, when both inputs have ended: rows in memory that have blocks to meet are written as blocks,
and all blocks that have not met do. By default this goes by ranges of codes (`Sweep`) where that
reads less than ReactiveNL with all of the memory, which is what `diner-paper` does. Once begun, a
sweep is carried on in later polls, also when an input has re-opened, and left after any block.

A silence. A silent stream has ended only as far as is known. If both inputs had ended when a row
comes, they were silent, and neither is favoured. What Cleanup wrote stays in memory as loaded rows
where it does not need the room itself; else the newest blocks, which hold those rows, are loaded
back with the first row. Of these, and of the rows that have come since, the least productive go.

Each pair once: see `meeting`.

Worked example. a arrives at tick 1 and is flushed at 2; b arrives at 3 and is flushed at 4. Their
intervals [1, 2) and [3, 4) do not overlap, so ReactiveNL emits the pair when their blocks meet. Had
a's block been loaded back at tick 2, b would have found a on arrival, and 2 < 3 <= until leaves the
pair out later.

A snapshot keeps bounds, counters and the hand, but not the join bits: none is set at first, and
rows in the middle region have to earn them anew.

Degenerate cases. One single key value: the lower region holds everything and is flushed a block at
a time. A budget near the minimum: blocks of a few rows. Keys that are hashed have regions of
hashes, which say little, and the join bits do what can be done.
"""

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import ClassVar

import numpy as np
import pyarrow as pa

from dovetail.kernel.blocks import BLOCK, LOGGED, NEVER, RESIDENT
from dovetail.kernel.catalogue import Entries, concatenated, fan_out_for, split_tails
from dovetail.kernel.protocol import SIDES, Context, Snapshot
from dovetail.kernel.runs import Run, in_order, merge_runs
from dovetail.kernel.shell import Pieces, Results, quietly
from dovetail.twoway.base import TwoWayJoin, TwoWaySpec
from dovetail.twoway.diner.flushing import Flushing
from dovetail.twoway.diner.index import MarkedRuns
from dovetail.twoway.diner.joins import BlockJoins, DinerOptions
from dovetail.twoway.diner.lists import LISTS, MOST_PAGE_ENTRIES, make_pages
from dovetail.twoway.diner.loads import LoadedRows
from dovetail.twoway.diner.meeting import LoadedBlocks, Rectangle, Sweep
from dovetail.twoway.diner.regions import Regions
from dovetail.twoway.diner.sorting import SORTED
from dovetail.twoway.diner.sweep import Sweeper

_LEAST_BLOCKS_IN_WORKING = 6  # a flush and a merge hold a block several times over
_UNEVEN = 2  # times the bytes that are meant: more of them are written piece by piece
_LEAST_PIECE_BYTES, _PIECES_IN_WORKING = 1 << 20, 4  # copied faster than looked after


class Diner(TwoWayJoin):
    """Equality and band joins of any size within a budget."""

    name: ClassVar[str] = "diner"
    joins_bands: ClassVar[bool] = True
    default_options: ClassVar[DinerOptions] = DinerOptions()
    page_entries: ClassVar[int | None] = None  #: in a page of the catalogue; None: by the budget
    memory: tuple[MarkedRuns, MarkedRuns]

    def __init__(
        self,
        spec: TwoWaySpec,
        context: Context,
        snapshot: Snapshot | None = None,
        options: DinerOptions | None = None,
    ) -> None:
        self.options = options or self.default_options
        super().__init__(spec, context, snapshot)

    def _build(self, snapshot: Snapshot | None) -> None:
        super()._build(snapshot)
        self._most_block_bytes = self.working_bytes // _LEAST_BLOCKS_IN_WORKING
        asked = self.options.block_bytes
        self.block_bytes = self._choose_block_bytes(asked, self._most_block_bytes)
        if asked is not None:  # as asked for, whatever that costs
            self._most_block_bytes = self.block_bytes
            self._slice_bytes = min(self._slice_bytes, self.block_bytes)
        self._group_bytes = self.working_bytes // 4
        self.regions = (Regions(), Regions())
        self.flushing = [
            Flushing(self.index[side], self.regions[side], self.ctx.rng) for side in SIDES
        ]
        self._wanted_bytes = 0  # by the last arrival
        self._pages = make_pages(self.ctx.store, self._choose_page_entries(snapshot))
        self.joins = BlockJoins(
            self.ctx, self.spec.codec, self._emitter, self._pages, self._group_bytes, self.options
        )
        sorted_bytes = max(self.block_bytes, self._most_block_bytes // 2)
        self.sweeper = Sweeper(self.ctx, self.joins, sorted_bytes, self.options)
        self.loaded = LoadedRows(self.ctx, self.index, self._group_bytes)
        self.waiting: Callable[[], int] = lambda: 0  #: rows in the input buffer, if known
        self._ended_alone: int | None = None  # the side that has, while the other goes on
        self._favoured: int | None = None
        self._emptied = snapshot is not None  # a Cleanup may have taken all rows out of memory
        self._looping = False  # Cleanup is going on as a nested loop

    def _new_memory(self, merge_bytes: int) -> tuple[MarkedRuns, MarkedRuns]:
        piece_bytes = max(_LEAST_PIECE_BYTES, self.working_bytes // _PIECES_IN_WORKING)
        return MarkedRuns(merge_bytes, piece_bytes), MarkedRuns(merge_bytes, piece_bytes)

    @property
    def index(self) -> tuple[MarkedRuns, MarkedRuns]:
        """The rows in memory, with their join bits."""
        return self.memory

    def _choose_page_entries(self, snapshot: Snapshot | None) -> int:
        if snapshot is not None:
            return int(snapshot.meta["page_entries"])
        total = self.ctx.budget.total_bytes
        return self.page_entries or fan_out_for(total, LISTS, MOST_PAGE_ENTRIES)

    # -- arriving ---------------------------------------------------------------------------

    def push(self, side: int, batch: pa.RecordBatch) -> Results:
        self._put_down()
        self._looping = False
        if self._ended_alone == side:
            self._ended_alone = self._favoured = None
        if batch.num_rows and self._ended_alone is not None:
            self._favour(self._ended_alone, 2 * self.wide.counted_input(batch.nbytes))
        elif batch.num_rows and self._emptied:
            self._recall(2 * self.wide.counted_input(batch.nbytes))
        yield from super().push(side, batch)

    def finish(self, side: int) -> None:
        super().finish(side)
        if all(self.ended):  # as far as is known: if a row comes, it was a silence
            self._ended_alone = self._favoured = None
        elif self.options.load_ended:
            self._ended_alone = side

    def _inserted(self, side: int, run: Run) -> None:
        found = self.index[1 - side].take_found()
        self.regions[side].arrived(run.codes, found)
        self.regions[1 - side].probed(run.codes, found)
        self.index[side].mark_next(found > 0)

    # -- flushing ---------------------------------------------------------------------------

    def _make_room(self, wanted: int = 0) -> bool:
        if wanted:  # and likely as much again, if merging what came makes it larger
            self._wanted_bytes = wanted
        if self._ended_alone is not None and len(self.index[1 - self._ended_alone]):
            useless = 1 - self._ended_alone
            if self.index[useless].nbytes >= self.block_bytes or not self.loaded.give_up():
                self._flush_any(useless)
            return True
        victim = max(SIDES, key=lambda side: len(self.index[side]) + self.loaded.rows(side))
        copies = self.loaded.least_benefit(victim)
        if copies is not None and copies <= self.regions[victim].least_benefit():
            return self.loaded.give_up(victim)
        if not len(self.index[victim]):
            return False
        self._flush(victim)
        return True

    def _flush(self, side: int) -> None:
        """Algorithm 2, for the victim that is given."""
        self._write(side, self._blocks(self.flushing[side].take(self._rows_to_flush(side))))

    def _flush_any(self, side: int) -> None:
        """Flush a block of rows that are of no use in memory."""
        self._write(side, self._blocks(self.flushing[side].take_any(self._rows_to_flush(side))))

    def _blocks(self, parts: list[Run]) -> Iterator[Run]:
        """Rows that were taken out of memory as one block; as several, if they are wider than most.

        How many rows were taken went by the mean row.
        """
        if sum(part.nbytes for part in parts) <= _UNEVEN * self._most_block_bytes:
            yield merge_runs(parts)
        else:
            yield from in_order(parts, self._most_block_bytes)

    def _rows_to_flush(self, side: int) -> int:
        nbytes = self._bytes_to_flush(self.block_bytes, self._most_block_bytes, self._wanted_bytes)
        return self._rows_of(side, nbytes)

    def _rows_of(self, side: int, nbytes: int) -> int:
        """About how many rows of a side take up so many bytes."""
        index = self.index[side]
        return max(1, nbytes * len(index) // max(1, index.nbytes))

    def _write(self, side: int, blocks: Iterable[Run]) -> tuple[int, Entries]:
        """Put rows that were taken out of memory on disk; returns the first number, and entries.

        No two blocks have the same DTS, as if one had gone after the other.
        """
        tick, store, known = self.ctx.clock.tick, self.ctx.store, self.joins.blocks[side]
        first, written = len(known), []
        self._release_rows()
        for run in blocks:
            block = store.append(run, side, LOGGED, dts=tick())
            known.append(block)
            written.append(block)
            self.ctx.counters.flushed_bytes += int(block["length"])
            self.ctx.counters.flushed_rows += len(run)
        self.regions[side].flushed = self.index[side].flushed = True
        quietly(self._account())  # which may write more
        return first, np.array(written, dtype=BLOCK)

    def _catalogue_bytes(self) -> int:
        """Pages are looked at by deferred work only, and kept in the working memory."""
        return self._pages.tail_bytes

    def _set_down(self, side: int, keep: bool) -> None:
        """Write the lowest rows of a side as blocks; keep them in memory as loaded, if asked."""
        count = self._rows_of(side, self._group_bytes)
        parts = self.flushing[side].take_any(count)
        self._emptied = True
        if sum(part.nbytes for part in parts) > _UNEVEN * self._group_bytes:
            self._write(side, in_order(parts, self._most_block_bytes))
            return
        run = merge_runs(parts)
        pieces = run.cuts(0, len(run), self._most_block_bytes)
        first, written = self._write(side, (run.slice(*piece) for piece in pieces))
        if keep:
            load = self.loaded.keep(first, written, run)
            self.joins.loads += [] if load is None else [load]

    def _favour(self, ended: int, spare_bytes: int) -> None:
        """Give the memory to the input that has ended, but for the bytes to be spared."""
        blocks = self.joins.blocks[ended]
        if self._favoured == ended or not len(blocks):
            return
        self._favoured = ended
        while len(self.index[1 - ended]):
            self._set_down(1 - ended, keep=False)
        while self.loaded.give_up(1 - ended):
            pass
        spare_bytes += 2 * self.block_bytes + self._slice_bytes
        self.joins.loads += self.loaded.load(ended, blocks, spare_bytes)

    def _recall(self, spare_bytes: int) -> None:
        """After a silence: load what Cleanup took out of memory, but for the bytes to be spared."""
        self._emptied = False
        if self.options.cleanup != "loop":
            spare_bytes += 2 * self.block_bytes + self._slice_bytes
            self.joins.loads += self.loaded.recall(self.joins.blocks, spare_bytes)

    # -- deferred work ----------------------------------------------------------------------

    def _stops(self, fuel: int) -> bool:
        return fuel <= 0 or self.waiting() > self.options.max_new_arrivals

    def _deferred(self) -> Pieces:
        self._wanted_bytes = 0
        while True:
            phase = "cleanup" if all(self.ended) else "reactive"
            if self.sweeper.state is not None:
                yield phase, self.sweeper.step(self)
                continue
            side = self._side_to_set_down() if all(self.ended) else None
            if side is not None:
                self._set_down(side, keep=self.options.cleanup != "loop")
                yield phase, iter(())
            elif not self.joins.rectangle.advance(self.joins.sizes):
                self._looping = False
                self.joins.forget_loads([self._oldest(side) for side in SIDES])
                return
            elif all(self.ended) and not self._looping:
                self._put_down()
                self._looping = not self.sweeper.begin(self)
            else:
                most = sum(self.joins.sizes) if all(self.ended) else self.options.max_outer_blocks
                yield phase, self.joins.react(most, self)

    def lend(self) -> bool:
        """Line 13 of Algorithm 4. In Cleanup, what is still in memory has nothing left to meet."""
        return self.loaded.give_up() if all(self.ended) else self._make_room()

    def _put_down(self) -> None:
        self._pages.forget()
        self.joins.put_down()
        self.sweeper.put_down()

    def _side_to_set_down(self) -> int | None:
        """A side with rows in memory that have not met all of the other side's blocks."""
        return next((side for side in SIDES if self._has_unmet(side)), None)

    def _has_unmet(self, side: int) -> bool:
        blocks = self.joins.blocks[1 - side]
        return self.loaded.leave_unmet(1 - side, blocks, self.index[side].runs)

    def _oldest(self, side: int) -> int:
        return min((int(run.ats.min()) for run in self.index[side].runs), default=NEVER)

    def pending(self) -> int:
        rows = sum(len(self.index[side]) for side in SIDES if self._has_unmet(side))
        return rows + self.joins.unmet_rows()

    # -- state ------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        now = self.ctx.clock.now
        resident = np.array(self._persist_memory(), dtype=BLOCK)
        sweep, sorter = self.sweeper.state, self.sweeper.sorter
        loads = [asdict(load) for load in self.joins.loads]
        meta = {
            "tick": now,
            "regions": [regions.facts() for regions in self.regions],
            "rectangle": asdict(self.joins.rectangle),
            "sweep": None if sweep is None else sweep.facts(),
            # after a restore, blocks have to be loaded again
            "loads": [load | {"until": min(load["until"], now)} for load in loads],
            "page_entries": self._pages.fan_out,
            "blocks": [blocks.facts() for blocks in self.joins.blocks],
            "sorted": sorter.facts(),
            "logs": self.ctx.store.log_facts(),
            "widest": self.wide.widest,
        }
        lists = (*self.joins.blocks, *sorter.blocks)
        entries = concatenated([resident, *(tail for blocks in lists for tail in blocks.tails)])
        return Snapshot(meta, entries, (*self.ctx.store.log_files, *sorter.files))

    def _restore(self, snapshot: Snapshot) -> None:
        meta = copy.deepcopy(snapshot.meta)  # someone may restore from it again
        self.ctx.clock.now = meta["tick"]
        for side in SIDES:
            for name, value in meta["regions"][side].items():
                setattr(self.regions[side], name, value)
        self.joins.rectangle = Rectangle(**meta["rectangle"])
        self.joins.loads = [LoadedBlocks(**load) for load in meta["loads"]]
        self.ctx.store.restore_logs(meta["logs"])
        for blocks, facts in zip(self.joins.blocks, meta["blocks"], strict=True):
            blocks.restore(facts)
        if meta["sweep"] is not None:
            self.sweeper.restore(Sweep.restored(meta["sweep"]), meta["sorted"])
        paged = snapshot.blocks[snapshot.blocks["kind"] >= LOGGED]
        for tail in split_tails(paged, "side"):
            side, kind = int(tail[0]["side"]), int(tail[0]["kind"])
            lists = self.joins.blocks if kind < SORTED else self.sweeper.sorter.blocks
            lists[side].restore_tail(tail)
        self._catalogue.grow(self._pages.tail_bytes)
        for block in snapshot.blocks[snapshot.blocks["kind"] == RESIDENT]:
            self.index[int(block["side"])].restore(self.ctx.store.read(block))
        for side in SIDES:
            self.flushing[side].count()
        quietly(self._settle_rows())

    def check(self) -> None:
        super().check()
        self.loaded.check()
        self.joins.rectangle.check(self.joins.sizes)
        for side in SIDES:
            self.regions[side].check()
            counted = list(self.regions[side].rows)
            self.flushing[side].count()
            assert counted == self.regions[side].rows, "the regions' rows are miscounted"
            blocks = self.joins.blocks[side]
            blocks.check()
            known = concatenated(blocks.tails[::-1])
            assert (np.diff(known["dts"]) > 0).all()
            assert (known["ats_max"] < known["dts"]).all()
        self.sweeper.check()


class PaperDiner(Diner):
    """DINER as the paper has it, without what was added."""

    name: ClassVar[str] = "diner-paper"
    default_options: ClassVar[DinerOptions] = DinerOptions(zone_maps=False, cleanup="loop")
