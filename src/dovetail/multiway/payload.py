"""The payload: rows in Arrow, batches one behind the other, addressed by slot.

Rows that leave are not cut out of their batch at once, which would copy all of it for a few of
them; they stay as dead weight until a sixteenth of the batch is dead. `nbytes` counts them, for
they are in memory.

A batch remembers the block of a snapshot that holds it, and which of the block's rows it still
has; so a snapshot writes only batches that are new, and not those that have lost a row.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dovetail.kernel.probing import Rows
from dovetail.kernel.runs import FAN_IN, Block
from dovetail.kernel.slices import Sizes, sizes_in, unevenness
from dovetail.multiway.keyindex import Slots

Bits = NDArray[np.uint8]

_MOST_DEAD = 16  # one row in so many


@dataclass
class Chunk:
    """A batch, and which of its rows are dead."""

    rows: pa.RecordBatch
    block: Block | None = None
    origin: Bits | None = None  #: which rows of `block` are in `rows`, a bit each; None: all
    _dead: Slots = field(default_factory=lambda: np.zeros(0, dtype=np.int32), init=False)
    _nbytes: int = field(default=-1, init=False)  # asking Arrow is slow

    def __len__(self) -> int:
        return int(self.rows.num_rows) - self.dead

    @property
    def nbytes(self) -> int:
        """Of the batch, with the dead."""
        if self._nbytes < 0:
            self._nbytes = int(self.rows.nbytes)
        return self._nbytes

    @property
    def bytes_beside(self) -> int:
        """Of what is kept about the batch."""
        return self._dead.nbytes + (0 if self.origin is None else self.origin.nbytes)

    @property
    def dead(self) -> int:
        return len(self._dead)

    def places(self, slots: Slots) -> Slots:
        """Where in the batch these of the rows alive are."""
        if not self.dead:
            return slots
        before = self._dead - np.arange(self.dead, dtype=np.int32)  # how many alive, of each
        return slots + np.searchsorted(before, slots, side="right")

    @property
    def _alive(self) -> Slots:
        return self.places(np.arange(len(self), dtype=np.int32))

    def drop(self, gone: NDArray[np.bool_]) -> None:
        """Let the marked ones of the rows alive die."""
        dying = self.places(np.flatnonzero(gone))
        self._dead = np.sort(np.concatenate([self._dead, dying.astype(np.int32)]))
        if self.dead * _MOST_DEAD >= self.rows.num_rows:
            self.compact()

    def compact(self) -> None:
        if not self.dead:
            return
        if self.block is not None:
            count = int(self.block["rows"])
            positions = self.in_block()
            if 2 * len(positions) < count:
                self.block = self.origin = None  # not worth keeping: it is written anew
            else:
                self.origin = pack(positions, count)
        self.rows, self._dead = self.rows.take(pa.array(self._alive)), self._dead[:0].copy()
        self._nbytes = -1

    def in_block(self) -> Slots:
        """Where in its block the rows alive are."""
        if self.origin is None or self.block is None:
            return self._alive
        return unpack(self.origin, int(self.block["rows"])).take(self._alive)


def pack(positions: Slots, count: int) -> Bits:
    """Some of `count` positions, a bit each."""
    mask = np.zeros(count, dtype=np.bool_)
    mask[positions] = True
    return np.packbits(mask)


def unpack(bits: Bits, count: int) -> Rows:
    """Which of `count` positions these are."""
    return np.flatnonzero(np.unpackbits(bits, count=count))


class Payload:
    """The rows of one relation by slot."""

    def __init__(self, chunks: Sequence[Chunk] = (), merge_bytes: int = 0) -> None:
        self.chunks = list(chunks)
        self._merge_bytes = merge_bytes
        self.changed()

    def changed(self) -> None:
        """To be called when chunks were changed from outside."""
        self._known_starts: Rows | None = None
        self._known_bytes = -1  # many live too briefly to be asked about
        self._sizes: Sizes | bool | None = False

    @property
    def _starts(self) -> Rows:
        if self._known_starts is None:
            self._known_starts = np.cumsum([0, *(len(chunk) for chunk in self.chunks)])
        return self._known_starts

    @property
    def _nbytes(self) -> int:
        if self._known_bytes < 0:
            self._known_bytes = sum(chunk.nbytes for chunk in self.chunks)
        return self._known_bytes

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def nbytes(self) -> int:
        """With the dead, and with what is kept about the batches."""
        return self._nbytes + sum(chunk.bytes_beside for chunk in self.chunks)

    @classmethod
    def grouped(cls, chunks: list[Chunk], group_bytes: int) -> "Payload":
        """Chunks without dead rows, put together in groups of so many bytes; uses the list up."""
        chunks.reverse()
        groups: list[Chunk] = []
        while chunks:
            group = [chunks.pop().rows]
            nbytes = group[0].nbytes
            while chunks and nbytes + chunks[-1].rows.nbytes <= group_bytes:
                group.append(chunks.pop().rows)
                nbytes += group[-1].nbytes
            groups.append(Chunk(group[0] if len(group) == 1 else pa.concat_batches(group)))
        return cls(groups)

    def restore(self, chunk: Chunk) -> None:
        """Add rows that a block holds; they are not merged with others."""
        self.chunks.append(chunk)
        self.changed()

    def append(self, rows: pa.RecordBatch) -> None:
        """Add rows that own their buffers, behind all others."""
        self.chunks.append(Chunk(rows))
        while len(self.chunks) >= FAN_IN:
            tail = self.chunks[-FAN_IN:]
            sizes = [len(chunk) for chunk in tail]
            nbytes = sum(chunk.nbytes for chunk in tail)
            if sizes[0] > sum(sizes[1:]) or nbytes > self._merge_bytes:
                break
            for chunk in tail:
                chunk.compact()
            self.chunks[-FAN_IN:] = [Chunk(pa.concat_batches([chunk.rows for chunk in tail]))]
        self.changed()

    def remove(self, gone: NDArray[np.bool_]) -> None:
        """Take out the slots that are marked; those behind them move up."""
        for chunk, start, stop in self._spans():
            part = gone[start:stop]
            if part.any():
                chunk.drop(part)
        self.chunks = [chunk for chunk in self.chunks if len(chunk)]
        self.changed()

    def compact(self) -> bool:
        """Give up the dead; False if there were none."""
        dead = [chunk for chunk in self.chunks if chunk.dead]
        for chunk in dead:
            chunk.compact()
        self.changed()
        return bool(dead)

    def gather(self, slots: Slots, columns: Sequence[int] | None = None) -> pa.RecordBatch:
        """Gather rows, one at least, or some columns of them, in buffers of their own."""
        if len(self.chunks) == 1:
            return _take(self.chunks[0], slots, columns)
        number = np.searchsorted(self._starts, slots, side="right") - 1
        order = np.argsort(number, kind="stable")
        cuts = np.searchsorted(number[order], np.arange(len(self.chunks) + 1))
        parts = [
            _take(chunk, slots[order[a:b]] - start, columns)
            for (chunk, start, _), a, b in zip(self._spans(), cuts[:-1], cuts[1:], strict=True)
            if a < b
        ]
        if len(parts) == 1:
            return parts[0]
        back = np.empty(len(order), dtype=np.int64)
        back[order] = np.arange(len(order))
        return pa.concat_batches(parts).take(pa.array(back))

    @property
    def row_bytes(self) -> int:
        """Of a mean row."""
        return self._nbytes // max(1, sum(int(chunk.rows.num_rows) for chunk in self.chunks)) + 1

    @property
    def sizes(self) -> Sizes | None:
        """The bytes of each row; None if the mean says enough."""
        if isinstance(self._sizes, bool):
            found = [_sizes(chunk) for chunk in self.chunks]
            variable = [sizes for _, sizes in found if sizes is not None]
            lengths = None
            if variable and len(variable) == len(found):
                lengths = unevenness(np.concatenate(variable))
            if lengths is not None:
                lengths = lengths + math.ceil(found[0][0])
            self._sizes = lengths
        assert not isinstance(self._sizes, bool)
        return self._sizes

    def check(self) -> None:
        assert all(len(chunk) for chunk in self.chunks)
        for chunk in self.chunks:
            assert chunk.dead * _MOST_DEAD < chunk.rows.num_rows, "too much dead weight"

    def _spans(self) -> list[tuple[Chunk, int, int]]:
        starts = self._starts.tolist()
        return list(zip(self.chunks, starts[:-1], starts[1:], strict=True))


def _take(chunk: Chunk, slots: Slots, columns: Sequence[int] | None) -> pa.RecordBatch:
    rows = chunk.rows if columns is None else chunk.rows.select(list(columns))
    return rows.take(pa.array(chunk.places(slots)))


def _sizes(chunk: Chunk) -> tuple[float, Sizes | None]:
    fixed, variable = sizes_in(chunk.rows.columns)
    if variable is not None and chunk.dead:
        variable = variable.take(chunk.places(np.arange(len(chunk))))
    return fixed, variable
