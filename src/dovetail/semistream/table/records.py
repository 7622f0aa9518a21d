"""Table rows as records: all flat columns of a row lie together.

    record = nulls | fixed columns | lengths of the others | bytes of the others

A lookup picks single rows out of a large file. In columns, a row lies in as many places as it has
columns; as a record it lies in one, and is read in one request. Nulls are a bit a column, a boolean
is a byte. Records that are all as wide follow each other at that width; else a file of its own says
where each begins.

Columns that are not flat (lists, maps, structs) are not for records; `is_flat` tells.
"""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dovetail.kernel.probing import Rows

_NULLS = "nulls"
_LENGTH = np.dtype("<u4")
_NATIVE = {1: "u1", 2: "<u2", 4: "<u4", 8: "<u8"}  # what numpy copies fastest, by bytes


def is_flat(kind: pa.DataType) -> bool:
    """Whether values of this type are bytes, of a fixed number or not."""
    return _is_text(kind) or _width(kind) > 0


class RecordFormat:
    """The layout of records: rows with flat columns of these types are packed and unpacked."""

    def __init__(self, schema: pa.Schema) -> None:
        assert all(is_flat(field.type) for field in schema)
        self.schema = schema
        fields: list[Any] = [(_NULLS, "u1", (-(-len(schema) // 8),))]
        for index, field in enumerate(schema):
            width = _width(field.type)
            kind = _LENGTH if _is_text(field.type) else _NATIVE.get(width, f"V{width}")
            fields.append((_name(index), kind))
        self._head = np.dtype(fields)
        self._texts = [index for index, field in enumerate(schema) if _is_text(field.type)]

    @property
    def width(self) -> int | None:
        """The bytes of each record; None if they differ."""
        return None if self._texts else self._head.itemsize

    def encode(self, rows: pa.RecordBatch) -> tuple[pa.Buffer, Rows]:
        """Records, one after the other, and where each ends."""
        count = rows.num_rows
        heads = np.zeros(count, dtype=self._head)
        for index, column in enumerate(rows.columns):
            heads[_name(index)] = _lengths(column) if index in self._texts else _values(column)
            if column.null_count:
                nulls = column.is_null().to_numpy(zero_copy_only=False)
                heads[_NULLS][:, index // 8] |= nulls.astype(np.uint8) << (index % 8)
        ends = self._head.itemsize * np.arange(1, count + 1)
        data = pa.py_buffer(heads)
        if self._texts:
            head = pa.Array.from_buffers(pa.binary(self._head.itemsize), count, [None, data])
            texts = [rows.column(index).cast(pa.large_binary()) for index in self._texts]
            joined = pc.binary_join_element_wise(
                head.cast(pa.large_binary()),
                *texts,
                pa.scalar(b"", pa.large_binary()),
                null_handling="replace",
                null_replacement=b"",
            )
            ends = np.frombuffer(joined.buffers()[1], np.int64)[1 : count + 1]
            data = joined.buffers()[2].slice(0, int(ends[-1]) if count else 0)
        return data, ends

    def decode(self, data: pa.Buffer, begins: Rows, columns: Sequence[int]) -> list[pa.Array]:
        """Decode columns of the records that begin at these offsets, in ascending order."""
        size, count = self._head.itemsize, len(begins)
        heads = np.zeros(0, dtype=self._head)
        if count:
            found = slices(data, begins, np.full(count, size))
            heads = np.frombuffer(found.buffers()[2], self._head, count)
        places: dict[int, Rows] = {}
        at = begins + size
        for index in self._texts:
            places[index] = at
            at = at + heads[_name(index)]
        return [self._column(index, heads, data, places.get(index)) for index in columns]

    def _column(
        self, index: int, heads: NDArray[np.void], data: pa.Buffer, begins: Rows | None
    ) -> pa.Array:
        kind, count = self.schema.field(index).type, len(heads)
        nulls = (heads[_NULLS][:, index // 8] >> (index % 8) & 1).view(np.bool_)
        validity = _bits(~nulls) if nulls.any() else None
        values = heads[_name(index)]
        if begins is None:
            packed = pa.py_buffer(np.ascontiguousarray(values))
            if pa.types.is_boolean(kind):
                packed = _bits(values.astype(np.bool_))
            return pa.Array.from_buffers(kind, count, [validity, packed])
        found = slices(data, begins, values.astype(np.int64))
        _, offsets, text = found.buffers()
        if not _is_large(kind):
            offsets = pa.py_buffer(np.frombuffer(offsets, np.int64, count + 1).astype(np.int32))
        return pa.Array.from_buffers(kind, count, [validity, offsets, text])


def slices(data: pa.Buffer, begins: Rows, lengths: Rows) -> pa.Array:
    """Pieces of a buffer as values.

    Begins and ends in turn are offsets of values of which every second is a piece. The last offset
    belongs to none of these: it is there for Arrow, which goes by first and last to tell how much
    memory the pieces will take.
    """
    bounds = np.zeros(2 * len(begins) + 1, dtype=np.int64)
    bounds[:-1:2] = begins
    bounds[1::2] = begins + lengths
    bounds[-1] = min(bounds[0] + 2 * lengths.sum(), data.size)
    values = pa.Array.from_buffers(
        pa.large_binary(), 2 * len(begins), [None, pa.py_buffer(bounds), data]
    )
    return values.take(pa.array(np.arange(0, 2 * len(begins), 2)))


def _name(index: int) -> str:
    return f"c{index}"


def _width(kind: pa.DataType) -> int:
    """The bytes of a value of fixed width; 0 if it has none."""
    if pa.types.is_nested(kind) or pa.types.is_dictionary(kind) or pa.types.is_null(kind):
        return 0
    try:
        return -(-int(kind.bit_width) // 8)
    except ValueError:
        return 0


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind)) or _is_large(kind)


def _is_large(kind: pa.DataType) -> bool:
    return bool(pa.types.is_large_string(kind) or pa.types.is_large_binary(kind))


def _values(column: pa.Array) -> NDArray[Any]:
    """The values of a column of fixed width; any, where it is null."""
    data, width = column.buffers()[1], _width(column.type)
    if pa.types.is_boolean(column.type):
        bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
        return bits[column.offset : column.offset + len(column)]
    kind = _NATIVE.get(width, f"V{width}")
    return np.frombuffer(data, kind, len(column), column.offset * width)


def _lengths(column: pa.Array) -> Rows:
    lengths = pc.fill_null(pc.binary_length(column), 0)
    return cast("Rows", lengths.to_numpy(zero_copy_only=False))


def _bits(marks: NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(marks, bitorder="little"))
