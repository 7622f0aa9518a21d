"""Combinations to output batches of a bounded size."""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from dovetail.kernel.runs import Rows
from dovetail.multiway.combining import Combinations
from dovetail.multiway.rows import JoinRows

_MOST_ROWS = 1 << 17  # in one output batch


class Emitter:
    """Gathers rows, and puts small pieces together into batches of about `batch_bytes`."""

    def __init__(self, schema: pa.Schema, batch_bytes: int) -> None:
        self._schema = schema
        self._batch_bytes = batch_bytes
        self._done: list[pa.RecordBatch] = []
        self._held_bytes = 0
        self._counts_only = False
        self._counted = 0

    def count_only(self) -> None:
        """From now on, emit as many rows as there are results, but of one column of nulls.

        For whoever wants to know only how many there are: putting them together is what takes
        most of the time where there are many.
        """
        self._counts_only = True

    def add(
        self, sources: Sequence[JoinRows], combinations: Combinations
    ) -> Iterator[pa.RecordBatch]:
        """Take combinations in; emits what does not fit beside them."""
        if self._counts_only:
            self._counted += len(combinations[0])
            return
        for start, stop, nbytes in self._cuts(sources, combinations):
            if self._held_bytes and self._held_bytes + nbytes > self._batch_bytes:
                yield from self.drain()
            columns = [
                column
                for number, source in enumerate(sources)
                for column in source.payload.gather(combinations[number][start:stop]).columns
            ]
            self._done.append(pa.RecordBatch.from_arrays(columns, schema=self._schema))
            self._held_bytes += nbytes

    def drain(self) -> Iterator[pa.RecordBatch]:
        """What is left over, as one batch."""
        done, self._done, self._held_bytes = self._done, [], 0
        if self._counted:
            counted, self._counted = self._counted, 0
            yield pa.RecordBatch.from_arrays([pa.nulls(counted)], ["result"])
        elif done:
            yield done[0] if len(done) == 1 else pa.concat_batches(done)

    def _cuts(
        self, sources: Sequence[JoinRows], combinations: Combinations
    ) -> Iterator[tuple[int, int, int]]:
        """The combinations in parts that fit a batch, or of one row, and the size of each."""
        count = len(combinations[0])
        row_bytes = sum(source.payload.row_bytes for source in sources)
        lengths = self._lengths(sources, combinations)
        if lengths is None:
            step = max(1, min(self._batch_bytes // row_bytes, _MOST_ROWS))
            for start in range(0, count, step):
                stop = min(start + step, count)
                yield start, stop, (stop - start) * row_bytes
            return
        ends = np.cumsum(lengths + row_bytes)
        start = 0
        while start < count:
            before = int(ends[start - 1]) if start else 0
            fitting = int(np.searchsorted(ends, before + self._batch_bytes, side="right"))
            stop = min(max(fitting, start + 1), count)
            yield start, stop, int(ends[stop - 1]) - before
            start = stop

    @staticmethod
    def _lengths(sources: Sequence[JoinRows], combinations: Combinations) -> Rows | None:
        """The bytes of each combination's strings, if rows of any relation differ much in that."""
        known = [
            source.payload.lengths.take(combinations[number])
            for number, source in enumerate(sources)
            if source.payload.lengths is not None
        ]
        return np.sum(known, axis=0, dtype=np.int64) if known else None
