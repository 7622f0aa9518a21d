"""Loaded rows: in memory and on disk as well, to be met by the other side's arrivals.

They are there to be met by rows that arrive, and cost no write when they go. They come from the
footnote of section 3.3 (blocks of an input that has ended are loaded back), from Cleanup (what it
writes may stay, in case an input re-opens) and from the end of a silence (what did not stay is
loaded back). Which rows met them on arrival is told by their `LoadedBlocks`, by ticks.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from dovetail.kernel.blocks import NEVER
from dovetail.kernel.catalogue import Entries, concatenated
from dovetail.kernel.memory import Reservation
from dovetail.kernel.protocol import LEFT, RIGHT, SIDES, Context
from dovetail.kernel.runs import Run, merge_runs
from dovetail.twoway.diner.index import LoadedRun, MarkedRuns
from dovetail.twoway.diner.lists import BlockList
from dovetail.twoway.diner.meeting import LoadedBlocks


@dataclass
class _Group:
    load: LoadedBlocks
    run: LoadedRun

    @property
    def benefit(self) -> float:
        return self.run.found / len(self.run)


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

    def keep(self, first: int, blocks: Entries, run: Run) -> LoadedBlocks | None:
        """Let the rows of these blocks be met from now on; None if they do not fit.

        The blocks are of one side, follow one another, and have numbers from `first` on.
        """
        copy = LoadedRun(run)
        if not self._held.try_grow(copy.nbytes):
            return None
        side, low, high = (int(n) for n in (blocks[0]["side"], blocks[0]["dts"], blocks[-1]["dts"]))
        load = LoadedBlocks(side, first, first + len(blocks), low, high, self._ctx.clock.now)
        self._groups.append(_Group(load, copy))
        self._index[side].loaded.append(copy)
        return load

    def rows(self, side: int) -> int:
        return sum(map(len, self._index[side].loaded))

    def least_benefit(self, side: int) -> float | None:
        """The least that a row of some group has been found; None if the side has no group."""
        return min((group.benefit for group in self._of(side)), default=None)

    def give_up(self, side: int | None = None) -> bool:
        """Let the group go that was found least, the oldest of such; False if there is none.

        Of this side, or of the one that has more rows.
        """
        groups = self._of(max(SIDES, key=self.rows) if side is None else side)
        gone = min(groups, key=lambda group: group.benefit, default=None)
        if gone is None:
            return False
        gone.load.until = self._ctx.clock.now
        self._groups.remove(gone)
        self._index[gone.load.side].loaded.remove(gone.run)
        self._index[gone.load.side].flushed = True
        self._held.shrink(gone.run.nbytes)
        return True

    def _of(self, side: int) -> list[_Group]:
        return [group for group in self._groups if group.load.side == side]

    def load(self, side: int, blocks: BlockList, spare_bytes: int) -> Iterator[LoadedBlocks]:
        """Read blocks of a side back, the newest first, until only so many bytes are free."""
        stop = len(blocks)
        while stop:
            loads = [group.load for group in self._of(side)]
            there = next((load for load in loads if load.first < stop <= load.stop), None)
            if there is not None:
                stop = there.first
                continue
            budget = self._ctx.budget
            free = (budget.total_bytes or 0) - budget.used_bytes - spare_bytes
            least = max((load.stop for load in loads if load.stop < stop), default=0)
            group = _last_group(blocks, least, stop, min(free, self._group_bytes))
            if int(group["length"].sum()) > free:
                return
            stop -= len(group)
            run = merge_runs([self._ctx.store.read(block) for block in group])
            load = self.keep(stop, group, run)
            if load is None:
                return
            yield load

    def recall(
        self, blocks: tuple[BlockList, BlockList], spare_bytes: int
    ) -> Iterator[LoadedBlocks]:
        """Read the newest blocks back, as much of both sides, until only so many bytes are free.

        A side that has rows in memory which are not on disk has not been taken out of it.
        """
        free = (self._ctx.budget.total_bytes or 0) - self._ctx.budget.used_bytes - spare_bytes
        for side, other_bytes in ((LEFT, free // 2), (RIGHT, 0)):
            if not len(self._index[side]):
                yield from self.load(side, blocks[side], spare_bytes + other_bytes)

    def ticks(self, side: int) -> list[int]:
        """When the groups of a side were loaded, in order."""
        return sorted({group.load.since for group in self._of(side)})

    def first_unmet(self, side: int, tick: int) -> int:
        """The first block of a side that not every row that arrived at `tick` or later has met."""
        loads = [group.load for group in self._of(side)]
        met = 0
        for load in sorted(loads, key=lambda load: load.first):
            if load.since < tick and load.first <= met:
                met = load.stop
        return met

    def leave_unmet(self, side: int, blocks: BlockList, runs: Sequence[Run]) -> bool:
        """Whether some of the other side's rows in memory have not met all blocks of a side."""
        if not runs or not len(blocks):
            return False
        for since, until in pairwise([-1, *self.ticks(side), NEVER]):
            # rows that came meanwhile have met the same groups
            last = max(int(run.ats.max(where=run.ats <= until, initial=-1)) for run in runs)
            missed = self.first_unmet(side, since + 1)
            if last > since and blocks.dts_at(missed) < last:
                return True  # it was flushed before some of the rows came
        return False

    def check(self) -> None:
        assert self._held.nbytes == sum(group.run.nbytes for group in self._groups)
        for side in SIDES:
            runs = [group.run for group in self._of(side)]
            assert runs == self._index[side].loaded


def _last_group(blocks: BlockList, least: int, stop: int, room: int) -> Entries:
    """The blocks before `stop`, from `least` on, that fit together; one at least."""
    group: list[Entries] = []
    for number in reversed(range(least, stop)):
        (entry,) = blocks.entries(number, number + 1)
        room -= int(entry["length"][0])
        if group and room < 0:
            break
        group.append(entry.copy())  # a view would keep the page in memory
    return concatenated(group[::-1])
