"""Checks of the contents of messages between sites, by kind.

A message of another host is checked against this before it is written down, so that what a peer
claims, and not only how it is encoded, can neither stop a site nor make it keep what never ends.
What depends on all that was said before (a count of a key that is not known, say) is found when
the message is taken in; the site then stops, and the message is not in its journal.
"""

import json
from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dovetail.errors import ArgumentError
from dovetail.multisite.messages import MOST_OPEN, SEPARATOR, Header, Kind, Message
from dovetail.multisite.plan import Plan
from dovetail.multisite.query import MOST_TIME, Query, Stream, check_times
from dovetail.multisite.statistics import join_columns

_MOST_NUMBER = 1 << 62  # of a row
_MOST_REPORTS = 1 << 16  # intervals of steps in one report
_ANY = -(1 << 63)

_EMPTY = ("reset", "frozen", "dropped")
#: the parts that a kind may have, and those of which it must have one
_MAY: Mapping[Kind, frozenset[str]] = {
    Kind.UPDATE: frozenset({"rows", "numbers", "clock"}),
    Kind.PROBE: frozenset({"probe", "rows", "numbers", "refs"}),
    Kind.KEYS: frozenset({"keys", "bloom", "size"}),
    Kind.ROWS: frozenset({"rows", "numbers"}),
    Kind.FOUND: frozenset({"found", "bits"}),
    Kind.PASSED: frozenset({"passed"}),
    Kind.PREPARE: frozenset({"plan"}),
    Kind.READY: frozenset({"reached"}),
}
_MUST: Mapping[Kind, frozenset[str]] = {
    Kind.PROBE: frozenset({"probe", "rows", "refs"}),
    Kind.KEYS: frozenset({"keys", "bloom"}),
    Kind.PASSED: frozenset({"passed"}),
    Kind.PREPARE: frozenset({"plan"}),
}


def check_header(header: Header, query: Query) -> None:
    """Numbers that no site could have come to."""
    most = MOST_TIME // query.tau
    if not -most <= header.interval <= most:
        raise ArgumentError(f"a message of an interval beyond all times: {header}")
    counted = (header.expired, header.trimmed, header.first_row, header.first_ref)
    if min(counted) < 0 or max(counted) > _MOST_NUMBER:
        raise ArgumentError(f"a message that counts rows beyond all numbers: {header}")
    steps = MOST_OPEN + 1 if header.kind == Kind.UPDATE else max(1, len(query.names) - 1)
    if not (0 <= header.head < len(query.names) and 0 <= header.step < steps):
        raise ArgumentError(f"a message of a step that no plan has: {header}")


def check_parts(message: Message, query: Query, sender: Stream | None) -> None:
    """The parts of a message of a stream of a query, or of the planner."""
    kind, parts = message.header.kind, message.parts
    if kind in _MUST and not _MUST[kind] & set(parts):
        wanted = " or ".join(sorted(_MUST[kind]))
        raise ArgumentError(f"a message without {wanted}: {message.header}")
    if kind is Kind.STATISTICS and sender is not None:
        _check_statistics(message, query, sender)
        return
    known = _MAY.get(kind, frozenset())
    for name in parts:
        if kind is Kind.UPDATE and SEPARATOR in name and sender is not None:
            _check_of_key(message, name, query, sender)
        elif name not in known:
            raise ArgumentError(f"a message with a part {name!r} of no meaning: {message.header}")
        elif name in _CHECKS:
            _CHECKS[name](message, query, sender)
    if kind is Kind.PROBE:
        _check_probe(message, query, sender)


# --- one part -----------------------------------------------------------------------------------


def _bad(message: Message, name: str, why: str) -> ArgumentError:
    shown = name.replace(SEPARATOR, " of ", 1).replace(SEPARATOR, ", ")
    return ArgumentError(f"a message whose part {shown!r} {why}: {message.header}")


def _integers(
    message: Message, name: str, least: int = _ANY, most: int = _MOST_NUMBER,
    length: int | None = None,
) -> NDArray[np.int64]:  # fmt: skip
    """A part of one column of whole numbers, in bounds."""
    part = message.parts[name]
    if part.num_columns != 1 or not pa.types.is_integer(part.schema.types[0]):
        raise _bad(message, name, "is no column of whole numbers")
    column = part.column(0)
    if column.null_count:
        raise _bad(message, name, "has nulls")
    values = np.asarray(column)
    if length is not None and len(values) != length:
        raise _bad(message, name, f"has {len(values):,} numbers instead of {length:,}")
    if least != _ANY and len(values) and (int(values.min()) < least or int(values.max()) > most):
        raise _bad(message, name, "has numbers out of their range")
    if values.dtype == np.uint64 and len(values) and int(values.max()) > _MOST_NUMBER:
        raise _bad(message, name, "has numbers out of their range")
    return values.astype(np.int64)


def _bits(message: Message, name: str) -> None:
    part = message.parts[name]
    if part.schema.types != [pa.uint8()] or not part.num_rows or part.column(0).null_count:
        raise _bad(message, name, "is no string of bits")


def _bloom(message: Message, *_: object) -> None:
    _bits(message, "bloom")
    if "size" not in message.parts:
        raise _bad(message, "bloom", "comes without the number of its keys")


def _check_of_key(message: Message, name: str, query: Query, sender: Stream) -> None:
    """A part of an update that is of one key of the sender's window."""
    kind, *columns = name.split(SEPARATOR)
    if not columns or not set(columns) <= set(join_columns(query, sender.name)):
        raise _bad(message, name, "is of columns that nothing is joined by")
    key = SEPARATOR.join(columns)
    counts = f"counts{SEPARATOR}{key}"
    if kind == "counts":
        _integers(message, name, 0)
    elif kind == "places" and counts in message.parts:
        _integers(message, name, 0, length=message.parts[counts].num_rows)
    elif kind == "entries" and counts in message.parts:
        _integers(message, name)
    elif kind == "bloom" and f"keys{SEPARATOR}{key}" in message.parts:
        _bits(message, name)
    elif kind == "keys":
        _integers(message, name, 0, length=1)
    elif kind not in _EMPTY:
        raise _bad(message, name, "has no meaning by itself")


# --- rows ---------------------------------------------------------------------------------------


def check_columns(rows: pa.RecordBatch, streams: list[Stream]) -> None:
    """Rows must have the columns of these streams, in whichever order the streams are, and times
    that can be reckoned with.
    """
    found = rows.schema
    wanted = pa.schema([field for stream in streams for field in stream.qualified])
    fields = ({(field.name, field.type) for field in schema} for schema in (wanted, found))
    if len(found) != len(wanted) or next(fields) != next(fields):
        raise ArgumentError(
            f"a message with rows of {found.names} ({found.types}), but stream "
            f"{' and '.join(repr(s.name) for s in streams)} has {wanted.names} ({wanted.types})"
        )
    for stream in streams:
        check_times(stream, rows.column(stream.time_column))


def _rows(message: Message, _query: Query, sender: Stream | None) -> None:
    """Rows of the sender's window, with their numbers."""
    if sender is not None:
        check_columns(message.parts["rows"], [sender])
    if message.header.contiguous:
        return
    if "numbers" not in message.parts:
        raise _bad(message, "rows", "comes without its numbers")
    numbers = _integers(message, "numbers", 0, length=message.parts["rows"].num_rows)
    if (np.diff(numbers) <= 0).any():
        raise _bad(message, "numbers", "does not rise")


def _check_probe(message: Message, query: Query, sender: Stream | None) -> None:
    header = message.header
    probe = message.parts.get("probe")
    if probe is None:  # rows of the sender's window: new ones, or such as were sent before
        if sender is None or query.names[header.head] != sender.name or header.step:
            raise ArgumentError(f"a message with a window's rows for another's step: {header}")
        return
    named = {name.partition(".")[0] for name in probe.schema.names}
    joined = [stream for stream in query.streams if stream.name in named]
    if query.names[header.head] not in named or len(joined) != header.step + 1:
        raise ArgumentError(
            f"a message with rows of {', '.join(sorted(named))} for step {header.step} of "
            f"{query.names[header.head]!r}"
        )
    check_columns(probe, joined)


# --- progress, plans and statistics -------------------------------------------------------------


def _passed(message: Message, query: Query, *_: object) -> None:
    codes = _integers(message, "passed")
    if len(codes) > _MOST_REPORTS:
        raise _bad(message, "passed", f"has more than {_MOST_REPORTS:,} reports")
    heads, steps, intervals = (codes >> 8) & 0xFF, codes & 0xFF, codes >> 16
    count, most = len(query.names), MOST_TIME // query.tau
    if ((heads >= count) | (steps >= count - 1) | (np.abs(intervals) > most)).any():
        raise _bad(message, "passed", "names steps that no plan has")


def _plan(message: Message, query: Query, *_: object) -> None:
    part = message.parts["plan"]
    if part.schema.types != [pa.string()] or part.num_rows != 1 or part.column(0).null_count:
        raise _bad(message, "plan", "is no text")
    try:
        Plan.from_json(query, part.column(0)[0].as_py())
    except (json.JSONDecodeError, RecursionError, ValueError, TypeError, AttributeError) as error:
        raise _bad(message, "plan", f"is no plan of the query ({error})") from error


def _check_statistics(message: Message, query: Query, sender: Stream) -> None:
    columns = join_columns(query, sender.name)
    wanted = {"stream", *columns, *(f"{column} reach" for column in columns)}
    if set(message.parts) != wanted:
        raise ArgumentError(f"statistics of {sorted(message.parts)}, not of {sorted(wanted)}")
    (rate, size) = _numbers_of_one(message, "stream", [pa.float64(), pa.float64()])
    if not (0 <= rate <= _MOST_NUMBER and 0 <= size <= _MOST_NUMBER):  # nor NaN
        raise _bad(message, "stream", "has numbers out of their range")
    for column in columns:
        sample = message.parts[column]
        if sample.schema.types != [pa.int64(), pa.int32()] or any(
            values.null_count for values in sample.columns
        ):
            raise _bad(message, column, "is no sample of keys")
        if sample.num_rows and int(np.asarray(sample.column(1)).min()) < 0:
            raise _bad(message, column, "has counts below 0")
        name = f"{column} reach"
        reach, rows = _numbers_of_one(message, name, [pa.float64(), pa.int64()])
        if not (0 < reach <= 1 and 0 <= rows <= _MOST_NUMBER):
            raise _bad(message, name, "has numbers out of their range")


def _numbers_of_one(message: Message, name: str, types: list[pa.DataType]) -> list[float]:
    part = message.parts[name]
    if part.schema.types != types or part.num_rows != 1:
        raise _bad(message, name, "is not one row of numbers")
    values = [column[0].as_py() for column in part.columns]
    if None in values:
        raise _bad(message, name, "has nulls")
    return values


#: checks of parts by their names; `numbers` are checked with their rows, `probe` with its message
_CHECKS: Mapping[str, Callable[[Message, Query, Stream | None], object]] = {
    "rows": _rows,
    "clock": lambda message, *_: _integers(message, "clock", -MOST_TIME, MOST_TIME),
    "refs": lambda message, *_: _integers(message, "refs", 0),
    "keys": lambda message, *_: _integers(message, "keys"),
    "found": lambda message, *_: _integers(message, "found"),
    "size": lambda message, *_: _integers(message, "size", 0, length=1),
    "bloom": _bloom,
    "bits": lambda message, *_: _bits(message, "bits"),
    "reached": lambda message, *_: _integers(message, "reached", -MOST_TIME, MOST_TIME, length=1),
    "passed": _passed,
    "plan": _plan,
}
