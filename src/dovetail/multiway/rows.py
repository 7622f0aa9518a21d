"""Rows of one relation that can be joined: in memory, or in blocks that were read back.

`JoinRows` addresses them by slot and has, for each, the code of every join attribute; an index for
each attribute; and the rows themselves (`payload`). `RelationRows` are the rows of a relation in
memory, with the tick of arrival (`ticks`) and a join bit for each, and a mark on those that are on
disk as well. `Arriving` are rows about to join them. `Part` is rows of blocks, each with its ticks
of arrival and departure.

What a row in memory takes up besides itself, in bytes: for each join attribute its code (8), by
which statistics are kept and further relations probed, and its entry in the index, a code (8) and a
slot (4); a join bit (1) and a mark (1); and its part of the 8 of the run of rows it came with. So
it is 22 and a little with one attribute and 42 with two: with rows of 200 bytes, a tenth and a
sixth of what all takes up. The paper has 120 KB for six indexes of about 40,000 such rows, less
than 2 % (section 5.5): 3 bytes a row, which leaves no room for a pointer to each, let alone a code.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dovetail.kernel.keys import Codes, KeyCodec
from dovetail.kernel.runs import Run
from dovetail.multiway.arrays import compact, count_marks, extend
from dovetail.multiway.keyindex import BYTES_PER_ROW, MERGE_BYTES_PER_ROW, KeyIndex, Slots
from dovetail.multiway.payload import Chunk, Payload
from dovetail.multiway.spec import MultiWaySpec
from dovetail.multiway.ticks import BYTES_PER_RUN, ArrivalTicks, Ticks


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
        """The bytes of a row in memory besides the row, its part of the ticks apart."""
        return len(self) * (8 + BYTES_PER_ROW) + 2

    def arriving_bytes(self, rows: int) -> int:
        """The bytes of so many arriving rows besides the rows."""
        return self.index_bytes_per_row * rows + BYTES_PER_RUN

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
    """Rows by slot, with codes and indexes."""

    def __init__(self, codes: list[Codes], payload: Payload) -> None:
        self.codes = codes
        self.payload = payload
        self._index: list[KeyIndex | None] = [None] * len(codes)

    def __len__(self) -> int:
        return len(self.codes[0])

    def index(self, attribute: int) -> KeyIndex:
        found = self._index[attribute]
        if found is None:
            found = self._index[attribute] = KeyIndex()
            if len(self):
                found.insert(self.codes[attribute], 0)
        return found


class Arriving(JoinRows):
    """Rows that are just coming in, with a join bit each."""

    def __init__(self, codes: list[Codes], payload: Payload) -> None:
        super().__init__(codes, payload)
        self.bits = np.zeros(len(self), dtype=np.bool_)


class Part(JoinRows):
    """Rows of blocks. They do not change."""

    def __init__(self, codes: list[Codes], ats: Ticks, dts: Ticks, payload: Payload) -> None:
        super().__init__(codes, payload)
        self.ats = ats
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
        lined_up = cls.lined_up(parts)
        parts.clear()
        chunks, lined_up.payload = lined_up.payload.chunks, Payload()
        lined_up.payload = Payload.grouped(chunks, group_bytes)
        return lined_up

    @classmethod
    def lined_up(cls, parts: Sequence["Part"]) -> "Part":
        """Join parts into one; the rows stay where they are."""
        if len(parts) == 1:
            return parts[0]
        codes = [np.concatenate(some) for some in zip(*(p.codes for p in parts), strict=True)]
        ats = np.concatenate([part.ats for part in parts])
        dts = np.concatenate([part.dts for part in parts])
        return cls(codes, ats, dts, Payload([c for part in parts for c in part.payload.chunks]))

    def select(self, slots: Slots) -> "Part":
        """Some of the rows, in buffers of their own."""
        codes = [some.take(slots) for some in self.codes]
        rows = Payload([Chunk(self.payload.gather(slots))])
        return Part(codes, self.ats.take(slots), self.dts.take(slots), rows)


class RelationRows(JoinRows):
    """The rows of one relation in memory, with an index for each attribute."""

    def __init__(self, encoder: Encoder, merge_bytes: int) -> None:
        codes: list[Codes] = [np.zeros(0, dtype=np.int64) for _ in range(len(encoder))]
        super().__init__(codes, Payload(merge_bytes=merge_bytes))
        merge_rows = max(1, merge_bytes // MERGE_BYTES_PER_ROW)
        self._index = [KeyIndex(merge_rows) for _ in codes]
        self._encoder = encoder
        self.ats = ArrivalTicks()
        self.bits = np.zeros(0, dtype=np.bool_)
        self.copied = np.zeros(0, dtype=np.bool_)  #: rows that a block holds, too

    @property
    def indexes(self) -> list[KeyIndex]:
        return [self.index(attribute) for attribute in range(len(self.codes))]

    @property
    def nbytes(self) -> int:
        beside = self._encoder.index_bytes_per_row * len(self) + self.ats.nbytes
        return self.payload.nbytes + beside

    def insert(
        self, codes: list[Codes], ats: Ticks, rows: pa.RecordBatch | None, bits: NDArray[np.bool_]
    ) -> None:
        """Add rows that own their buffers; if `rows` is None, the caller adds these."""
        first = len(self)
        for attribute, some in enumerate(codes):
            self.index(attribute).insert(some, first)
            extend(self.codes[attribute], some)
        self.ats.append(ats)
        extend(self.bits, bits)
        extend(self.copied, np.zeros(len(ats), dtype=np.bool_))
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
        moved = count_marks(kept)
        moved -= 1
        for attribute, codes in enumerate(self.codes):
            self.index(attribute).remove(gone, moved)
            compact(codes, kept)
        self.ats.remove(moved)
        for marks in (self.bits, self.copied):
            compact(marks, kept)
        self.payload.remove(gone)

    def check(self) -> None:
        assert len(self) == len(self.bits) == len(self.copied) == len(self.payload)
        self.payload.check()
        self.ats.check(len(self))
        for attribute, codes in enumerate(self.codes):
            self.index(attribute).check(codes)
