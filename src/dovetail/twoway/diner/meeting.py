"""Progress of joins on disk: which blocks have met, which pairs are new, what comes next.

ReactiveNL (section 3.4, Algorithm 4 of the DINER paper). Its symbols: `JoinedOuter` and
`JoinedInner` are `Rectangle.joined[outer]` and `joined[inner]`, `CurrInner` is `current_inner`,
`OuterMem` is `chunk`; blocks are numbered from 0 in the order of their flushes. The scan of the
paper lost some signs: with blocks numbered from 1, line 14 has to read `CurrInner <= JoinedInner`,
and what follows line 23 sets `CurrInner` back to 1. Line 1 to 6 may come when one relation has no
block on disk yet; it is then the outer one, and the roles change at once.

What has been joined is, at any time, the rectangle of the first `joined[LEFT]` and the first
`joined[RIGHT]` blocks, and besides it the open chunk of outer blocks with the first
`current_inner` inner ones.

Sweep, in place of ReactiveNL in Cleanup: an external sort-merge. What is left of the rectangle of
all blocks is cut into at most three strips (`Rectangle.strips`). A strip is worked off in ascending
ranges of codes: as wide a range as lets the outer side's rows in it fit the memory, by the zone
maps; their parts are merged, and what the inner blocks have in the range meets them, about a block
of it at a time.
So a block is read about once for each range that it reaches into, where a nested loop reads an
inner block for each chunk. That is little for narrow blocks. If they are wide, all of them may be
sorted first: as many as the memory takes are read, merged, and written again as narrow blocks
(`Sweep.sorting`), and the sweep goes over these, as one strip less what is done. Which of the two
takes less, or whether a nested loop does, is told by the zone maps beforehand: by the bytes to be
read and written, and by the parts that inner rows are looked for in, which costs more. If the
rows of a range are too many after all (one key value, or an odd distribution), the range is done in
several passes over a part of its outer blocks each: at worst, a nested loop with as much memory.

Each pair once. The pair (a, b) has been emitted if both were in memory together, a.ATS < b.DTS and
b.ATS < a.DTS; or if b arrived while a's block was loaded back (`LoadedBlocks`, since < b.ATS <=
until), or the other way round; or if their blocks have met. So a row has to know its block. No two
blocks of a side have the same DTS, and later ones have a later one, so the DTS is as good as the
number and is wanted anyway: on reading, it is put above the ATS (`label`), and there it stays when
rows are merged or sorted.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.errors import StateError
from dovetail.kernel.blocks import NEVER
from dovetail.kernel.catalogue import Entries
from dovetail.kernel.keys import KeyCodec
from dovetail.kernel.matching import PairFilter
from dovetail.kernel.probing import Rows
from dovetail.kernel.protocol import LEFT, SIDES
from dovetail.kernel.runs import Run, merge_runs

#: Left blocks `[a, b)` have met right blocks `[c, d)`, by their numbers or by their DTS.
Done = tuple[int, int, int, int]


@dataclass
class LoadedBlocks:
    """Blocks `[first, stop)` of a side were in memory for rows with an ATS in `(since, until]`.

    They are the blocks with a DTS from `low` to `high`, both included.
    """

    side: int
    first: int
    stop: int
    low: int
    high: int
    since: int
    until: int = NEVER


@dataclass
class Strip:
    """Outer blocks `[start, stop)` that have to meet inner blocks `[inner_start, inner_stop)`."""

    outer: int
    start: int
    stop: int
    inner_start: int
    inner_stop: int

    def turned(self) -> "Strip":
        """The pairs with the roles of the sides exchanged."""
        return Strip(1 - self.outer, self.inner_start, self.inner_stop, self.start, self.stop)


@dataclass
class Rectangle:
    """The progress of ReactiveNL: three numbers, and the role of each side."""

    outer: int = LEFT
    begun: bool = False
    joined: list[int] = field(default_factory=lambda: [0, 0])
    current_inner: int = 0
    chunk: int = 0  #: outer blocks that are being joined, from `joined[outer]` on

    @property
    def inner(self) -> int:
        return 1 - self.outer

    def advance(self, sizes: Sequence[int]) -> bool:
        """Come to outer blocks that have inner blocks to meet; False when all have met."""
        if not self.begun:
            if not any(sizes):
                return False
            self.begun = True
            self.outer = min(SIDES, key=lambda side: sizes[side])
            self.joined[self.inner] = sizes[self.inner]
        while True:
            if self.joined[self.outer] < sizes[self.outer]:
                if self.joined[self.inner]:
                    return True
                self.joined[self.outer] = sizes[self.outer]  # there is nothing to meet
            if self.joined[self.inner] == sizes[self.inner]:
                return False
            self.outer = self.inner  # the counters go with the sides

    def met(self, inner_block: int) -> None:
        """The open chunk has met the inner blocks up to this one."""
        self.current_inner = inner_block + 1
        if self.current_inner >= self.joined[self.inner]:
            self.joined[self.outer] += self.chunk
            self.current_inner = self.chunk = 0

    def strips(self, target: Sequence[int]) -> list[Strip]:
        """The strips missing from the rectangle of the first `target` blocks of each side."""
        outer, inner = self.joined[self.outer], self.joined[self.inner]
        outer_end, inner_end = target[self.outer], target[self.inner]
        # the part of the open chunk that is done sticks out of the finished rectangle
        chunk = self.chunk if self.current_inner else 0
        strips = [
            Strip(self.outer, outer, outer + chunk, self.current_inner, inner_end),
            Strip(self.outer, outer + chunk, outer_end, 0, inner_end),
            Strip(self.outer, 0, outer, inner, inner_end),
        ]
        return [s for s in strips if s.start < s.stop and s.inner_start < s.inner_stop]

    def done(self) -> list[Done]:
        """The rectangles of blocks that have met, by their numbers."""
        outer, inner = self.joined[self.outer], self.joined[self.inner]
        finished = [(0, outer, 0, inner), (outer, outer + self.chunk, 0, self.current_inner)]
        return [
            (a, b, c, d) if self.outer == LEFT else (c, d, a, b)
            for a, b, c, d in finished
            if a < b and c < d
        ]

    def cover(self, target: Sequence[int]) -> None:
        """The rectangle of the first `target` blocks is done."""
        self.begun = True
        self.joined = list(target)
        self.current_inner = self.chunk = 0

    def check(self, sizes: Sequence[int]) -> None:
        assert all(0 <= self.joined[side] <= sizes[side] for side in SIDES)
        assert self.joined[self.outer] + self.chunk <= sizes[self.outer]
        assert 0 <= self.current_inner < max(1, self.joined[self.inner])
        assert self.current_inner == 0 or self.chunk, "inner blocks have met no chunk"


@dataclass
class Sorting:
    """The progress of sorting: blocks `[start, start + count)` of a side are next.

    `rows` of them have been written already; `count` is 0 before they are read.
    """

    side: int = LEFT
    start: int = 0
    count: int = 0
    rows: int = 0


@dataclass
class Sweep:
    """The progress of a Cleanup by ranges of codes. The last of `strips` is being worked on.

    `low` is the first code that is not done. The open range ends with `high` (None: none is open),
    and of the outer blocks that reach into it, those with numbers in `[start, stop)` are meeting
    the inner blocks from number `inner` on; `stop` is 0 before they are read.
    """

    target: list[int]
    strips: list[Strip]
    low: int
    high: int | None = None
    start: int = 0
    stop: int = 0
    inner: int = 0
    nbytes: int = 0  #: of the outer rows in `[start, stop)`
    sorted: bool = False  #: goes over blocks that were sorted for it
    sorting: Sorting | None = None  #: they are not all there yet

    def facts(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def restored(cls, facts: dict[str, Any]) -> "Sweep":
        sweep = cls(**facts)
        sweep.strips = [Strip(**strip) for strip in facts["strips"]]
        sweep.sorting = None if facts["sorting"] is None else Sorting(**facts["sorting"])
        return sweep


_TICK_BITS = 31
_TICK = (1 << _TICK_BITS) - 1


def label(run: Run, dts: int) -> Run:
    """The run of a block, each ATS labelled with the DTS of the block."""
    if dts > _TICK:
        raise StateError(
            f"this partition of the join has counted {dts} arrivals and flushes, more than the "
            f"{_TICK} that DINER tells apart. Start over with a new state directory and a new "
            "checkpoint, and with more partitions= or larger input batches."
        )
    run.ats = run.ats + np.int64(dts << _TICK_BITS)
    return run


class Part:
    """Rows of labelled runs as one run."""

    def __init__(self, runs: list[Run]) -> None:
        self.run = merge_runs(runs)
        ats = self.run.ats
        self._first, self._last = int(ats.min()) >> _TICK_BITS, int(ats.max()) >> _TICK_BITS

    def ticks(self, rows: Rows) -> tuple[Rows, Rows]:
        """Of these rows: the ATS and the DTS."""
        labelled = self.run.ats.take(rows)
        return labelled & _TICK, labelled >> _TICK_BITS

    def concerned(self, loads: Sequence[LoadedBlocks], side: int) -> list[LoadedBlocks]:
        """The loads of blocks of a side, which is this part's, that it may hold rows of."""
        return [
            load for load in loads
            if load.side == side and load.low <= self._last and self._first <= load.high
        ]  # fmt: skip


def new_pairs(
    inner: Part, outer: Part, side: int, loads: Sequence[LoadedBlocks],
    done: Sequence[Done],
) -> PairFilter:  # fmt: skip
    """Which pairs of inner rows (the probing ones) and outer rows are new.

    `side` is the inner part's. The blocks have not met, but for those `done`, by their DTS.
    """
    of_inner, of_outer = inner.concerned(loads, side), outer.concerned(loads, 1 - side)

    def keep(inner_rows: Rows, outer_rows: Rows) -> NDArray[np.bool_]:
        inner_ats, inner_dts = inner.ticks(inner_rows)
        outer_ats, outer_dts = outer.ticks(outer_rows)
        met = (inner_ats < outer_dts) & (outer_ats < inner_dts)
        if not (of_inner or of_outer or done):
            return np.asarray(~met)
        for load in of_inner:
            met |= _loaded(inner_dts, outer_ats, load)
        for load in of_outer:
            met |= _loaded(outer_dts, inner_ats, load)
        ends = (inner_dts, outer_dts) if side == LEFT else (outer_dts, inner_dts)
        for a, b, c, d in done:
            met |= (a <= ends[0]) & (ends[0] < b) & (c <= ends[1]) & (ends[1] < d)
        return np.asarray(~met)

    return keep


def _loaded(dts: Rows, other_ats: Rows, load: LoadedBlocks) -> NDArray[np.bool_]:
    there = (load.low <= dts) & (dts <= load.high)
    return np.asarray(there & (load.since < other_ats) & (other_ats <= load.until))


_MOST_PAIRS = 1 << 18  # of blocks that are compared at once


class ZoneMaps:
    """Bounds on new pairs between blocks, from the catalogue alone."""

    def __init__(self, codec: KeyCodec) -> None:
        self._codec = codec

    def reach(self, low: int, high: int) -> tuple[int, int]:
        """The inclusive range of codes that may match codes in an inclusive range."""
        lows, highs = self._codec.candidates(np.array([low, high], dtype=np.int64))
        return int(lows[0]), int(highs[1])

    def may_meet(self, outer: Entries, inner: Entries) -> NDArray[np.bool_]:
        """Which inner blocks may hold a row that makes a new pair with a row of an outer block."""
        low = self._codec.candidates(np.ascontiguousarray(inner["code_min"]))[0]
        high = self._codec.candidates(np.ascontiguousarray(inner["code_max"]))[1]
        found = np.zeros(len(inner), dtype=np.bool_)
        step = max(1, _MOST_PAIRS // max(1, len(outer)))
        for start in range(0, len(inner), step):
            part = slice(start, start + step)
            some = inner[part]
            near = (outer["code_max"][:, None] >= low[part]) & (
                outer["code_min"][:, None] <= high[part]
            )
            # every pair of such blocks was in memory together
            together = (outer["ats_max"][:, None] < some["dts"]) & (
                some["ats_max"] < outer["dts"][:, None]
            )
            found[part] = (near & ~together).any(axis=0)
        return found


def condensed(entries: Entries, most: int) -> Entries:
    """At most so many entries in place of these: what one of these may meet, one of those may."""
    if len(entries) <= most:
        return entries
    starts = np.arange(0, len(entries), -(-len(entries) // most))
    few = entries[starts]
    for name, extreme in _WIDEST.items():
        few[name] = extreme.reduceat(entries[name], starts)
    return few


_WIDEST = {
    "code_min": np.minimum, "code_max": np.maximum, "ats_max": np.maximum, "dts": np.minimum,
}  # fmt: skip


def slice_codes(run: Run, low: int, high: int) -> Run | None:
    """The rows of a block with codes in the inclusive range, in buffers of their own."""
    start = int(np.searchsorted(run.codes, low, side="left"))
    stop = int(np.searchsorted(run.codes, high, side="right"))
    if start >= stop:
        return None
    if stop - start == len(run):
        return run
    rows = np.arange(start, stop)
    return Run(run.codes[start:stop].copy(), run.ats[start:stop].copy(), run.gather(rows))
