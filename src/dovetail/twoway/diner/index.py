"""DINER's index of the rows in memory: sorted, with a join bit for each row.

The paper keeps one sorted index a relation, with the join bit in the index entry (section 3.1).
Here the index is `SortedRuns`, and three things are added:

- Join bits. What a probe finds is noted in `Found`: it sets the bits of the stored rows, and counts
  for each probing row how many it found. Both come from ranges of positions, so no pair is ever
  spelled out for them. They are the candidates of the codes: where a candidate still has to be
  verified (hashed keys, bands of floats) a pair that fails is counted too. That can only bend the
  statistics a hair; it never adds or loses a result.
- Pieces. A flush takes rows out of one range of codes. A large run is cut into pieces, with buffers
  of their own, by the first flush that finds it, so that flushes rewrite the pieces at the ends of
  their range and not everything there is. Until then it is merged as `SortedRuns` does it, without
  the rows.
- Loaded rows: a second copy of rows that are on disk, which is probed like the rest but is nobody's
  only copy, has no bits and is in no region.

A run that gives up rows forgets the block that holds it, so the next snapshot writes what is left.
"""

from collections.abc import Callable, Iterator
from itertools import chain, pairwise
from typing import cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dovetail.kernel.keys import Codes
from dovetail.kernel.probing import Places, Rows, Span
from dovetail.kernel.runs import FAN_IN, Block, Run, SortedRuns, copied, merge_in_order, own

Bits = NDArray[np.bool_]


class MarkedRun(Run):
    """A run with a join bit for each row, a byte each."""

    __slots__ = ("joined",)

    def __init__(
        self, codes: Codes, ats: Rows, rows: pa.RecordBatch, joined: Bits,
        block: Block | None = None, places: Places | None = None,
    ) -> None:  # fmt: skip
        super().__init__(codes, ats, rows, block, places)
        self.joined = joined

    @property
    def nbytes(self) -> int:
        # every run is taken to have places; once rows are in order, the bits are in their stead
        return super().nbytes + (0 if self._places is None else len(self.codes))

    @classmethod
    def merged(cls, runs: list["MarkedRun"]) -> "MarkedRun":
        """One run of all the rows."""
        run, order = merge_in_order(cast("list[Run]", runs))
        joined = np.concatenate([run.joined for run in runs]).take(order)
        return cls(run.codes, run.ats, run._rows, joined, places=run._places)

    def cut(self, step: int) -> list["MarkedRun"]:
        """Cut the run into pieces of `step` rows, each in buffers of its own."""
        bounds = [(start, start + step) for start in range(0, len(self), step)]
        return [
            MarkedRun(
                self.codes[start:stop].copy(), self.ats[start:stop].copy(),
                self._gather_range(start, stop), self.joined[start:stop].copy(),
            )
            for start, stop in bounds
        ]  # fmt: skip

    def _gather_range(self, start: int, stop: int) -> pa.RecordBatch:
        if self._places is None:
            return copied([self._rows.slice(start, stop - start)])
        return self._rows.take(pa.array(self._places[start:stop]))

    def split(self, rows: Rows) -> tuple[Run, "MarkedRun"]:
        """Split off the rows at ascending positions; both parts are in buffers of their own."""
        start, stop = int(rows[0]), int(rows[-1]) + 1
        self.arrange()
        between = np.zeros(0, dtype=np.int64)
        if stop - start == len(rows):
            taken = own(self.slice(start, stop))
        else:
            taken = Run(self.codes.take(rows), self.ats.take(rows), self.gather(rows))
            passed = np.ones(stop - start, dtype=np.bool_)
            passed[rows - start] = False
            between = start + np.flatnonzero(passed)
        numbers = (
            np.concatenate([column[:start], column.take(between), column[stop:]])
            for column in (self.codes, self.ats, self.joined)
        )
        parts = [self._rows.slice(0, start), self._rows.slice(stop)]
        if len(between):
            parts.insert(1, self.gather(between))
        codes, ats, joined = numbers
        return taken, MarkedRun(codes, ats, copied(parts), joined)


class LoadedRun(Run):
    """A second copy of rows that are on disk."""

    __slots__ = ("found",)

    def __init__(self, run: Run) -> None:
        super().__init__(run.codes, run.ats, run._rows, run.block, run._places)
        self.found = 0  #: times that its rows were found since the last flush


class Found:
    """Counts what rows that probe find in the other side's index, and sets the bits of it."""

    def __init__(self, index: "MarkedRuns", probing: int) -> None:
        self._probing = probing
        #: among the rows in memory: rows that probe, and how many each found (None: one)
        self._finds: list[tuple[Rows, Rows | None]] = []
        if index.flushed:  # what loaded rows are worth is told by what has been found since
            for run in index.loaded:
                run.found = 0
            index.flushed = False

    def note(self, run: Run, span: Span) -> None:
        """Note what was found in one run."""
        counts = span.high - span.low
        if isinstance(run, MarkedRun):
            several = int(counts.max()) > 1
            self._finds.append((span.probing, counts if several else None))
            _mark(run.joined, span, several)
        elif isinstance(run, LoadedRun):
            run.found += int(counts.sum())

    def counts(self) -> Rows:
        """The number of rows in memory that each row has found."""
        found = np.zeros(self._probing, dtype=np.int64)
        ones = [probing for probing, counts in self._finds if counts is None]
        if ones:
            found += np.bincount(np.concatenate(ones), minlength=self._probing)
        for probing, counts in self._finds:
            if counts is not None:
                np.add.at(found, probing, counts)
        return found


class MarkedRuns(SortedRuns):
    """The rows of one side that are in memory, and those that are loaded besides."""

    def __init__(self, merge_bytes: int, piece_bytes: int) -> None:
        super().__init__(merge_bytes)
        self._piece_bytes = piece_bytes
        #: what was merged together, whole or in pieces of ascending codes; `runs` lists them all
        self._levels: list[list[MarkedRun]] = []
        self._rows = self._bytes = 0  # of all runs
        self.loaded: list[LoadedRun] = []
        self.flushed = False  #: since loaded rows were counted last

    # -- arrival ----------------------------------------------------------------------------

    def insert(self, run: Run, joined: Bits | None = None) -> None:
        """See `SortedRuns`; `joined` are the rows' join bits, by default not set."""
        if joined is None:
            joined = np.zeros(len(run), dtype=np.bool_)
        self._levels.append([MarkedRun(run.codes, run.ats, run.rows, joined, run.block)])
        # flushes leave little of some: the smallest are merged, wherever they are
        self._levels.sort(key=_rows_in)
        while count := self._mergeable():
            tail = list(chain.from_iterable(self._levels[:count]))
            self._levels[:count] = [[MarkedRun.merged(tail)]]
            self._levels.sort(key=_rows_in)
        self._list()

    def _mergeable(self) -> int:
        """The number of smallest levels to merge: `FAN_IN` or more, or none."""
        rows = nbytes = 0
        for number, level in enumerate(self._levels, 1):
            size = _rows_in(level)
            nbytes += sum(piece.nbytes for piece in level)
            if nbytes > self._merge_bytes:
                break
            # merging into a level much larger than the rest would copy it again and again
            if number >= FAN_IN and size <= rows:
                return number
            rows += size
        return 0

    def restore(self, run: Run) -> None:
        """Put a run back where `runs` had it; the bits start anew."""
        joined = np.zeros(len(run), dtype=np.bool_)
        piece = MarkedRun(run.codes, run.ats, run.rows, joined, run.block)
        if self._levels and self._levels[-1][-1].codes[-1] <= piece.codes[0]:
            self._levels[-1].append(piece)
        else:
            self._levels.append([piece])
        self._list()

    def persist(self, write: Callable[[Run], Block]) -> list[Block]:
        blocks = super().persist(write)
        self._list()  # to be written, rows are put in order
        return blocks

    def _cut(self) -> None:
        """Cut the large runs into pieces, before rows are taken out of them."""
        for level in self._levels:
            if len(level) == 1 and 2 * level[0].nbytes > 3 * self._piece_bytes:
                pieces = -(-level[0].nbytes // self._piece_bytes)
                level[:] = level[0].cut(-(-len(level[0]) // pieces))
        self._list()

    def _list(self) -> None:
        self._levels = [level for level in self._levels if level]
        self.runs = list(chain.from_iterable(self._levels))
        self._rows = sum(len(run.codes) for run in self.runs)
        self._bytes = sum(run.nbytes for run in self.runs)

    def __len__(self) -> int:
        return self._rows

    @property
    def nbytes(self) -> int:
        return self._bytes

    @property
    def pieces(self) -> list[MarkedRun]:
        return cast("list[MarkedRun]", self.runs)

    # -- probing ----------------------------------------------------------------------------

    def probe(self, low: Codes, high: Codes) -> Iterator[tuple[Run, Span]]:
        """Candidates among the rows in memory and the loaded ones."""
        everything = [*self.runs, *self.loaded]
        if not everything or not len(low):
            return
        # only the probing rows that reach into a piece are searched for there
        begins = np.searchsorted(high, [run.codes[0] for run in everything], side="left")
        ends = np.searchsorted(low, [run.codes[-1] for run in everything], side="right")
        for run, begin, end in zip(everything, begins.tolist(), ends.tolist(), strict=True):
            if begin >= end:
                continue
            lows = low[begin:end]
            span = run.probe(lows, lows if low is high else high[begin:end])
            if span is not None:
                span.probing = span.probing + begin
                yield run, span

    # -- taking rows out --------------------------------------------------------------------

    def count(self, low: int, high: int) -> int:
        """The number of rows with codes in the inclusive range."""
        return sum(stop - start for start, stop in self._ranges(low, high))

    def count_regions(self, lower: int, upper: int) -> list[int]:
        """The number of rows up to `lower`, between the bounds, and from `upper` on."""
        after, before = np.int64(lower), np.int64(upper)
        low = sum(int(run.codes.searchsorted(after, "right")) for run in self.runs)
        middle = sum(int(run.codes.searchsorted(before)) for run in self.runs) - low
        return [low, middle, len(self) - low - middle]

    def spans(self, low: int, high: int) -> Iterator[tuple[Run, tuple[int, int]]]:
        """The runs, with the positions `[start, stop)` of the codes in the inclusive range."""
        return zip(self.runs, self._ranges(low, high), strict=True)

    def nth_lowest(self, count: int) -> int:
        """The least code with `count` rows at or below it; the highest if there are fewer."""
        heads = np.concatenate([run.codes[:count] for run in self.runs])
        at = min(count, len(heads)) - 1
        return int(np.partition(heads, at)[at])

    def nth_highest(self, count: int) -> int:
        """The greatest code with `count` rows at or above it; the lowest if there are fewer."""
        tails = np.concatenate([run.codes[-count:] for run in self.runs])
        at = max(0, len(tails) - count)
        return int(np.partition(tails, at)[at])

    def take_lowest(self, count: int, low: int, high: int) -> list[Run]:
        """Remove the `count` rows with the lowest codes in the inclusive range, or all."""
        self._cut()
        spans = self._ranges(low, high)
        return self._remove(
            self._first([np.arange(i, min(j, i + count)) for i, j in spans], count, 1)
        )

    def take_highest(self, count: int, low: int, high: int) -> list[Run]:
        """Remove the `count` rows with the highest codes in the inclusive range, or all."""
        self._cut()
        spans = self._ranges(low, high)
        return self._remove(
            self._first([np.arange(max(i, j - count), j) for i, j in spans], count, -1)
        )

    def take_unset(self, count: int, low: int, high: int) -> tuple[list[Run], int | None]:
        """The clock hand goes up the inclusive range until it has found `count` rows to remove.

        It removes those whose bit is not set and clears the bits of those it passes. Returns the
        code where it stopped, or None if it went through the whole range.
        """
        self._cut()
        spans = self._ranges(low, high)
        unset = [
            start + np.flatnonzero(~piece.joined[start:stop])[:count]
            for piece, (start, stop) in zip(self.pieces, spans, strict=True)
        ]
        reached: int | None = None
        if sum(map(len, unset)) >= count:
            unset = self._first(unset, count, 1)
            last = (
                int(run.codes[rows[-1]]) for run, rows in zip(self.runs, unset, strict=True)
                if len(rows)
            )  # fmt: skip
            reached = max(last)
            # others with that very code may not have been passed: the hand stays on it
            spans = [
                (start, max(start, int(np.searchsorted(run.codes, reached, side="left"))))
                for run, (start, _) in zip(self.runs, spans, strict=True)
            ]
        for piece, (start, stop) in zip(self.pieces, spans, strict=True):
            piece.joined[start:stop] = False
        return self._remove(unset), reached

    def _ranges(self, low: int, high: int) -> list[tuple[int, int]]:
        """For each run, the positions `[start, stop)` of the codes in the inclusive range."""
        if low > high:
            return [(0, 0)] * len(self.runs)
        # numpy compares a code with a code at once, but a plain number only after a conversion
        first, last = np.int64(low), np.int64(high)
        return [
            (int(run.codes.searchsorted(first)), int(run.codes.searchsorted(last, "right")))
            for run in self.runs
        ]

    def _first(self, candidates: list[Rows], count: int, direction: int) -> list[Rows]:
        """Of ascending positions in each run, the `count` lowest (highest: -1) by their codes."""
        sizes = [len(rows) for rows in candidates]
        total = sum(sizes)
        if total <= count:
            return candidates
        codes = np.concatenate(
            [run.codes.take(rows) for run, rows in zip(self.runs, candidates, strict=True)]
        )
        chosen = np.zeros(total, dtype=np.bool_)
        if count > 0:
            at = count - 1 if direction > 0 else total - count
            order = np.argpartition(codes, at)
            chosen[order[:count] if direction > 0 else order[at:]] = True
        masks = np.split(chosen, np.cumsum(sizes)[:-1])
        return [rows[mask] for rows, mask in zip(candidates, masks, strict=True)]

    def _remove(self, chosen: list[Rows]) -> list[Run]:
        """Take these rows out of their runs; returns them in sorted parts that own their buffers.

        A run goes as soon as what is left of it has been copied, so that no more than one is ever
        held twice.
        """
        parts: list[Run] = []
        positions = iter(chosen)
        for level in self._levels:
            for index, piece in enumerate(level):
                rows = next(positions)
                if len(rows):
                    taken, level[index] = piece.split(rows)
                    parts.append(taken)
            level[:] = [piece for piece in level if len(piece)]
        self._list()
        return parts

    def check(self) -> None:
        super().check()
        for level in self._levels:
            for before, after in pairwise(level):
                assert before.codes[-1] <= after.codes[0], "the pieces of a run are out of order"
        assert all(len(piece.joined) == len(piece) for piece in self.pieces)
        assert self.runs == list(chain.from_iterable(self._levels))
        assert len(self) == super().__len__()
        assert sum(run.nbytes for run in self.runs) <= self.nbytes


def _rows_in(level: list[MarkedRun]) -> int:
    return sum(len(piece.codes) for piece in level)


def _mark(joined: Bits, span: Span, several: bool) -> None:
    """Set the bits of every position in the ranges of a span, of one row each or `several`."""
    if not several:
        joined[span.low] = True
        return
    edges = np.bincount(span.low, minlength=len(joined) + 1)
    edges = edges - np.bincount(span.high, minlength=len(joined) + 1)
    joined |= np.cumsum(edges[:-1]) > 0
