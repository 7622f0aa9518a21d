"""XJoin's Cleanup: disk joins disk, cell by cell, as a block nested loop that can be left."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dovetail.kernel.blocks import BLOCK
from dovetail.kernel.catalogue import Entries
from dovetail.kernel.matching import Emitter
from dovetail.kernel.protocol import LEFT, RIGHT, Context
from dovetail.kernel.runs import Run, merge_runs
from dovetail.kernel.shell import Results
from dovetail.twoway.xjoin.cells import Cell, Cleaning, not_yet_joined

_MAX_GROUP = 1 << 14  # outer blocks in one group; their numbers are 16 bits wide


@dataclass
class OuterGroup:
    """The blocks that a strip of the cleanup is at, as one run.

    `origin` is for each row the number of the block it is from.
    """

    blocks: Entries
    run: Run | None = None
    origin: NDArray[np.int16] | None = None


class Cleanup:
    """The part of each cell's rectangle of blocks that is not done, and the place in it."""

    def __init__(
        self, context: Context, cells: Sequence[Cell], emitter: Emitter, group_bytes: int
    ) -> None:
        self._ctx = context
        self._cells = cells
        self._emitter = emitter
        self._group_bytes = group_bytes
        self.at: Cleaning | None = None
        self._outer: OuterGroup | None = None

    def put_down(self) -> None:
        """Give the outer blocks in memory back; what was done stays done."""
        self._outer = None

    def advance(self, next_cell: Callable[[], int | None]) -> bool:
        """Find a group of outer blocks and an inner block that have not met; False if none is left.

        `next_cell` names the cell to go on with when one is done.
        """
        while True:
            if self.at is None:
                part = next_cell()
                if part is None:
                    return False
                self.at = self._cells[part].cleaning(part)
                self._open_group(self.at)
            at = self.at
            inner_end = at.target[RIGHT] if at.outer == LEFT else self._cells[at.part].joined[LEFT]
            if at.start < at.target[at.outer] and at.inner < inner_end:
                return True
            self._outer = None
            if at.start < at.target[at.outer] and inner_end:
                at.start, at.inner = at.stop, 0
                self._open_group(at)
            elif at.outer == LEFT:
                at.outer, at.inner = RIGHT, 0
                at.start = self._cells[at.part].joined[RIGHT]
                self._open_group(at)
            else:
                self._cells[at.part].cleaned(at)
                self.at = None

    def step(self) -> Results:
        """Join the open group of outer blocks with one inner block; after `advance`."""
        at = self.at
        assert at is not None
        cell = self._cells[at.part]
        if self._outer is None:
            blocks = cell.blocks[at.outer].entries(at.start, at.stop)
            self._outer = OuterGroup(np.concatenate(list(blocks)))
        outer, inner_side = self._outer, 1 - at.outer
        inner_block = cell.blocks[inner_side].entry(at.inner)
        at.inner += 1
        limits = [cell.unjoined(inner_side, inner_block, block) for block in outer.blocks]
        if not any(limits):
            return
        read = self._ctx.store.read
        if outer.run is None or outer.origin is None:
            outer.run, outer.origin = _merge_group([read(block) for block in outer.blocks])
        inner = read(inner_block)
        span = outer.run.probe(inner.codes, inner.codes)
        if span is not None:
            keep = not_yet_joined(
                inner, inner_block, outer.run, outer.origin, outer.blocks["dts"], limits
            )
            yield from self._emitter.match(inner, outer.run, span, inner_side, keep)
        yield from self._emitter.drain()

    def _open_group(self, at: Cleaning) -> None:
        """Let the group hold as many outer blocks as there is memory for."""
        room = self._group_bytes
        at.stop = at.start
        for entries in (
            self._cells[at.part]
            .blocks[at.outer]
            .entries(at.start, min(at.target[at.outer], at.start + _MAX_GROUP))
        ):
            for length in entries["length"]:
                room -= int(length) + 2 * BLOCK.itemsize  # the entry is held, too
                if room < 0 and at.stop > at.start:
                    return
                at.stop += 1


def _merge_group(runs: list[Run]) -> tuple[Run, NDArray[np.int16]]:
    """Several blocks as one run, and for each of its rows the number of the block it is from."""
    codes = np.concatenate([run.codes for run in runs])
    origin = np.repeat(np.arange(len(runs), dtype=np.int16), [len(run) for run in runs])
    return merge_runs(runs), origin[np.argsort(codes, kind="stable")]
