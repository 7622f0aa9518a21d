"""The ticks of arrival (ATS) of the rows in memory, by slot.

Rows that came together have one tick and lie in slots next to each other, and rows that leave do
not change that. So a tick is kept for each such run of rows, and not for each row: 8 bytes a run,
which is what the tick of a single row would take up. Ticks grow with slots, for rows are stored as
they come, and a snapshot keeps their order.
"""

import numpy as np
from numpy.typing import NDArray

from dovetail.multiway.arrays import count_marks
from dovetail.multiway.keyindex import Slots

Ticks = NDArray[np.int64]
BYTES_PER_RUN = 12  #: at the most: from 2**31 ticks on, one takes up 8 of them


class ArrivalTicks:
    """Ticks by slot, never falling."""

    def __init__(self) -> None:
        self._ticks: Slots = np.zeros(0, dtype=np.int32)
        self._ends: Slots = np.zeros(0, dtype=np.int32)  # the first slot behind each run

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    @property
    def nbytes(self) -> int:
        return self._ticks.nbytes + self._ends.nbytes

    def append(self, ats: Ticks) -> None:
        """Add rows, one at least, behind all others."""
        ends = np.append(np.flatnonzero(ats[1:] != ats[:-1]) + 1, len(ats))
        ticks = ats.take(ends - 1)
        if ticks[-1] <= np.iinfo(np.int32).max:
            ticks = ticks.astype(np.int32)  # beside larger ones they grow again
        self._ends = np.concatenate([self._ends, (ends + len(self)).astype(np.int32)])
        self._ticks = np.concatenate([self._ticks, ticks])

    def remove(self, moved: Slots) -> None:
        """Forget rows. `moved` has the new slot of each; of those that go, the one before."""
        ends = moved.take(self._ends - 1) + 1
        left = np.diff(ends, prepend=0) > 0
        self._ends, self._ticks = ends[left], self._ticks[left]

    def take(self, slots: Slots) -> Ticks:
        """The ticks of the rows in these slots."""
        runs = np.searchsorted(self._ends, slots, side="right")
        return self._ticks.take(runs).astype(np.int64)

    def newest(self, marked: NDArray[np.bool_]) -> int | None:
        """The last tick of the rows that are marked; None if none is."""
        if not marked.any():
            return None
        last = len(marked) - 1 - int(marked[::-1].argmax())
        return int(self.take(np.array([last]))[0])

    def mean(self, marked: NDArray[np.bool_]) -> float:
        """The mean tick of the rows that are marked; 0 if none is."""
        counts = np.diff(count_marks(marked).take(self._ends - 1), prepend=0)
        return float(counts.astype(np.int64) @ self._ticks) / max(1, int(counts.sum()))

    def check(self, rows: int) -> None:
        assert len(self) == rows, "rows have no tick, or ticks no row"
        assert (np.diff(self._ends, prepend=0) > 0).all()
        assert (np.diff(self._ticks) >= 0).all(), "a row lies before one that came earlier"
