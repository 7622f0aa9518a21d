"""The most results that any flushing policy could have found while its inputs arrived.

A yardstick for the two-way joins: it knows the whole future, and has room for `capacity` rows. A
row that has come meets, at times m1 < m2 < ..., rows of the other side that come later. Each of
the segments [arrival, m1), [m1, m2), ... stands for one result, which is found if the row is in
memory throughout it. There are two bounds, and the lower one counts.

By segments. No policy can find more than the largest set of segments of which no more than
`capacity` overlap anywhere. Segments on a line make an interval graph, for which a sweep finds that
set: whenever too many are alive, the one that ends last goes (Faigle and Nawijn, "Note on
scheduling intervals on-line", 1995; with pages instead of rows, Belady's rule). What is relaxed:
the set may hold a row's later segment without an earlier one, as if rows could come back from disk
at the very moment that they are met, at no cost. Where keys repeat much that is worth a lot.

By prices. Let a place in memory cost a price for every unit of time, and let each row by itself
choose until when it stays, by what it finds less what it pays. What all rows gain that way, and the
price of all places together, is no less than what any policy finds that never takes a row back: if
no more rows stay than there are places, it is what a policy could do, and else the policy would
have had to pay. That is so for any prices (Lagrangian duality), and for the best ones it is exactly
the best policy, since places that are passed on from row to row are a flow. The search for prices
is over steps of time and ends after some rounds, so it stays a little above.

`tests/unit/bench/test_clairvoyant.py` compares both with everything that policies could do, and
says how far above that they are; for thousands of rows, a simple policy that knows what comes has
nine tenths of the bound. In either, a row that arrives meets what is in memory before it takes up
room itself.

An input that has ended. A join may then read that side's rows back at leisure (footnote 1 of the
DINER paper). With `loads_ended`, a row that comes after the other input's end counts as meeting any
`capacity` rows that it matches.

Rows of one side with one key have the same future and are one group, so that the work depends on
the arrivals and the groups that each of them meets, however many pairs there are.
"""

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dovetail.errors import ArgumentError
from dovetail.kernel.protocol import SIDES

Keys = NDArray[np.int64]
PRICE_STEPS = 50  #: of time, with a price each
PRICE_ROUNDS = 150
_NARROWINGS = 30
_ROUNDING = 1e-6  # of sums that are whole numbers but for it
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
    end = _first_end(arrivals) if loads_ended else len(arrivals.sides)
    both = Arrivals(arrivals.sides[:end], arrivals.keys[:end], arrivals.within)
    rest = _matches_of_rest(arrivals, end)
    bounds = most_by_segments(both, capacity), most_by_prices(both, capacity)
    return min(bounds) + int(np.minimum(rest, capacity).sum())


def _first_end(arrivals: Arrivals) -> int:
    """How many rows have come when one of the inputs has ended."""
    lasts = [np.flatnonzero(arrivals.sides == side)[-1:] for side in SIDES]
    return 1 + min((int(last[0]) for last in lasts if len(last)), default=-1)


def _matches_of_rest(arrivals: Arrivals, end: int) -> Keys:
    """For each row from `end` on, how many of the rows before it matches; all are of one side."""
    rest = arrivals.keys[end:]
    if not len(rest):
        return rest
    met = np.sort(arrivals.keys[:end][arrivals.sides[:end] != arrivals.sides[end]])
    first = np.searchsorted(met, rest - arrivals.within, side="left")
    return np.asarray(np.searchsorted(met, rest + arrivals.within, side="right") - first)


def most_by_segments(arrivals: Arrivals, capacity: int) -> int:
    """The largest set of segments that fits."""
    sweep = _Sweep(arrivals, capacity)
    return sum(sweep.arrive(time, side) for time, side in enumerate(arrivals.sides.tolist()))


def most_by_prices(
    arrivals: Arrivals, capacity: int, *, steps: int = PRICE_STEPS, rounds: int = PRICE_ROUNDS
) -> int:
    """What rows gain at the best prices that were found, and the price of all places."""
    market = _Market(arrivals, capacity, steps)
    prices, best = market.best_single_price()
    step = prices.mean() / 4
    for round_ in range(1, rounds + 1):
        total, excess = market.sell(prices)
        best = min(best, total)
        norm = float(np.abs(excess).max())
        if not norm:
            break
        prices = np.maximum(0, prices + step / np.sqrt(round_) * excess / norm)
    return int(best + _ROUNDING)


class _Market:
    """All rows and when they are met, side by side in flat arrays."""

    def __init__(self, arrivals: Arrivals, capacity: int, steps: int) -> None:
        self._times = len(arrivals.sides)
        self._capacity = capacity
        self._steps = max(1, min(steps, self._times))
        self._step_of = np.arange(self._times) * self._steps // max(1, self._times)
        meetings: list[Keys] = []  # by group
        arrived: list[Keys] = []
        first: list[Keys] = []  # meeting of each row
        begun = 0
        for side in SIDES:
            found = _Groups(arrivals, side)
            times = np.flatnonzero(arrivals.sides == side)
            group_of = np.searchsorted(found.values, arrivals.keys[times])
            for group, backwards in enumerate(found.meetings):
                met = np.array(backwards[::-1], dtype=np.int64)
                rows = times[group_of == group]
                place = np.searchsorted(met, rows)
                some = place < len(met)  # the others gain nothing, whatever the price
                meetings.append(met)
                arrived.append(rows[some])
                first.append(begun + place[some])
                begun += len(met)
        self._meetings, self._arrived, self._first = map(_joined, (meetings, arrived, first))
        self._groups = np.repeat(np.arange(len(meetings)), [len(met) for met in meetings])
        self._place = np.arange(len(self._meetings))

    def best_single_price(self) -> tuple[NDArray[np.float64], float]:
        """One price for all time, by narrowing down; what is sold at a price is convex in it."""
        low, high = 0.0, 1.0
        for _ in range(_NARROWINGS):
            one, two = low + (high - low) / 3, high - (high - low) / 3
            if self._at(one) <= self._at(two):
                high = two
            else:
                low = one
        price = (low + high) / 2
        return np.full(self._steps, price), min(self._at(0.0), self._at(price))

    def _at(self, price: float) -> float:
        return self.sell(np.full(self._steps, price))[0]

    def sell(self, prices: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        """The bound at these prices, and how many more rows stay than fit, by step of time."""
        until = np.concatenate([[0.0], np.cumsum(prices[self._step_of])])
        worth = self._place - until[self._meetings]
        best = self._best_from(worth)[self._first]
        gain = worth[best] - self._first + 1 + until[self._arrived]
        stays = gain > 0
        total = self._capacity * float(until[-1]) + float(gain[stays].sum())
        change = np.bincount(self._arrived[stays], minlength=self._times + 1).astype(np.int64)
        change -= np.bincount(self._meetings[best[stays]], minlength=self._times + 1)
        excess = np.cumsum(change)[: self._times] - self._capacity
        by_step = np.bincount(self._step_of, weights=excess, minlength=self._steps)
        return total, np.asarray(by_step, dtype=np.float64)

    def _best_from(self, worth: NDArray[np.float64]) -> Keys:
        """For each meeting, the one of the greatest worth among it and its group's later ones."""
        if not len(worth):
            return self._place
        apart = 1 + worth.max() - worth.min()
        # going backwards, each group lies above the one before, so that none looks into another
        lifted = (worth - apart * self._groups)[::-1]
        greatest = np.maximum.accumulate(lifted)
        new = np.where(lifted == greatest, np.arange(len(worth)), 0)
        return np.asarray((len(worth) - 1 - np.maximum.accumulate(new))[::-1])


def _joined(parts: list[Keys]) -> Keys:
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)
