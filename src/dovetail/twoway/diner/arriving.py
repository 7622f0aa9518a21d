"""DINER's Arriving phase: which rows leave memory for those that come, and which come back.

The flushing policy is in `flushing`; loaded rows, copies of what is on disk, are in `loads`. What
is decided here is whose turn it is, and what the end of an input or of a silence changes.

States. Rows come from both inputs at first (`ended` is None). An input that ends alone is the ended
one until a row of it comes or the other ends as well; with the first row that comes meanwhile the
memory is given to it (`favour`). After a Cleanup memory is empty; the first row that comes then was
preceded by a silence, and what was written is recalled.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dovetail.kernel.blocks import BLOCK, LOGGED, NEVER
from dovetail.kernel.catalogue import Entries
from dovetail.kernel.probing import Rows
from dovetail.kernel.protocol import SIDES, Context
from dovetail.kernel.runs import Run, in_order, merge_runs
from dovetail.twoway.diner.flushing import Flushing
from dovetail.twoway.diner.index import MarkedRuns
from dovetail.twoway.diner.joins import BlockJoins, DinerOptions
from dovetail.twoway.diner.loads import LoadedRows
from dovetail.twoway.diner.regions import Regions

_UNEVEN = 2  # times the bytes that are meant: more of them are written piece by piece


class Reservations(Protocol):
    """An operator's reservations, which follow what is flushed."""

    def release_rows(self) -> None:
        """Give back what rows that have left memory took up."""

    def settle_catalogue(self) -> None:
        """Reserve what blocks that were written take up in the catalogue."""


@dataclass(frozen=True)
class BlockSizes:
    """The bytes of what is flushed and loaded."""

    block_bytes: int  #: of a block
    most_bytes: int  #: of a block that makes room for a large slice
    group_bytes: int  #: of blocks that are written or loaded together
    slice_bytes: int  #: of the rows that arrive at once


class Arriving:
    """The rows in memory, and what has them leave or come back."""

    def __init__(
        self, context: Context, index: tuple[MarkedRuns, MarkedRuns], joins: BlockJoins,
        sizes: BlockSizes, options: DinerOptions, *, emptied: bool,
    ) -> None:  # fmt: skip
        self._ctx = context
        self.index = index
        self._joins = joins
        self._sizes = sizes
        self._options = options
        self.regions = (Regions(), Regions())
        self.flushing = [Flushing(index[side], self.regions[side], context.rng) for side in SIDES]
        self.loaded = LoadedRows(context, index, sizes.group_bytes)
        self.ended: int | None = None  #: the side that has, while the other goes on
        self._favoured: int | None = None
        self._emptied = emptied  # a Cleanup may have taken all rows out of memory

    # -- transitions ------------------------------------------------------------------------

    def begin(self, side: int, spare_bytes: int | None, held: Reservations) -> None:
        """A batch comes, for whose rows so many bytes are to be spared; None if it has none."""
        if self.ended == side:
            self.ended = self._favoured = None
        if spare_bytes is None:
            return
        if self.ended is not None:
            self._favour(self.ended, spare_bytes, held)
        elif self._emptied:
            self._recall(spare_bytes)

    def finish(self, side: int, *, alone: bool) -> None:
        """An input has ended, alone or with the other, as far as is known."""
        if not alone:  # if a row comes, it was a silence
            self.ended = self._favoured = None
        elif self._options.load_ended:
            self.ended = side

    # -- arrival ----------------------------------------------------------------------------

    def insert(self, side: int, run: Run, found: Rows) -> None:
        """Store rows that have found so many of the other side's each, and count both."""
        self.regions[side].arrived(run.codes, found)
        self.regions[1 - side].probed(run.codes, found)
        self.index[side].insert(run, found > 0)

    # -- flushing ---------------------------------------------------------------------------

    def make_room(self, nbytes: int, held: Reservations) -> bool:
        """Flush a block of so many bytes, or let loaded rows go; False if there are none."""
        if self.ended is not None and len(self.index[1 - self.ended]):
            useless = 1 - self.ended
            if self.index[useless].nbytes >= self._sizes.block_bytes or not self.loaded.give_up():
                rows = self.flushing[useless].take_any(self._rows_of(useless, nbytes))
                self._write(useless, self._blocks(rows), held)
            return True
        victim = max(SIDES, key=lambda side: len(self.index[side]) + self.loaded.rows(side))
        copies = self.loaded.least_benefit(victim)
        if copies is not None and copies <= self.regions[victim].least_benefit():
            return self.loaded.give_up(victim)
        if not len(self.index[victim]):
            return False
        self.flush(victim, nbytes, held)
        return True

    def flush(self, side: int, nbytes: int, held: Reservations) -> None:
        """Algorithm 2, for the victim that is given."""
        rows = self.flushing[side].take(self._rows_of(side, nbytes))
        self._write(side, self._blocks(rows), held)

    def set_down(self, side: int, held: Reservations, *, keep: bool) -> None:
        """Write the lowest rows of a side as blocks; keep them in memory as loaded, if asked."""
        group_bytes = self._sizes.group_bytes
        parts = self.flushing[side].take_any(self._rows_of(side, group_bytes))
        self._emptied = True
        if sum(part.nbytes for part in parts) > _UNEVEN * group_bytes:
            self._write(side, in_order(parts, self._sizes.most_bytes), held)
            return
        run = merge_runs(parts)
        pieces = run.cuts(0, len(run), self._sizes.most_bytes)
        first, written = self._write(side, (run.slice(*piece) for piece in pieces), held)
        if keep:
            load = self.loaded.keep(first, written, run)
            self._joins.loads += [] if load is None else [load]

    def _blocks(self, parts: list[Run]) -> Iterator[Run]:
        """Rows that were taken out of memory as one block; as several, if they are wider than most.

        How many rows were taken went by the mean row.
        """
        if sum(part.nbytes for part in parts) <= _UNEVEN * self._sizes.most_bytes:
            yield merge_runs(parts)
        else:
            yield from in_order(parts, self._sizes.most_bytes)

    def _rows_of(self, side: int, nbytes: int) -> int:
        """About how many rows of a side take up so many bytes."""
        index = self.index[side]
        return max(1, nbytes * len(index) // max(1, index.nbytes))

    def _write(self, side: int, blocks: Iterable[Run], held: Reservations) -> tuple[int, Entries]:
        """Put rows that were taken out of memory on disk; returns the first number, and entries.

        No two blocks have the same DTS, as if one had gone after the other.
        """
        context, known = self._ctx, self._joins.blocks[side]
        first, written = len(known), []
        held.release_rows()
        for run in blocks:
            block = context.store.append(run, side, LOGGED, dts=context.clock.tick())
            known.append(block)
            written.append(block)
            context.counters.flushed_bytes += int(block["length"])
            context.counters.flushed_rows += len(run)
        self.regions[side].flushed = self.index[side].flushed = True
        held.settle_catalogue()  # which may write more
        return first, np.array(written, dtype=BLOCK)

    # -- coming back ------------------------------------------------------------------------

    def _favour(self, ended: int, spare_bytes: int, held: Reservations) -> None:
        """Footnote 1: give the memory to the ended input, but for the bytes to be spared."""
        blocks = self._joins.blocks[ended]
        if self._favoured == ended or not len(blocks):
            return
        self._favoured = ended
        while len(self.index[1 - ended]):
            self.set_down(1 - ended, held, keep=False)
        while self.loaded.give_up(1 - ended):
            pass
        self._joins.loads += self.loaded.load(ended, blocks, self._spared(spare_bytes))

    def _recall(self, spare_bytes: int) -> None:
        """After a silence: load what Cleanup took out of memory, but for the bytes to be spared."""
        self._emptied = False
        if self._options.cleanup != "loop":
            spared = self._spared(spare_bytes)
            self._joins.loads += self.loaded.recall(self._joins.blocks, spared)

    def _spared(self, nbytes: int) -> int:
        return nbytes + 2 * self._sizes.block_bytes + self._sizes.slice_bytes

    # -- what is left to meet ---------------------------------------------------------------

    def unmet(self, side: int) -> bool:
        """Whether rows of a side in memory have not met all of the other side's blocks."""
        blocks = self._joins.blocks[1 - side]
        return self.loaded.leave_unmet(1 - side, blocks, self.index[side].runs)

    def oldest(self, side: int) -> int:
        """The least ATS of a side's rows in memory."""
        return min((int(run.ats.min()) for run in self.index[side].runs), default=NEVER)

    def check(self) -> None:
        self.loaded.check()
        for side in SIDES:
            self.regions[side].check()
            counted = list(self.regions[side].rows)
            self.flushing[side].count()
            assert counted == self.regions[side].rows, "the regions' rows are miscounted"


__all__ = ["Arriving", "BlockSizes", "Reservations"]
