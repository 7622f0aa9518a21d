"""Rows that DINER has in memory although they are on disk as well.

They are there to be met by rows that arrive, and cost no write when they go. They come from the
footnote of section 3.3 (blocks of an input that has ended are loaded back) and from Cleanup (what
it writes may stay, in case an input re-opens). Which rows met them on arrival is told by their
`Load`, by ticks.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dovetail.kernel.memory import Reservation
from dovetail.kernel.protocol import SIDES, Context
from dovetail.kernel.runs import Run, merge_runs
from dovetail.twoway.diner_blocks import Entries, Load
from dovetail.twoway.diner_index import MarkedRuns


@dataclass
class _Group:
    load: Load
    run: Run


class LoadedRows:
    """Groups of blocks in memory, the oldest first; each is one run of the index it belongs to."""

    def __init__(
        self, context: Context, index: tuple[MarkedRuns, MarkedRuns], group_bytes: int
    ) -> None:
        self._ctx = context
        self._index = index
        self._group_bytes = group_bytes
        self._groups: list[_Group] = []
        self._held = Reservation(context.budget, "loaded")

    def __len__(self) -> int:
        return len(self._groups)

    def keep(self, side: int, first: int, stop: int, run: Run) -> Load | None:
        """Let the rows of blocks `[first, stop)` be met from now on; None if they do not fit."""
        if not self._held.try_grow(run.nbytes):
            return None
        load = Load(side, first, stop, self._ctx.clock.now)
        self._groups.append(_Group(load, run))
        self._index[side].loaded.append(run)
        return load

    def give_up(self, side: int | None = None) -> bool:
        """Let the oldest group go, of any side or of this; False if there is none."""
        groups = (group for group in self._groups if side in (None, group.load.side))
        gone = next(groups, None)
        if gone is None:
            return False
        gone.load.until = self._ctx.clock.now
        self._groups.remove(gone)
        self._index[gone.load.side].loaded.remove(gone.run)
        self._held.shrink(gone.run.nbytes)
        return True

    def load(self, side: int, entries: Entries, spare_bytes: int) -> Iterator[Load]:
        """Read blocks of a side back, the newest first, until only so many bytes are free."""
        missing = np.ones(len(entries), dtype=np.bool_)
        for group in self._groups:
            if group.load.side == side:
                missing[group.load.first : group.load.stop] = False
        stop = len(entries)
        while stop:
            if not missing[stop - 1]:
                stop -= 1
                continue
            budget = self._ctx.budget
            free = (budget.total_bytes or 0) - budget.used_bytes - spare_bytes
            first = _first_of_group(entries["length"], missing, stop, min(free, self._group_bytes))
            if int(entries["length"][first:stop].sum()) > free:
                return
            run = merge_runs([self._ctx.store.read(block) for block in entries[first:stop]])
            load = self.keep(side, first, stop, run)
            if load is None:
                return
            yield load
            stop = first

    def met_by_all_since(self, side: int, tick: int) -> Iterator[slice]:
        """The blocks of a side that every row that arrived at `tick` or later has met."""
        for group in self._groups:
            if group.load.side == side and group.load.since < tick:
                yield slice(group.load.first, group.load.stop)

    def check(self) -> None:
        assert self._held.nbytes == sum(group.run.nbytes for group in self._groups)
        for side in SIDES:
            runs = [group.run for group in self._groups if group.load.side == side]
            assert runs == self._index[side].loaded


def _first_of_group(
    lengths: NDArray[np.int64], missing: NDArray[np.bool_], stop: int, room: int
) -> int:
    """The first of the blocks before `stop` that are missing and fit together; one at least."""
    first = stop - 1
    room -= int(lengths[first])
    while first and missing[first - 1] and room >= int(lengths[first - 1]):
        first -= 1
        room -= int(lengths[first])
    return first
