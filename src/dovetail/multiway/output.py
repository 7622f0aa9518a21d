"""Output of a multi-way join: combinations become batches of bounded size."""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from dovetail.kernel.slices import cuts
from dovetail.multiway.combining import Combinations
from dovetail.multiway.rows import JoinRows

_MOST_ROWS = 1 << 17  # in one output batch


class CombinationEmitter:
    """Gathers rows, and puts small pieces together into batches of about `batch_bytes`."""

    def __init__(self, schema: pa.Schema, batch_bytes: int) -> None:
        self._schema = schema
        self._batch_bytes = batch_bytes
        self._done: list[pa.RecordBatch] = []
        self._held_bytes = 0

    def add(
        self, sources: Sequence[JoinRows], combinations: Combinations
    ) -> Iterator[pa.RecordBatch]:
        """Take combinations in; emits what does not fit beside them."""
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
        """Emit the combinations that are left over, as one batch."""
        done, self._done, self._held_bytes = self._done, [], 0
        if done:
            yield done[0] if len(done) == 1 else pa.concat_batches(done)

    def _cuts(
        self, sources: Sequence[JoinRows], combinations: Combinations
    ) -> Iterator[tuple[int, int, int]]:
        """The combinations in parts that fit a batch, or of one row, and the size of each."""
        count = len(combinations[0])
        known = [source.payload.sizes for source in sources]
        if all(sizes is None for sizes in known):
            row_bytes = sum(source.payload.row_bytes for source in sources)
            step = max(1, min(self._batch_bytes // row_bytes, _MOST_ROWS))
            for start in range(0, count, step):
                stop = min(start + step, count)
                yield start, stop, (stop - start) * row_bytes
            return
        total = np.zeros(count, dtype=np.int64)
        for number, (source, sizes) in enumerate(zip(sources, known, strict=True)):
            total += source.payload.row_bytes if sizes is None else sizes.take(combinations[number])
        yield from cuts(total, self._batch_bytes)
