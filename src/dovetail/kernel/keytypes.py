"""Types of join keys: the common type of two keys, and the names of types in messages.

Numbers of different types are compared as Spark SQL compares them: integers as the wider of the
two, decimals with as many digits before and behind the point as either has, integers among decimals
as decimals, and all of them as doubles beside a float or a double. Only the comparison widens:
columns keep their types. What takes more than 38 digits is left to the user, because Spark would
round there.
"""

import re
from collections.abc import Sequence

import pyarrow as pa

from dovetail.errors import KeyTypeError

_DIGITS = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 20}  # as Spark counts them
_MOST_DIGITS = 38
_NAMES = {
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.bool_(): "boolean",
    pa.date32(): "date",
    pa.null(): "void",
    pa.large_string(): "string",
    pa.large_binary(): "binary",
}


def common_type(one: pa.DataType, two: pa.DataType) -> pa.DataType | None:
    """The type that keys of these types are compared as; None if one has to be cast first."""
    if one == two:
        return one
    if not (_is_number(one) and _is_number(two)):
        return None
    if pa.types.is_floating(one) or pa.types.is_floating(two):
        return pa.float64()
    if one in _DIGITS and two in _DIGITS:
        return max(one, two, key=lambda type_: type_.bit_width)
    shapes = [_shape(type_) for type_ in (one, two)]
    scale = max(scale for _, scale in shapes)
    digits = max(digits - scale for digits, scale in shapes) + scale
    return pa.decimal128(digits, scale) if digits <= _MOST_DIGITS else None


def compared_types(
    left: pa.Schema, right: pa.Schema, left_keys: Sequence[str], right_keys: Sequence[str]
) -> tuple[pa.DataType, ...]:
    """The common type of each pair of keys, as Spark compares them."""
    found = []
    for a, b in zip(left_keys, right_keys, strict=True):
        one, two = left.field(a).type, right.field(b).type
        type_ = common_type(one, two)
        if type_ is None:
            raise KeyTypeError(f"{a!r}, {name_of(one)}, and {b!r}, {name_of(two)}, differ in type")
        found.append(type_)
    return tuple(found)


def widened(column: pa.Array, type_: pa.DataType) -> pa.Array:
    """A key column in the type that it is compared as."""
    if column.type == type_:
        return column
    if pa.types.is_decimal(column.type) and pa.types.is_floating(type_):
        column = column.cast(pa.string())  # Arrow's own cast is off by a bit for one in four
    return column.cast(type_, safe=False)  # a long beyond 2^53 is the nearest double, as in Spark


def name_of(type_: pa.DataType) -> str:
    """A type as Spark SQL calls it."""
    if type_ in _NAMES:
        return _NAMES[type_]
    if pa.types.is_decimal(type_):
        return f"decimal({type_.precision},{type_.scale})"
    if pa.types.is_timestamp(type_):
        return "timestamp" if type_.tz else "timestamp_ntz"
    if pa.types.is_duration(type_):
        return "interval day to second"
    if is_variant(type_):
        return "variant"
    return str(type_)


def is_variant(type_: pa.DataType) -> bool:
    """Whether this type is Spark's VARIANT as it appears in Arrow."""
    if not pa.types.is_struct(type_) or {f.name for f in type_} != {"value", "metadata"}:
        return False
    return (type_.field("metadata").metadata or {}).get(b"variant") == b"true"


def cast_of(one: tuple[str, str, pa.DataType], two: tuple[str, str, pa.DataType]) -> str:
    """Python that gives one of two columns the type of the other; each is (frame, name, type).

    A string becomes what it is compared with, a date a timestamp, a time without a zone one with
    the session's.
    """

    def rank(type_: pa.DataType) -> int:
        order = ("string", "void", "date", "timestamp_ntz")
        return order.index(name_of(type_)) if name_of(type_) in order else len(order)

    (frame, name, _), target = (one, two[2]) if rank(one[2]) < rank(two[2]) else (two, one[2])
    column = name if name.isidentifier() else f"`{name}`"
    return f"{frame}.withColumn({name!r}, {frame}[{column!r}].cast({name_of(target)!r}))"


def number_type(text: str) -> pa.DataType | None:
    """The type of a number that Arrow prints as this; None if it is none of a number."""
    decimal = re.fullmatch(r"decimal128\((\d+), (\d+)\)", text)
    if decimal:
        return pa.decimal128(*map(int, decimal.groups()))
    return {str(type_): type_ for type_ in (*_DIGITS, pa.float32(), pa.float64())}.get(text)


def _is_number(type_: pa.DataType) -> bool:
    return type_ in _DIGITS or pa.types.is_floating(type_) or pa.types.is_decimal128(type_)


def _shape(type_: pa.DataType) -> tuple[int, int]:
    """The digits of a number, and how many of them are behind the point."""
    return (_DIGITS[type_], 0) if type_ in _DIGITS else (type_.precision, type_.scale)
