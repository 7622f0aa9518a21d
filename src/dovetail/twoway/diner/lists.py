"""The list of one side's blocks, of any length, and iterators over it in little memory.

A block is known by its number in the list. The list is a catalogue that pages itself out
(`kernel/catalogue.py`), so nothing here looks at all of it at once: what has to be exact goes on
from number to number, a window of the list at a time, and leaves out the pages that cannot matter;
what is only wanted as an estimate is told by an outline.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from dovetail.kernel.blocks import BLOCK, NEVER, BlockStore
from dovetail.kernel.catalogue import Catalogue, Entries, Mask, Numbers, Pages
from dovetail.twoway.diner.costs import INDEX_BYTES_PER_ROW
from dovetail.twoway.diner.regions import LEAST, MOST

#: Lists that share the budget of the catalogue: two of flushed blocks, and two of sorted ones.
LISTS = 4
#: Lists are gone through again and again, and there are few of them: pages are large.
MOST_PAGE_ENTRIES = 256
_KEPT_PAGES = {True: 8, False: 4}  # the way to a block of each side; longer if pages are small
_SMALL_PAGE = 16
_MOST_WINDOW = 4096
_MOST_ROWS = np.iinfo(np.int32).max  # that an entry can tell of

ListWindow = tuple[Numbers, Entries]  #: the numbers of some blocks, ascending, and their entries


def make_pages(store: BlockStore, fan_out: int) -> Pages:
    return Pages(store, fan_out, _KEPT_PAGES[fan_out <= _SMALL_PAGE])


def window_entries(pages: Pages, nbytes: int) -> int:
    """The number of entries in a window of this many bytes."""
    return max(pages.fan_out, min(nbytes // BLOCK.itemsize, _MOST_WINDOW))


def reaching(low: int, high: int) -> Mask:
    """Selects the blocks, and the pages, that may have codes in the inclusive range."""
    return lambda entries: (entries["code_max"] >= low) & (entries["code_min"] <= high)


class BlockList(Catalogue):
    """A list of blocks; of flushed ones, in the order of their DTS, no two of which are equal."""

    def __init__(self, pages: Pages) -> None:
        super().__init__(pages)
        self.rows = self.nbytes = 0  #: in all of them
        self._first_dts = NEVER

    def append(self, entry: np.void) -> None:
        if not len(self):
            self._first_dts = int(entry["dts"])
        super().append(entry)
        self.rows += int(entry["rows"])
        self.nbytes += int(entry["length"])

    def clear(self) -> None:
        super().clear()
        self.rows = self.nbytes = 0
        self._first_dts = NEVER

    @property
    def held_bytes(self) -> int:
        """The memory that all of them would take up in parts."""
        return self.nbytes + INDEX_BYTES_PER_ROW * self.rows

    def dts_at(self, number: int) -> int:
        """The DTS of a block; of one that is yet to come, later than that of any other."""
        if number >= len(self):
            return NEVER
        return int(self.entry(number)["dts"]) if number else self._first_dts

    def windows(
        self, start: int, stop: int, most: int, low: int = LEAST, high: int = MOST
    ) -> Iterator[ListWindow]:
        """The blocks `[start, stop)` that reach into a range of codes, about `most` at a time.

        The list may grow meanwhile.
        """
        mask = reaching(low, high)
        while start < stop:
            numbers, entries, start = self.select(start, stop, mask, most)
            if len(numbers):
                yield numbers, entries

    def estimate(
        self, start: int, stop: int, most: int, low: int = LEAST, high: int = MOST
    ) -> Entries:
        """About the blocks `[start, stop)` that reach into a range of codes.

        They are these themselves if there are few; else some entries stand for many, with the rows
        and bytes that as many blocks have on average. There is none only if there is no such block.
        """
        entries, counts = self.outline(start, stop, reaching(low, high), most)
        if not len(entries):
            return entries
        several = np.flatnonzero(entries["kind"] != self.tails[0]["kind"][0])
        if len(several):
            number = counts[several]
            entries["length"][several] = number * self.nbytes // len(self)
            entries["rows"][several] = np.minimum(number * self.rows // len(self), _MOST_ROWS)
        return entries

    def facts(self) -> list[int]:
        return [self.rows, self.nbytes, self._first_dts]

    def restore(self, facts: list[Any]) -> None:
        """Bring back what is not told by the tails."""
        self.rows, self.nbytes, self._first_dts = facts

    def check(self) -> None:
        super().check()
        assert (self._first_dts == NEVER) == (not len(self))
        assert self.nbytes >= self.rows >= len(self)


class Upcoming:
    """Blocks that are to be read one after the other; a window of them is in memory."""

    def __init__(self, windows: Iterator[ListWindow]) -> None:
        self._windows = windows
        self._numbers: Numbers = np.zeros(0, dtype=np.int64)
        self._entries: Entries = np.zeros(0, dtype=BLOCK)
        self._at = 0

    def peek(self) -> tuple[int, np.void] | None:
        """The number and the entry of the next; None if there is none."""
        while self._at == len(self._numbers):
            window = next(self._windows, None)
            if window is None:
                return None
            (self._numbers, self._entries), self._at = window, 0
        return int(self._numbers[self._at]), self._entries[self._at]

    def __bool__(self) -> bool:
        return self.peek() is not None

    def advance(self) -> None:
        """The next one has been read."""
        self._at += 1

    def __iter__(self) -> Iterator[tuple[int, np.void]]:
        while (found := self.peek()) is not None:
            self.advance()
            yield found
