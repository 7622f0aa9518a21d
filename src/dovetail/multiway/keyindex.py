"""The index of one join attribute of one relation: sorted codes, each with the slot of its row.

A few sorted runs, compacted like those of `kernel.runs`, but of codes and slots only: a relation
has an index for each of its attributes and its rows lie in one place (docs/decisions/021). Slots
are positions in the relation's own arrays; when rows leave, the slots of those behind them move up
(`remove`).

A merge takes memory for a moment, so it only happens while its result has at most `merge_rows`.
"""

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.kernel.keys import Codes
from dovetail.kernel.probing import Span, probe_run
from dovetail.kernel.runs import FAN_IN
from dovetail.multiway.arrays import compact, extend

Slots = NDArray[np.integer[Any]]

BYTES_PER_ROW = 12  #: a code and a slot
MERGE_BYTES_PER_ROW = 24  #: for a moment: where each code goes, and the codes once more
_MOST_SMALL_RUNS = 32
_SAMPLED = 1 << 12  # codes of which the middle one is taken


class KeyIndex:
    """Finds rows by the codes of one attribute."""

    def __init__(self, merge_rows: int = sys.maxsize) -> None:
        self._merge_rows = merge_rows
        self._runs: list[Codes] = []
        self._slots: Slots = np.zeros(0, dtype=np.int32)  # of all runs, one behind the other

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def nbytes(self) -> int:
        return self._slots.nbytes + sum(codes.nbytes for codes in self._runs)

    # -- rows come and go -------------------------------------------------------------------

    def insert(self, codes: Codes, first: int) -> None:
        """Add rows that lie in the slots from `first` on, in any order of codes."""
        order = np.argsort(codes, kind="stable")
        self._runs.append(codes.take(order))
        extend(self._slots, order + first)
        while len(self._runs) >= FAN_IN:
            sizes = [len(run) for run in self._runs[-FAN_IN:]]
            # merging into a run much larger than the rest would copy it again and again
            if sizes[0] > sum(sizes[1:]) or sum(sizes) > self._merge_rows:
                break
            self._merge(len(self._runs) - FAN_IN, len(self._runs))
        if len(self._runs) > _MOST_SMALL_RUNS + 2 * len(self) // self._merge_rows:
            self._merge_neighbours()

    def _merge(self, first: int, stop: int) -> None:
        """Make one of the runs `[first, stop)`."""
        start = sum(map(len, self._runs[:first]))
        codes = np.concatenate(self._runs[first:stop])
        self._runs[first:stop] = []
        order = np.argsort(codes, kind="stable")  # a merge: the pieces are sorted already
        self._runs[first:first] = [codes.take(order)]
        slots = self._slots[start : start + len(codes)]
        slots[:] = slots.take(order)

    def _merge_neighbours(self) -> None:
        """Large runs that have lost most of their rows would add up: merge them with others."""
        first = 0
        while first < len(self._runs):
            stop, rows = first + 1, len(self._runs[first])
            while stop < len(self._runs) and rows + len(self._runs[stop]) <= self._merge_rows:
                rows += len(self._runs[stop])
                stop += 1
            if stop - first > 1:
                self._merge(first, stop)
            first += 1

    def remove(self, gone: NDArray[np.bool_], moved: Slots) -> None:
        """Forget the slots that are marked; `moved` has the new slot of each of the others."""
        start = stop = 0
        for codes in self._runs:
            slots = self._slots[start : start + len(codes)]
            start += len(codes)
            kept = ~gone.take(slots)
            left = moved.take(slots[kept])
            self._slots[stop : stop + len(left)] = left  # those there have been looked at
            stop += len(left)
            compact(codes, kept)
        self._slots.resize(stop, refcheck=False)
        self._runs = [codes for codes in self._runs if len(codes)]

    # -- finding rows -----------------------------------------------------------------------

    def probe(self, low: Codes, high: Codes) -> tuple[Slots, Span] | None:
        """The rows with codes in each of the inclusive ranges; equality is `low is high`.

        The span's positions are those of the slots that are returned with it.
        """
        found: Span | None = None
        base = 0
        for codes in self._runs:
            span = probe_run(codes, low, high)
            if span is not None:
                if base:
                    span = Span(span.probing, span.low + base, span.high + base)
                found = span if found is None else found.joined(span)
            base += len(codes)
        return None if found is None else (self._slots, found)

    def ranges_met(self, low: Codes, high: Codes) -> NDArray[np.bool_]:
        """In which of the inclusive ranges there is the code of any row."""
        met = np.zeros(len(low), dtype=np.bool_)
        for codes in self._runs:
            met |= np.searchsorted(codes, low, "left") < np.searchsorted(codes, high, "right")
        return met

    # -- codes in their order ---------------------------------------------------------------

    def count_up_to(self, code: int) -> int:
        """The number of rows with this code or a lower one."""
        return sum(int(np.searchsorted(codes, code, "right")) for codes in self._runs)

    def lowest(self, count: int) -> int:
        """The highest of the `count` lowest codes, of which there are as many at least."""
        some = np.concatenate([codes[:count] for codes in self._runs])
        return int(np.partition(some, count - 1)[count - 1])

    def highest(self, count: int) -> int:
        """The lowest of the `count` highest codes, of which there are as many at least."""
        some = np.concatenate([codes[-count:] for codes in self._runs])
        return int(np.partition(some, len(some) - count)[len(some) - count])

    def middle(self) -> int:
        """The middle one of all codes, of which there is one at least; of very many, about that."""
        step = max(1, len(self) // _SAMPLED)
        some = np.concatenate([codes[step // 2 :: step] for codes in self._runs])
        at = (len(some) - 1) // 2
        return int(np.partition(some, at)[at])

    def check(self, by_slot: Codes) -> None:
        assert len(self) == len(by_slot) == sum(map(len, self._runs))
        assert (np.sort(self._slots) == np.arange(len(self))).all(), "an index has lost rows"
        start = 0
        for codes in self._runs:
            places = self._slots[start : start + len(codes)]
            start += len(codes)
            assert len(codes), "a run is empty"
            assert (codes[1:] >= codes[:-1]).all(), "an index is out of order"
            assert (by_slot.take(places) == codes).all(), "an index has other codes than the rows"
