"""DINER's Cleanup by ranges of codes: an external sort-merge over all blocks that have not met.

How and why is told in `diner_blocks`; `Sweeper` does it, a block of inner rows or one sorted block
at a time, and `Sorter` writes the sorted blocks.
"""

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pyarrow as pa

from dovetail.kernel.blocks import FLUSHED, BlockList
from dovetail.kernel.memory import Reservation
from dovetail.kernel.protocol import LEFT, RIGHT, SIDES, Context
from dovetail.kernel.runs import Rows, Run, merge_runs
from dovetail.twoway.diner_blocks import (
    Entries,
    Part,
    Sorting,
    Strip,
    Sweep,
    held_bytes,
    loop_bytes,
    probing_bytes,
    range_end,
    slice_codes,
    sorting_bytes,
    sorting_need,
    sweep_bytes,
)
from dovetail.twoway.diner_joins import ENTRY_BYTES, BlockJoins, Chunk, DinerOptions
from dovetail.twoway.diner_regions import LEAST, MOST

SORTED = 1  #: the `part` of a sorted block


class Sorter:
    """Writes groups of blocks again as blocks in code order, of rows that keep their labels."""

    def __init__(self, context: Context, block_bytes: int) -> None:
        self._ctx = context
        self._block_bytes = block_bytes
        self._held = Reservation(context.budget, "sorting")
        self.blocks = (BlockList(), BlockList())
        self._runs: list[Run] = []  # the open group
        self._source = np.zeros(0, dtype=np.int32)  # for each row in code order, which run it is of

    def catalogue_bytes(self, blocks: int) -> int:
        """What the catalogue takes up if so many blocks are sorted; they may become a few more."""
        return ENTRY_BYTES * (blocks + blocks // 8 + 8)

    def reserve(self, blocks: int, make_room: Callable[[], bool]) -> bool:
        """Have memory for the catalogue; False if there is none."""
        while not self._held.try_grow(self.catalogue_bytes(blocks)):
            if not make_room():
                return False
        return True

    def restore(self, blocks: int, entries: Entries) -> None:
        """Go on with what has been sorted of so many blocks."""
        self._held.grow(self.catalogue_bytes(blocks))
        for entry in entries:
            self.blocks[int(entry["side"])].append(entry)

    @property
    def is_open(self) -> bool:
        return bool(self._runs)

    def open(self, parts: Iterable[Part]) -> None:
        """Take a group of blocks in."""
        self._runs = [part.run for part in parts]
        codes = np.concatenate([run.codes for run in self._runs])
        lengths = [len(run) for run in self._runs]
        source = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
        self._source = source[np.argsort(codes, kind="stable")]

    def step(self, sorting: Sorting) -> None:
        """Write the next block of the open group."""
        total = len(self._source)
        nbytes = sum(run.nbytes for run in self._runs)
        stop = min(total, sorting.rows + max(1, self._block_bytes * total // nbytes))
        number = len(self._runs)
        begins = np.bincount(self._source[: sorting.rows], minlength=number)
        counts = np.bincount(self._source[sorting.rows : stop], minlength=number)
        pieces = [
            run.slice(int(begin), int(begin + count))
            for run, begin, count in zip(self._runs, begins, counts, strict=True)
            if count
        ]
        block = self._ctx.store.append(
            merge_runs(pieces), sorting.side, FLUSHED, SORTED, self._ctx.clock.now
        )
        self.blocks[sorting.side].append(block)
        self._ctx.counters.flushed_bytes += int(block["length"])
        sorting.rows = stop
        if stop == total:
            sorting.start, sorting.count, sorting.rows = sorting.start + sorting.count, 0, 0
            self.put_down()

    def put_down(self) -> None:
        self._runs, self._source = [], self._source[:0]

    def clear(self) -> None:
        """The sorted blocks are not needed any more."""
        self.blocks = (BlockList(), BlockList())
        self._held.resize(0)


class Sweeper:
    """Joins all blocks that have not met, and keeps its place."""

    def __init__(
        self, context: Context, joins: BlockJoins, block_bytes: int, options: DinerOptions
    ) -> None:
        self._ctx = context
        self._joins = joins
        self._options = options
        self._block_bytes = block_bytes
        self.state: Sweep | None = None
        self.sorter = Sorter(context, block_bytes)
        self._chunk: Chunk | None = None

    def restore(self, state: Sweep, blocks: Entries) -> None:
        """Go on from a snapshot, with the blocks that were sorted."""
        self.state = state
        if state.sorted:
            self.sorter.restore(sum(state.target), blocks)

    def put_down(self) -> None:
        """Give the blocks in memory back; nothing else is lost."""
        self._chunk = None
        self.sorter.put_down()
        self._joins.room.give_back()

    # -- the sweep --------------------------------------------------------------------------

    def begin(self) -> bool:
        """Set out to join all blocks that there are now; False if a nested loop is the better way.

        Only if some have not met.
        """
        joins = self._joins
        strips = [self._smaller_outside(strip) for strip in joins.rectangle.strips(joins.sizes)]
        asked = self._options.cleanup
        ways = self._by_cost(strips) if asked == "cheapest" else [asked, "sweep"]
        if ways[0] == "sort" and not self.sorter.reserve(sum(joins.sizes), joins.room.make_room):
            ways = ways[1:]
        if ways[0] == "loop":
            return False
        self.state = Sweep(list(joins.sizes), strips, LEAST)
        if ways[0] == "sort":
            self.state.sorted, self.state.sorting, self.state.strips = True, Sorting(), []
        return True

    def _by_cost(self, strips: list[Strip]) -> list[str]:
        """The ways to go, the one that takes least first: by what is read, written and probed."""
        joins = self._joins
        pairs = [self._strip_entries(strip) for strip in strips]
        sides = [joins.blocks[side].entries for side in SIDES]
        room = joins.room.ask(max(_nbytes(outer) for outer, _ in pairs))
        joins.room.give_back()
        left = room - self.sorter.catalogue_bytes(sum(joins.sizes))
        parts = -(-room // joins.part_bytes)
        in_range = sum(probing_bytes(inner, parts) for _, inner in pairs)
        costs = {
            "sweep": in_range + sum(sweep_bytes(outer, inner, room) for outer, inner in pairs),
            "loop": sum(
                loop_bytes(outer, inner, room)
                + probing_bytes(inner, -(-_nbytes(outer) // joins.part_bytes))
                for outer, inner in pairs
            ),
            "sort": in_range + sorting_bytes(sides, max(left, joins.room.least_bytes)),
        }
        return sorted(costs, key=costs.__getitem__)

    def step(self) -> Iterator[pa.RecordBatch]:
        """A block of inner rows meets the outer ones of the open range; or that is prepared."""
        sweep = self.state
        assert sweep is not None
        if sweep.sorting is not None:
            self._sort(sweep, sweep.sorting)
            return
        if sweep.high is None and not self._open_range(sweep):
            return
        strip = sweep.strips[-1]
        if self._chunk is None:
            self._chunk = self._open_part(sweep, strip)
        if self._chunk.inner:
            blocks, stop = self._inner_runs(sweep, strip, self._chunk.inner)
            if blocks:
                parts = self._chunk.parts or self._range_parts(sweep, strip)
                done = self._joins.rectangle.done() if sweep.sorted else ()
                yield from self._joins.join(1 - strip.outer, blocks, parts, done)
            sweep.inner = stop
        if not self._chunk.inner:
            self._chunk = None
            if sweep.stop < len(self._outer_numbers(sweep, strip)):
                sweep.start, sweep.stop, sweep.inner = sweep.stop, 0, 0
            else:
                self._close_range(sweep)

    def _sort(self, sweep: Sweep, sorting: Sorting) -> None:
        """Write one sorted block; after the last of both sides, let the sweep begin."""
        side, joins = sorting.side, self._joins
        if sorting.start < sweep.target[side]:
            if not self.sorter.is_open:
                need = sorting_need(joins.blocks[side].entries)
                if not sorting.count:
                    sorting.count = joins.room.fit(need[sorting.start : sweep.target[side]])
                numbers = range(sorting.start, sorting.start + sorting.count)
                joins.room.ask(int(need[numbers.start : numbers.stop].sum()))
                runs = (joins.read(side, number) for number in numbers)
                self.sorter.open(joins.parts(side, runs))
            self.sorter.step(sorting)
        elif side == LEFT:
            sweep.sorting = Sorting(RIGHT)
        else:
            self.put_down()
            sweep.sorting = None
            left, right = self.sorter.blocks
            strip = Strip(LEFT, 0, len(left), 0, len(right))
            smaller = _nbytes(left.entries) <= _nbytes(right.entries)
            sweep.strips = [strip if smaller else strip.turned()]

    # -- ranges -----------------------------------------------------------------------------

    def _open_range(self, sweep: Sweep) -> bool:
        """Find the next range of codes; False when the strip is done, and perhaps the sweep."""
        strip = sweep.strips[-1]
        outer = self._entries(strip.outer)[strip.start : strip.stop]
        ahead = outer[outer["code_max"] >= sweep.low]
        if not len(ahead):
            self._close_strip(sweep)
            return False
        sweep.low = max(sweep.low, int(ahead["code_min"].min()))
        # with some room to spare: rows that do not fit after all cost a pass over the inner blocks
        room = 3 * self._joins.room.ask(_nbytes(ahead)) // 4
        sweep.high = range_end(ahead, sweep.low, room)
        sweep.start = sweep.stop = sweep.inner = 0
        return True

    def _close_range(self, sweep: Sweep) -> None:
        assert sweep.high is not None
        if sweep.high == MOST:
            self._close_strip(sweep)
        else:
            sweep.low, sweep.high = sweep.high + 1, None

    def _close_strip(self, sweep: Sweep) -> None:
        sweep.strips.pop()
        sweep.low, sweep.high = LEAST, None
        if not sweep.strips:
            self._joins.rectangle.cover(sweep.target)
            self.put_down()
            self.sorter.clear()
            self.state = None

    def _open_part(self, sweep: Sweep, strip: Strip) -> Chunk:
        """Read as much of the open range's outer rows as fit, and find the inner blocks to meet."""
        numbers = self._outer_numbers(sweep, strip)
        inner = self._inner_numbers(sweep, strip, numbers[sweep.start : sweep.stop or None])
        if not len(inner):
            sweep.stop = sweep.stop or len(numbers)
            return Chunk(None, [])
        if sweep.stop:  # it was read before, and may not fit any more
            there = self._joins.room.ask(sweep.nbytes) >= sweep.nbytes
            parts = list(self._range_parts(sweep, strip)) if there else None
            return Chunk(parts, inner[::-1].tolist())
        self._joins.room.ask(_nbytes(self._entries(strip.outer)[numbers[sweep.start :]]))
        parts = list(self._range_parts(sweep, strip))
        inner = self._inner_numbers(sweep, strip, numbers[sweep.start : sweep.stop])
        return Chunk(parts, inner[::-1].tolist() if parts else [])

    def _range_parts(self, sweep: Sweep, strip: Strip) -> Iterator[Part]:
        return self._joins.parts(strip.outer, self._range_runs(sweep, strip))

    def _range_runs(self, sweep: Sweep, strip: Strip) -> Iterator[Run]:
        """The outer rows of the open range, block by block; sets `sweep.stop` where memory ends."""
        assert sweep.high is not None
        numbers = self._outer_numbers(sweep, strip)
        lengths = self._entries(strip.outer)["length"]
        held, room = 0, self._joins.room.nbytes
        at = sweep.start
        while at < (sweep.stop or len(numbers)):
            number = int(numbers[at])
            if not sweep.stop and held and held + int(lengths[number]) > room:
                break
            run = slice_codes(self._read(strip.outer, number), sweep.low, sweep.high)
            if run is not None:
                held += run.nbytes
                yield run
            at += 1
        sweep.stop, sweep.nbytes = at, held

    def _inner_runs(self, sweep: Sweep, strip: Strip, numbers: list[int]) -> tuple[list[Run], int]:
        """What the next inner blocks have in the open range: as many as make up a block there.

        Takes their numbers off the list; returns also the number of the one after them. To look
        for few rows takes nearly as long as for many, and of a wide block few are in the range.
        """
        assert sweep.high is not None
        low, high = self._joins.zones.reach(sweep.low, sweep.high)
        runs: list[Run] = []
        held = stop = 0
        while numbers and held < self._block_bytes:
            stop = numbers.pop() + 1
            run = slice_codes(self._read(1 - strip.outer, stop - 1), low, high)
            if run is None:
                continue
            if runs and held + run.nbytes > 2 * self._block_bytes:  # its turn comes again
                stop -= 1
                numbers.append(stop)
                break
            held += run.nbytes
            runs.append(run)
        return runs, stop

    # -- blocks -----------------------------------------------------------------------------

    def _entries(self, side: int) -> Entries:
        """The blocks that the sweep goes over."""
        assert self.state is not None
        return (self.sorter.blocks if self.state.sorted else self._joins.blocks)[side].entries

    def _read(self, side: int, number: int) -> Run:
        assert self.state is not None
        if self.state.sorted:  # its rows are labelled
            return self._ctx.store.read(self.sorter.blocks[side].entries[number])
        return self._joins.read(side, number)

    def _outer_numbers(self, sweep: Sweep, strip: Strip) -> Rows:
        """The outer blocks of the strip that reach into the open range."""
        assert sweep.high is not None
        outer = self._entries(strip.outer)[strip.start : strip.stop]
        reaching = (outer["code_max"] >= sweep.low) & (outer["code_min"] <= sweep.high)
        return strip.start + np.flatnonzero(reaching)

    def _inner_numbers(self, sweep: Sweep, strip: Strip, outer: Rows) -> Rows:
        """The inner blocks, from `sweep.inner` on, that reach into the open range."""
        assert sweep.high is not None
        start = max(strip.inner_start, sweep.inner)
        inner = self._entries(1 - strip.outer)[start : strip.inner_stop]
        low, high = self._joins.zones.reach(sweep.low, sweep.high)
        numbers = np.flatnonzero((inner["code_max"] >= low) & (inner["code_min"] <= high))
        # what was sorted has the ticks of many blocks, and is narrow anyway
        if self._options.zone_maps and not sweep.sorted and len(numbers) and len(outer):
            entries = self._entries(strip.outer)[outer]
            numbers = numbers[self._joins.zones.may_meet(entries, inner[numbers])]
        return start + numbers

    def _strip_entries(self, strip: Strip) -> tuple[Entries, Entries]:
        blocks = self._joins.blocks
        inner = blocks[1 - strip.outer].entries[strip.inner_start : strip.inner_stop]
        return blocks[strip.outer].entries[strip.start : strip.stop], inner

    def _smaller_outside(self, strip: Strip) -> Strip:
        """The strip with the side that takes fewer bytes as the outer one."""
        outer, inner = self._strip_entries(strip)
        return strip if _nbytes(outer) <= _nbytes(inner) else strip.turned()


def _nbytes(entries: Entries) -> int:
    return int(held_bytes(entries).sum())
