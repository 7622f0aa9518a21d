"""Sorted blocks for DINER's Cleanup: groups of flushed blocks, rewritten in code order.

They are for one Cleanup only, so they do not go to the logs, which keep all that they are given: a
version has them in a file of its own, and none of these is named any more when the Cleanup is done.
Pages of a catalogue never change, but the numbers by which a store knows its files do; so an entry
in the lists here has the number of its file among those of the sorter (`part`), and looks to
everyone else as if it were in a log.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from dovetail.kernel.blocks import FLUSHED, IN_LOG
from dovetail.kernel.memory import Reservation
from dovetail.kernel.protocol import SIDES, Context
from dovetail.kernel.room import Lender
from dovetail.kernel.runs import Run, merge_runs, sizes_of
from dovetail.kernel.slices import Sizes, cuts
from dovetail.twoway.diner.lists import BlockList, make_pages
from dovetail.twoway.diner.meeting import Part, Sorting

SORTED = 32  #: the kind of a sorted block, beside those of other blocks; above: pages
_MORE = 4  # sorted blocks for each flushed one, at most: the latter may be twice as large


class Sorter:
    """Writes groups of blocks again as blocks in code order, of rows that keep their labels."""

    def __init__(self, context: Context, fan_out: int, block_bytes: int) -> None:
        self._ctx = context
        self._block_bytes = block_bytes
        self._held = Reservation(context.budget, "sorting")
        self._pages = make_pages(context.store, fan_out)
        self.blocks = (BlockList(self._pages), BlockList(self._pages))
        self.files: list[str] = []  #: that the blocks are in
        self._numbers: dict[int, int] = {}  # by which the store knows them
        self._runs: list[Run] = []  # the open group
        self._source = np.zeros(0, dtype=np.int32)  # for each row in code order, which run it is of
        self._sizes: Sizes | None = None  # of the same rows, if they have to be looked at

    def catalogue_bytes(self, blocks: int) -> int:
        """The bytes of the lists if so many blocks are sorted; pages are in the working memory."""
        return len(SIDES) * self._pages.most_tail_bytes(_MORE * blocks)

    def reserve(self, blocks: int, lender: Lender) -> bool:
        """Have memory for the lists; False if there is none."""
        while not self._held.try_grow(self.catalogue_bytes(blocks)):
            if not lender.lend():
                return False
        return True

    @property
    def is_open(self) -> bool:
        return bool(self._runs)

    def open(self, parts: Iterable[Part]) -> None:
        """Take a group of blocks in."""
        self._runs = [part.run for part in parts]
        codes = np.concatenate([run.codes for run in self._runs])
        lengths = [len(run) for run in self._runs]
        source = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
        order = np.argsort(codes, kind="stable")
        self._source, sizes = source[order], sizes_of(self._runs)
        self._sizes = None if sizes is None else sizes[order]

    def step(self, sorting: Sorting) -> None:
        """Write the next block of the open group."""
        total = len(self._source)
        stop = self._block_end(sorting.rows)
        number = len(self._runs)
        begins = np.bincount(self._source[: sorting.rows], minlength=number)
        counts = np.bincount(self._source[sorting.rows : stop], minlength=number)
        pieces = [
            run.slice(int(begin), int(begin + count))
            for run, begin, count in zip(self._runs, begins, counts, strict=True)
            if count
        ]
        self._write(merge_runs(pieces), sorting.side)
        sorting.rows = stop
        if stop == total:
            sorting.start, sorting.count, sorting.rows = sorting.start + sorting.count, 0, 0
            self.put_down()

    def _block_end(self, start: int) -> int:
        """Where the block ends that begins with this row."""
        if self._sizes is not None:
            return start + next(cuts(self._sizes[start:], self._block_bytes))[1]
        total, nbytes = len(self._source), sum(run.nbytes for run in self._runs)
        return min(total, start + max(1, self._block_bytes * total // nbytes))

    def put_down(self) -> None:
        self._runs, self._source, self._sizes = [], self._source[:0], None
        self._pages.forget()

    def clear(self) -> None:
        """The sorted blocks are not needed any more."""
        for blocks in self.blocks:
            blocks.clear()
        self.files, self._numbers = [], {}
        self._held.resize(0)

    # -- blocks -----------------------------------------------------------------------------

    def _write(self, run: Run, side: int) -> None:
        store = self._ctx.store
        block = store.append(run, side, FLUSHED, dts=self._ctx.clock.now)
        name = store.files[int(block["file"])]
        if name not in self.files[-len(SIDES) :]:  # each side has one
            self.files.append(name)
        block["part"], block["file"], block["kind"] = self.files.index(name), IN_LOG, SORTED
        self.blocks[side].append(block)
        self._ctx.counters.flushed_bytes += int(block["length"])

    def read(self, block: np.void) -> Run:
        """The rows of a sorted block, which are labelled."""
        store, number = self._ctx.store, int(block["part"])
        if number not in self._numbers:
            if self.files[number] not in store.files:
                store.files.append(self.files[number])
            self._numbers[number] = store.files.index(self.files[number])
        found = block.copy()
        found["file"], found["kind"] = self._numbers[number], FLUSHED
        return store.read(found)

    # -- state ------------------------------------------------------------------------------

    def facts(self) -> dict[str, Any]:
        return {"files": list(self.files), "blocks": [blocks.facts() for blocks in self.blocks]}

    def restore(self, facts: dict[str, Any], flushed: int) -> None:
        """Go on with what has been sorted of so many blocks; their entries come by themselves."""
        self._held.grow(self.catalogue_bytes(flushed))
        self.files = list(facts["files"])
        for blocks, known in zip(self.blocks, facts["blocks"], strict=True):
            blocks.restore(known)

    def check(self) -> None:
        for blocks in self.blocks:
            blocks.check()
        assert self._pages.tail_bytes <= self._held.nbytes
