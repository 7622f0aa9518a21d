"""DINER's index of the rows in memory: sorted, with a join bit for each row.

The paper keeps one sorted index a relation, with the join bit in the index entry (section 3.1).
Here the index is `SortedRuns`, and three things are added:

- Join bits. A probe sets the bits of the stored rows it finds, and counts for each probing row how
  many it found. Both come from ranges of positions, so no pair is ever spelled out for them. They
  are the candidates of the codes: where a candidate still has to be verified (hashed keys, bands of
  floats) a pair that fails is counted too. That can only bend the statistics a hair; it never adds
  or loses a result.
- Pieces. A flush takes rows out of one range of codes. A run that was merged is kept in pieces of
  a few blocks each, with buffers of their own, so that a flush rewrites the pieces at the ends of
  its range and not everything there is.
- Loaded rows: a second copy of rows that are on disk, which is probed like the rest but is nobody's
  only copy, has no bits and is in no region.

A run that gives up rows forgets the block that holds it, so the next snapshot writes what is left.
"""

from collections.abc import Iterator
from itertools import chain, pairwise
from typing import cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dovetail.kernel.keys import Codes
from dovetail.kernel.runs import FAN_IN, Block, Rows, Run, SortedRuns, Span

Bits = NDArray[np.bool_]


class MarkedRun(Run):
    """A run with a join bit for each row; a byte each, which counts."""

    __slots__ = ("joined",)

    def __init__(
        self, codes: Codes, ats: Rows, rows: pa.RecordBatch, joined: Bits,
        block: Block | None = None,
    ) -> None:  # fmt: skip
        super().__init__(codes, ats, rows, block)
        self.joined = joined

    @property
    def nbytes(self) -> int:
        return super().nbytes + len(self.codes)

    def select(self, rows: Rows) -> "MarkedRun":
        """These rows, in buffers of their own."""
        return MarkedRun(
            self.codes.take(rows), self.ats.take(rows), self.gather(rows), self.joined.take(rows)
        )


class MarkedRuns(SortedRuns):
    """The rows of one side that are in memory, and those that are loaded besides."""

    def __init__(self, merge_bytes: int, piece_bytes: int) -> None:
        super().__init__(merge_bytes)
        self._piece_bytes = piece_bytes
        #: what was merged together, in pieces of ascending codes; `runs` lists all of them
        self._levels: list[list[MarkedRun]] = []
        self._rows = self._bytes = 0  # of all runs
        self._next_bits: Bits | None = None
        self._found = np.zeros(0, dtype=np.int64)
        self.loaded: list[Run] = []

    # -- arrival ----------------------------------------------------------------------------

    def mark_next(self, joined: Bits) -> None:
        """The join bits of the run that is inserted next."""
        self._next_bits = joined

    def insert(self, run: Run) -> None:
        bits, self._next_bits = self._next_bits, None
        joined = np.zeros(len(run), dtype=np.bool_) if bits is None else bits
        self._levels.append([MarkedRun(run.codes, run.ats, run.rows, joined, run.block)])
        while len(self._levels) >= FAN_IN:
            tail = self._levels[-FAN_IN:]
            sizes = [sum(map(len, level)) for level in tail]
            nbytes = sum(piece.nbytes for level in tail for piece in level)
            if sizes[0] > sum(sizes[1:]) or nbytes > self._merge_bytes:
                break
            self._levels[-FAN_IN:] = [self._merged(list(chain.from_iterable(tail)), nbytes)]
        self._list()

    def restore(self, run: Run) -> None:
        """Put a run back where `runs` had it; the bits start anew."""
        joined = np.zeros(len(run), dtype=np.bool_)
        piece = MarkedRun(run.codes, run.ats, run.rows, joined, run.block)
        if self._levels and self._levels[-1][-1].codes[-1] <= piece.codes[0]:
            self._levels[-1].append(piece)
        else:
            self._levels.append([piece])
        self._list()

    def _merged(self, pieces: list[MarkedRun], nbytes: int) -> list[MarkedRun]:
        codes = np.concatenate([piece.codes for piece in pieces])
        order = np.argsort(codes, kind="stable")  # a merge: the pieces are sorted already
        ats = np.concatenate([piece.ats for piece in pieces])
        joined = np.concatenate([piece.joined for piece in pieces])
        rows = pa.concat_batches([piece.rows for piece in pieces])
        step = max(1, self._piece_bytes * len(codes) // nbytes)
        parts = (order[start : start + step] for start in range(0, len(order), step))
        return [
            MarkedRun(
                codes.take(part), ats.take(part), rows.take(pa.array(part)), joined.take(part)
            )
            for part in parts
        ]

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
        """Candidates among the rows in memory and the loaded ones; sets the bits of the former."""
        self._found = np.zeros(len(low), dtype=np.int64)
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
            if span is None:
                continue
            span.probing = span.probing + begin
            if isinstance(run, MarkedRun):
                np.add.at(self._found, span.probing, span.high - span.low)
                _mark(run.joined, span)
            yield run, span

    def take_found(self) -> Rows:
        """How many rows in memory each row of the last probe found."""
        found, self._found = self._found, np.zeros(0, dtype=np.int64)
        return found

    # -- taking rows out --------------------------------------------------------------------

    def count(self, low: int, high: int) -> int:
        """How many rows have codes in the inclusive range."""
        return sum(stop - start for start, stop in self._ranges(low, high))

    def count_regions(self, lower: int, upper: int) -> list[int]:
        """How many rows have codes up to `lower`, between the bounds, and from `upper` on."""
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
        spans = self._ranges(low, high)
        return self._remove(
            self._first([np.arange(i, min(j, i + count)) for i, j in spans], count, 1)
        )

    def take_highest(self, count: int, low: int, high: int) -> list[Run]:
        """Remove the `count` rows with the highest codes in the inclusive range, or all."""
        spans = self._ranges(low, high)
        return self._remove(
            self._first([np.arange(max(i, j - count), j) for i, j in spans], count, -1)
        )

    def take_unset(self, count: int, low: int, high: int) -> tuple[list[Run], int | None]:
        """The clock hand goes up the inclusive range until it has found `count` rows to remove.

        It removes those whose bit is not set and clears the bits of those it passes. Returns the
        code where it stopped, or None if it went through the whole range.
        """
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
        numbers = iter(range(len(self.runs)))
        for level in self._levels:
            for index, piece in enumerate(level):
                rows = chosen[next(numbers)]
                if not len(rows):
                    continue
                parts.append(Run(piece.codes.take(rows), piece.ats.take(rows), piece.gather(rows)))
                keep = np.ones(len(piece), dtype=np.bool_)
                keep[rows] = False
                level[index] = piece.select(np.flatnonzero(keep))
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
        assert (len(self), self.nbytes) == (super().__len__(), sum(r.nbytes for r in self.runs))


def _mark(joined: Bits, span: Span) -> None:
    """Set the bits of every position in the ranges of a span."""
    if ((span.high - span.low) == 1).all():
        joined[span.low] = True
        return
    edges = np.bincount(span.low, minlength=len(joined) + 1)
    edges = edges - np.bincount(span.high, minlength=len(joined) + 1)
    joined |= np.cumsum(edges[:-1]) > 0
