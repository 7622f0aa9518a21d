"""How a merge goes through the codes: windows that fit in memory, cut into tasks.

Both follow from the zone maps of the blocks alone, so a merge that was interrupted finds the same
ones again. Vocabulary and rules are in the docstring of `merging`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dovetail.kernel.blocks import BLOCK
from dovetail.kernel.keys import KeyCodec
from dovetail.kernel.protocol import LEFT, RIGHT, SIDES
from dovetail.twoway.segments import Segment

TOP, BOTTOM = int(np.iinfo(np.int64).max), int(np.iinfo(np.int64).min)


@dataclass
class Table:
    """The blocks of one side that a merge reads, in the order of their lowest code."""

    entries: NDArray[np.void]
    groups: NDArray[np.int64]

    def within(self, low: int, high: int) -> NDArray[np.int64]:
        """The blocks that may have codes in the inclusive range."""
        stop = int(np.searchsorted(self.entries["code_min"], high, side="right"))
        return np.flatnonzero(self.entries["code_max"][:stop] >= low)


@dataclass
class Task:
    """A group of outer blocks meets an inner block, or is copied to the output (no inner)."""

    side: int
    outer: NDArray[np.int64]
    inner: int | None = None
    low: int = BOTTOM  #: the range of the inner rows, inclusive
    high: int = TOP


@dataclass
class Window:
    """The codes `[low, high]`; `single`: of one code, too many rows to be held at once."""

    low: int
    high: int
    single: bool
    tasks: list[Task] = field(default_factory=list)


def table_of(segments: list[Segment], side: int) -> Table:
    lists = [segment.blocks[side].entries for segment in segments]
    entries = np.concatenate([np.zeros(0, dtype=BLOCK), *lists])
    groups = np.repeat([segment.group for segment in segments], [len(blocks) for blocks in lists])
    order = np.argsort(entries["code_min"], kind="stable")
    return Table(entries[order], groups.astype(np.int64)[order])


def next_high(tables: tuple[Table, Table], low: int, room: int) -> tuple[int, bool] | None:
    """Where a window that begins at `low` ends, and whether it is one code without end."""
    alive = [table.entries[table.entries["code_max"] >= low] for table in tables]
    alive = [blocks for blocks in alive if len(blocks)]
    if not alive:
        return None
    high = max(int(blocks["code_max"].max()) for blocks in alive)
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
    tables: tuple[Table, Table], window: Window, codec: KeyCodec, room: int, copying: bool
) -> Iterator[Task]:
    """What is to be done in a window; `copying`: rows of a single code are to be copied, too."""
    low, high = window.low, window.high
    present = [table.within(low, high) for table in tables]
    for outer, table in enumerate(tables):
        if outer == RIGHT and codec.within is None:
            break
        # rows of the left side meet the right's up to here, the right's the left's before
        last = high if outer == LEFT else low - 1
        other = tables[1 - outer]
        for group in groups(table, present[outer], room):
            reach = max(low, int(table.entries["code_min"][group].min()))
            first = int(codec.candidates(np.array([reach]))[0][0])
            for inner in other.within(first, last) if first <= last else ():
                if (table.groups[group] != other.groups[inner]).any():
                    yield Task(outer, group, int(inner), first, last)
    if window.single and copying:
        for side in SIDES:
            for index in present[side]:
                yield Task(side, np.array([index]))


def groups(table: Table, indexes: NDArray[np.int64], room: int) -> Iterator[NDArray[np.int64]]:
    """Blocks in groups that fit the room."""
    ends = np.cumsum(table.entries["length"][indexes])
    start = 0
    while start < len(indexes):
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + room, side="right")))
        yield indexes[start:stop]
        start = stop
