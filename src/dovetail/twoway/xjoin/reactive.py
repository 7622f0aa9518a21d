"""XJoin's Reactive phase: flushed rows of a cell meet the other side's rows of it in memory."""

from collections.abc import Sequence

import numpy as np

from dovetail.kernel.blocks import NEVER
from dovetail.kernel.catalogue import Catalogue, Entries
from dovetail.kernel.matching import Emitter
from dovetail.kernel.protocol import SIDES, Context
from dovetail.kernel.runs import SortedRuns
from dovetail.kernel.shell import Pieces, Results
from dovetail.twoway.xjoin.cells import Cell, arrived_after


class Reactive:
    """Passes over what was flushed, one flush of a cell at a time."""

    def __init__(
        self, context: Context, cells: Sequence[Cell], memory: Sequence[SortedRuns],
        emitter: Emitter,
    ) -> None:  # fmt: skip
        self._ctx = context
        self._cells = cells
        self._memory = memory
        self._emitter = emitter

    def pieces(self) -> Pieces:
        """Every flush that a pass has yet to go over."""
        # the largest memory part first: the likeliest to produce results
        order = sorted(
            ((cell.rows[1 - side], part, side) for part, cell in enumerate(self._cells)
             for side in SIDES if cell.next_reactive(side) is not None),
            reverse=True,
        )  # fmt: skip
        for _, part, side in order:
            while (index := self._cells[part].next_reactive(side)) is not None:
                yield "reactive", self.meet(part, side, index)

    def meet(self, part: int, side: int, index: int) -> Results:
        """Join what one flush wrote to a cell, and mark it."""
        cell = self._cells[part]
        # blocks of one flush share a DTS, so a mark needs all of them
        flush = _flush_at(cell.blocks[side], index)
        dts = int(flush[0]["dts"])
        met = max(dts, cell.marks[side].latest(dts, before=NEVER))
        for block in flush:
            run = self._ctx.store.read(block)
            for stored, span in self._memory[1 - side].probe(run.codes, run.codes):
                yield from self._emitter.match(run, stored, span, side, arrived_after(stored, met))
        yield from self._emitter.drain()
        cell.mark(side, flush, index, self._ctx.clock.tick())


def _flush_at(blocks: Catalogue, index: int) -> Entries:
    """The blocks from `index` on that share its DTS."""
    found: list[Entries] = []
    for entries in blocks.entries(index, len(blocks)):
        first = found[0] if found else entries
        found.append(entries[entries["dts"] == first["dts"][0]])
        if len(found[-1]) < len(entries):
            break
    return np.concatenate(found)
