"""The condition and kind of a join of a stream with a table, and the columns of a result.

Semantics. `inner` and `left` emit pairs, `left` also rows without a match, with nulls; `semi` emits
the rows with a match and `anti` the rows without, each once.

Conditions. Equality and bands (`within`) come from the codec. A `condition` of any kind is a
function of two batches, pair by pair, and applies to the candidates that the keys leave. With no
key at all every row is a candidate of every other.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dovetail.errors import ArgumentError
from dovetail.kernel.keys import Codes, KeyCodec
from dovetail.kernel.keytypes import compared_types
from dovetail.kernel.matching import OutputLayout

INNER, LEFT_OUTER, SEMI, ANTI = HOWS = ("inner", "left", "semi", "anti")
STREAM, TABLE = 0, 1  #: the sides

Condition = Callable[[pa.RecordBatch, pa.RecordBatch], NDArray[np.bool_]]


@dataclass(frozen=True)
class SemiStreamSpec:
    """The condition of a join of a stream with a table, and the columns of a result."""

    stream: pa.Schema
    table: pa.Schema  #: the staged columns
    stream_keys: tuple[str, ...]
    table_keys: tuple[str, ...]
    how: str = INNER
    within: int | float | None = None
    condition: Condition | None = None
    ordered: bool = False  #: results in the order in which the rows came
    columns: tuple[str, ...] | None = None  #: of the table, to show; None is all

    def __post_init__(self) -> None:
        if self.how not in HOWS:
            raise ArgumentError(f"how={self.how!r} is none of {', '.join(HOWS)}")

    @cached_property
    def schemas(self) -> tuple[pa.Schema, pa.Schema]:
        return self.stream, self.table

    @cached_property
    def key_columns(self) -> tuple[list[int], list[int]]:
        return (
            [self.stream.get_field_index(name) for name in self.stream_keys],
            [self.table.get_field_index(name) for name in self.table_keys],
        )

    @cached_property
    def codec(self) -> KeyCodec:
        types = compared_types(self.stream, self.table, self.stream_keys, self.table_keys)
        return KeyCodec(types, self.within)

    @cached_property
    def exact(self) -> bool:
        """Whether every candidate is a match."""
        if self.condition is not None:
            return False
        floats = any(pa.types.is_floating(type_) for type_ in self.codec.types)
        return self.codec.exact and not (self.within is not None and floats)

    @cached_property
    def layout(self) -> OutputLayout:
        """A key of one name on both sides appears once, with the stream's value."""
        if self.how in (SEMI, ANTI):
            return OutputLayout(self.stream, ())
        shared = {a for a, b in zip(self.stream_keys, self.table_keys, strict=True) if a == b}
        shown = self.table.names if self.columns is None else self.columns
        columns = tuple(
            i for i, name in enumerate(self.table.names) if name in shown and name not in shared
        )
        fields = [self.table.field(index) for index in columns]
        if self.how == LEFT_OUTER:
            fields = [field.with_nullable(True) for field in fields]
        return OutputLayout(pa.schema([*self.stream, *fields]), columns)

    def encode(self, side: int, rows: pa.RecordBatch) -> tuple[Codes, NDArray[np.bool_] | None]:
        """The codes of a batch of one side, and which of its rows can match at all."""
        if not self.stream_keys:
            return np.zeros(rows.num_rows, dtype=np.int64), None
        return self.codec.encode([rows.column(index) for index in self.key_columns[side]])

    def candidates(self, codes: Codes) -> tuple[Codes, Codes]:
        return self.codec.candidates(codes) if self.stream_keys else (codes, codes)
