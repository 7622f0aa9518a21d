"""The three areas of one join attribute of a relation in memory, and the counters of each.

Sections 3.3 and 4.1 of the DINER paper. Its symbols: `LastLwVal` is `lower`, `LastUpVal` is
`upper`; `LwJoins`, `MdJoins` and `UpJoins` are `joins`; `LwTups`, `MdTups` and `UpTups` are `rows`,
both in the order `LOWER, MIDDLE, UPPER`. Joins are overall results, not partial ones (footnote 2).
Values are codes. The lower area is every code up to `lower`, the upper one every code from `upper`
on, both inclusive, and `lower < upper`. Before the first flush there are no bounds, and all is
middle.

One thing differs. The paper sets the joins to 0 with each flush of the relation. A batch may need
several flushes before any row of it comes in, and all but the first would then be decided on
nothing; so the joins are set to 0 by the first row that comes after such a flush.

Beyond the paper, `fading`: the counters are halved instead. With many inputs results are rare, and
what a few rows found since the last flush says little; an area that loses by chance may lose rows
that never come again, such as those of a relation that has each key once. Partial matches
(`partial`), of which there are more, are counted besides, to tell areas of one benefit apart. And
both outer areas are set anew with every flush (`carry`). Algorithm 2 moves the bound of the one
that was flushed from; the other one then grows with every row that comes into it, until it has all
there are, and its outermost rows go for want of others, however good they are.
"""

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.kernel.keys import Codes
from dovetail.multiway.keyindex import KeyIndex

LOWER, MIDDLE, UPPER = 0, 1, 2
LEAST, MOST = int(np.iinfo(np.int64).min), int(np.iinfo(np.int64).max)
TIES = (UPPER, LOWER, MIDDLE)  # the order in which Algorithm 2 asks for the least benefit
Times = NDArray[np.int64]  #: how often each of some rows counts
Densities = tuple[NDArray[np.float64], NDArray[np.float64]]  #: of joins and of partial matches


@dataclass
class Areas:
    """Bounds, counters and the clock hand of one attribute."""

    lower: int | None = None
    upper: int | None = None
    hand: int | None = None  #: the code at which the clock hand stands
    joins: list[int] = field(default_factory=lambda: [0, 0, 0])
    rows: list[int] = field(default_factory=lambda: [0, 0, 0])
    partial: list[int] = field(default_factory=lambda: [0, 0, 0])  #: partial matches, like `joins`

    def areas_of(self, codes: Codes) -> NDArray[np.int8]:
        """Which area each code lies in; a byte each, for there may be as many as rows in memory."""
        found = np.full(len(codes), MIDDLE, dtype=np.int8)
        if self.lower is not None and self.upper is not None:
            found[codes <= self.lower] = LOWER
            found[codes >= self.upper] = UPPER
        return found

    def count(self, codes: Codes, times: Times | None = None) -> list[int]:
        """The number of codes in each area, each code counted so many times."""
        whole = len(codes) if times is None else int(times.sum())
        if self.lower is None or self.upper is None:
            return [0, whole, 0]
        outer = (codes <= self.lower, codes >= self.upper)
        below, above = (
            int(np.count_nonzero(inside) if times is None else times[inside].sum())
            for inside in outer
        )
        return [below, whole - below - above, above]

    def joined(self, codes: Codes, times: Times | None = None) -> None:
        """Rows with these codes have helped to produce a result each, or so many."""
        self.joins = [a + b for a, b in zip(self.joins, self.count(codes, times), strict=True)]

    def matched(self, codes: Codes, times: Times | None = None) -> None:
        """Rows with these codes have found a partner each, or so many, next to them."""
        self.partial = [a + b for a, b in zip(self.partial, self.count(codes, times), strict=True)]

    def begin_anew(self, *, fading: bool) -> None:
        """Forget joins and matches, or half of them."""
        self.joins = [joins // 2 if fading else 0 for joins in self.joins]
        self.partial = [matches // 2 for matches in self.partial]

    def arrived(self, codes: Codes) -> None:
        self.rows = [a + b for a, b in zip(self.rows, self.count(codes), strict=True)]

    def benefit(self, area: int) -> float:
        return self.joins[area] / self.rows[area]

    def partial_benefit(self, area: int) -> float:
        return self.partial[area] / self.rows[area]

    def move(self, index: KeyIndex, count: int, areas: list[int]) -> None:
        """Let these areas, the lower and the upper one of them, hold about `count` rows again.

        `index` has all rows in memory. Without bounds both are set. The bounds never cross: with
        one single code, the lower area holds everything.
        """
        if len(index):
            if self.lower is None:  # what was found before there were areas is of none of them
                self.joins, self.partial = [0, 0, 0], [0, 0, 0]
            count = min(count, len(index))
            if LOWER in areas or self.lower is None:
                highest = (MOST if self.upper is None else self.upper) - 1
                self.lower = min(index.lowest(count), highest)
            if UPPER in areas or self.upper is None:
                self.upper = max(index.highest(count), self.lower + 1)
        self.count_rows(index)

    def count_rows(self, index: KeyIndex) -> None:
        """Count the rows of each area anew, of all rows in memory."""
        self.rows = np.diff(self._cuts(index)).tolist()

    def _cuts(self, index: KeyIndex) -> list[int]:
        """Where each area begins, of all rows in the order of their codes, and where they end."""
        rows = len(index)
        if self.lower is None or self.upper is None:
            return [0, 0, rows, rows]
        return [0, index.count_up_to(self.lower), index.count_up_to(self.upper - 1), rows]

    def densities(self) -> Densities:
        """Joins and partial matches for each row, by area."""
        rows = np.maximum(self.rows, 1)
        return self.joins / rows, self.partial / rows

    def carry(self, index: KeyIndex, count: int, densities: Densities) -> None:
        """Let both outer areas hold about `count` rows, and the statistics stay with their rows.

        `index` has all rows in memory, and each of them brings the densities, from before some rows
        left, of the area that it was in.
        """
        before, first = np.array(self._cuts(index)), self.lower is None
        self.move(index, count, [LOWER, UPPER])
        if not first and len(index):
            after = np.array(self._cuts(index))
            begin = np.maximum(before[:-1, np.newaxis], after[:-1])
            end = np.minimum(before[1:, np.newaxis], after[1:])
            moved = np.maximum(end - begin, 0)  # from an area, a line each, to another
            self.joins, self.partial = ([int(x) for x in some @ moved] for some in densities)

    def facts(self) -> dict[str, Any]:
        """The facts for a snapshot: all but the numbers of rows, which are counted again."""
        facts = asdict(self)
        del facts["rows"]
        return facts

    def check(self, codes: Codes) -> None:
        assert (self.lower is None) == (self.upper is None)
        if self.lower is not None and self.upper is not None:
            assert LEAST <= self.lower < self.upper <= MOST
        assert self.rows == self.count(codes), "the rows of an area are miscounted"
        assert all(joins >= 0 for joins in self.joins)
