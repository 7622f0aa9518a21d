"""Routes of a band join: keys are cut into cells, and cells are hashed to partitions.

Key values are cut into cells, `BANDS_IN_A_CELL` times as wide as the band, and cells are spread
over the partitions by hash. A left row goes to its own cell; a right row to every cell that holds
a left value it can match, which is one, or two near a border. A left row is in one partition only
and every right row it matches is there too, once: so each pair is emitted exactly once.

Cells need no sample of the data, and keys that grow with time go on to fill all partitions, where
a fixed cut of the value range would send every new row to the last one (docs/decisions/008).

Whole numbers, dates, timestamps and decimals are cut exactly. Floats are cut with a margin for
every rounding that the predicate may do: a right row goes to a cell too many rather than too few.
"""

import math

import numpy as np
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    TimestampNTZType,
    TimestampType,
)

from dovetail.costs.shares import BANDS_IN_A_CELL
from dovetail.kernel.protocol import LEFT
from dovetail.spark.layout import part_of

_LONG = np.iinfo(np.int64)
_FARTHEST_CELL = 2.0**45  # floats beyond share one: their distance is lost in rounding
_ROUNDING = 1 + 1e-6  # of a difference of two floats, many times over
_ULP = 2.0**-50


def band_partitions(
    key: Column, type_: DataType, within: int | float, partitions: int, side: int
) -> Column:
    """The partitions of a row, an array: one of a left row, one or two of a right row."""
    chosen = [part_of(hash_, partitions) for hash_ in band_hashes(key, type_, within, side)]
    return F.array_distinct(F.array(*chosen))


def band_hashes(key: Column, type_: DataType, within: int | float, side: int) -> list[Column]:
    """The hashes of the cells that a row goes to, two at the most, which may be the same."""
    if isinstance(type_, (FloatType, DoubleType)):
        cells = _float_cells(key.cast("double"), float(within), side)
    else:
        number = _whole_number(key, type_)
        cells = [F.lit(0)] if number is None else _whole_cells(number, int(within), side)
    return [F.hash(cell) for cell in cells]


def _whole_cells(number: Column, within: int, side: int) -> list[Column]:
    width = max(1, within) * BANDS_IN_A_CELL
    if width > int(_LONG.max):
        return [F.lit(0)]

    def cell(value: Column) -> Column:
        # rounds towards 0, so the cells on both sides of it are one
        return F.call_function("div", value, F.lit(width).cast(LongType()))

    if side == LEFT:
        return [cell(number)]
    least, most = (F.lit(int(end)).cast(LongType()) for end in (_LONG.min, _LONG.max))
    reach = F.lit(within).cast(LongType())
    low = F.when(number < least + reach, least).otherwise(number - reach)
    high = F.when(number > most - reach, most).otherwise(number + reach)
    return [cell(low), cell(high)]


def _float_cells(value: Column, within: float, side: int) -> list[Column]:
    width = within * BANDS_IN_A_CELL
    if within == 0:
        return [value + F.lit(0.0)]  # an equality; -0.0 is 0.0
    if math.isinf(width):
        return [F.lit(0)]

    def cell(end: Column) -> Column:
        near = F.least(
            F.greatest(end / F.lit(width), F.lit(-_FARTHEST_CELL)), F.lit(_FARTHEST_CELL)
        )
        return F.floor(near)

    if side == LEFT:
        return [cell(value)]
    margin = F.least(F.abs(value), F.lit(1e300)) * F.lit(_ULP) + F.lit(within * _ROUNDING)
    return [cell(value - margin), cell(value + margin)]


def _whole_number(key: Column, type_: DataType) -> Column | None:
    """A key as the integer that the band is measured in; None: this type is not split."""
    if isinstance(type_, (ByteType, ShortType, IntegerType, LongType)):
        return key.cast(LongType())
    if isinstance(type_, DateType):
        return F.unix_date(key).cast(LongType())
    if isinstance(type_, TimestampType):
        return F.unix_micros(key)
    if isinstance(type_, TimestampNTZType):
        epoch = F.expr("TIMESTAMP_NTZ '1970-01-01 00:00:00'")
        return F.timestamp_diff("MICROSECOND", epoch, key)
    if isinstance(type_, DecimalType):
        unscaled = key.cast(DecimalType(38, type_.scale)) * F.lit(10**type_.scale)
        return unscaled.cast(LongType())
    return None
