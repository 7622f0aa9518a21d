"""The three regions of one relation's rows in memory, and the counters of each.

Section 3.3 and Algorithm 3 of the DINER paper. Its symbols: `LastLwVal` is `lower`, `LastUpVal` is
`upper`; `LwJoins`, `MdJoins`, `UpJoins` are `joins`, `LwTups`, `MdTups`, `UpTups` are `rows`, both
in the order `LOWER, MIDDLE, UPPER`; `BfLw` and so on come from `benefit`. Values are codes.

The lower region is every code up to `lower`, the upper one every code from `upper` on, both
inclusive, and `lower < upper`. Before the first flush there are no bounds, and all is middle.

One thing differs. The paper sets the joins to 0 with each flush. A batch may need several flushes
before any row of it comes in, and all but the first would then be decided on nothing; so the joins
are set to 0 by the first row that comes after a flush. With one flush between two rows it is the
same.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dovetail.kernel.keys import Codes
from dovetail.kernel.probing import Rows

LOWER, MIDDLE, UPPER = 0, 1, 2
LEAST, MOST = int(np.iinfo(np.int64).min), int(np.iinfo(np.int64).max)
_TIES = (UPPER, LOWER, MIDDLE)  # the order in which Algorithm 2 asks for the least benefit


@dataclass
class Regions:
    """Bounds, counters and the clock hand of one relation."""

    lower: int | None = None
    upper: int | None = None
    hand: int | None = None  #: the code at which the clock hand stands
    joins: list[int] = field(default_factory=lambda: [0, 0, 0])
    rows: list[int] = field(default_factory=lambda: [0, 0, 0])
    flushed: bool = False  #: since the last row came

    def reach(self, region: int) -> tuple[int, int]:
        """The inclusive range of codes of a region; empty (low above high) if it is squeezed."""
        if self.lower is None or self.upper is None:
            return (LEAST, MOST) if region == MIDDLE else (MOST, LEAST)
        return (
            (LEAST, self.lower),
            (self.lower + 1, self.upper - 1),
            (self.upper, MOST),
        )[region]

    def arrived(self, codes: Codes, found: Rows) -> None:
        """Rows of this relation came (in code order), and each produced so many results."""
        cuts = self._cuts(codes)
        self._add_joins(cuts, found)
        for region in range(3):
            self.rows[region] += cuts[region + 1] - cuts[region]

    def probed(self, codes: Codes, found: Rows) -> None:
        """Rows of the other relation came (in code order), and found so many rows of this one."""
        self._add_joins(self._cuts(codes), found)

    def benefit(self, region: int) -> float:
        return self.joins[region] / self.rows[region]

    def least_benefit(self) -> float:
        """Of all regions that hold rows."""
        return min((self.benefit(region) for region in _TIES if self.rows[region]), default=MOST)

    def victims(self) -> list[int]:
        """The regions that hold rows, the one with the least benefit first."""
        return sorted((region for region in _TIES if self.rows[region]), key=self.benefit)

    def set_bounds(self, lower: int, upper: int) -> None:
        self.lower = min(lower, MOST - 1)
        self.upper = max(upper, self.lower + 1)

    def set_lower(self, lower: int) -> None:
        assert self.upper is not None
        self.lower = min(lower, self.upper - 1)

    def set_upper(self, upper: int) -> None:
        assert self.lower is not None
        self.upper = max(upper, self.lower + 1)

    def _cuts(self, codes: Codes) -> list[int]:
        """Where in sorted codes each region begins and the last ends."""
        if self.lower is None or self.upper is None:
            return [0, 0, len(codes), len(codes)]
        first = int(np.searchsorted(codes, self.lower, side="right"))
        second = int(np.searchsorted(codes, self.upper, side="left"))
        return [0, first, second, len(codes)]

    def _add_joins(self, cuts: list[int], found: Rows) -> None:
        if self.flushed:
            self.joins = [0, 0, 0]
            self.flushed = False
        for region in range(3):
            self.joins[region] += int(found[cuts[region] : cuts[region + 1]].sum())

    def facts(self) -> dict[str, Any]:
        """The facts for a snapshot: all but the numbers of rows, which are counted again."""
        return {
            "lower": self.lower,
            "upper": self.upper,
            "hand": self.hand,
            "joins": list(self.joins),
            "flushed": self.flushed,
        }

    def check(self) -> None:
        assert (self.lower is None) == (self.upper is None)
        if self.lower is not None and self.upper is not None:
            assert LEAST <= self.lower < self.upper <= MOST
        assert all(joins >= 0 for joins in self.joins)
