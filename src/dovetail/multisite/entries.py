"""Bookkeeping of a window's keys: `V2` at its owner, its copy and `M2` where it is probed.

The owner keeps for each distinct key how many rows have it (`c`) and whether they have been sent
(`b`). An update is two vectors: the keys that are new (`v_J`), and how many rows each key has, old
keys that are gone and new ones included (`v_C`). The receiver keeps its keys in the same order, so
the counts need no keys beside them (Sect. 3.2.2, Algorithm 9).

Keys travel as their 64-bit codes: for numbers that is the key itself, for strings and composite
keys a hash. Two keys of one hash share an entry. That is harmless, because every algorithm that
looks keys up here joins full rows afterwards, and compares the keys themselves.
"""

import numpy as np
from numpy.typing import NDArray

from dovetail.kernel.keys import Codes
from dovetail.multisite.compact import all_counts
from dovetail.multisite.snapshots import Kept
from dovetail.multisite.windows import Mask, Numbers


def distinct(codes: Codes) -> Codes:
    """Each code once, in the order of first occurrence."""
    _, first = np.unique(codes, return_index=True)
    first.sort()
    return codes[first]


class _Lookup(Kept):
    """The place of a code among codes that are in no order."""

    def __init__(self) -> None:
        self.codes: Codes = np.zeros(0, dtype=np.int64)
        self._order: NDArray[np.int64] | None = None

    @property
    def nbytes(self) -> int:
        """Codes and their order; the counts and marks beside them are about as much."""
        return 4 * int(self.codes.nbytes)

    def change(self, codes: Codes) -> None:
        self.codes, self._order = codes, None

    def places(self, codes: Codes) -> tuple[Numbers, Mask]:
        """For each code its place, and whether there is one."""
        if not len(self.codes):
            return np.zeros(len(codes), dtype=np.int64), np.zeros(len(codes), dtype=np.bool_)
        if self._order is None:
            self._order = np.argsort(self.codes, kind="stable")
        at = np.searchsorted(self.codes, codes, sorter=self._order)
        places = self._order[np.minimum(at, len(self.codes) - 1)]
        return places, self.codes[places] == codes


class OwnedEntries(_Lookup):
    """`V2` with fields `<j, c, b>`, as one other site knows it."""

    KEPT = ("codes", "counts", "before", "sent")

    def __init__(self) -> None:
        super().__init__()
        self.counts: Numbers = np.zeros(0, dtype=np.int64)
        self.before = self.counts  #: the counts before the last update, 0 for its new keys
        self.sent: Mask = np.zeros(0, dtype=np.bool_)

    def update(self, inserted: Codes, removed: Codes) -> tuple[Codes, Numbers]:
        """Lines 2 to 21 of Algorithm 9; returns `v_J` and `v_C`."""
        fresh = distinct(inserted[~self.places(inserted)[1]])
        self.change(np.concatenate([self.codes, fresh]))
        self.before = np.concatenate([self.counts, np.zeros(len(fresh), dtype=np.int64)])
        counts = self.before.copy()
        np.add.at(counts, self.places(inserted)[0], 1)
        if len(removed):
            places, there = self.places(removed)
            np.subtract.at(counts, places[there], 1)
        self.sent = np.concatenate([self.sent, np.zeros(len(fresh), dtype=np.bool_)])
        left = counts > 0
        self.counts, self.sent = counts[left], self.sent[left]
        if not left.all():
            self.change(self.codes[left])
        return fresh, counts

    def is_sent(self, codes: Codes) -> Mask:
        """Which of the codes have all their rows at the other site."""
        places, there = self.places(codes)
        if there.any():
            there[there] = self.sent[places[there]]
        return there

    def mark_sent(self, codes: Codes) -> None:
        places, there = self.places(codes)
        self.sent[places[there]] = True


class CopiedEntries(_Lookup):
    """The copy of `V2`; with the rows of the keys that are `filled`, it is `M2`."""

    KEPT = ("codes", "counts", "filled", "frozen")

    def __init__(self) -> None:
        super().__init__()
        self.counts: Numbers = np.zeros(0, dtype=np.int64)
        self.filled: Mask = np.zeros(0, dtype=np.bool_)
        self.frozen = False  #: only old intervals need it, and it is not kept up to date

    def update(self, fresh: Codes, counts: Numbers, places: Numbers | None = None) -> None:
        """Lines 24 to 40 of Algorithm 9, for the keys; their rows leave with the oldest `k`.

        `places`: of which keys these are the counts, if not of all.
        """
        before = np.concatenate([self.counts, np.zeros(len(fresh), dtype=np.int64)])
        counts = all_counts(before, counts, places)
        left = counts > 0
        codes = np.concatenate([self.codes, fresh])
        filled = np.concatenate([self.filled, np.zeros(len(fresh), dtype=np.bool_)])
        self.counts, self.filled = counts[left], filled[left]
        self.change(codes[left])

    def contains(self, codes: Codes) -> Mask:
        return self.places(codes)[1]

    def unfilled(self, codes: Codes) -> Codes:
        """The distinct codes that occur, but whose rows are not here: the semijoin of `V2`."""
        places, there = self.places(codes)
        places = np.unique(places[there])
        return self.codes[places[~self.filled[places]]]

    def fill(self, codes: Codes) -> None:
        places, there = self.places(codes)
        self.filled[places[there]] = True
