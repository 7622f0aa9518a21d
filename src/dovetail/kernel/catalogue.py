"""Catalogues: lists of block entries of any length, paged out to disk as they grow.

An entry is one of `blocks.BLOCK`. The newest entries of a list are in memory; whenever there are
`fan_out` of them, they go to the store as a page, and an entry for that page is kept in their
place, one level up. When there are `fan_out` of these, the same happens to them, and so on: a tree
that grows at its end only, with `fan_out` entries or fewer of each level in memory. So a list of n
entries takes up `fan_out * log(n)` of them, and a snapshot of it is just as long.

The entry of a page has the ranges of codes and of arrival ticks below it, and the latest departure
tick; its kind is one above that of the entries in the page. Pages never change.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from dovetail.kernel.blocks import BLOCK, BlockStore

Entries = NDArray[np.void]
Numbers = NDArray[np.int64]  #: of entries in their list
Mask = Callable[[Entries], NDArray[np.bool_]]
_KEPT_PAGES = 8  # the way to an entry and back, so that reading on costs a page a page
_BUDGET_SHARE = 1 / 32  # of the budget, for the entries that are not in pages yet
_FEWEST, _ENOUGH = 4, 16  # entries in a page


def fan_out_for(total_bytes: int | None, lists: int, enough: int = _ENOUGH) -> int:
    """The number of entries in a page where several lists share a budget: a power of two.

    More than `enough` are of no use; a list that is often gone through wants larger pages.
    """
    if total_bytes is None:
        return enough
    share = int(total_bytes * _BUDGET_SHARE) // (BLOCK.itemsize * lists)
    return max(_FEWEST, min(1 << share.bit_length() >> 1, enough))


def concatenated(parts: Sequence[Entries]) -> Entries:
    """Concatenate entries; np.concatenate would take long to compare the types."""
    ends = np.cumsum([0, *(len(part) for part in parts)])
    whole: Entries = np.empty(ends[-1], dtype=BLOCK)
    for start, stop, part in zip(ends[:-1], ends[1:], parts, strict=True):
        whole[start:stop] = part
    return whole


def split_tails(entries: Entries, *names: str) -> list[Entries]:
    """Tails that lie one behind another, cut where one of these fields or the level changes."""
    if not len(entries):
        return []
    changes = [np.diff(entries[name], prepend=-1) != 0 for name in (*names, "kind")]
    return np.split(entries, np.flatnonzero(np.any(changes, axis=0))[1:])


class Pages:
    """The pages of all lists of one operator, a few of them kept in memory for the next look."""

    def __init__(self, store: BlockStore, fan_out: int, kept: int = _KEPT_PAGES) -> None:
        self.fan_out = fan_out
        self._most_kept = kept
        self.tail_bytes = 0  #: of the entries that the lists have in memory
        self._store = store
        self._kept: dict[int, Entries] = {}

    @property
    def nbytes(self) -> int:
        """The bytes of the lists in memory, with the pages that may be kept."""
        return self.tail_bytes + (self.kept_bytes if self.tail_bytes else 0)

    @property
    def kept_bytes(self) -> int:
        """The bytes of the pages that may be kept."""
        return self._most_kept * self.fan_out * BLOCK.itemsize

    def most_tail_bytes(self, entries: int) -> int:
        """The most bytes that a list of so many entries has in memory."""
        levels = 1
        while self.fan_out**levels < entries:
            levels += 1
        return levels * self.fan_out * BLOCK.itemsize

    def forget(self) -> None:
        """Give up the pages that are kept."""
        self._kept.clear()

    def write(self, entries: Entries) -> Entries:
        """Put entries of one list on disk; returns the entry of the page, as an array of one."""
        page = entries[:1].copy()
        page["kind"] += 1
        page["rows"] = len(entries)
        for name in ("code_min", "ats_min"):
            page[name] = entries[name].min()
        for name in ("code_max", "ats_max", "dts"):
            page[name] = entries[name].max()
        page["file"], page["offset"], page["length"], page["crc"] = self._store.append_page(
            entries.tobytes()
        )
        return page

    def read(self, page: np.void) -> Entries:
        """The entries of a page, to be read only."""
        address = int(page["offset"])
        found = self._kept.pop(address, None)
        if found is None:
            if len(self._kept) >= self._most_kept:
                del self._kept[next(iter(self._kept))]
            found = np.frombuffer(self._store.read_page(page), dtype=BLOCK)
        self._kept[address] = found
        return found


class Catalogue:
    """One list. The entries of a block's page and of the page's page come from the same `Pages`."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self._levels: list[Entries] = []  # none of them empty; 0 has the newest entries themselves
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def append(self, entry: np.void) -> None:
        self._count += 1
        new: Entries = np.empty(1, dtype=BLOCK)
        new[0] = entry
        self._pages.tail_bytes += new.nbytes
        for level, tail in enumerate(self._levels):
            if len(tail) < self._pages.fan_out:
                # not np.concatenate, which takes long to compare the types
                self._levels[level] = longer = np.empty(len(tail) + 1, dtype=BLOCK)
                longer[:-1], longer[-1:] = tail, new
                return
            page = self._pages.write(tail)
            self._levels[level], new = new, page
            self._pages.tail_bytes += page.nbytes - tail.nbytes
        self._levels.append(new)

    def clear(self) -> None:
        """Forget all entries."""
        self._pages.tail_bytes -= sum(tail.nbytes for tail in self._levels)
        self._levels, self._count = [], 0

    def entry(self, index: int) -> np.void:
        first, entries = self._leaf(index)
        found: np.void = entries[index - first]
        return found

    def entries(self, start: int, stop: int) -> Iterator[Entries]:
        """The entries `[start, stop)`, page by page."""
        while start < stop:
            first, entries = self._leaf(start)
            yield entries[start - first : stop - first]
            start = first + len(entries)

    def newest(self, mask: Mask) -> np.void | None:
        """The newest entry that `mask` selects.

        It has to select a page, too, if it would select an entry below it, and may if not.
        """
        for level, tail in enumerate(self._levels):
            found = self._newest_in(tail, level, mask)
            if found is not None:
                return found
        return None

    def select(self, start: int, stop: int, mask: Mask, most: int) -> tuple[Numbers, Entries, int]:
        """The first of the entries `[start, stop)` that `mask` selects, about `most` of them.

        Returns their numbers, themselves, and where to go on. The mask has to select a page, too,
        if it would select an entry below it, and may if not; what it leaves out is not read.
        """
        numbers: list[Numbers] = [np.zeros(0, dtype=np.int64)]
        found: list[Entries] = []
        count = 0
        for first, entries in self._leaves(start, stop, mask):
            chosen = np.flatnonzero(mask(entries))
            if len(chosen):
                numbers.append(first + chosen)
                found.append(entries[chosen])
                count += len(chosen)
            if count >= most:
                stop = first + len(entries)
                break
        return np.concatenate(numbers), concatenated(found), stop

    def outline(self, start: int, stop: int, mask: Mask, most: int) -> tuple[Entries, Numbers]:
        """Entries that stand for those in `[start, stop)` that `mask` selects.

        They are these themselves, if they are `most` or fewer; else pages stand for what is below
        them. Also returns how many each stands for. `mask` as for `select`: a page at an end of the
        range may be there for an entry outside of it.
        """
        levels = len(self._levels)
        found: list[list[Entries]] = [[] for _ in range(levels)]
        firsts: list[list[Numbers]] = [[] for _ in range(levels)]
        first = 0

        def add(entries: Entries, level: int, first: int) -> None:
            span = self._pages.fan_out**level
            numbers = first + span * np.arange(len(entries))
            chosen = (numbers < stop) & (numbers + span > start) & mask(entries)
            found[level].append(entries[chosen])
            firsts[level].append(numbers[chosen])

        for level in reversed(range(levels)):
            add(self._levels[level], level, first)
            first += len(self._levels[level]) * self._pages.fan_out**level
        for level in reversed(range(1, levels)):
            pages = sum(map(len, found[level]))
            others = sum(len(part) for parts in found for part in parts) - pages
            if others + pages * self._pages.fan_out > most:
                break
            for part, numbers in zip(found[level], firsts[level], strict=True):
                for page, number in zip(part, numbers.tolist(), strict=True):
                    add(self._pages.read(page), level - 1, number)
            found[level], firsts[level] = [], []
        return self._standing_for(found, firsts, start, stop)

    def ending_below(self, code: int) -> int:
        """The number of entries that end below a code; for a list in the order of its codes."""
        first = 0
        for level in reversed(range(len(self._levels))):
            entries = self._levels[level]
            span = self._pages.fan_out**level
            at = int(np.searchsorted(entries["code_max"], code))
            first += at * span
            if at == len(entries):
                continue
            for _ in range(level):
                entries = self._pages.read(entries[at])
                span //= self._pages.fan_out
                at = int(np.searchsorted(entries["code_max"], code))
                first += at * span
            break
        return first

    @property
    def last(self) -> np.void | None:
        return self._levels[0][-1] if self._levels else None

    # -- snapshots --------------------------------------------------------------------------

    @property
    def tails(self) -> list[Entries]:
        """The entries in memory, level by level: all that a snapshot needs to have."""
        return self._levels

    def restore_tail(self, entries: Entries) -> None:
        """Bring the entries of the next level back."""
        self._count += len(entries) * self._pages.fan_out ** len(self._levels)
        self._levels.append(entries.copy())
        self._pages.tail_bytes += entries.nbytes

    def check(self) -> None:
        fan_out, count = self._pages.fan_out, 0
        for level, tail in enumerate(self._levels):
            assert 0 < len(tail) <= fan_out
            assert (tail["kind"] == self._levels[0]["kind"][0] + level).all()
            assert level == 0 or (tail["rows"] == fan_out).all()
            count += len(tail) * fan_out**level
        assert count == self._count

    # -- the tree ---------------------------------------------------------------------------

    def _leaf(self, index: int) -> tuple[int, Entries]:
        """The page that has this entry, and the number of its first."""
        if not 0 <= index < self._count:
            raise IndexError(f"entry {index} of {self._count}")
        first = 0
        for level in reversed(range(len(self._levels))):
            entries = self._levels[level]
            span = self._pages.fan_out**level
            if index < first + span * len(entries):
                break
            first += span * len(entries)
        for _ in range(level):
            at = (index - first) // span
            entries = self._pages.read(entries[at])
            first += at * span
            span //= self._pages.fan_out
        return first, entries

    def _leaves(self, start: int, stop: int, mask: Mask) -> Iterator[tuple[int, Entries]]:
        """The entries `[start, stop)` page by page, less the pages that `mask` leaves out."""
        first = 0
        for level in reversed(range(len(self._levels))):
            tail = self._levels[level]
            yield from self._leaves_below(tail, level, first, (start, stop), mask)
            first += len(tail) * self._pages.fan_out**level

    def _leaves_below(
        self, entries: Entries, level: int, first: int, wanted: tuple[int, int], mask: Mask
    ) -> Iterator[tuple[int, Entries]]:
        span = self._pages.fan_out**level
        low = max(0, (wanted[0] - first) // span)
        high = min(len(entries), -(-(wanted[1] - first) // span))
        if low >= high:
            return
        if not level:
            yield first + low, entries[low:high]
            return
        for at in (low + np.flatnonzero(mask(entries[low:high]))).tolist():
            page = self._pages.read(entries[at])
            yield from self._leaves_below(page, level - 1, first + at * span, wanted, mask)

    def _standing_for(
        self, found: list[list[Entries]], firsts: list[list[Numbers]], start: int, stop: int
    ) -> tuple[Entries, Numbers]:
        """Entries of each level as one array, and how many of `[start, stop)` are below each."""
        counts = [np.zeros(0, dtype=np.int64)]
        for level, numbers in enumerate(firsts):
            span = self._pages.fan_out**level
            counts += [
                np.minimum(first + span, stop) - np.maximum(first, start) for first in numbers
            ]
        return concatenated([part for parts in found for part in parts]), np.concatenate(counts)

    def _newest_in(self, entries: Entries, level: int, mask: Mask) -> np.void | None:
        for at in reversed(np.flatnonzero(mask(entries))):
            if not level:
                return entries[at]  # type: ignore[no-any-return]
            found = self._newest_in(self._pages.read(entries[at]), level - 1, mask)
            if found is not None:
                return found
        return None
