"""DINER's Cleanup by ranges of codes: an external sort-merge over all blocks that have not met.

How and why is told in `meeting`; `Sweeper` does it, a block of inner rows or one sorted block
at a time, and `sorting` writes the sorted blocks.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from dovetail.kernel.blocks import BLOCK
from dovetail.kernel.catalogue import Entries, concatenated
from dovetail.kernel.protocol import LEFT, RIGHT, Context
from dovetail.kernel.room import Lender
from dovetail.kernel.runs import Run
from dovetail.twoway.diner.costs import (
    loop_bytes,
    probing_bytes,
    range_end,
    sorting_bytes,
    sorting_need,
    sweep_bytes,
    total_bytes,
)
from dovetail.twoway.diner.joins import BlockJoins, Chunk, DinerOptions
from dovetail.twoway.diner.lists import BlockList, ListWindow, Upcoming, window_entries
from dovetail.twoway.diner.meeting import (
    Done,
    Part,
    Sorting,
    Strip,
    Sweep,
    condensed,
    slice_codes,
)
from dovetail.twoway.diner.regions import LEAST, MOST
from dovetail.twoway.diner.sorting import Sorter

# of the memory for a part, for an outline of the blocks; no part is held then
_OUTLINE_SHARE = 1 / 2


class Sweeper:
    """Joins all blocks that have not met, and keeps its place."""

    def __init__(
        self, context: Context, joins: BlockJoins, block_bytes: int, options: DinerOptions
    ) -> None:
        self._ctx = context
        self._joins = joins
        self._options = options
        self._block_bytes = block_bytes
        self._most_outlined = window_entries(joins.pages, int(_OUTLINE_SHARE * joins.part_bytes))
        self.state: Sweep | None = None
        self.sorter = Sorter(context, joins.pages.fan_out, block_bytes)
        self._chunk: Chunk | None = None
        self._done: list[Done] | None = None  # what had met before the sweep

    def restore(self, state: Sweep, facts: dict[str, Any]) -> None:
        """Go on from a snapshot; `facts` are the sorter's."""
        self.state = state
        if state.sorted:
            self.sorter.restore(facts, sum(state.target))

    def put_down(self) -> None:
        """Give the blocks in memory back; nothing else is lost."""
        self._chunk = None
        self.sorter.put_down()
        self._joins.pages.forget()
        self._joins.room.give_back()

    def check(self) -> None:
        sweep = self.state
        assert sweep is not None or not any(map(len, self.sorter.blocks))
        if sweep is not None and sweep.sorted:
            self.sorter.check()

    # -- the sweep --------------------------------------------------------------------------

    def begin(self, lender: Lender) -> bool:
        """Set out to join all blocks that there are now; False if a nested loop is the better way.

        Only if some have not met.
        """
        joins = self._joins
        strips = [self._smaller_outside(strip) for strip in joins.rectangle.strips(joins.sizes)]
        asked = self._options.cleanup
        ways = self._by_cost(strips, lender) if asked == "cheapest" else [asked, "sweep"]
        if ways[0] == "sort" and not self.sorter.reserve(sum(joins.sizes), lender):
            ways = ways[1:]
        if ways[0] == "loop":
            return False
        self.state = Sweep(list(joins.sizes), strips, LEAST)
        if ways[0] == "sort":
            self.state.sorted, self.state.sorting, self.state.strips = True, Sorting(), []
        return True

    def _by_cost(self, strips: list[Strip], lender: Lender) -> list[str]:
        """The ways to go, the one that takes least first: by what is read, written and probed."""
        joins = self._joins
        pairs = [self._estimates(strip) for strip in strips]
        sides = [
            (blocks.estimate(0, len(blocks), self._most_outlined), len(blocks))
            for blocks in joins.blocks
        ]
        room = joins.room.ask(max(total_bytes(outer) for outer, _ in pairs), lender)
        joins.room.give_back()
        left = room - self.sorter.catalogue_bytes(sum(joins.sizes))
        parts = -(-room // joins.part_bytes)
        in_range = sum(probing_bytes(inner, parts) for _, inner in pairs)
        costs = {
            "sweep": in_range + sum(sweep_bytes(outer, inner, room) for outer, inner in pairs),
            "loop": sum(
                loop_bytes(outer, inner, room)
                + probing_bytes(inner, -(-total_bytes(outer) // joins.part_bytes))
                for outer, inner in pairs
            ),
            "sort": in_range + sorting_bytes(sides, max(left, joins.room.least_bytes)),
        }
        return sorted(costs, key=costs.__getitem__)

    def step(self, lender: Lender) -> Iterator[pa.RecordBatch]:
        """A block of inner rows meets the outer ones of the open range; or that is prepared."""
        sweep = self.state
        assert sweep is not None
        if sweep.sorting is not None:
            self._sort(sweep, sweep.sorting, lender)
            return
        if sweep.high is None and not self._open_range(sweep, lender):
            return
        strip = sweep.strips[-1]
        if self._chunk is None:
            self._chunk = self._open_part(sweep, strip, lender)
        if self._chunk.inner:
            blocks, stop = self._inner_runs(sweep, self._chunk.inner)
            if blocks:
                parts = self._chunk.parts or self._range_parts(sweep, strip)
                yield from self._joins.join(1 - strip.outer, blocks, parts, self._met_before(sweep))
            sweep.inner = stop
        if not self._chunk.inner:
            self._chunk = None
            if sweep.stop < strip.stop:
                sweep.start, sweep.stop, sweep.inner = sweep.stop, 0, 0
            else:
                self._close_range(sweep)

    def _met_before(self, sweep: Sweep) -> list[Done]:
        """The blocks under the sweep that have met: none, unless they were sorted from all."""
        if self._done is None:
            self._done = self._joins.done() if sweep.sorted else []
        return self._done

    def _sort(self, sweep: Sweep, sorting: Sorting, lender: Lender) -> None:
        """Write one sorted block; after the last of both sides, let the sweep begin."""
        side, joins = sorting.side, self._joins
        if sorting.start < sweep.target[side]:
            if not self.sorter.is_open:
                needs = joins.needs(side, sorting.start, sweep.target[side], sorting_need)
                if not sorting.count:
                    sorting.count = joins.room.fit(needs, lender)
                joins.room.ask(int(needs[: sorting.count].sum()), lender)
                group = joins.blocks[side].entries(sorting.start, sorting.start + sorting.count)
                runs = (joins.read(block) for entries in group for block in entries)
                self.sorter.open(joins.parts(runs))
            self.sorter.step(sorting)
        elif side == LEFT:
            sweep.sorting = Sorting(RIGHT)
        else:
            self.put_down()
            sweep.sorting = None
            left, right = self.sorter.blocks
            strip = Strip(LEFT, 0, len(left), 0, len(right))
            smaller = left.held_bytes <= right.held_bytes
            sweep.strips = [strip if smaller else strip.turned()]

    # -- ranges -----------------------------------------------------------------------------

    def _open_range(self, sweep: Sweep, lender: Lender) -> bool:
        """Find the next range of codes; False when the strip is done, and perhaps the sweep."""
        strip = sweep.strips[-1]
        outer = self._blocks(strip.outer)
        ahead = outer.estimate(strip.start, strip.stop, self._most_outlined, low=sweep.low)
        if not len(ahead):
            self._close_strip(sweep)
            return False
        sweep.low = max(sweep.low, int(ahead["code_min"].min()))
        # with some room to spare: rows that do not fit after all cost a pass over the inner blocks
        room = 3 * self._joins.room.ask(total_bytes(ahead), lender) // 4
        sweep.high = range_end(ahead, sweep.low, room)
        sweep.start, sweep.stop, sweep.inner = strip.start, 0, 0
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
            self.state = self._done = None

    def _open_part(self, sweep: Sweep, strip: Strip, lender: Lender) -> Chunk:
        """Read as much of the open range's outer rows as fit, and find the inner blocks to meet."""
        inner = self._inner(sweep, strip)
        if not inner:
            sweep.stop = sweep.stop or strip.stop
            return Chunk(None, inner)
        if sweep.stop:  # it was read before, and may not fit any more
            there = self._joins.room.ask(sweep.nbytes, lender) >= sweep.nbytes
            return Chunk(list(self._range_parts(sweep, strip)) if there else None, inner)
        outer = self._blocks(strip.outer).estimate(
            sweep.start, strip.stop, self._most_outlined, sweep.low, _high(sweep)
        )
        self._joins.room.ask(total_bytes(outer), lender)
        parts = list(self._range_parts(sweep, strip))
        return Chunk(parts, self._inner(sweep, strip) if parts else Upcoming(iter(())))

    def _range_parts(self, sweep: Sweep, strip: Strip) -> Iterator[Part]:
        return self._joins.parts(self._range_runs(sweep, strip))

    def _range_runs(self, sweep: Sweep, strip: Strip) -> Iterator[Run]:
        """The outer rows of the open range, block by block; sets `sweep.stop` where memory ends."""
        held, room = 0, self._joins.room.nbytes
        stop = sweep.stop or strip.stop
        for number, block in Upcoming(self._outer_windows(sweep, strip)):
            if not sweep.stop and held and held + int(block["length"]) > room:
                stop = number
                break
            run = slice_codes(self._read(block), sweep.low, _high(sweep))
            if run is not None:
                held += run.nbytes
                yield run
        sweep.stop, sweep.nbytes = stop, held

    def _inner_runs(self, sweep: Sweep, inner: Upcoming) -> tuple[list[Run], int]:
        """Read rows of the next inner blocks in the open range, until they make up a block.

        Returns also the number of the one after them. To look for few rows takes nearly as long as
        for many, and of a wide block few are in the range.
        """
        low, high = self._joins.zones.reach(sweep.low, _high(sweep))
        runs: list[Run] = []
        held = stop = 0
        while held < self._block_bytes and (found := inner.peek()) is not None:
            number, block = found
            run = slice_codes(self._read(block), low, high)
            if run is not None:
                if runs and held + run.nbytes > 2 * self._block_bytes:  # its turn comes again
                    break
                held += run.nbytes
                runs.append(run)
            inner.advance()
            stop = number + 1
        return runs, stop

    # -- blocks -----------------------------------------------------------------------------

    def _blocks(self, side: int) -> BlockList:
        """The blocks that the sweep goes over."""
        assert self.state is not None
        return (self.sorter.blocks if self.state.sorted else self._joins.blocks)[side]

    def _read(self, block: np.void) -> Run:
        assert self.state is not None
        return self.sorter.read(block) if self.state.sorted else self._joins.read(block)

    def _outer_windows(self, sweep: Sweep, strip: Strip) -> Iterator[ListWindow]:
        """The outer blocks that are meeting inner ones, or may be next to do so."""
        stop = sweep.stop or strip.stop
        window = self._joins.window
        return self._blocks(strip.outer).windows(sweep.start, stop, window, sweep.low, _high(sweep))

    def _inner(self, sweep: Sweep, strip: Strip) -> Upcoming:
        """The inner blocks, from `sweep.inner` on, that these outer blocks have to meet."""
        start = max(strip.inner_start, sweep.inner)
        low, high = self._joins.zones.reach(sweep.low, _high(sweep))
        window = self._joins.window
        found = self._blocks(1 - strip.outer).windows(start, strip.inner_stop, window, low, high)
        # what was sorted has the ticks of many blocks, and is narrow anyway
        if self._options.zone_maps and not sweep.sorted:
            outer = np.zeros(0, dtype=BLOCK)
            for _, entries in self._outer_windows(sweep, strip):
                outer = condensed(concatenated([outer, entries]), window)
            found = self._joins.may_meet(outer, found) if len(outer) else iter(())
        return Upcoming(found)

    def _estimates(self, strip: Strip) -> tuple[Entries, Entries]:
        outer, inner = self._joins.blocks[strip.outer], self._joins.blocks[1 - strip.outer]
        return (
            outer.estimate(strip.start, strip.stop, self._most_outlined),
            inner.estimate(strip.inner_start, strip.inner_stop, self._most_outlined),
        )

    def _smaller_outside(self, strip: Strip) -> Strip:
        """The strip with the side that takes fewer bytes as the outer one."""
        outer, inner = self._estimates(strip)
        return strip if total_bytes(outer) <= total_bytes(inner) else strip.turned()


def _high(sweep: Sweep) -> int:
    """The end of the range, which is open."""
    assert sweep.high is not None
    return sweep.high
