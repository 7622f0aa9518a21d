"""The blocks of all relations, and which combinations of blocks have been joined.

A *cell* is a part of the join that shares no result with any other part: all of it for MINER, a
hash bucket for MJoin where that can do it. Rows of different cells never match.

Each combination once. A row is in memory from its ATS to its DTS, the tick at which its block was
flushed. A combination of rows was emitted on arrival if all of them were in memory at the moment
the last of them came, that is, if `max(ATS) < min(DTS)`: intervals that overlap pairwise overlap
all together. Any other combination is emitted when its blocks are joined. A row is flushed once,
so it lies in exactly one block, and a combination of rows in exactly one combination of blocks;
each of these is joined once, with `max(ATS) >= min(DTS)` as the condition. When a combination has
rows in memory and was not emitted on arrival, Cleanup flushes those first (`Cell.has_unmet`).

Blocks of a relation are numbered in the order of their flushes. The combinations of blocks that
were taken up for joining are always a rectangle in n dimensions, the first `joined[i]` blocks of
each relation i (`JoinedOuter` and `JoinedInner` of section 4.2). It grows as in the paper: one
relation that has new blocks plays the outer role, and these meet the first `joined` blocks of all
others; then another relation plays it. What of the rectangle is still to be joined is a list of
boxes (`Box`), most often one: the odometer (`odometer`) works one off, and where it was left, what
remains is a few boxes again. So nothing else has to be kept, however it was left, and the work may
go on with more or less memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.kernel.catalogue import Pages
from dovetail.multiway.relation_blocks import NO_TICK, RANGE_BYTES, RelationBlocks
from dovetail.multiway.rows import RelationRows


@dataclass
class Box:
    """Combinations of blocks: those of each relation i from `low[i]` up to, not with, `high[i]`."""

    outer: int  #: the relation that plays the outer role
    low: list[int]
    high: list[int]

    def __bool__(self) -> bool:
        return all(a < b for a, b in zip(self.low, self.high, strict=True))

    def facts(self) -> list[Any]:
        return [self.outer, list(self.low), list(self.high)]


@dataclass
class Cell:
    """Blocks of each relation, and what of them is to be joined."""

    number: int
    relations: list[RelationBlocks]
    joined: list[int] = field(default_factory=list)
    boxes: list[Box] = field(default_factory=list)  #: the next one last

    @classmethod
    def empty(cls, number: int, attributes: Sequence[int], pages: Pages) -> "Cell":
        """`attributes` has the number of join attributes of each relation."""
        relations = [RelationBlocks(pages, number, count) for count in attributes]
        return cls(number, relations, [0] * len(relations))

    @property
    def sizes(self) -> list[int]:
        return [len(blocks) for blocks in self.relations]

    def next_box(self) -> Box | None:
        """The next box to join; None if all blocks on disk have been joined."""
        if not self.boxes:
            self._grow()
        return self.boxes[-1] if self.boxes else None

    def replace(self, remaining: Sequence[Box]) -> None:
        """Replace the last box by what is left of it, the next one last."""
        self.boxes[-1:] = [box for box in remaining if box]

    def _grow(self) -> None:
        """Change roles: a relation with blocks outside the rectangle becomes the outer one."""
        sizes = self.sizes
        if not all(sizes):
            return  # there is nothing that the others could make a combination with
        if not any(self.joined):
            outer = min(range(len(sizes)), key=sizes.__getitem__)
            self.boxes = [Box(outer, [0] * len(sizes), list(sizes))]
            self.joined = list(sizes)
            return
        open_blocks = [size - done for size, done in zip(sizes, self.joined, strict=True)]
        if not any(open_blocks):
            return
        outer = min(
            (relation for relation, count in enumerate(open_blocks) if count),
            key=open_blocks.__getitem__,
        )
        low = [0] * len(sizes)
        low[outer], self.joined[outer] = self.joined[outer], sizes[outer]
        self.boxes = [Box(outer, low, list(self.joined))]

    # -- what is missing --------------------------------------------------------------------

    def has_unmet(self, relation: int, newest: Sequence[int]) -> bool:
        """Whether rows of a relation in memory may be part of a result that is still to come.

        `newest` has the last ATS of each relation's rows in memory, -1 if there are none. If a
        combination was not emitted, some row of it came after another's departure: the one that
        had gone is in a block of another relation, the one that came is of any but its own.
        """
        if newest[relation] == NO_TICK:
            return False
        others = [i for i in range(len(self.relations)) if i != relation]
        last = {i: max(newest[i], self.relations[i].last_ats) for i in others}
        if any(tick == NO_TICK for tick in last.values()):
            return False  # no row came that could complete a combination
        last[relation] = newest[relation]
        for gone in others:
            departed = self.relations[gone].first_departure
            if any(departed < tick for i, tick in last.items() if i != gone):
                return True
        return False

    def unmet_rows(self, boxes: Sequence[Box]) -> int:
        """About how many rows have yet to be read for these boxes and what follows; 0 for none."""
        rows = 0
        for box in boxes:
            count = box.high[box.outer] - box.low[box.outer]
            rows += self.relations[box.outer].mean_rows(count)
        if all(self.sizes):
            for blocks, done in zip(self.relations, self.joined, strict=True):
                rows += blocks.mean_rows(len(blocks) - done)
        return rows

    def forget_departures(self) -> None:
        """See `RelationBlocks.forget_departures`."""
        for blocks in self.relations:
            blocks.forget_departures()

    @property
    def nbytes(self) -> int:
        """The bytes that are kept besides the pages of the lists."""
        return RANGE_BYTES * sum(len(blocks.departures) for blocks in self.relations)

    # -- state ------------------------------------------------------------------------------

    def facts(self, boxes: Sequence[Box], tick: int) -> dict[str, Any]:
        return {
            "joined": list(self.joined),
            "boxes": [box.facts() for box in boxes],
            "relations": [blocks.facts(tick) for blocks in self.relations],
        }

    def restore(self, facts: dict[str, Any]) -> None:
        self.joined = list(facts["joined"])
        for blocks, known in zip(self.relations, facts["relations"], strict=True):
            blocks.restore(known)
        self.boxes = [Box(outer, list(low), list(high)) for outer, low, high in facts["boxes"]]

    def check(self) -> None:
        sizes = self.sizes
        assert all(0 <= done <= size for done, size in zip(self.joined, sizes, strict=True))
        for box in self.boxes:
            assert box, "an empty box is kept"
            assert all(low >= 0 for low in box.low)
            assert all(a <= b for a, b in zip(box.high, self.joined, strict=True))
        for blocks in self.relations:
            blocks.check()


def newest_ticks(tables: Sequence[RelationRows], marked: Sequence[NDArray[np.bool_]]) -> list[int]:
    """The last ATS of those rows in memory of each relation that are marked."""
    newest = (table.ats.newest(some) for table, some in zip(tables, marked, strict=True))
    return [NO_TICK if tick is None else tick for tick in newest]
