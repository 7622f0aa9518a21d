"""Estimates from the catalogue: the memory that blocks take up, and the cost of joining them.

Nothing here has to be exact: a wrong number costs time, and no result. So the entries may be pages
that stand for many blocks (`lists.BlockList.estimate`).
"""

from collections.abc import Callable, Sequence

import numpy as np

from dovetail.kernel.catalogue import Entries
from dovetail.kernel.probing import Rows

_PROBING = 2  # to look for a row in a part takes as long as to read so many rows
_ORDER_BYTES_PER_ROW = 24
INDEX_BYTES_PER_ROW = 12  # places and directory; codes and ticks are in the block, too


def sweep_bytes(outer: Entries, inner: Entries, room: int) -> int:
    """About how much a sweep reads if ranges hold `room` bytes of the outer side."""
    middle = outer["code_min"] // 2 + outer["code_max"] // 2
    order = np.argsort(middle)
    ends = np.cumsum(outer["length"][order])
    at = np.searchsorted(ends, np.arange(room, int(ends[-1]), room))
    cuts = middle[order][at]
    total = 0
    for entries in (outer, inner):
        ranges = np.searchsorted(cuts, entries["code_max"]) - np.searchsorted(
            cuts, entries["code_min"]
        )
        total += int((entries["length"] * (ranges + 1)).sum())
    return total


def loop_bytes(outer: Entries, inner: Entries, room: int) -> int:
    """About how much a nested loop reads if chunks hold `room` bytes of the outer side."""
    outer_bytes = int(outer["length"].sum())
    return outer_bytes + -(-outer_bytes // room) * int(inner["length"].sum())


def probing_bytes(inner: Entries, parts: int) -> int:
    """The bytes that could be read in the time of probing so many parts for inner rows."""
    return _PROBING * parts * int(inner["length"].sum())


def sorting_bytes(sides: Sequence[tuple[Entries, int]], room: int) -> int:
    """About how much sorting all blocks and sweeping them reads and writes.

    Each side's blocks, and how many they are. A sorted group has one block at each end of a range
    that reaches beyond it.
    """
    total = 0
    for entries, blocks in sides:
        nbytes = int(entries["length"].sum())
        groups = -(-int(sorting_need(entries).sum()) // room)
        ranges = -(-nbytes // room)
        total += 3 * nbytes + groups * ranges * (nbytes // max(1, blocks))
    return total


def held_bytes(entries: Entries) -> Rows:
    """The memory that each of these blocks takes up in a part, which has an index besides."""
    return np.asarray(entries["length"] + INDEX_BYTES_PER_ROW * entries["rows"].astype(np.int64))


def total_bytes(entries: Entries) -> int:
    """The memory that these blocks take up in parts."""
    return int(held_bytes(entries).sum())


def sorting_need(entries: Entries) -> Rows:
    """The memory it takes to sort each of these blocks with others: the rows and their order."""
    return np.asarray(entries["length"] + _ORDER_BYTES_PER_ROW * entries["rows"].astype(np.int64))


def range_end(entries: Entries, low: int, room: int) -> int:
    """The highest code up to which the rows from `low` on take about `room` bytes, by zone maps."""
    last = int(entries["code_max"].max())
    least = entries["code_min"].astype(np.float64)
    width = entries["code_max"].astype(np.float64) - least + 1
    per_code = held_bytes(entries) / width

    def nbytes(high: int) -> float:
        begin = np.maximum(least, float(low))
        codes = np.minimum(entries["code_max"].astype(np.float64), float(high)) - begin + 1
        return float((np.maximum(codes, 0) * per_code).sum())

    return _last_that(lambda high: nbytes(high) <= room, low, last)


def _last_that(fits: Callable[[int], bool], low: int, high: int) -> int:
    """The last number in the inclusive range that fits, or `low`; what fits comes first."""
    if fits(high):
        return high
    while low + 1 < high:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low
