"""Sorted segments on disk: what a flush or a merge wrote, and which of their rows have met.

Vocabulary and rules are in the docstring of `merging`.
"""

import weakref
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dovetail.kernel.blocks import BLOCK, FLUSHED, BlockList
from dovetail.kernel.matching import Emitter
from dovetail.kernel.protocol import LEFT, RIGHT, SIDES, Context
from dovetail.kernel.runs import Run

ENTRY_BYTES = 5 * BLOCK.itemsize // 4  #: an entry, and the spare room of a growing list
_LEAST_BLOCK_BYTES = 4 << 10


def block_size(working_bytes: int) -> int:
    """How large a block of a segment is: so many of them fit as the fan-in asks for."""
    return max(working_bytes // 32, min(working_bytes // 8, _LEAST_BLOCK_BYTES))


class Owner(Protocol):
    """What a join gives its merger to work with."""

    ctx: Context
    working_bytes: int
    _emitter: Emitter

    def _account(self) -> None: ...


@dataclass
class Segment:
    """Rows of both sides, each side's in code order."""

    number: int  #: a tick, unique in its part; the `dts` of its blocks
    group: int
    blocks: tuple[BlockList, BlockList] = field(default_factory=lambda: (BlockList(), BlockList()))
    counts: list[int] = field(default_factory=lambda: [0, 0])  #: rows, by the side

    def rows(self, side: int) -> int:
        return self.counts[side]

    def append(self, side: int, block: np.void) -> None:
        self.blocks[side].append(block)
        self.counts[side] += int(block["rows"])

    def __len__(self) -> int:
        return len(self.blocks[LEFT]) + len(self.blocks[RIGHT])


class Segments:
    """The segments of all parts of one join."""

    def __init__(self, owner: Owner) -> None:
        # not itself: a cycle would keep the memory of an owner that is not used any more
        self._owner: Owner = weakref.proxy(owner)
        self.parts: dict[int, list[Segment]] = {}
        self.unjoined: dict[int, int] = {}  #: by part, the pairs of rows that have not met
        self.unfinished: int | None = None  #: the segment that is being written, if any

    @property
    def block_bytes(self) -> int:
        return block_size(self._owner.working_bytes)

    @property
    def nbytes(self) -> int:
        """What the catalogue takes up."""
        return ENTRY_BYTES * sum(len(s) for known in self.parts.values() for s in known)

    def add(self, part: int, side: int, run: Run, number: int, group: int) -> int:
        """Append sorted rows to a segment, in blocks; returns the bytes written."""
        segment = self._segment(part, number, group)
        pieces = -(-run.nbytes // self.block_bytes)
        step = max(1, -(-len(run) // pieces))
        written = 0
        for start in range(0, len(run), step):
            piece = run.slice(start, min(start + step, len(run)))
            block = self._owner.ctx.store.append(piece, side, FLUSHED, part, number)
            segment.append(side, block)
            written += int(block["length"])
        return written

    def count(self, part: int) -> None:
        """Bring `unjoined` in line with the segments of a part."""
        known = self.complete(part)
        groups = np.unique([segment.group for segment in known], return_inverse=True)[1]
        rows = np.zeros((len(SIDES), len(known)), dtype=np.int64)
        for side in SIDES:
            np.add.at(rows[side], groups, [segment.rows(side) for segment in known])
        left, right = rows
        pairs = int(left.sum()) * int(right.sum()) - int((left * right).sum())
        self.unjoined.pop(part, None)
        if pairs:
            self.unjoined[part] = pairs

    def rows(self, part: int, side: int) -> int:
        return sum(segment.rows(side) for segment in self.complete(part))

    def pending(self) -> int:
        """The rows of the parts in which some have not met."""
        return sum(self.rows(part, side) for part in self.unjoined for side in SIDES)

    def _segment(self, part: int, number: int, group: int) -> Segment:
        known = self.parts.setdefault(part, [])
        for segment in reversed(known):
            if segment.number == number:
                return segment
        known.append(Segment(number, group))
        return known[-1]

    def complete(self, part: int) -> list[Segment]:
        """The segments of a part, less the one that is being written."""
        return [s for s in self.parts.get(part, []) if s.number != self.unfinished]

    def facts(self) -> dict[str, Any]:
        segments = [
            [part, segment.number, segment.group]
            for part, known in self.parts.items()
            for segment in known
        ]
        return {"segments": segments, "unfinished": self.unfinished}

    def blocks(self) -> list[NDArray[np.void]]:
        return [
            segment.blocks[side].entries
            for known in self.parts.values()
            for segment in known
            for side in SIDES
        ]

    def restore(self, facts: dict[str, Any], blocks: NDArray[np.void]) -> None:
        groups = {(part, number): group for part, number, group in facts["segments"]}
        for part, number, group in facts["segments"]:
            self._segment(part, number, group)
        for block in blocks:
            part, number = int(block["part"]), int(block["dts"])
            segment = self._segment(part, number, groups[part, number])
            segment.append(int(block["side"]), block)
        self.unfinished = facts["unfinished"]
        for part in self.parts:
            self.count(part)

    def check(self) -> None:
        for part, known in self.parts.items():
            assert len({segment.number for segment in known}) == len(known)
            for segment in known:
                for side in SIDES:
                    blocks = segment.blocks[side].entries
                    assert (blocks["code_min"][1:] >= blocks["code_max"][:-1]).all()
                    assert (blocks["part"] == part).all()
                    assert (blocks["dts"] == segment.number).all()
                    assert int(blocks["rows"].sum()) == segment.rows(side)
