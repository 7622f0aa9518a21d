"""The union layout: all inputs in one row format.

Spark ships the inputs and the clock through one shuffle, so their rows need one schema: a tag,
then *slots*. Columns of the same type share a slot, so that a row carries few nulls for the others'
columns. Behind the shuffle the tag also tells the partition, which a task cannot know
otherwise once its stage has been coalesced or united with another.

    tag = partition << 5 | copy << 4 | side

A row that goes to several partitions is a copy in all but one of them, so that it counts once.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import (
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    NumericType,
    StructType,
)

from dovetail.errors import ArgumentError

_BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
TAG = "__dovetail_tag"
_SIDE_BITS, _TAG_BITS = 4, 5
Keys = tuple[list[Column], list[DataType]]  #: and the types that they are compared as
_SIDE = (1 << _SIDE_BITS) - 1
_COPY = 1 << _SIDE_BITS
CLOCK = (1 << _TAG_BITS) - 1  #: the tag of a tick; the sides count from 0
LAST_ROWS = CLOCK - 1  #: that of a tick of a query that ends with the rows it has


@dataclass(frozen=True)
class UnionLayout:
    """The slot that each column of each side travels in."""

    slots: tuple[tuple[int, ...], ...]
    slot_types: tuple[DataType, ...]

    def tagged(self, frame: DataFrame, side: int) -> DataFrame:
        """A side's rows in the common format, columns without a value as nulls."""
        return self._in_slots(
            frame, F.lit(side), dict(zip(self.slots[side], frame.columns, strict=True))
        )

    def ticks(self, clock: DataFrame) -> DataFrame:
        """The clock's rows (the partition to wake, whether the query ends) in the common format."""
        tick = F.when(F.col("ends"), LAST_ROWS).otherwise(CLOCK)
        return self._in_slots(clock, F.shiftleft("partition", _TAG_BITS) + tick, {})

    def _in_slots(self, frame: DataFrame, tag: Column, by_slot: Mapping[int, str]) -> DataFrame:
        columns = [tag.cast(IntegerType()).alias(TAG)]
        for slot, type_ in enumerate(self.slot_types):
            name = by_slot.get(slot)
            value = F.lit(None).cast(type_) if name is None else frame[quoted(name)]
            columns.append(value.alias(_slot_name(slot)))
        return frame.select(columns)

    def column(self, side: int, column: int) -> Column:
        """A column of a side, as it travels."""
        return F.col(_slot_name(self.slots[side][column]))

    def keys(
        self, side: int, schema: StructType, names: Sequence[str], compared: Sequence[pa.DataType]
    ) -> "Keys":
        """Columns of a side as they travel, in the types that they are compared as."""
        columns = [self.column(side, schema.names.index(name)) for name in names]
        return _compared(columns, schema, names, compared)

    def split(
        self, batch: pa.RecordBatch, schemas: tuple[pa.Schema, ...]
    ) -> Iterator[tuple[int, int, pa.RecordBatch]]:
        """The rows of each side in a shuffled batch, and how many are copies; ticks carry none."""
        tags = np.asarray(batch.column(0)) & ((1 << _TAG_BITS) - 1)
        counts = np.bincount(tags, minlength=1 << _TAG_BITS)
        sides = tags & _SIDE
        for side in range(len(self.slots)):
            copies = int(counts[side | _COPY])
            count = counts[side] + copies
            if not count:
                continue
            columns = [batch.column(1 + slot) for slot in self.slots[side]]
            if count < len(tags):
                chosen = pa.array(np.flatnonzero(sides == side))
                columns = [column.take(chosen) for column in columns]
            yield (
                side,
                copies,
                pa.RecordBatch.from_arrays(
                    [
                        column if column.type == field.type else column.cast(field.type)
                        for column, field in zip(columns, schemas[side], strict=True)
                    ],
                    schema=schemas[side],
                ),
            )


def batch_rows(session: SparkSession) -> int:
    """The most rows that Spark hands over in one Arrow batch."""
    return int(session.conf.get(_BATCH_ROWS) or 10_000)


def quoted(name: str) -> str:
    """A column's name as Spark takes it, whatever signs are in it."""
    return f"`{name.replace('`', '``')}`"


def with_keys(frame: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Rows without a null in a key: the others match nothing and need not travel."""
    return frame.where(reduce(lambda a, b: a & b, (frame[quoted(k)].isNotNull() for k in keys)))


def arrow_schema(side: str, frame: DataFrame) -> pa.Schema:
    return arrow_types(side, frame.schema)


def arrow_types(side: str, schema: StructType) -> pa.Schema:
    try:
        return to_arrow_schema(schema, timezone="UTC")
    except PySparkException as error:
        raise ArgumentError(
            f"the {side} input has a column that cannot go through Arrow: {error}. Leave it out "
            "with select(), or cast it."
        ) from error


def union_layout(*schemas: StructType) -> UnionLayout:
    """Give every column of each side a slot, sharing slots between the sides by type."""
    assert len(schemas) <= LAST_ROWS & _SIDE
    slot_types: list[DataType] = []
    slots: list[tuple[int, ...]] = []
    for schema in schemas:
        free: dict[str, list[int]] = {}
        for slot, type_ in enumerate(slot_types):
            free.setdefault(type_.json(), []).append(slot)
        mine = []
        for field in schema:
            candidates = free.get(field.dataType.json(), [])
            if candidates:
                mine.append(candidates.pop(0))
            else:
                slot_types.append(field.dataType)
                mine.append(len(slot_types) - 1)
        slots.append(tuple(mine))
    return UnionLayout(tuple(slots), tuple(slot_types))


def keys_of(frame: DataFrame, names: Sequence[str], compared: Sequence[pa.DataType]) -> Keys:
    """Columns of a DataFrame, in the types that they are compared as."""
    columns = [frame[quoted(name)] for name in names]
    return _compared(columns, frame.schema, names, compared)


def _compared(
    columns: list[Column], schema: StructType, names: Sequence[str], compared: Sequence[pa.DataType]
) -> Keys:
    """Keys in the types that they are compared as, and these: equal ones have to go one way."""
    found: list[Column] = []
    targets: list[DataType] = []
    for key, name, as_type in zip(columns, names, compared, strict=True):
        type_ = schema[name].dataType
        # nothing but numbers is compared as anything else than what it is
        target = from_arrow_type(as_type) if isinstance(type_, NumericType) else type_
        found.append(key if target == type_ else key.cast(target))
        targets.append(target)
    return found, targets


def partition_of(keys: list[Column], types: list[DataType], partitions: int) -> Column:
    """The hash partition of a key, equal for keys that Spark calls equal."""
    return part_of(key_hash(keys, types), partitions)


def part_of(hash_: Column, parts: int) -> Column:
    """The part that a hash falls into, of so many."""
    return F.pmod(hash_, F.lit(parts)).cast(IntegerType())


def key_hash(keys: list[Column], types: list[DataType]) -> Column:
    """The hash of a key, an int, equal for keys that Spark calls equal."""
    normal = []
    for column, type_ in zip(keys, types, strict=True):
        if isinstance(type_, (FloatType, DoubleType)):
            zero = F.lit(0.0).cast(type_)
            nan = F.lit(float("nan")).cast(type_)
            column = F.when(F.isnan(column), nan).otherwise(column + zero)
        normal.append(column)
    return F.hash(*normal)


def mark_partition(shuffled: DataFrame) -> DataFrame:
    """Put the partition number into the tag, behind the shuffle."""
    tag = F.shiftleft(F.spark_partition_id(), _TAG_BITS) + F.col(TAG).bitwiseAND(
        (1 << _TAG_BITS) - 1
    )
    return shuffled.withColumn(TAG, tag.cast(IntegerType()))


def placed(frame: DataFrame, partitions: Column, target: str) -> DataFrame:
    """Each row once for every one of its partitions, an array, with that in the column `target`."""
    number = f"{target}_number"
    each = frame.select("*", F.posexplode(partitions).alias(number, target))
    tag = F.when(F.col(number) == 0, F.col(TAG)).otherwise(F.col(TAG).bitwiseOR(_COPY))
    return each.withColumn(TAG, tag).drop(number)


def woken_partition(tag: Column) -> Column:
    """The partition that a tick is for."""
    return F.shiftright(tag, _TAG_BITS)


def partition_in(batch: pa.RecordBatch) -> int:
    """The partition that a shuffled, non-empty batch belongs to."""
    return int(batch.column(0)[0].as_py()) >> _TAG_BITS


def are_last_rows(batch: pa.RecordBatch) -> bool:
    """Whether a shuffled batch has a tick of a query that ends with the rows it has."""
    tags = np.asarray(batch.column(0)) & ((1 << _TAG_BITS) - 1)
    return bool((tags == LAST_ROWS).any())


def _slot_name(slot: int) -> str:
    return f"c{slot}"
