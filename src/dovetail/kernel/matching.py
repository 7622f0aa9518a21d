"""Pairs of row numbers to output batches.

`OutputLayout` says which columns of which side make up a result; `Emitter` gathers them, and
joins small pieces into batches of a useful size without ever holding more than one batch's worth.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dovetail.kernel.keys import KeyCodec
from dovetail.kernel.protocol import LEFT, RIGHT
from dovetail.kernel.runs import Rows, Run, Span

PairFilter = Callable[[Rows, Rows], NDArray[np.bool_]]  #: rows of each run -> which pairs are new


_MOST_PAIRS = 1 << 17  # in one output batch


@dataclass(frozen=True)
class OutputLayout:
    """The output columns: all of the left side's, then these of the right side's."""

    schema: pa.Schema
    right_columns: tuple[int, ...]

    def assemble(self, left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
        columns = [*left.columns, *(right.column(index) for index in self.right_columns)]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


class Emitter:
    """Turns candidate pairs into output batches of at most `batch_bytes`, or one row each."""

    def __init__(
        self, codec: KeyCodec, keys: tuple[Sequence[int], Sequence[int]], layout: OutputLayout,
        batch_bytes: int,
    ) -> None:  # fmt: skip
        self._codec = codec
        self._keys = keys
        self._layout = layout
        self._batch_bytes = batch_bytes
        self._pieces: list[pa.RecordBatch] = []
        self._piece_bytes = 0

    def match(
        self, probing: Run, stored: Run, span: Span, side: int, keep: PairFilter | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Emit the pairs of a span that `keep` keeps; `side` is the side of the probing rows."""
        # from the runs' mean row sizes: asking Arrow for every piece would cost more than it tells
        pair_bytes = probing.nbytes // len(probing) + stored.nbytes // len(stored) + 1
        limit = max(1, min(self._batch_bytes // pair_bytes, _MOST_PAIRS))
        for probe_rows, stored_rows in span.pairs(limit):
            if keep is not None:
                mask = keep(probe_rows, stored_rows)
                probe_rows, stored_rows = probe_rows[mask], stored_rows[mask]
            if not len(probe_rows):
                continue
            ends = [(probing.rows, probe_rows), (stored.rows, stored_rows)]
            batch = self._gather(*(ends if side == LEFT else reversed(ends)))
            if batch is not None:
                yield from self._add(batch, batch.num_rows * pair_bytes)

    def drain(self) -> Iterator[pa.RecordBatch]:
        """What is left over, as one batch."""
        if self._pieces:
            pieces, self._pieces, self._piece_bytes = self._pieces, [], 0
            yield pieces[0] if len(pieces) == 1 else pa.concat_batches(pieces)

    def _gather(
        self, left: tuple[pa.RecordBatch, Rows], right: tuple[pa.RecordBatch, Rows]
    ) -> pa.RecordBatch | None:
        left_rows, right_rows = (batch.take(pa.array(rows)) for batch, rows in (left, right))
        mask = self._codec.verify(
            [left_rows.column(index) for index in self._keys[LEFT]],
            [right_rows.column(index) for index in self._keys[RIGHT]],
        )
        if mask is not None and not mask.all():
            if not mask.any():
                return None
            chosen = pa.array(np.flatnonzero(mask))
            left_rows, right_rows = left_rows.take(chosen), right_rows.take(chosen)
        return self._layout.assemble(left_rows, right_rows)

    def _add(self, batch: pa.RecordBatch, nbytes: int) -> Iterator[pa.RecordBatch]:
        if self._piece_bytes + nbytes > self._batch_bytes:
            yield from self.drain()
        self._pieces.append(batch)
        self._piece_bytes += nbytes
