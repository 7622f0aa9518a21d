"""Pairs of row numbers to output batches.

`OutputLayout` says which columns of which side make up a result; `Emitter` gathers them, and
joins small pieces into batches of a useful size without ever holding more than one batch's worth.

A batch is sized by the mean row of the runs it is made of, unless their rows are wide or differ
much in size: then the sizes of the very rows count (`Run.sizes`).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dovetail.kernel.keys import KeyCodec
from dovetail.kernel.predicates import Predicate
from dovetail.kernel.probing import Rows, Span
from dovetail.kernel.protocol import LEFT, RIGHT
from dovetail.kernel.runs import Run
from dovetail.kernel.slices import cuts

PairFilter = Callable[[Rows, Rows], NDArray[np.bool_]]  #: rows of each run -> which pairs are new


_MOST_PAIRS = 1 << 17  # in one output batch


@dataclass(frozen=True)
class OutputLayout:
    """The output columns: the left side's, all or the first so many, then these of the right's."""

    schema: pa.Schema
    right_columns: tuple[int, ...]
    left_columns: int | None = None

    def assemble(self, left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
        columns = left.columns[: self.left_columns]
        columns += [right.column(index) for index in self.right_columns]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


class Emitter:
    """Turns candidate pairs into output batches of at most `batch_bytes`, or one row each."""

    def __init__(
        self, codec: KeyCodec, keys: tuple[Sequence[int], Sequence[int]], layout: OutputLayout,
        batch_bytes: int, residual: Predicate | None = None,
    ) -> None:  # fmt: skip
        self._codec = codec
        self._keys = keys
        self._layout = layout
        self._batch_bytes = batch_bytes
        self._residual = residual  # what pairs whose keys match have to satisfy besides
        self._probing: tuple[Run, int] | None = None  # whose pairs are still open, and its side
        self._open: list[tuple[Rows, pa.RecordBatch]] = []  # its rows, and what they join with
        self._done: list[pa.RecordBatch] = []
        self._held_bytes = 0

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
            even = len(probe_rows) * pair_bytes
            for part, nbytes in self._parts(probing, stored, probe_rows, stored_rows, even):
                yield from self._make_room(nbytes)
                self._add(probing, side, probe_rows[part], stored.gather(stored_rows[part]))
                self._held_bytes += nbytes

    def drain(self) -> Iterator[pa.RecordBatch]:
        """Emit the pairs that are left over, as one batch."""
        self._close()
        if self._done:
            done, self._done = self._done, []
            yield done[0] if len(done) == 1 else pa.concat_batches(done)
        self._held_bytes = 0

    def _parts(
        self, probing: Run, stored: Run, probe_rows: Rows, stored_rows: Rows, even: int
    ) -> Iterator[tuple[slice, int]]:
        """The pairs in parts that fit a batch, and the size of each; one part if rows are even."""
        ends = ((probing, probe_rows), (stored, stored_rows))
        if all(run.sizes is None for run, _ in ends):
            yield slice(None), even
            return
        sizes = np.full(len(probe_rows), 1)
        for run, rows in ends:
            sizes += run.nbytes // len(run) if run.sizes is None else run.sizes.take(rows)
        for start, stop, nbytes in cuts(sizes, self._batch_bytes):
            yield slice(start, stop), nbytes

    def _make_room(self, nbytes: int) -> Iterator[pa.RecordBatch]:
        if self._held_bytes and self._held_bytes + nbytes > self._batch_bytes:
            yield from self.drain()

    def _add(self, probing: Run, side: int, probe_rows: Rows, found: pa.RecordBatch) -> None:
        if self._probing != (probing, side):
            self._close()
            self._probing = (probing, side)
        self._open.append((probe_rows, found))

    def _close(self) -> None:
        """Gather the probing rows for all that they have been found to join with."""
        if self._probing is None:
            return
        (probing, side), self._probing = self._probing, None
        opened, self._open = self._open, []
        if len(opened) == 1:
            ((probe_rows, found),) = opened
        else:
            probe_rows = np.concatenate([rows for rows, _ in opened])
            found = pa.concat_batches([batch for _, batch in opened])
        del opened
        ends = (probing.gather(probe_rows), found)
        batch = self._assemble(*(ends if side == LEFT else ends[::-1]))
        if batch is not None:
            self._done.append(batch)

    def _assemble(self, left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch | None:
        """The results; candidates are left out whose keys differ after all, or by the residual."""
        pairs = left, right
        mask = self._codec.verify(
            [left.column(index) for index in self._keys[LEFT]],
            [right.column(index) for index in self._keys[RIGHT]],
        )
        if mask is not None:
            pairs = _chosen(pairs, mask)
        if self._residual is not None and pairs[LEFT].num_rows:
            pairs = _chosen(pairs, self._residual.mask(*pairs))
        return self._layout.assemble(*pairs) if pairs[LEFT].num_rows else None


def _chosen(
    pairs: tuple[pa.RecordBatch, pa.RecordBatch], mask: NDArray[np.bool_]
) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    if mask.all():
        return pairs
    chosen = pa.array(np.flatnonzero(mask))
    left, right = pairs
    return left.take(chosen), right.take(chosen)
