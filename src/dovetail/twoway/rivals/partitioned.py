"""The base of HMJ, RPJ and DPHJ: XJoin's cells, with flushes of one cell at a time.

Rows are hashed into cells as XJoin's are (see `xjoin`), arrive as XJoin's do, and are known to have
met by the same ticks: ATS, DTS, marks, and the finished rectangle of blocks. What sets these joins
apart is which rows they give up when memory is exhausted, and in which order they do what they have
put off. XJoin gives up one partition of one side. `flush_cells` gives up any set of cells, of one
side or of both at one tick, and writes each cell's rows in code order.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from dovetail.kernel.runs import Run, in_order
from dovetail.twoway.xjoin.operator import XJoin

Chosen = NDArray[np.bool_]  #: by the cell


class PartitionedJoin(XJoin):
    """A hash join whose policy names cells."""

    @property
    def cell_rows(self) -> NDArray[np.int64]:
        """The rows in memory, by cell and side."""
        return np.array([cell.rows for cell in self.cells])

    def flush_cells(self, sides: Sequence[int], chosen: Chosen) -> None:
        """Put what these cells have in memory on disk, all at one tick."""
        dts = self.ctx.clock.tick()
        numbers = np.flatnonzero(chosen)
        for side in sides:
            for run in self._leaving(side, chosen):
                self._write(side, run, dts)
            self._drop(side, chosen)
            self.release_rows()
            for number in numbers:
                self.cells[number].rows[side] = 0
                self.cells[number].flushed[side] = dts
        self._flushed(numbers)
        self.settle_catalogue()

    def _flushed(self, cells: NDArray[np.int64]) -> None:
        """Called when all that these cells had in memory has been written."""

    def _leaving(self, side: int, chosen: Chosen) -> Iterator[Run]:
        """The rows of these cells in code order, in runs that fit the working memory."""
        runs = self.memory[side].runs
        room = self.working_bytes // 4
        total, held = max(1, len(self.memory[side])), self.memory[side].nbytes
        leaving = sum(self.cells[number].rows[side] for number in np.flatnonzero(chosen))
        even = all(run.sizes is None for run in runs)
        if even and leaving <= max(1, room * total // max(1, held)):
            parts = [run.filter(chosen[self._part_of(run.codes)]) for run in runs]
            yield from in_order([part for part in parts if len(part)], room)
            return
        # copies of so many rows would need the memory that is being given up: views of them do not
        for run in runs:
            run.arrange()
        edges = np.flatnonzero(np.diff(chosen, prepend=False, append=False))
        for first, last in edges.reshape(-1, 2):
            low, high = self._lowest(int(first)), self._lowest(int(last)) - 1
            cuts = [np.searchsorted(run.codes, low) for run in runs]
            ends = [np.searchsorted(run.codes, high, side="right") for run in runs]
            views = [
                run.slice(int(start), int(stop))
                for run, start, stop in zip(runs, cuts, ends, strict=True)
                if start < stop
            ]
            yield from in_order(views, room)

    def _drop(self, side: int, chosen: Chosen) -> None:
        memory = self.memory[side]
        for index, run in enumerate(memory.runs):
            leaving = chosen[self._part_of(run.codes)]
            if leaving.any():
                rest = run.filter(~leaving)
                # once most of a block is dead it is not worth keeping: the run is written anew
                if rest.block is not None and 2 * len(rest) < int(rest.block["rows"]):
                    rest.block = None
                memory.runs[index] = rest
        memory.runs = [run for run in memory.runs if len(run)]
