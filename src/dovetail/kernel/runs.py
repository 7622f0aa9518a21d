"""SortedRuns, the one index: a few sorted runs of rows, merged like an LSM tree.

A run is a batch of rows in code order: the codes and arrival ticks as numpy arrays, the rows
themselves in Arrow, position by position. A probe is a binary search of sorted codes in each run,
for equality and for a band alike; a large run has a directory, so that an equality probe looks at
a row or two instead. Rows that share a range of codes lie together, so a partition is taken out by
slicing, without touching the rest.

Merging keeps the number of runs near `fan_in * log(rows)`. A merge copies rows, so it only
happens when its result stays below `merge_bytes`, which the owner takes from working memory.

On disk a block has the same layout (see `blocks`), so a run is written and read back as it is. A
run remembers the block that holds it; taking rows out of the run leaves the block a superset, and
the owner says on reading which of its rows still count.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dovetail.kernel.keys import Codes

Rows = NDArray[np.int64]
Block = np.void  #: one entry of a block catalogue, see `blocks.BLOCK`

FAN_IN = 6
INDEX_BYTES_PER_ROW = 20  # code, arrival tick, and the directory's share
_DIRECTORY_ROWS = 1 << 14  # a run with fewer is searched as fast without one
_OVERFULL = 8  # rows of a bucket
_TOP = np.iinfo(np.int64).max


@dataclass(slots=True)
class Run:
    """Rows in code order. `codes`, `ats` and `rows` have the same length."""

    codes: Codes
    ats: Rows
    rows: pa.RecordBatch
    block: Block | None = None
    _nbytes: int = -1  # asking Arrow is slow, and most runs live too briefly to be asked about
    _directory: "Directory | None" = None

    @property
    def nbytes(self) -> int:
        if self._nbytes < 0:
            self._nbytes = self.rows.nbytes + INDEX_BYTES_PER_ROW * len(self.codes)
        return self._nbytes

    def __len__(self) -> int:
        return len(self.codes)

    def probe(self, low: Codes, high: Codes) -> "Span | None":
        """Which of these rows lie in each of the inclusive ranges of codes; None when none does.

        Equality is the case `low is high`. The ranges are in the order of their lower ends.
        """
        if low is not high or len(self.codes) < _DIRECTORY_ROWS:
            return probe_run(self.codes, low, high)
        if self._directory is None:
            self._directory = Directory(self.codes)
        return self._directory.probe(self.codes, low)

    def slice(self, start: int, stop: int) -> "Run":
        return Run(
            self.codes[start:stop], self.ats[start:stop], self.rows.slice(start, stop - start)
        )

    def filter(self, keep: NDArray[np.bool_]) -> "Run":
        """The rows that `keep` marks, still held by the same block."""
        kept = self.rows.filter(pa.array(keep))
        return Run(self.codes[keep], self.ats[keep], kept, self.block)


def sort_run(codes: Codes, ats: int, rows: pa.RecordBatch) -> Run:
    """A run of rows that arrived together at tick `ats`, in any order."""
    order = np.argsort(codes)
    return Run(codes[order], np.full(len(codes), ats), rows.take(pa.array(order)))


def merge_runs(runs: list[Run]) -> Run:
    """One run of all the rows; among equal codes, earlier runs first."""
    if len(runs) == 1:
        return runs[0]
    codes = np.concatenate([run.codes for run in runs])
    order = np.argsort(codes, kind="stable")  # a merge: the pieces are sorted already
    ats = np.concatenate([run.ats for run in runs])[order]
    rows = pa.concat_batches([run.rows for run in runs])
    return Run(codes[order], ats, rows.take(pa.array(order)))


@dataclass(slots=True)
class Span:
    """For each probing row, the stored rows of one run that are candidates: `[low, high)`."""

    probing: Rows
    low: Rows
    high: Rows

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

    There are as many ranges, or buckets, as rows. Where codes are spread evenly, a bucket holds
    about one row and a probe is a look at it; the rows of an overfull bucket are searched for.
    """

    def __init__(self, codes: Codes) -> None:
        self._least, self._most = codes[0], codes[-1]
        reach = int(self._most) - int(self._least)
        self._width = np.uint64(reach // len(codes) + 1)
        self._starts = np.zeros(reach // int(self._width) + 2, dtype=np.int32)
        np.cumsum(np.bincount(self._bucket(codes)), out=self._starts[1:])

    def probe(self, stored: Codes, codes: Codes) -> Span | None:
        """Which of the `stored` codes equal each of these, which are in order."""
        begin = int(np.searchsorted(codes, self._least, side="left"))
        end = int(np.searchsorted(codes, self._most, side="right"))
        codes = codes[begin:end]
        bucket = self._bucket(codes)
        low = self._starts[bucket]
        counts = self._starts[bucket + 1] - low
        overfull = np.flatnonzero(counts > _OVERFULL)
        counts[overfull] = 0
        probing = np.flatnonzero(counts)
        low, counts = low[probing], counts[probing]
        probing = np.repeat(probing, counts)
        at = np.arange(len(probing)) + np.repeat(low - (np.cumsum(counts) - counts), counts)
        found = np.flatnonzero(stored[at] == codes[probing])
        span = Span(begin + probing[found], at[found], at[found] + 1) if len(found) else None
        if len(overfull):
            sought = codes[overfull]
            searched = probe_run(stored, sought, sought)
            if searched is not None:
                searched.probing = begin + overfull[searched.probing]
                span = searched if span is None else span.joined(searched)
        return span

    def _bucket(self, codes: Codes) -> Rows:
        bucket: Rows = ((codes - self._least).view(np.uint64) // self._width).view(np.int64)
        return bucket


class SortedRuns:
    """The rows of one side that are in memory."""

    def __init__(self, merge_bytes: int) -> None:
        self.runs: list[Run] = []
        self._merge_bytes = merge_bytes

    def __len__(self) -> int:
        return sum(len(run) for run in self.runs)

    @property
    def nbytes(self) -> int:
        return sum(run.nbytes for run in self.runs)

    def insert(self, run: Run) -> None:
        """Add a run that owns its buffers; then merge runs of about the same size."""
        self.runs.append(run)
        while len(self.runs) >= FAN_IN:
            tail = self.runs[-FAN_IN:]
            sizes = [len(run) for run in tail]
            # merging into a run much larger than the rest would copy it again and again
            if sizes[0] > sum(sizes[1:]) or sum(r.nbytes for r in tail) > self._merge_bytes:
                return
            self.runs[-FAN_IN:] = [merge_runs(tail)]

    def probe(self, low: Codes, high: Codes) -> Iterator[tuple[Run, Span]]:
        """Candidates among the stored rows for the inclusive ranges of codes, run by run."""
        for run in self.runs:
            span = run.probe(low, high)
            if span is not None:
                yield run, span

    def take_range(self, low: int, high: int) -> Iterator[Run]:
        """Remove the rows with codes in the inclusive range, run by run, each sorted.

        To be drained. What is handed out is a view, good until the next is asked for; only then
        does the run give up its memory, so that no more than one run is ever held twice. `own` a
        part to keep it.
        """
        for index, run in enumerate(self.runs):
            start = int(np.searchsorted(run.codes, low, side="left"))
            stop = int(np.searchsorted(run.codes, high, side="right"))
            if start < stop:
                yield run.slice(start, stop)
                self.runs[index] = _without(run, start, stop)
        self.runs = [run for run in self.runs if len(run)]

    def range_bytes(self, low: int, high: int) -> int:
        """About what the rows with codes in the inclusive range take up."""
        total = 0
        for run in self.runs:
            start, stop = np.searchsorted(run.codes, [low, high + 1 if high < _TOP else high])
            total += run.nbytes * int(stop - start) // len(run)
        return total

    def persist(self, write: Callable[[Run], Block]) -> list[Block]:
        """The blocks that hold these runs; writes the runs that no block holds yet."""
        for run in self.runs:
            if run.block is None:
                run.block = write(run)
        return [run.block for run in self.runs if run.block is not None]

    def check(self) -> None:
        for run in self.runs:
            assert len(run.codes) == len(run.ats) == run.rows.num_rows > 0
            assert (run.codes[1:] >= run.codes[:-1]).all(), "a run is out of order"


def _without(run: Run, start: int, stop: int) -> Run:
    """The run less its rows `[start, stop)`, in buffers of its own."""
    parts = [run.slice(0, start), run.slice(stop, len(run))]
    rest = own(*([part for part in parts if len(part)] or parts[:1]))
    # once most of a block is dead it is not worth keeping: the run is written anew
    if run.block is not None and 2 * len(rest) >= int(run.block["rows"]):
        rest.block = run.block
    return rest


def own(*parts: Run) -> Run:
    """Parts in code order as one run with buffers of its own; a slice keeps its parent's alive."""
    rows = [part.rows for part in parts]
    copied = (
        rows[0].take(pa.array(np.arange(len(parts[0]))))
        if len(parts) == 1
        else (pa.concat_batches(rows))
    )
    codes = np.concatenate([part.codes for part in parts])
    return Run(codes, np.concatenate([part.ats for part in parts]), copied)
