"""Probes of sorted codes: finds the stored rows that are candidates for probing rows."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dovetail.kernel.keys import Codes

Rows = NDArray[np.int64]
Places = NDArray[np.int32]

_OVERFULL = 8  # rows of a bucket


@dataclass(slots=True)
class Span:
    """For each probing row, the stored rows of one run that are candidates: `[low, high)`."""

    probing: Rows
    low: Rows | Places
    high: Rows | Places

    def joined(self, other: "Span") -> "Span":
        columns = ("probing", "low", "high")
        return Span(*(np.concatenate([getattr(self, c), getattr(other, c)]) for c in columns))

    def pairs(self, limit: int) -> Iterator[tuple[Rows, Rows]]:
        """The candidate pairs as two index arrays, at most `limit` pairs at a time."""
        counts = self.high - self.low
        ends = np.cumsum(counts)
        total = int(ends[-1]) if len(ends) else 0
        starts = ends - counts
        for begin in range(0, total, limit):
            end = min(begin + limit, total)
            first = int(np.searchsorted(ends, begin, side="right"))
            last = int(np.searchsorted(starts, end, side="left"))
            count = np.minimum(ends[first:last], end) - np.maximum(starts[first:last], begin)
            shift = self.low[first:last] - starts[first:last]
            position = np.arange(begin, end) + np.repeat(shift, count)
            yield np.repeat(self.probing[first:last], count), position


def probe_run(stored: Codes, low: Codes, high: Codes) -> Span | None:
    """Which of the `stored` codes lie in each of the inclusive ranges; None when none does.

    Equality is the case `low is high`: then one search settles the rows that match nothing.
    """
    if not len(stored) or not len(low):
        return None
    first = np.searchsorted(stored, low, side="left")
    if low is high:
        found = stored[np.minimum(first, len(stored) - 1)] == low
        probing = np.flatnonzero(found)
        if not len(probing):
            return None
        first = first[probing]
        last = np.searchsorted(stored, low[probing], side="right")
    else:
        last = np.searchsorted(stored, high, side="right")
        probing = np.flatnonzero(last > first)
        if not len(probing):
            return None
        first, last = first[probing], last[probing]
    return Span(probing, first, last)


class Directory:
    """Where the codes of each of many equally wide ranges begin in a sorted run.

    There are one to two such ranges, or buckets, for every row. Where codes are spread evenly, a
    bucket holds a row or none and a probe is a look at it; the rows of an overfull bucket are
    searched for.
    """

    def __init__(self, codes: Codes) -> None:
        self._least, self._most = codes[0], codes[-1]
        reach = int(self._most) - int(self._least)
        self._shift = np.uint64((reach // (2 * len(codes))).bit_length())
        self._starts = np.zeros((reach >> int(self._shift)) + 2, dtype=np.int32)
        np.cumsum(np.bincount(self._bucket(codes)), out=self._starts[1:])

    def probe(self, stored: Codes, codes: Codes) -> Span | None:
        """Which of the `stored` codes equal each of these, which are in order."""
        begin = int(np.searchsorted(codes, self._least, side="left"))
        end = int(np.searchsorted(codes, self._most, side="right"))
        codes = codes[begin:end]
        bucket = self._bucket(codes)
        low = self._starts.take(bucket)
        bucket += 1
        counts = self._starts.take(bucket)
        counts -= low
        overfull = np.flatnonzero(counts > _OVERFULL)
        counts[overfull] = 0
        probing = np.flatnonzero(counts)
        counts = counts.take(probing)
        shift = low.take(probing) - np.cumsum(counts, dtype=np.int32)
        shift += counts
        probing = probing.repeat(counts)
        at = np.arange(len(probing), dtype=np.int32)
        at += shift.repeat(counts)
        found = np.flatnonzero(stored.take(at) == codes.take(probing))
        span = None
        if len(found):
            at = at.take(found)
            span = Span(begin + probing.take(found), at, at + 1)
        if len(overfull):
            sought = codes[overfull]
            searched = probe_run(stored, sought, sought)
            if searched is not None:
                searched.probing = begin + overfull[searched.probing]
                span = searched if span is None else span.joined(searched)
        return span

    def _bucket(self, codes: Codes) -> Rows:
        bucket: Rows = ((codes - self._least).view(np.uint64) >> self._shift).view(np.int64)
        return bucket
