"""Rows of one relation that can be joined: those in memory, and those of blocks read back.

`JoinRows` addresses them by slot and has, for each, the code of every join attribute and the tick
of its arrival; an index for each attribute; and the rows themselves (`payload`). `Table` is what a
relation has in memory, with a join bit for each row, and a mark on those that are on disk as well.
`Arriving` is what is about to join them.
`Part` is rows of blocks, each with the tick of its departure.
"""

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dovetail.kernel.keys import Codes, KeyCodec
from dovetail.kernel.runs import Run, Span
from dovetail.multiway.keyindex import BYTES_PER_ROW, KeyIndex, Slots
from dovetail.multiway.payload import Chunk, Payload
from dovetail.multiway.spec import MultiWaySpec

Ticks = NDArray[np.int64]


class Encoder:
    """Codes of the join attributes of one input's rows."""

    def __init__(self, spec: MultiWaySpec, number: int) -> None:
        schema = spec.schemas[number]
        self._attributes: list[tuple[KeyCodec, list[int]]] = []
        for attribute, columns in enumerate(spec.attributes[number]):
            # of the edges on one attribute, a band is the strictest: in it NaN matches nothing
            codecs = sorted(
                (
                    spec.codecs[reach.edge]
                    for reach in spec.reaches[number]
                    if reach.parent_attribute == attribute
                ),
                key=lambda codec: codec.within is None,
            )
            self._attributes.append((codecs[0], [schema.get_field_index(c) for c in columns]))

    def __len__(self) -> int:
        return len(self._attributes)

    @property
    def index_bytes_per_row(self) -> int:
        """What a row in memory takes up besides itself: codes and index entries, tick, bit."""
        return len(self) * (8 + BYTES_PER_ROW) + 10

    def encode(self, rows: pa.RecordBatch) -> tuple[list[Codes], NDArray[np.bool_] | None]:
        """The codes of each attribute, and which rows can match at all (None: every row)."""
        found, valid = [], None
        for codec, columns in self._attributes:
            codes, some = codec.encode([rows.column(index) for index in columns])
            found.append(codes)
            if some is not None:
                valid = some if valid is None else valid & some
        return found, valid


class JoinRows:
    """Rows by slot, with codes, ticks and indexes."""

    def __init__(self, codes: list[Codes], ats: Ticks, payload: Payload) -> None:
        self.codes = codes
        self.ats = ats
        self.payload = payload
        self._index: list[KeyIndex | None] = [None] * len(codes)

    def __len__(self) -> int:
        return len(self.ats)

    def index(self, attribute: int) -> KeyIndex:
        found = self._index[attribute]
        if found is None:
            found = self._index[attribute] = KeyIndex()
            if len(self):
                found.insert(self.codes[attribute], 0)
        return found

    def probe(self, attribute: int, low: Codes, high: Codes) -> tuple[Slots, Span] | None:
        """See `KeyIndex.probe`."""
        return self.index(attribute).probe(low, high)


class Arriving(JoinRows):
    """Rows that are just coming in, with a join bit each."""

    def __init__(self, codes: list[Codes], ats: Ticks, payload: Payload) -> None:
        super().__init__(codes, ats, payload)
        self.bits = np.zeros(len(ats), dtype=np.bool_)


class Part(JoinRows):
    """Rows of blocks. They do not change."""

    def __init__(self, codes: list[Codes], ats: Ticks, dts: Ticks, payload: Payload) -> None:
        super().__init__(codes, ats, payload)
        self.dts = dts

    @classmethod
    def of(cls, run: Run, encoder: Encoder, dts: int) -> "Part":
        """The rows of a block that departed at `dts`."""
        codes, _ = encoder.encode(run.rows)  # rows that match nothing were never kept
        return cls(codes, run.ats, np.full(len(run), dts), Payload([Chunk(run.rows)]))

    @classmethod
    def joined(cls, parts: list["Part"], group_bytes: int) -> "Part":
        """All rows of several parts, one at least; the list is used up.

        Rows are put together in groups of so many bytes, so that no more of them are ever in
        memory twice.
        """
        if len(parts) == 1:
            return parts.pop()
        codes = [np.concatenate(some) for some in zip(*(p.codes for p in parts), strict=True)]
        ats = np.concatenate([part.ats for part in parts])
        dts = np.concatenate([part.dts for part in parts])
        payload = Payload.grouped([c for part in parts for c in part.payload.chunks], group_bytes)
        parts.clear()
        return cls(codes, ats, dts, payload)

    def select(self, slots: Slots) -> "Part":
        """Some of the rows, in buffers of their own."""
        codes = [some.take(slots) for some in self.codes]
        rows = Payload([Chunk(self.payload.gather(slots))])
        return Part(codes, self.ats.take(slots), self.dts.take(slots), rows)


class Table(JoinRows):
    """What one relation has in memory."""

    def __init__(self, encoder: Encoder, merge_bytes: int) -> None:
        none = np.zeros(0, dtype=np.int64)
        super().__init__([none] * len(encoder), none, Payload(merge_bytes=merge_bytes))
        self._encoder = encoder
        self.bits = np.zeros(0, dtype=np.bool_)
        self.copied = np.zeros(0, dtype=np.bool_)  #: rows that a block holds, too

    @property
    def nbytes(self) -> int:
        return self.payload.nbytes + self._encoder.index_bytes_per_row * len(self)

    def insert(
        self, codes: list[Codes], ats: Ticks, rows: pa.RecordBatch | None, bits: NDArray[np.bool_]
    ) -> None:
        """Add rows that own their buffers; without rows, whoever calls adds these."""
        first = len(self)
        for attribute, some in enumerate(codes):
            self.index(attribute).insert(some, first)
            self.codes[attribute] = np.concatenate([self.codes[attribute], some])
        self.ats = np.concatenate([self.ats, ats])
        self.bits = np.concatenate([self.bits, bits])
        self.copied = np.concatenate([self.copied, np.zeros(len(ats), dtype=np.bool_)])
        if rows is not None:
            self.payload.append(rows)

    def restore(self, chunk: Chunk, codes: list[Codes], ats: Ticks) -> None:
        """Bring rows of a snapshot back, which a block holds. Their join bits start anew."""
        self.insert(codes, ats, None, np.zeros(len(ats), dtype=np.bool_))
        self.payload.restore(chunk)

    def remove(self, slots: Slots) -> None:
        """Take these rows out of every index."""
        gone = np.zeros(len(self), dtype=np.bool_)
        gone[slots] = True
        kept = ~gone
        moved = np.cumsum(kept, dtype=np.int32) - 1
        for attribute in range(len(self.codes)):
            self.index(attribute).remove(gone, moved)
            self.codes[attribute] = self.codes[attribute][kept]
        self.ats, self.bits = self.ats[kept], self.bits[kept]
        self.copied = self.copied[kept]
        self.payload.remove(gone)

    def check(self) -> None:
        assert len(self) == len(self.bits) == len(self.copied) == len(self.payload)
        self.payload.check()
        for attribute, codes in enumerate(self.codes):
            self.index(attribute).check(codes)
