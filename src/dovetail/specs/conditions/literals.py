"""Constants as they are written, with the types that Spark gives them.

Only what means the same in every session: numbers, plain strings, TRUE, FALSE, NULL, dates,
timestamps without a zone, and intervals of days and less. For all else (a TIMESTAMP depends on the
session's time zone, a string with escapes on its settings) there is no literal here, and Spark
computes it.
"""

import datetime as dt
import re
from decimal import Decimal

import pyarrow as pa

from dovetail.kernel.predicates import Literal
from dovetail.kernel.predicates.types import INTERVAL

_NUMBER = re.compile(r"(-?)\s*(\d+\.?\d*|\.\d+)(e[+-]?\d+)?(bd|[lsyd])?", re.IGNORECASE)
_STRING = re.compile(r"'([^'\\]*)'|\"([^\"\\]*)\"")
_DATE = re.compile(r"date\s*['\"](\d{4}-\d\d-\d\d)['\"]", re.IGNORECASE)
_TIMESTAMP = re.compile(
    r"timestamp_ntz\s*['\"](\d{4}-\d\d-\d\d)(?:[ T](\d\d:\d\d:\d\d(?:\.\d{1,6})?))?['\"]",
    re.IGNORECASE,
)
_UNIT = r"(week|day|hour|minute|second|millisecond|microsecond)s?"
_PART = re.compile(rf"([+-]?\d+)\s*{_UNIT}\b", re.IGNORECASE)
_PARTS = rf"(?:[+-]?\d+\s*{_UNIT}\b\s*)+"
_INTERVAL = re.compile(
    rf"(?P<sign>-?)\s*interval\s*(?P<quote>['\"]?)\s*(?P<parts>{_PARTS})(?P=quote)", re.IGNORECASE
)
_QUOTED_NUMBER = re.compile(r"(interval\s*)['\"]\s*([+-]?\d+)\s*['\"]", re.IGNORECASE)
_WHOLE = {"l": pa.int64(), "s": pa.int16(), "y": pa.int8()}
_CONSTANTS = {"true": True, "false": False, "null": None}
_MOST_DIGITS = 38
_INT64_BITS = 64


def literal(text: str) -> Literal | None:
    """The constant that a text is, or None if Spark has to say what it is."""
    text = text.strip()
    if text.lower() in _CONSTANTS:
        value = _CONSTANTS[text.lower()]
        return Literal(value, pa.null() if value is None else pa.bool_())
    if found := _STRING.fullmatch(text):
        value_text = found[1] if found[1] is not None else found[2]
        # Spark puts the value of a setting in the place of ${...}
        return None if "${" in value_text else Literal(value_text, pa.string())
    if found := _NUMBER.fullmatch(text):
        return _number(found)
    try:
        return _time(text)
    except (ValueError, OverflowError):
        return None


def _number(found: re.Match[str]) -> Literal | None:
    sign, digits, exponent, suffix = found[1], found[2], found[3], (found[4] or "").lower()
    if suffix == "d" or (exponent and not suffix):
        return Literal(float(f"{sign}{digits}{exponent or ''}"), pa.float64())
    if exponent:
        return None
    if suffix in _WHOLE:
        return _fitting(sign + digits, _WHOLE[suffix]) if digits.isdigit() else None
    if digits.isdigit() and not suffix:
        for type_ in (pa.int32(), pa.int64()):
            if fitting := _fitting(sign + digits, type_):
                return fitting
    value = Decimal(sign + digits)
    _, places, power = value.as_tuple()
    assert isinstance(power, int)
    scale = max(-power, 0)
    precision = max(len(places), scale)
    return Literal(value, pa.decimal128(precision, scale)) if precision <= _MOST_DIGITS else None


def _fitting(digits: str, type_: pa.DataType) -> Literal | None:
    limit = 1 << (type_.bit_width - 1)
    return Literal(int(digits), type_) if -limit <= int(digits) < limit else None


def _time(text: str) -> Literal | None:
    if found := _DATE.fullmatch(text):
        return Literal(dt.date.fromisoformat(found[1]), pa.date32())
    if found := _TIMESTAMP.fullmatch(text):
        day = dt.date.fromisoformat(found[1])
        whole, _, fraction = (found[2] or "00:00:00").partition(".")
        time = dt.time.fromisoformat(whole).replace(microsecond=int(fraction.ljust(6, "0") or 0))
        return Literal(dt.datetime.combine(day, time), pa.timestamp("us"))
    text = _QUOTED_NUMBER.sub(r"\1\2 ", text, count=1)
    found = _INTERVAL.fullmatch(text)
    if not found:
        return None
    parts = _PART.findall(found["parts"])
    span = sum((int(n) * dt.timedelta(**{f"{unit.lower()}s": 1}) for n, unit in parts),
               dt.timedelta(0))  # fmt: skip
    if abs(span) // dt.timedelta(microseconds=1) >= 1 << (_INT64_BITS - 1):
        return None
    whole_days = all(unit.lower() in ("day", "week") for _, unit in parts)
    return Literal(-span if found["sign"] else span, INTERVAL, whole_days)
