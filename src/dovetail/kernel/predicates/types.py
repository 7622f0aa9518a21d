"""The type of a call from the types of its arguments, as Spark SQL has it in ANSI mode.

Numbers of different types meet in their common type (`kernel.keytypes`). Decimals are added and
multiplied with all their digits; where Spark would have to round, because there are more than 38,
or always does, in `/` and `%`, the call is refused: the user says with a cast how to round.

A TIMESTAMP is a moment; Spark adds days to it, and subtracts it from another, in the time of the
session's zone. Where the clocks of that zone are changed (`fixed_zone` is false), only intervals
below a day are added to it here, for these do not depend on the zone.
"""

import datetime as dt

import pyarrow as pa

from dovetail.kernel.keytypes import common_type, is_variant

INTERVAL = pa.duration("us")
DAY = dt.timedelta(days=1)
_INT_DIGITS = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 20}  # as Spark counts them
_MOST_DIGITS = 38


def shared_type(*types: pa.DataType) -> pa.DataType | None:
    """The type in which values of these types are compared or chosen from; None if there is none.

    A NULL takes any type.
    """

    def both(one: pa.DataType | None, two: pa.DataType) -> pa.DataType | None:
        if one is None or pa.types.is_null(two):
            return one
        return two if pa.types.is_null(one) else common_type(one, two)

    found: pa.DataType | None = pa.null()
    for type_ in types:
        found = both(found, type_)
    return found


def is_comparable(type_: pa.DataType) -> bool:
    """Whether values of a type are compared here: those of atomic types."""
    return not (pa.types.is_nested(type_) or is_variant(type_))


def is_number(type_: pa.DataType) -> bool:
    return bool(type_ in _INT_DIGITS or pa.types.is_floating(type_) or is_decimal(type_))


def is_decimal(type_: pa.DataType) -> bool:
    return bool(pa.types.is_decimal128(type_))


def is_exact(type_: pa.DataType) -> bool:
    """Whether arithmetic on a type does not round."""
    return not pa.types.is_floating(type_)


def as_decimal(type_: pa.DataType) -> pa.DataType:
    """The decimal type that holds every number of an exact type."""
    return pa.decimal128(_INT_DIGITS[type_], 0) if type_ in _INT_DIGITS else type_


def numeric_type(operator: str, one: pa.DataType, two: pa.DataType) -> pa.DataType | None:
    """The type of a number and a number; None where Spark rounds decimals."""
    if pa.types.is_floating(one) or pa.types.is_floating(two):
        narrow = one == two == pa.float32() and operator != "/"
        return pa.float32() if narrow else pa.float64()
    if is_decimal(one) or is_decimal(two):
        return _decimal_type(operator, as_decimal(one), as_decimal(two))
    if operator == "/":
        return pa.float64()
    return max(one, two, key=lambda type_: type_.bit_width)


def _decimal_type(operator: str, one: pa.DataType, two: pa.DataType) -> pa.DataType | None:
    if operator in ("/", "%"):
        return None
    if operator == "*":
        digits, scale = one.precision + two.precision + 1, one.scale + two.scale
    else:
        scale = max(one.scale, two.scale)
        digits = max(one.precision - one.scale, two.precision - two.scale) + scale + 1
    return pa.decimal128(digits, scale) if digits <= _MOST_DIGITS else None


def time_type(
    operator: str,
    one: pa.DataType,
    two: pa.DataType,
    *,
    span: dt.timedelta | None = None,
    whole_days: bool = False,
    fixed_zone: bool = False,
) -> pa.DataType | None:
    """The type of times and intervals that are added or subtracted; None where that is refused.

    span: the interval, if it is a constant; whole_days: one of days and nothing smaller.
    """
    if operator not in ("+", "-"):
        return None
    if one == two:
        differ = operator == "-" and one != INTERVAL and _is_point(one)
        exact = one.tz is None or fixed_zone if pa.types.is_timestamp(one) else True
        return INTERVAL if (differ and exact) or one == INTERVAL else None
    if operator == "+" and one == INTERVAL:
        one, two = two, one
    if two != INTERVAL or not _is_point(one):
        return None
    if pa.types.is_date32(one):
        return one if whole_days else None
    within_a_day = span is not None and abs(span) < DAY
    return one if one.tz is None or fixed_zone or within_a_day else None


def _is_point(type_: pa.DataType) -> bool:
    return bool(pa.types.is_date32(type_) or (pa.types.is_timestamp(type_) and type_.unit == "us"))
