"""The most results that any flushing policy could have found while its inputs arrived.

A yardstick for the two-way joins: it knows the whole future, and has room for `capacity` rows. A
row that has come meets, at times m1 < m2 < ..., rows of the other side that come later. Each of
the segments [arrival, m1), [m1, m2), ... stands for one result, which is found if the row is in
memory throughout it. So no policy can find more than the largest set of segments of which no more
than `capacity` overlap anywhere. Segments on a line make an interval graph, for which a sweep
finds that set: whenever too many are alive, the one that ends last goes (Faigle and Nawijn, "Note
on scheduling intervals on-line", 1995; with pages instead of rows, Belady's rule).

What is relaxed. The set may hold a row's later segment without an earlier one, as if a row could
come back from disk at the very moment that it is met, at no cost. A policy that only drops rows
cannot do that, so the bound lies above the best of them; how far is told in
`tests/unit/testing/test_bound.py`, which compares it with all that they could do. And a row that
arrives meets what is in memory before it takes up room itself.

An input that has ended. A join may then read that side's rows back at leisure (footnote 1 of the
DINER paper), between two meetings, where no segment says so. With `loads_ended`, a row that comes
after the other input's end counts as meeting any `capacity` rows that it matches.

Rows of one side with one key have the same future: they are one group with one count, so the sweep
takes a step for each arrival and each group it meets, however many pairs there are.
"""

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dovetail.errors import ArgumentError
from dovetail.kernel.protocol import LEFT, SIDES

Keys = NDArray[np.int64]
_NEVER = -1


@dataclass(frozen=True)
class Arrivals:
    """Rows in the order in which they come: the side and the key of each."""

    sides: NDArray[np.int8]
    keys: Keys
    within: int = 0  #: rows match if their keys differ by no more than this

    def __post_init__(self) -> None:
        if len(self.sides) != len(self.keys):
            raise ArgumentError(f"{len(self.sides)} sides, but {len(self.keys)} keys")
        if self.within < 0:
            raise ArgumentError(f"within must be at least 0, not {self.within}")


class _Groups:
    """The rows of one side by key, and when each group is met by the other side."""

    def __init__(self, arrivals: Arrivals, side: int) -> None:
        times = np.flatnonzero(arrivals.sides == side)
        others = np.flatnonzero(arrivals.sides != side)
        self.values = np.unique(arrivals.keys[times])
        by_key = others[np.argsort(arrivals.keys[others], kind="stable")]
        keys = arrivals.keys[by_key]
        first = np.searchsorted(keys, self.values - arrivals.within, side="left")
        last = np.searchsorted(keys, self.values + arrivals.within, side="right")
        #: for each group, when rows come that it matches; the next one last
        self.meetings: list[list[int]] = [
            np.sort(by_key[low:high])[::-1].tolist() for low, high in zip(first, last, strict=True)
        ]
        self.rows = [0] * len(self.values)  # that have come
        self.kept = [0] * len(self.values)  # segments alive and not dropped


class _Sweep:
    """The segments that are alive at one time, at most `capacity` of them."""

    def __init__(self, arrivals: Arrivals, capacity: int) -> None:
        self._groups = tuple(_Groups(arrivals, side) for side in SIDES)
        self._capacity = capacity
        self._alive = 0
        self._last_ending: list[tuple[int, int, int]] = []  # heap of (-end, side, group)
        self._reach = []  # by side and row's key: which of the other side's groups it meets
        for side in SIDES:
            own, other = self._groups[side].values, self._groups[1 - side].values
            low = np.searchsorted(other, own - arrivals.within, side="left")
            high = np.searchsorted(other, own + arrivals.within, side="right")
            self._reach.append((low.tolist(), high.tolist()))
        self._position = np.empty(len(arrivals.keys), dtype=np.int64)
        for side in SIDES:
            mine = arrivals.sides == side
            self._position[mine] = np.searchsorted(self._groups[side].values, arrivals.keys[mine])

    def arrive(self, time: int, side: int) -> int:
        """A row comes; returns how many of the rows that it matches are in memory."""
        group = int(self._position[time])
        found = sum(self._meet(1 - side, met) for met in self._met(side, group))
        mine = self._groups[side]
        mine.rows[group] += 1
        if mine.meetings[group]:
            self._begin(side, group, 1)
        self._drop_excess()
        return found

    def matches(self, time: int, side: int) -> int:
        """How many rows have come that this one matches."""
        rows = self._groups[1 - side].rows
        return sum(rows[met] for met in self._met(side, int(self._position[time])))

    def _met(self, side: int, group: int) -> range:
        low, high = self._reach[side]
        return range(low[group], high[group])

    def _meet(self, side: int, group: int) -> int:
        """The group's segments end; its rows begin the next ones, dropped ones as well."""
        groups = self._groups[side]
        groups.meetings[group].pop()
        found, groups.kept[group] = groups.kept[group], 0
        self._alive -= found
        if groups.rows[group] and groups.meetings[group]:
            self._begin(side, group, groups.rows[group])
        return found

    def _begin(self, side: int, group: int, segments: int) -> None:
        groups = self._groups[side]
        if not groups.kept[group]:
            heapq.heappush(self._last_ending, (-groups.meetings[group][-1], side, group))
        groups.kept[group] += segments
        self._alive += segments

    def _drop_excess(self) -> None:
        while self._alive > self._capacity:
            end, side, group = self._last_ending[0]
            groups = self._groups[side]
            meetings = groups.meetings[group]
            ends = meetings[-1] if meetings else _NEVER
            dropped = 0
            if ends == -end:  # else of a segment that has ended
                dropped = min(groups.kept[group], self._alive - self._capacity)
                groups.kept[group] -= dropped
                self._alive -= dropped
            if ends != -end or not groups.kept[group]:
                heapq.heappop(self._last_ending)


def most_online_results(arrivals: Arrivals, capacity: int, *, loads_ended: bool = False) -> int:
    """An upper bound on the results found by the time that the last row has come."""
    if capacity < 0:
        raise ArgumentError(f"capacity must be at least 0 rows, not {capacity}")
    sweep = _Sweep(arrivals, capacity)
    left = arrivals.sides == LEFT
    end = len(arrivals.sides)
    if loads_ended and left.any() and not left.all():
        end = 1 + min(int(np.flatnonzero(left)[-1]), int(np.flatnonzero(~left)[-1]))
    sides = arrivals.sides.tolist()
    found = sum(sweep.arrive(time, sides[time]) for time in range(end))
    rest = range(end, len(sides))
    return found + sum(min(capacity, sweep.matches(time, sides[time])) for time in rest)
