"""HMJ, the hash-merge join: symmetric hashing while rows come, merging of sorted buckets after.

Source: Mokbel, Lu and Aref, "Hash-Merge Join: A Non-blocking Join Algorithm for Producing Fast and
Early Join Results" (ICDE 2004), as retold in section 2 of the DINER paper and section F of the
survey.

Hashing phase. As in XJoin: an arriving row is joined with the other side's rows in memory and
stored. When memory is exhausted, the Adaptive Flushing policy picks a partition, and its rows of
*both* sides go to disk at one tick, sorted: a segment (the papers' sorted bucket pair).

Adaptive Flushing, by rows in memory. A partition should be large, so that segments are few: it has
at least `least` rows (the paper's threshold a) on each side. And memory should stay balanced,
because then most results are found in it: after the flush the sides differ by no more than `slack`
rows (the threshold b). Of the partitions that satisfy both, the largest goes. If none is large
enough, small ones may go; if none leaves a balance, the one that leaves the least imbalance goes.

Merging phase, while the inputs are silent and when they have ended. Segments of a cell are merged
with fan-in F, with results, as in PMJ: see `merging`. The cells with the most segments come first.
When both inputs have ended, rows still in memory whose cell has a part on disk are flushed, too.

Each pair once. Rows that were flushed together were in memory together, and no others were: so
segments start out as a group each, and a merge joins rows of different groups only.

Kept: both phases, the policy and its two thresholds (as shares of what is held, which are ours),
sorted segments, fan-in, the duplicate rule. Differs: ticks of the logical clock instead of time;
batches instead of tuples; what is flushed by the partition lies on disk by the cell, as in XJoin; a
merge can be left after any block rather than after F segments (the drawback that the DINER paper
notes), and rows that come meanwhile are a segment of the next merge; a merge of all segments marks
them as joined instead of writing them. What is known of segments is paged out to disk (`segments`).
"""

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dovetail.kernel.blocks import RESIDENT
from dovetail.kernel.protocol import LEFT, RIGHT, SIDES, Snapshot
from dovetail.kernel.runs import Run
from dovetail.kernel.shell import Pieces
from dovetail.twoway.rivals.merging import Merger
from dovetail.twoway.rivals.partitioned import Chosen, PartitionedJoin

_LEAST_SHARE = 1 / 4  # of the mean side of a partition
_SLACK_SHARE = 1.0  # of the mean partition, both sides


class HashMergeJoin(PartitionedJoin):
    """Equality joins of any size within a budget."""

    name: ClassVar[str] = "hmj"

    def _build(self, snapshot: Snapshot | None) -> None:
        super()._build(snapshot)
        self.merger = Merger(
            self.ctx, self._pages, self._emitter, self.spec.codec, self.working_bytes
        )

    # -- hashing phase ----------------------------------------------------------------------

    def _put_down(self) -> None:
        self.merger.rest()

    def _make_room(self, wanted: int = 0) -> bool:
        rows = self.cell_rows.reshape(-1, self._cells_each, len(SIDES)).sum(axis=1)
        if not rows.any():
            return False
        partition = adaptive_victim(rows)
        first = partition * self._cells_each
        chosen = np.zeros(len(self.cells), dtype=np.bool_)
        chosen[first : first + self._cells_each] = True
        self.flush_cells(SIDES, chosen)
        return True

    def _write(self, side: int, run: Run, dts: int) -> None:
        """Append rows to the segments of one flush, cell by cell."""
        parts = self._part_of(run.codes)
        starts = np.flatnonzero(np.diff(parts, prepend=-1))
        for start, stop in zip(starts, [*starts[1:], len(run)], strict=True):
            piece = run.slice(int(start), int(stop))
            written = self.merger.add(int(parts[start]), side, piece, dts)
            self.ctx.counters.flushed_bytes += written
        self.ctx.counters.flushed_rows += len(run)

    def _flushed(self, cells: NDArray[np.int64]) -> None:
        for part in cells:
            self.merger.settle(int(part))

    # -- merging phase ----------------------------------------------------------------------

    def _deferred(self) -> Pieces:
        phase = "cleanup" if all(self.ended) else "reactive"
        if all(self.ended):
            apart = self._apart()
            if apart.any():
                self.flush_cells(SIDES, apart)
        while True:
            if self.merger.merge is None:
                if not self.merger.unjoined:
                    return
                self.merger.begin(self._next_part())
            for step in self.merger.steps():
                yield phase, step

    def _next_part(self) -> int:
        """The cell with the most segments: the most pairs of them have not met."""
        return max(self.merger.unjoined, key=lambda part: (len(self.merger.parts[part]), -part))

    def _apart(self) -> Chosen:
        """The cells that have rows in memory and rows of the other side on disk."""
        apart = np.zeros(len(self.cells), dtype=np.bool_)
        for part in self.merger.parts:
            rows = self.cells[part].rows
            apart[part] = any(rows[side] and self.merger.rows(part, 1 - side) for side in SIDES)
        return apart

    def pending(self) -> int:
        in_memory = sum(sum(self.cells[part].rows) for part in np.flatnonzero(self._apart()))
        return self.merger.pending() + in_memory

    # -- state ------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        self.merger.release()
        base = super().snapshot()
        blocks = np.concatenate([base.blocks, *self.merger.lists()])
        return Snapshot({**base.meta, "merging": self.merger.facts()}, blocks, base.files)

    def _restore(self, snapshot: Snapshot) -> None:
        resident = snapshot.blocks["kind"] == RESIDENT
        self.merger.restore(snapshot.meta["merging"], snapshot.blocks[~resident])
        super()._restore(Snapshot(snapshot.meta, snapshot.blocks[resident], snapshot.files))

    def check(self) -> None:
        super().check()
        self.merger.check()


def adaptive_victim(rows: NDArray[np.int64]) -> int:
    """The partition that Adaptive Flushing gives up, by the rows in memory of either side."""
    mean = rows.sum() / len(rows)
    least, slack = _LEAST_SHARE * mean / 2, _SLACK_SHARE * mean
    sizes = rows.sum(axis=1)
    large = (rows >= least).all(axis=1) & (sizes > 0)
    if not large.any():
        large = sizes > 0
    left, right = rows[:, LEFT].sum(), rows[:, RIGHT].sum()
    imbalance = np.abs((left - rows[:, LEFT]) - (right - rows[:, RIGHT]))
    balanced = large & (imbalance <= slack)
    if balanced.any():
        return int(np.where(balanced, sizes, -1).argmax())
    return int(np.where(large, imbalance, np.iinfo(np.int64).max).argmin())
