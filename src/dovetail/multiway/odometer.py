"""The odometer over the blocks of one box: the order in which they are joined (section 4.2).

A chunk of blocks of the outer relation is in memory, and of each inner relation a *piece*, a range
of its blocks. The innermost piece moves on most often; when it has been through all blocks, the
next one outwards moves on and those within start anew, and when all have, the next chunk of outer
blocks comes. The relations on different sides of the outer one make up join sequences, two in a
chain, as many as it has edges elsewhere; one after the other, they make up the wheels of the
odometer. The last sequence is the one that is given priority: its blocks are fetched most often.

The paper's symbols: `CurrInner` of a relation is the piece of its level, of one block there;
`OuterMem` is the length of `chunk`. In the paper a piece is one block. Beyond it, a piece may have
many blocks of which only the rows are kept that match the piece before (`blockjoins`).

Where an odometer is left, what it has not done is at most one box for each wheel (`remaining`).
Worked example, with two inner relations of 4 blocks each: the chunk is outer blocks 0 and 1 of 5,
the first wheel is at block 2, and the second has done block 0. Then remain: the chunk with block 2
and blocks 1 to 3; the chunk with block 3 and blocks 0 to 3; and outer blocks 2 to 4 with all.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from dovetail.multiway.cells import Box, Cell
from dovetail.multiway.rows import Part
from dovetail.multiway.spec import MultiWaySpec, Reach


@dataclass
class Level:
    """A wheel: the piece of one inner relation, blocks `[start, stop)`."""

    reach: Reach  #: the edge by which the relation is joined
    start: int
    stop: int
    parts: list[Part] = field(default_factory=list)
    nbytes: int = 0
    complete: bool = False

    def close(self, group_bytes: int) -> None:
        """No more rows will come: put them together."""
        self.complete = True
        if self.parts:
            self.parts = [Part.joined(self.parts, group_bytes)]

    def advance(self) -> None:
        self.start, self.parts, self.nbytes, self.complete = self.stop, [], 0, False


@dataclass
class Odometer:
    """The progress of the last box of a cell, and the blocks in memory for it."""

    cell: Cell
    box: Box
    plan: list[Reach]  #: the wheels, outermost first
    stop: int  #: the chunk is the box's outer blocks up to this one, which is not in it
    piece_bytes: list[int]  #: how much the piece of each wheel may hold
    cleaning: bool = False  #: for Cleanup, which no new rows interrupt
    chunk: list[Part] = field(default_factory=list)  #: the blocks of the chunk, as they are read
    outer: Part | None = None  #: all rows of the chunk, once they are
    levels: list[Level] = field(default_factory=list)

    @property
    def exhausted(self) -> bool:
        """The chunk has met everything."""
        return self.outer is not None and not self.levels

    def part_of(self, relation: int) -> Part:
        """The rows in memory of a relation whose piece is complete."""
        if relation == self.box.outer:
            assert self.outer is not None
            return self.outer
        return next(level.parts[0] for level in self.levels if level.reach.child == relation)

    def next_reach(self) -> Reach | None:
        """The wheel inside the innermost one that is in use."""
        return self.plan[len(self.levels)] if len(self.levels) < len(self.plan) else None

    def open(self) -> None:
        """Use one more wheel, from its first block on."""
        reach = self.plan[len(self.levels)]
        first = self.box.low[reach.child]
        self.levels.append(Level(reach, first, first))

    def turn(self) -> None:
        """The innermost piece has been joined, or has no rows: move on."""
        while self.levels:
            level = self.levels[-1]
            if level.stop < self.box.high[level.reach.child]:
                level.advance()
                return
            self.levels.pop()

    def remaining(self) -> list[Box]:
        """The parts of the box that have not been joined, the next one last."""
        outer, low, high = self.box.outer, list(self.box.low), list(self.box.high)
        low[outer] = self.stop
        boxes = [Box(outer, low, high)]
        if self.exhausted:
            return boxes
        low, high = list(self.box.low), list(self.box.high)
        high[outer] = self.stop
        for number, level in enumerate(self.levels):
            relation = level.reach.child
            if number == len(self.levels) - 1:
                low[relation] = level.start if level.parts else level.stop  # no row had a partner
                break
            rest = list(low)
            rest[relation] = level.stop
            boxes.append(Box(outer, rest, list(high)))
            low[relation], high[relation] = level.start, level.stop
        return [*boxes, Box(outer, low, high)]


def join_sequences(spec: MultiWaySpec, outer: int, sizes: Sequence[int]) -> list[Reach]:
    """The wheels for an outer relation: its join sequences, that with the most blocks last."""
    sequences = [_walk(spec, reach) for reach in spec.reaches[outer]]
    sequences.sort(key=lambda walked: sum(sizes[reach.child] for reach in walked))
    return [reach for sequence in sequences for reach in sequence]


def _walk(spec: MultiWaySpec, reach: Reach) -> list[Reach]:
    """An edge and all that lie behind it."""
    found = [reach]
    for further in spec.reaches[reach.child]:
        if further.child != reach.parent:
            found += _walk(spec, further)
    return found
