"""Durations as text, `"5 minutes"`, parsed."""

import datetime as dt
import re

_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)", re.IGNORECASE)
_UNITS = {
    "microsecond": dt.timedelta(microseconds=1),
    "millisecond": dt.timedelta(milliseconds=1),
    "second": dt.timedelta(seconds=1),
    "minute": dt.timedelta(minutes=1),
    "hour": dt.timedelta(hours=1),
    "day": dt.timedelta(days=1),
    "week": dt.timedelta(weeks=1),
}
_SHORT = {"us": "microsecond", "ms": "millisecond", "s": "second", "sec": "second"}
_SHORT |= {"min": "minute", "h": "hour", "d": "day"}


def parse_span(text: str) -> dt.timedelta:
    """A span of time from `"5 minutes"`, `"1 hour 30 min"` or `"250ms"`; else a `ValueError`."""
    total = dt.timedelta(0)
    if not re.fullmatch(rf"\s*(?:{_SPAN.pattern}\s*)+", text, re.IGNORECASE):
        raise ValueError(f"not a span of time: {text!r}")
    for number, unit in _SPAN.findall(text):
        name = _SHORT.get(unit.lower(), unit.lower().removesuffix("s"))
        if name not in _UNITS:
            raise ValueError(f"{unit!r} is not a unit of time; units are {', '.join(_UNITS)}")
        total += float(number) * _UNITS[name]
    return total
