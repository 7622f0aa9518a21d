"""RPJ, the rate-based progressive join: flushes and deferred work by expected output.

Source: Tao, Yiu, Papadias, Hadjieleftheriou and Mamoulis, "RPJ: Producing Fast Join Results on
Streams through Rate-based Optimization" (SIGMOD 2005), as retold in section 2 of the DINER paper
and section I of the survey.

Arriving phase. As in XJoin, but what is flushed is what the next rows are least likely to join
with. `arrivals[j, i]` (the papers' p_i^arr[j]) is the probability that the next row belongs to side
i and cell j. The least of these names the victim: rows of cell j on the *other* side, then the
next least, until `FLUSH_SHARE` of the rows in memory (n_flush) have been given up.

The estimate. Rows are counted by cell and side from one flush to the next; a flush ages the old
estimate by the factor `AGEING` and adds the new shares, so that it follows a changing input.

Reactive phase. Two kinds of task: the disk part of a cell meets the other side's memory part
(memory-disk), or the two disk parts of a cell meet (disk-disk). The task with the highest expected
output for a row read goes first. In a cell all pairs are equally likely to match, so a task's
output is proportional to its pairs of rows that have not met, and these are counted exactly:
- `missed_memory[j, i]`: disk rows of side i with memory rows of the other side. An arrival on the
  other side adds one for each disk row; a pass over the disk part clears it.
- `missed_disk[j]`: disk rows with disk rows. When side i of a cell is flushed, its memory rows
  become disk rows, so `missed_memory[j, 1 - i]` moves here.

Cleanup phase, when both inputs have ended: the same tasks in the same order, until none is left.

Each pair once: as in XJoin, by ATS, DTS, marks, and the finished rectangle of blocks.

Kept: the probability model and the flushing by it, both kinds of task and their order by rate, the
sorted segments, the timestamps. The two constants are of our choosing. Differs: ticks of the
logical clock instead of time; batches instead of tuples, and a cell is flushed whole, since cells
are many; the cost of a task is the rows it reads, not seeks and transfers of a disk of 2005;
segments of a cell are joined in groups that fit the working memory instead of being merged into
ever larger ones, so a disk-disk task can be left after any block, which removes the drawback that
the DINER paper notes; a begun disk-disk task is finished before another is begun.
"""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dovetail.kernel.protocol import LEFT, RIGHT, SIDES, Snapshot
from dovetail.kernel.runs import Run
from dovetail.kernel.shell import Pieces, Results
from dovetail.twoway.rivals.partitioned import Chosen, PartitionedJoin

FLUSH_SHARE = 1 / 10  #: of the rows in memory that a flush gives up, at least
AGEING = 0.5  #: what the old estimate weighs against the rows since the last flush

DISK = -1  # in place of the side of a task: both disk parts of the cell


class RateBasedJoin(PartitionedJoin):
    """Equality joins of any size within a budget."""

    name: ClassVar[str] = "rpj"

    def _build(self, snapshot: Snapshot | None) -> None:
        super()._build(snapshot)
        self._wanted: int | None = None  # the cell whose disk parts are to meet next
        self._claimed = 0  # pairs of `missed_disk` that the cleanup in progress will settle
        shape = (len(self.cells), len(SIDES))
        self.arrivals = np.zeros(shape)
        self.recent = np.zeros(shape, dtype=np.int64)  # rows since the last flush
        self.disk_rows = np.zeros(shape, dtype=np.int64)
        self.missed_memory = np.zeros(shape, dtype=np.int64)
        self.missed_disk = np.zeros(len(self.cells), dtype=np.int64)

    # -- arriving ---------------------------------------------------------------------------

    def _inserted(self, side: int, run: Run) -> None:
        super()._inserted(side, run)
        counts = np.bincount(self._part_of(run.codes), minlength=len(self.cells))
        self.recent[:, side] += counts
        self.missed_memory[:, 1 - side] += counts * self.disk_rows[:, 1 - side]

    def _make_room(self, wanted: int = 0) -> bool:
        rows = self.cell_rows
        if not rows.any():
            return False
        self._estimate()
        victims = least_productive(self.arrivals, rows, int(np.ceil(FLUSH_SHARE * rows.sum())))
        for side in SIDES:
            if victims[:, side].any():
                self.flush_cells([side], victims[:, side])
        return True

    def _estimate(self) -> None:
        """Bring the probabilities of arrival up to date."""
        total = int(self.recent.sum())
        if total:
            weight = AGEING if self.arrivals.any() else 0.0
            self.arrivals = weight * self.arrivals + (1 - weight) * self.recent / total
            self.recent[:] = 0

    def flush_cells(self, sides: Sequence[int], chosen: Chosen) -> None:
        rows = self.cell_rows
        for side in sides:
            self.missed_disk[chosen] += self.missed_memory[chosen, 1 - side]
            self.missed_memory[chosen, 1 - side] = 0
            self.disk_rows[chosen, side] += rows[chosen, side]
        super().flush_cells(sides, chosen)

    # -- deferred work ----------------------------------------------------------------------

    def _deferred(self) -> Pieces:
        if self.cleanup.at is not None:
            yield from self._join_disk()
        while tasks := self._tasks():
            for part, side in tasks:
                if side == DISK:
                    self._wanted = part
                    yield from self._join_disk()
                while side != DISK and (
                    (index := self.cells[part].next_reactive(side)) is not None
                ):
                    yield "reactive", self._meet(part, side, index)

    def _join_disk(self) -> Pieces:
        while self._advance():
            yield "cleanup" if all(self.ended) else "reactive", self.cleanup.step()

    def _tasks(self) -> list[tuple[int, int]]:
        """Every task that there is, as a cell and a side or `DISK`, the best rate first."""
        rates: dict[tuple[int, int], float] = {}
        for part, cell in enumerate(self.cells):
            for side in SIDES:
                start = cell.next_reactive(side)
                if start is not None:
                    read = cell.disk_rows[side] - (cell.passed_rows[side] if start else 0)
                    rates[part, side] = self.missed_memory[part, side] / max(1, read)
            if cell.unclean():
                new = [cell.disk_rows[s] - cell.joined_rows[s] for s in SIDES]
                read = (new[LEFT] and new[LEFT] + cell.disk_rows[RIGHT]) + (
                    new[RIGHT] and new[RIGHT] + cell.joined_rows[LEFT]
                )
                rates[part, DISK] = self.missed_disk[part] / max(1, read)
        return sorted(rates, key=lambda task: (-rates[task], task))

    def _meet(self, part: int, side: int, index: int) -> Results:
        yield from self.reactive.meet(part, side, index)
        if self.cells[part].next_reactive(side) is None:
            self.missed_memory[part, side] = 0

    def _next_unclean(self) -> int | None:
        """The cell that was chosen, once."""
        part, self._wanted = self._wanted, None
        if part is not None:
            self._claimed = int(self.missed_disk[part])
        return part

    def _advance(self) -> bool:
        before = self.cleanup.at
        found = self.cleanup.advance(self._next_unclean)
        if before is not None and self.cleanup.at is not before:
            self.missed_disk[before.part] -= self._claimed
            self._claimed = 0
        return found

    # -- state ------------------------------------------------------------------------------

    _STATISTICS = ("arrivals", "recent", "disk_rows", "missed_memory", "missed_disk")

    def snapshot(self) -> Snapshot:
        base = super().snapshot()
        facts = {name: getattr(self, name).tolist() for name in self._STATISTICS}
        statistics = {**facts, "claimed": self._claimed}
        return Snapshot({**base.meta, "statistics": statistics}, base.blocks, base.files)

    def _restore(self, snapshot: Snapshot) -> None:
        facts = snapshot.meta["statistics"]
        for name in self._STATISTICS:
            getattr(self, name)[...] = facts[name]
        self._claimed = facts["claimed"]
        super()._restore(snapshot)

    def check(self) -> None:
        super().check()
        on_disk = [cell.disk_rows for cell in self.cells]
        assert np.array_equal(self.disk_rows, on_disk)
        assert (self.missed_memory >= 0).all()
        assert (self.missed_disk >= 0).all()
        assert not self.arrivals.any() or abs(self.arrivals.sum() - 1) < 1e-9


def least_productive(
    arrivals: NDArray[np.float64], rows: NDArray[np.int64], least: int
) -> NDArray[np.bool_]:
    """Whose rows go, by cell and side: those that the next row is least likely to meet.

    At least `least` rows, if there are so many; among equally unlikely ones the most rows first.
    """
    chance = arrivals[:, ::-1].ravel()  # a row meets rows of the other side
    held = rows.ravel()
    order = np.lexsort((-held, chance))
    order = order[held[order] > 0]
    count = int(np.searchsorted(np.cumsum(held[order]), least, side="left")) + 1
    victims = np.zeros(len(held), dtype=np.bool_)
    victims[order[:count]] = True
    return victims.reshape(rows.shape)
