"""Windows by time and by count, and which of their rows a head row meets.

Rows have one order over all streams: by timestamp, then by the rank of their stream in the query,
then by arrival. A head row meets the rows of a window that come *before* it in this order: within
the last `size` time units (`TimeWindow`), or the last `rows` of them (`CountWindow`). So of the
rows of a result, the last one in this order is its head, and each result has one.

With distinct timestamps this is constraint 3 of the paper, the half-open range `[s1.ts - T2,
s1.ts)` (Sect. 2.2), and its limited-count match (Sect. 3.3). Of equal timestamps the paper says `<`
for the one and `<=` for the other, which would lose such results in time windows and emit them
twice in count windows.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dovetail.errors import ArgumentError

Times = NDArray[np.int64]
Numbers = NDArray[np.int64]  #: sequence numbers of the rows of a stream, dense from 0
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class TimeWindow:
    """The rows of the last `size` time units."""

    size: int

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ArgumentError(f"a time window of {self.size}: the size must be 0 or more")

    def first_needed(self, times: Times, settled: int) -> int:
        """How many of these rows, in order, no head row from time `settled` on can meet."""
        return int(np.searchsorted(times, settled - self.size, side="left"))

    def limit(self, heads: Times, times: Times, ties: bool) -> Mask:
        """Which pairs of a head's time and a row's are within the window.

        `ties`: the row's stream ranks before the head's, so that equal times count as before.
        """
        upper = heads if ties else heads - 1
        return np.asarray((times >= heads - self.size) & (times <= upper))


@dataclass(frozen=True)
class CountWindow:
    """The last `rows` rows."""

    rows: int

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise ArgumentError(f"a count window of {self.rows} rows: it must have 1 or more")

    def first_needed(self, times: Times, settled: int) -> int:
        """How many of these rows, in order, no head row from time `settled` on can meet."""
        return max(0, int(np.searchsorted(times, settled, side="left")) - self.rows)

    def before(self, heads: Times, clock: Times, ties: bool) -> Numbers:
        """How many rows of the `clock`, the times of successive rows, are before each head."""
        return np.searchsorted(clock, heads, side="right" if ties else "left").astype(np.int64)

    def limit(self, before: Numbers, numbers: Numbers) -> Mask:
        """Which rows, by number, are among the last before their head."""
        return np.asarray((numbers < before) & (numbers >= before - self.rows))


Window = TimeWindow | CountWindow
