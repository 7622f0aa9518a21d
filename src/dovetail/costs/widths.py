"""Widths of rows: measured on a sample, or else by their types.

The width of a row is Arrow's, with `ASSUMED_BYTES` for a value whose width its type does not tell.
"""

from dataclasses import dataclass

import pyarrow as pa

from dovetail.kernel.runs import INDEX_BYTES_PER_ROW

ASSUMED_BYTES = 16  #: of a string or a binary
_ASSUMED_ITEMS = 4  # of a list or a map


@dataclass(frozen=True)
class RowWidth:
    """The bytes that a row takes in Arrow, on average."""

    nbytes: float
    source: str  #: where the number comes from

    @property
    def held_bytes(self) -> float:
        """With the index that a row in memory has."""
        return self.nbytes + INDEX_BYTES_PER_ROW


def row_width(schema: pa.Schema, sample: pa.Table | None = None) -> RowWidth:
    """The bytes of a row: measured on a sample, or else from the types."""
    if sample is not None and sample.num_rows:
        return RowWidth(sample.nbytes / sample.num_rows, f"measured on {sample.num_rows:,} rows")
    guessed = [field.name for field in schema if not _is_fixed(field.type)]
    total = sum(_value_bytes(field.type) for field in schema)
    if not guessed:
        return RowWidth(total, "by its types")
    return RowWidth(total, f"taking {ASSUMED_BYTES} bytes for a value of {', '.join(guessed)}")


def _value_bytes(type_: pa.DataType) -> float:
    if pa.types.is_null(type_):
        return 0
    if _is_fixed(type_):
        return float(type_.bit_width) / 8
    if pa.types.is_struct(type_):
        return sum(_value_bytes(type_.field(index).type) for index in range(type_.num_fields))
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return 4 + _ASSUMED_ITEMS * _value_bytes(type_.value_type)
    if pa.types.is_map(type_):
        return 4 + _ASSUMED_ITEMS * (_value_bytes(type_.key_type) + _value_bytes(type_.item_type))
    return 4 + ASSUMED_BYTES  # an offset, and the value


def _is_fixed(type_: pa.DataType) -> bool:
    try:
        return bool(type_.bit_width) and not pa.types.is_nested(type_)
    except ValueError:  # Arrow's way of saying no
        return pa.types.is_null(type_)  # type: ignore[no-any-return]


def filler(width: int, rows: int) -> pa.Array:
    """Values of this many bytes, which make rows as wide as they are to be."""
    return pa.repeat(pa.scalar(bytes(width), pa.binary(width)), rows)


def columns_of(schema: pa.Schema) -> str:
    """Names and types in one line."""
    return ", ".join(f"{field.name} {field.type}" for field in schema)
