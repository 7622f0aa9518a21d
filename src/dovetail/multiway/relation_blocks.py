"""The blocks of one relation in one cell: a list for each join attribute, paged out as they grow.

The entries of one block in the lists differ in their range of codes only, which is that of the
list's attribute: its zone map. So walking an edge takes the list of one attribute. Sums over all
blocks are kept as numbers.

Rows that Cleanup writes may stay in memory as copies. Their blocks have no departure yet, and
entries never change once they are paged out; so `departures` says when the copies of ranges of
blocks did depart. A range may have blocks in between whose entries say so themselves.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from dovetail.kernel.blocks import NEVER
from dovetail.kernel.catalogue import Catalogue, Entries, Pages

NO_TICK = -1
RANGE_BYTES = 256  #: that a range of departures takes up, as objects
_MOST_ATTRIBUTES = 16


class RelationBlocks:
    """Blocks in the order of their flushes."""

    def __init__(self, pages: Pages, cell: int, attributes: int) -> None:
        self._cell = cell
        self.lists = [Catalogue(pages) for _ in range(attributes)]
        self.last_ats = NO_TICK
        self._first_dts = NEVER  # of blocks whose rows left memory when they were written
        self._rows = 0
        self._bytes = 0
        self.departures: list[list[int]] = []  #: blocks `[first, stop)` of copies, and the tick

    def __len__(self) -> int:
        return len(self.lists[0])

    @property
    def first_departure(self) -> int:
        """The first tick at which rows of a block left memory; NEVER if none have."""
        return min([self._first_dts, *(dts for _, _, dts in self.departures)])

    def append(self, entry: np.void, ranges: Sequence[tuple[int, int]]) -> None:
        """Enter a block that was written; `ranges` has the codes of each attribute, inclusive."""
        number = len(self)
        for attribute, (low, high) in enumerate(ranges):
            known = entry.copy()
            known["part"] = part_of(self._cell, attribute)
            known["code_min"], known["code_max"] = low, high
            self.lists[attribute].append(known)
        self.last_ats = max(self.last_ats, int(entry["ats_max"]))
        self._rows += int(entry["rows"])
        self._bytes += int(entry["length"])
        if int(entry["dts"]) != NEVER:
            self._first_dts = min(self._first_dts, int(entry["dts"]))
        elif self.departures and self.departures[-1][2] == NEVER:
            self.departures[-1][1] = number + 1
        else:
            self.departures.append([number, number + 1, NEVER])

    def departed(self, number: int, entry: np.void) -> int:
        """When the rows of a block left memory."""
        dts = int(entry["dts"])
        if dts != NEVER:
            return dts
        place = bisect_right(self.departures, number, key=lambda departure: departure[0])
        return self.departures[place - 1][2]

    def drop_copies(self, tick: int) -> None:
        """Note that the copies in memory leave it at a tick."""
        for departure in self.departures:
            departure[2] = min(departure[2], tick)

    def forget_departures(self) -> None:
        """Forget departures, once all combinations of the rows that have come are settled.

        Any that is still to come has a row that is newer than these departures, and whether it came
        after the last of them or after any other makes no difference. So the last one does for all.
        """
        gone = [departure for departure in self.departures if departure[2] != NEVER]
        if len(gone) > 1:
            merged = [gone[0][0], gone[-1][1], max(tick for _, _, tick in gone)]
            self.departures = [merged, *self.departures[len(gone) :]]

    def scan(self, attribute: int, start: int, stop: int) -> Iterator[tuple[int, Entries]]:
        """The entries of blocks `[start, stop)` page by page, with the number of each first."""
        for entries in self.lists[attribute].entries(start, stop):
            yield start, entries
            start += len(entries)

    def mean_rows(self, blocks: int) -> int:
        """About how many rows so many blocks have; 0 for none only."""
        return max(1, self._rows * blocks // len(self)) if blocks else 0

    @property
    def mean_row_bytes(self) -> float:
        return self._bytes / max(1, self._rows)

    def facts(self, tick: int) -> dict[str, Any]:
        """The facts for a snapshot; its copies leave memory at a tick."""
        return {
            "last": self.last_ats,
            "first": self._first_dts,
            "rows": self._rows,
            "bytes": self._bytes,
            "departures": [[first, stop, min(dts, tick)] for first, stop, dts in self.departures],
        }

    def restore(self, facts: dict[str, Any]) -> None:
        self.last_ats, self._first_dts = facts["last"], facts["first"]
        self._rows, self._bytes = facts["rows"], facts["bytes"]
        self.departures = [list(departure) for departure in facts["departures"]]

    def check(self) -> None:
        rows, last, first = 0, NO_TICK, NEVER
        for start, entries in self.scan(0, 0, len(self)):
            for number, entry in enumerate(entries, start):
                assert int(entry["ats_max"]) < self.departed(number, entry)
            rows += int(entries["rows"].sum())
            last = max(last, int(entries["ats_max"].max()))
            first = min(first, int(entries["dts"].min()))
        assert (rows, last, first) == (self._rows, self.last_ats, self._first_dts)
        for listed in self.lists:
            listed.check()
            assert len(listed) == len(self)
        assert all(tick != NEVER for _, _, tick in self.departures[:-1])


def part_of(cell: int, attribute: int) -> int:
    """The `part` field of a block's entry: its cell and its attribute."""
    return cell * _MOST_ATTRIBUTES + attribute
