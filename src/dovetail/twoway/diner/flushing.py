"""Flushing of DINER (Algorithm 2): picks the rows of the victim relation that go to disk.

The region with the least benefit is taken from first: its outermost rows, or in the middle region
those at which the clock hand finds no join bit. If it cannot fill the block, the one with the next
least benefit follows. (The text says "second highest", which would spare exactly the region that
the policy is after; the order of Algorithm 2 is meant.) Then the bounds of the regions that were
taken from move, so that each holds about a block again.
"""

import numpy as np

from dovetail.kernel.runs import Run
from dovetail.twoway.diner.index import MarkedRuns
from dovetail.twoway.diner.regions import LEAST, LOWER, MIDDLE, MOST, UPPER, Regions


class Flushing:
    """The flushing policy over the rows of one relation in memory."""

    def __init__(self, index: MarkedRuns, regions: Regions, rng: np.random.Generator) -> None:
        self._index = index
        self._regions = regions
        self._rng = rng

    def take(self, count: int) -> list[Run]:
        """Remove a block of so many rows; less only if there are less."""
        regions = self._regions
        first = regions.lower is None
        parts: list[Run] = []
        taken: list[int] = []
        missing = count
        for region in regions.victims():
            if missing <= 0:
                break
            some = self._take_from(region, missing)
            parts += some
            missing -= sum(map(len, some))
            taken.append(region)
        self._move_bounds(count, (LOWER, UPPER) if first else taken)
        return parts

    def take_any(self, count: int) -> list[Run]:
        """Remove rows that are of no use in memory: the lowest ones."""
        parts = self._index.take_lowest(count, LEAST, MOST)
        self.count()
        return parts

    def count(self) -> None:
        """Count the rows of each region anew."""
        regions, index = self._regions, self._index
        if regions.lower is None or regions.upper is None:
            regions.rows = [0, len(index), 0]
        else:
            regions.rows = index.count_regions(regions.lower, regions.upper)

    def _take_from(self, region: int, count: int) -> list[Run]:
        if region == MIDDLE:
            return self._turn_hand(count)
        low, high = self._regions.reach(region)
        take = self._index.take_lowest if region == LOWER else self._index.take_highest
        return take(count, low, high)

    def _move_bounds(self, count: int, taken: list[int] | tuple[int, ...]) -> None:
        """Let the regions that were flushed from hold about a block again."""
        index, regions = self._index, self._regions
        if len(index):
            if regions.lower is None:
                regions.set_bounds(index.nth_lowest(count), index.nth_highest(count))
            elif LOWER in taken:
                regions.set_lower(index.nth_lowest(count))
            if UPPER in taken:
                regions.set_upper(index.nth_highest(count))
        self.count()

    def _turn_hand(self, count: int) -> list[Run]:
        """Take rows out of the middle region by the clock algorithm."""
        regions = self._regions
        low, high = regions.reach(MIDDLE)
        if regions.hand is None:
            regions.hand = self._random_code(low, high)
        hand = min(max(regions.hand, low), high)
        parts: list[Run] = []
        # a first round may only clear bits; the second then finds none set
        for begin, end in ((hand, high), (low, hand - 1)) * 2:
            some, reached = self._index.take_unset(count, begin, end)
            parts += some
            count -= sum(map(len, some))
            if reached is not None:
                regions.hand = reached
                break
        return parts

    def _random_code(self, low: int, high: int) -> int:
        """The code of a random row of the region."""
        position = int(self._rng.integers(self._index.count(low, high)))
        for run, (start, stop) in self._index.spans(low, high):
            if position < stop - start:
                return int(run.codes[start + position])
            position -= stop - start
        raise AssertionError("the region has fewer rows than were counted")
