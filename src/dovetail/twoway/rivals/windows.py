"""The windows of codes that a merge works on: each fits in memory, and is cut into tasks.

Both follow from the zone maps of the blocks alone, so a merge that was interrupted finds the same
ones again. The blocks of a segment are in code order, so those that reach into a range of codes lie
together in its list: they are looked up, and read page by page, whatever their number. Vocabulary
and rules are in the docstring of `merging`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dovetail.kernel.catalogue import Catalogue, Entries, concatenated
from dovetail.kernel.keys import KeyCodec
from dovetail.kernel.protocol import LEFT, RIGHT, SIDES
from dovetail.twoway.rivals.segments import Segment

TOP, BOTTOM = int(np.iinfo(np.int64).max), int(np.iinfo(np.int64).min)


@dataclass
class BlockGroup:
    """Some blocks, and the group of each."""

    entries: Entries
    groups: NDArray[np.int64]


class Lane:
    """The blocks of one segment's side."""

    def __init__(self, blocks: Catalogue, group: int) -> None:
        self.blocks = blocks
        self.group = group
        self._found = (BOTTOM, 0)  # what was looked up last: most often the same is asked for next

    def starting(self, low: int) -> Iterator[Entries]:
        """The blocks with codes from `low` on, page by page."""
        if self._found[0] != low:
            self._found = (low, self.blocks.ending_below(low))
        yield from self.blocks.entries(self._found[1], len(self.blocks))

    def within(self, low: int, high: int) -> Iterator[Entries]:
        """The blocks that may have codes in the inclusive range, page by page."""
        for entries in self.starting(low):
            stop = int(np.searchsorted(entries["code_min"], high, side="right"))
            if stop:
                yield entries[:stop]
            if stop < len(entries):
                return

    def filling(self, low: int, room: int) -> Iterator[Entries]:
        """The blocks from `low` on, until they fill more than the room."""
        for entries in self.starting(low):
            ends = np.cumsum(entries["length"])
            stop = int(np.searchsorted(ends, room, side="right")) + 1
            yield entries[:stop]
            room -= int(ends[-1])
            if room < 0:
                return


class MergeSide:
    """The blocks of one side that a merge reads."""

    def __init__(self, lanes: list[Lane]) -> None:
        self._lanes = [lane for lane in lanes if len(lane.blocks)]

    def within(self, low: int, high: int) -> Iterator[tuple[Entries, int]]:
        """The blocks that may have codes in the inclusive range, and their group."""
        for lane in self._lanes:
            for entries in lane.within(low, high):
                yield entries, lane.group

    def filling(self, low: int, room: int) -> Entries:
        """The blocks from `low` on by their lowest code: so many that more than all do not fit."""
        parts = [entries for lane in self._lanes for entries in lane.filling(low, room)]
        entries = concatenated(parts)
        return entries[np.argsort(entries["code_min"], kind="stable")]

    @property
    def highest(self) -> int:
        """The highest code of all; `BOTTOM` if there is no block."""
        ends = [lane.blocks.last for lane in self._lanes]
        return max((int(last["code_max"]) for last in ends if last is not None), default=BOTTOM)


@dataclass
class Task:
    """A group of outer blocks meets an inner block, or is copied to the output (no inner)."""

    side: int
    outer: BlockGroup
    inner: np.void | None = None
    inner_group: int = 0
    low: int = BOTTOM  #: the range of the inner rows, inclusive
    high: int = TOP


@dataclass
class MergeWindow:
    """The codes `[low, high]`; `single`: of one code, too many rows to be held at once."""

    low: int
    high: int
    single: bool
    tasks: Iterator[Task] = field(default_factory=lambda: iter(()))  #: that are left


def merge_side(segments: list[Segment], side: int) -> MergeSide:
    return MergeSide([Lane(segment.blocks[side], segment.group) for segment in segments])


def next_high(sides: tuple[MergeSide, MergeSide], low: int, room: int) -> tuple[int, bool] | None:
    """Where a window that begins at `low` ends, and whether it is one code without end."""
    alive = [blocks for one in sides if len(blocks := one.filling(low, room))]
    if not alive:
        return None
    high = max(one.highest for one in sides)
    for blocks in alive:
        fitting = int(np.searchsorted(np.cumsum(blocks["length"]), room, side="right"))
        if fitting < len(blocks):
            high = min(high, int(blocks["code_min"][fitting]) - 1)
    if high >= low:
        return high, False
    # too many blocks begin at or before this code: all up to the first one's end, then that alone
    first = min(int(blocks["code_max"].min()) for blocks in alive)
    least = min(int(blocks["code_min"][0]) for blocks in alive)
    return (first - 1, False) if max(least, low) < first else (first, True)


def tasks_of(
    sides: tuple[MergeSide, MergeSide],
    window: tuple[int, int],
    codec: KeyCodec,
    room: int,
    copying: bool,
) -> Iterator[Task]:
    """The tasks of a window `[low, high]`; `copying`: its rows are to be copied, too."""
    low, high = window
    for outer, outer_side in enumerate(sides):
        if outer == RIGHT and codec.within is None:
            break
        # rows of the left side meet the right's up to here, the right's the left's before
        last = high if outer == LEFT else low - 1
        for group in grouped(outer_side.within(low, high), room):
            reach = max(low, int(group.entries["code_min"].min()))
            first = int(codec.candidates(np.array([reach]))[0][0])
            inner = sides[1 - outer].within(first, last) if first <= last else iter(())
            for entries, number in inner:
                if (group.groups != number).any():
                    for entry in entries:
                        yield Task(outer, group, entry, number, first, last)
    for side in SIDES if copying else ():
        for entries, number in sides[side].within(low, high):
            for index in range(len(entries)):
                yield Task(side, BlockGroup(entries[index : index + 1], np.array([number])))


def grouped(blocks: Iterator[tuple[Entries, int]], room: int) -> Iterator[BlockGroup]:
    """Blocks in groups that fit the room, or of one block each."""
    taken: list[Entries] = []
    numbers: list[int] = []
    left = room
    for entries, number in blocks:
        start = 0
        while start < len(entries):
            ends = np.cumsum(entries["length"][start:])
            count = int(np.searchsorted(ends, left, side="right"))
            count = count if taken else max(1, count)
            if count:
                taken.append(entries[start : start + count])
                numbers += [number] * count
                left -= int(ends[count - 1])
            start += count
            if start < len(entries):
                yield BlockGroup(concatenated(taken), np.array(numbers))
                taken, numbers, left = [], [], room
    if taken:
        yield BlockGroup(concatenated(taken), np.array(numbers))
