"""Counts of values that missed Seek's cache, sampled to fit into little memory.

The notes have some memory for good, and take more while the budget has it, up to a limit. When
there are more values than room, only half of the values are noted from then on, then a quarter, and
so on; every row of a noted value counts. Which values are noted is chosen anew each time.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dovetail.kernel.keys import Codes
from dovetail.kernel.memory import Reservation
from dovetail.kernel.probing import Rows

NOTE_BYTES = 64  #: of a value: its four numbers, and as much while they are put in order
_MIX = np.uint64(0x9E3779B97F4A7C15)  # any odd number whose bits look random
_NONE: Rows = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class Missed:
    """Values that missed the cache, each once and in order."""

    keys: Codes
    low: Rows  #: the table rows of each begin here
    high: Rows  #: and end before this one
    hits: Rows  #: the stream rows that asked for each

    def __len__(self) -> int:
        return len(self.keys)

    def only(self, which: "NDArray[np.bool_] | Rows") -> "Missed":
        return Missed(self.keys[which], self.low[which], self.high[which], self.hits[which])


NOTHING = Missed(_NONE, _NONE, _NONE, _NONE)


class Notes:
    """Missed values with their hits, as many as `held` has room for: `least` bytes or more."""

    def __init__(self, least: int, held: Reservation) -> None:
        self._least = least
        self._held = held
        self._noted: list[Missed] = []
        self._halvings = 0
        self._salt = 0
        held.resize(least)

    def __len__(self) -> int:
        return sum(len(one) for one in self._noted)

    def add(self, missed: Missed, most_bytes: int) -> None:
        """Note these values, in up to `most_bytes`; the arrays must not change later."""
        self._noted.append(self._chosen(missed))
        while not self._has_room(most_bytes):
            noted = len(self)
            self._noted = [_together(self._noted)]
            if len(self) == noted:
                self._halvings += 1
                self._noted = [self._chosen(self._noted[0])]

    def take(self, salt: int) -> Missed:
        """Return all notes and start over; `salt` chooses among the values to come."""
        noted, self._noted = self._noted, []
        self._halvings, self._salt = 0, salt
        self._held.resize(self._least)
        return _together(noted) if noted else NOTHING

    def _has_room(self, most_bytes: int) -> bool:
        missing = NOTE_BYTES * len(self) - self._held.nbytes
        allowed = self._held.nbytes + missing <= most_bytes
        return missing <= 0 or (allowed and self._held.try_grow(missing))

    def _chosen(self, missed: Missed) -> Missed:
        """The values among these that are noted: one in 2 to the power of `_halvings`."""
        if not self._halvings:
            return missed
        mixed = (missed.keys.view(np.uint64) + np.uint64(self._salt)) * _MIX
        return missed.only(mixed >> np.uint64(64 - min(self._halvings, 63)) == 0)


def _together(noted: list[Missed]) -> Missed:
    """Merge notes, so that each value is there once."""
    if len(noted) == 1:
        return noted[0]
    columns = [(one.keys, one.low, one.high, one.hits) for one in noted]
    keys, low, high, hits = (np.concatenate(column) for column in zip(*columns, strict=True))
    keys, firsts, whose = np.unique(keys, return_index=True, return_inverse=True)
    hits = np.bincount(whose, weights=hits, minlength=len(keys)).astype(np.int64)
    return Missed(keys, low[firsts], high[firsts], hits)
