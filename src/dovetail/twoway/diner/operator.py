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
from collections.abc import Callable
from dataclasses import asdict
from typing import ClassVar

import numpy as np
import pyarrow as pa

from dovetail.kernel.blocks import BLOCK, LOGGED, RESIDENT
from dovetail.kernel.catalogue import concatenated, fan_out_for, split_tails
from dovetail.kernel.protocol import SIDES, Context, Snapshot
from dovetail.kernel.runs import Run
from dovetail.kernel.shell import Pieces, Results, quietly
from dovetail.twoway.base import TwoWayJoin, TwoWaySpec
from dovetail.twoway.diner.arriving import Arriving, BlockSizes
from dovetail.twoway.diner.index import Found, MarkedRuns
from dovetail.twoway.diner.joins import BlockJoins, DinerOptions
from dovetail.twoway.diner.lists import LISTS, MOST_PAGE_ENTRIES, make_pages
from dovetail.twoway.diner.loads import LoadedRows
from dovetail.twoway.diner.meeting import LoadedBlocks, Rectangle, Sweep
from dovetail.twoway.diner.phases import Cleanup, Reactive
from dovetail.twoway.diner.regions import Regions
from dovetail.twoway.diner.sorting import SORTED
from dovetail.twoway.diner.sweep import Sweeper

_LEAST_BLOCKS_IN_WORKING = 6  # a flush and a merge hold a block several times over
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
        sizes = self._choose_sizes()
        self.block_bytes, self._most_block_bytes = sizes.block_bytes, sizes.most_bytes
        self._wanted_bytes = 0  # by the last arrival
        self._pages = make_pages(self.ctx.store, self._choose_page_entries(snapshot))
        codec, emitter, group = self.spec.codec, self._emitter, sizes.group_bytes
        self.joins = BlockJoins(self.ctx, codec, emitter, self._pages, group, self.options)
        sorted_bytes = max(sizes.block_bytes, sizes.most_bytes // 2)
        self.sweeper = Sweeper(self.ctx, self.joins, sorted_bytes, self.options)
        self.arriving = Arriving(
            self.ctx, self.index, self.joins, sizes, self.options, emptied=snapshot is not None
        )
        self.reactive = Reactive(self.joins, self.sweeper, self.options)
        self.cleanup = Cleanup(self.arriving, self.joins, self.sweeper, self.options)
        self.waiting: Callable[[], int] = lambda: 0  #: rows in the input buffer, if known

    def _new_memory(self, merge_bytes: int) -> tuple[MarkedRuns, MarkedRuns]:
        piece_bytes = max(_LEAST_PIECE_BYTES, self.working_bytes // _PIECES_IN_WORKING)
        return MarkedRuns(merge_bytes, piece_bytes), MarkedRuns(merge_bytes, piece_bytes)

    def _choose_sizes(self) -> BlockSizes:
        most, asked = self.working_bytes // _LEAST_BLOCKS_IN_WORKING, self.options.block_bytes
        nbytes = self._choose_block_bytes(asked, most)
        if asked is not None:  # as asked for, whatever that costs
            most = nbytes
            self._slice_bytes = min(self._slice_bytes, nbytes)
        return BlockSizes(nbytes, most, self.working_bytes // 4, self._slice_bytes)

    def _choose_page_entries(self, snapshot: Snapshot | None) -> int:
        if snapshot is not None:
            return int(snapshot.meta["page_entries"])
        total = self.ctx.budget.total_bytes
        return self.page_entries or fan_out_for(total, LISTS, MOST_PAGE_ENTRIES)

    @property
    def index(self) -> tuple[MarkedRuns, MarkedRuns]:
        """The rows in memory, with their join bits."""
        return self.memory

    @property
    def regions(self) -> tuple[Regions, Regions]:
        return self.arriving.regions

    @property
    def loaded(self) -> LoadedRows:
        return self.arriving.loaded

    # -- transitions ------------------------------------------------------------------------

    def push(self, side: int, batch: pa.RecordBatch) -> Results:
        """See `Shell`. Whatever deferred phase there was, rows arrive now."""
        self._put_down()
        self.cleanup.leave()
        spare = 2 * self.wide.counted_input(batch.nbytes) if batch.num_rows else None
        self.arriving.begin(side, spare, self)
        yield from super().push(side, batch)

    def finish(self, side: int) -> None:
        super().finish(side)
        self.arriving.finish(side, alone=not all(self.ended))

    def _deferred(self) -> Pieces:
        self._wanted_bytes = 0
        phase = self.cleanup if all(self.ended) else self.reactive
        for piece in phase.work(self):
            yield phase.name, piece
        self.joins.forget_loads([self.arriving.oldest(side) for side in SIDES])

    def _stops(self, fuel: int) -> bool:
        return fuel <= 0 or self.waiting() > self.options.max_new_arrivals

    # -- arriving ---------------------------------------------------------------------------

    def _take_in(self, side: int, run: Run) -> Results:
        found = Found(self.index[1 - side], len(run))
        yield from self._match(side, run, found.note)
        self.arriving.insert(side, run, found.counts())

    def _make_room(self, wanted: int = 0) -> bool:
        if wanted:  # and likely as much again, if merging what came makes it larger
            self._wanted_bytes = wanted
        return self.arriving.make_room(self._flush_bytes(), self)

    def _flush_bytes(self) -> int:
        most = self._most_block_bytes
        return self._bytes_to_flush(self.block_bytes, most, self._wanted_bytes)

    # -- memory -----------------------------------------------------------------------------

    def lend(self) -> bool:
        """Line 13 of Algorithm 4. In Cleanup, what is still in memory has nothing left to meet."""
        return self.loaded.give_up() if all(self.ended) else self._make_room()

    def _put_down(self) -> None:
        self.joins.put_down()
        self.sweeper.put_down()

    def _catalogue_bytes(self) -> int:
        """Pages are looked at by deferred work only, and kept in the working memory."""
        return self._pages.tail_bytes

    def pending(self) -> int:
        rows = sum(len(self.index[side]) for side in SIDES if self.arriving.unmet(side))
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
        for flushing in self.arriving.flushing:
            flushing.count()
        quietly(self._settle_rows())

    def check(self) -> None:
        super().check()
        self.arriving.check()
        self.joins.rectangle.check(self.joins.sizes)
        for blocks in self.joins.blocks:
            blocks.check()
            known = concatenated(blocks.tails[::-1])
            assert (np.diff(known["dts"]) > 0).all()
            assert (known["ats_max"] < known["dts"]).all()
        self.sweeper.check()


class PaperDiner(Diner):
    """DINER as the paper has it, without what was added."""

    name: ClassVar[str] = "diner-paper"
    default_options: ClassVar[DinerOptions] = DinerOptions(zone_maps=False, cleanup="loop")
