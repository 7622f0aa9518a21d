"""SortedRuns, the index of rows by one key: a few sorted runs, compacted like an LSM tree.

A run is a batch of rows in code order: the codes and arrival ticks as numpy arrays, and the rows
themselves in Arrow. A probe is a binary search of sorted codes in each run, for equality and for a
band alike; a larger run has a directory, so that an equality probe looks at a row or two instead.
Rows that share a range of codes lie together, so a partition is taken out by slicing, without
touching the rest.

Merging keeps the number of runs near `fan_in * log(rows)`. It merges codes and ticks and leaves the
rows one behind the other, with the place of each: to put them in code order as well would cost more
than all the rest. That is done once, when a run is cut or written. A merge copies rows, so it only
happens when its result stays below `merge_bytes`, which the owner takes from working memory.

On disk a block has the same layout (see `blocks`), so a run is written and read back as it is. A
run remembers the block that holds it; taking rows out of the run leaves the block a superset, and
the owner says on reading which of its rows still count.
"""

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dovetail.kernel.keys import Codes
from dovetail.kernel.probing import Directory, Places, Rows, Span, probe_run
from dovetail.kernel.slices import Sizes, cuts, unevenness, variable_bytes

Block = np.void  #: one entry of a block catalogue, see `blocks.BLOCK`

FAN_IN = 3  # fewer: more merges, more: more probes; of 2, 3 and 4 the last was 15 % slower
INDEX_BYTES_PER_ROW = 20  # code, arrival tick, place
_DIRECTORY_BYTES_PER_ROW = 8
_DIRECTORY_ROWS = 1 << 12  # a run with fewer is searched as fast without one
_TOP = np.iinfo(np.int64).max


class Run:
    """Rows in code order. `codes`, `ats` and `rows` have the same length.

    `places`, if given, says where in `rows` the row of each code is; else they are in code order.
    """

    __slots__ = ("_directory", "_nbytes", "_places", "_rows", "_sizes", "ats", "block", "codes")

    def __init__(
        self, codes: Codes, ats: Rows, rows: pa.RecordBatch, block: Block | None = None,
        places: Places | None = None,
    ) -> None:  # fmt: skip
        self.codes = codes
        self.ats = ats
        self.block = block
        self._rows = rows
        self._places = places
        self._nbytes = -1  # asking Arrow is slow, and most runs live too briefly to be asked about
        self._directory: Directory | None = None
        self._sizes: Sizes | bool | None = False

    @property
    def rows(self) -> pa.RecordBatch:
        """The rows in code order."""
        self.arrange()
        return self._rows

    def arrange(self) -> None:
        """Put the rows in code order, if they are not; for a moment that takes a copy of them."""
        if self._places is not None:
            self._rows, self._places = self._rows.take(pa.array(self._places)), None

    @property
    def nbytes(self) -> int:
        if self._nbytes < 0:
            directory = _DIRECTORY_BYTES_PER_ROW if len(self.codes) >= _DIRECTORY_ROWS else 0
            index = (INDEX_BYTES_PER_ROW + directory) * len(self.codes)
            self._nbytes = self._rows.nbytes + index
        return self._nbytes

    @property
    def sizes(self) -> Sizes | None:
        """The bytes of each row with its index; None if the mean says enough."""
        if self._sizes is False:
            lengths = unevenness(variable_bytes(self._rows.columns))
            if lengths is not None:
                if self._places is not None:
                    lengths = lengths.take(self._places)
                lengths = lengths + (max(0, self.nbytes - int(lengths.sum())) // len(self) + 1)
            self._sizes = lengths
        assert not isinstance(self._sizes, bool)
        return self._sizes

    def cuts(self, start: int, stop: int, most_bytes: int) -> Iterator[tuple[int, int]]:
        """The rows `[start, stop)` in parts of so many bytes, or of one row.

        Where rows are small and alike, parts are about as large as each other, and may have a row
        more than would fit.
        """
        sizes = self.sizes
        if sizes is not None:
            parts = cuts(sizes[start:stop], most_bytes)
            yield from ((start + begin, start + end) for begin, end, _ in parts)
            return
        rows = stop - start
        pieces = -(-self.nbytes * rows // (len(self) * most_bytes))
        step = max(1, -(-rows // max(1, pieces)))
        for begin in range(start, stop, step):
            yield begin, min(begin + step, stop)

    def __len__(self) -> int:
        return len(self.codes)

    def gather(self, positions: Rows) -> pa.RecordBatch:
        """The rows at these positions, in buffers of their own."""
        places = positions if self._places is None else self._places.take(positions)
        return self._rows.take(pa.array(places))

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
        """A part of the run; of rows in code order, a view."""
        codes, ats = self.codes[start:stop], self.ats[start:stop]
        if self._places is None:
            return Run(codes, ats, self._rows.slice(start, stop - start))
        return Run(codes, ats, self._rows.take(pa.array(self._places[start:stop])))

    def filter(self, keep: NDArray[np.bool_]) -> "Run":
        """The rows that `keep` marks, still held by the same block."""
        kept = self.rows.filter(pa.array(keep))
        return Run(self.codes[keep], self.ats[keep], kept, self.block)

    def check(self) -> None:
        assert len(self.codes) == len(self.ats) == self._rows.num_rows > 0
        assert (self.codes[1:] >= self.codes[:-1]).all(), "a run is out of order"
        if self._places is not None:
            assert (np.sort(self._places) == np.arange(len(self))).all(), "rows are lost"


def sort_run(codes: Codes, ats: int, rows: pa.RecordBatch) -> Run:
    """A run of rows that arrived together at tick `ats`, in any order."""
    order = np.argsort(codes)
    return Run(codes.take(order), np.full(len(codes), ats), rows.take(pa.array(order)))


def merge_runs(runs: list[Run]) -> Run:
    """One run of all the rows; among equal codes, earlier runs first."""
    return runs[0] if len(runs) == 1 else merge_in_order(runs)[0]


def merge_in_order(runs: list[Run]) -> tuple[Run, Rows]:
    """One run of all the rows, and where each was in the runs, one behind the other."""
    codes = np.concatenate([run.codes for run in runs])
    order = np.argsort(codes, kind="stable")  # a merge: the pieces are sorted already
    ats = np.concatenate([run.ats for run in runs]).take(order)
    places = np.empty(len(codes), dtype=np.int32)
    start = 0
    for run in runs:
        part = places[start : start + len(run)]
        part[:] = np.arange(len(run)) if run._places is None else run._places
        part += np.int32(start)
        start += len(run)
    rows = pa.concat_batches([run._rows for run in runs])
    return Run(codes.take(order), ats, rows, places=places.take(order)), order


def in_order(runs: list[Run], most_bytes: int) -> Iterator[Run]:
    """All rows of several runs in code order, as runs of so many bytes at most, or of one row."""
    if len(runs) < 2:
        for run in runs:
            for start, stop in run.cuts(0, len(run), most_bytes):
                yield run.slice(start, stop)
        return
    lengths = [len(run) for run in runs]
    order = np.argsort(np.concatenate([run.codes for run in runs]), kind="stable")
    origin = np.repeat(np.arange(len(runs)), lengths)[order]
    position = np.zeros(len(runs), dtype=np.int64)
    for start, stop in _pieces(runs, order, most_bytes):
        # the next rows of the whole are the next rows of each run
        reach = position + np.bincount(origin[start:stop], minlength=len(runs))
        parts = zip(runs, position, reach, strict=True)
        yield merge_runs([run.slice(int(a), int(b)) for run, a, b in parts if a < b])
        position = reach


def _pieces(runs: list[Run], order: Rows, most_bytes: int) -> Iterator[tuple[int, int]]:
    """Where to cut the rows of several runs that are put in an order."""
    sizes = sizes_of(runs)
    if sizes is not None:
        yield from ((start, stop) for start, stop, _ in cuts(sizes[order], most_bytes))
        return
    step = max(1, most_bytes * len(order) // sum(run.nbytes for run in runs))
    for start in range(0, len(order), step):
        yield start, min(start + step, len(order))


def sizes_of(runs: list[Run]) -> Sizes | None:
    """The size of each row of several runs, if rows of any have to be looked at; else None."""
    known = [run.sizes for run in runs]
    if all(sizes is None for sizes in known):
        return None
    return np.concatenate(
        [
            np.full(len(run), run.nbytes // len(run) + 1) if sizes is None else sizes
            for run, sizes in zip(runs, known, strict=True)
        ]
    )


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
                run.arrange()
                yield run.slice(start, stop)
                self.runs[index] = _without(run, start, stop)
        self.runs = [run for run in self.runs if len(run)]

    def range_bytes(self, low: int, high: int) -> int:
        """About what the rows with codes in the inclusive range take up."""
        total = 0
        for run in self.runs:
            start, stop = np.searchsorted(run.codes, [low, high + 1 if high < _TOP else high])
            sizes = run.sizes
            if sizes is None:
                total += run.nbytes * int(stop - start) // len(run)
            else:
                total += int(sizes[start:stop].sum())
        return total

    def persist(self, write: Callable[[Run], Block]) -> list[Block]:
        """The blocks that hold these runs; writes the runs that no block holds yet."""
        for run in self.runs:
            if run.block is None:
                run.block = write(run)
        return [run.block for run in self.runs if run.block is not None]

    def check(self) -> None:
        for run in self.runs:
            run.check()


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
    codes = np.concatenate([part.codes for part in parts])
    rows = copied([part.rows for part in parts])
    return Run(codes, np.concatenate([part.ats for part in parts]), rows)


def copied(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Rows one behind the other, in buffers of their own."""
    # with an empty one before it, a part that is alone is copied as well
    return pa.concat_batches([parts[0].slice(0, 0), *parts])
