"""Checks of the arguments that every call has: keys, state, memory, partitions."""

import datetime as dt
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pyarrow as pa

from dovetail.errors import (
    ArgumentError,
    BandKeyError,
    ColumnClashError,
    KeyTypeError,
    MemoryBudgetError,
    UnknownColumnError,
)
from dovetail.kernel.keytypes import cast_of, common_type, name_of
from dovetail.kernel.memory import format_bytes, parse_bytes
from dovetail.kernel.protocol import SIDE_NAMES
from dovetail.kernel.spans import parse_span

UNBOUNDED = "unbounded"  #: as `memory=`

On = str | tuple[str, str] | Sequence[str | tuple[str, str]]


def state_path(state: str | Path, argument: str = "state") -> Path:
    """A state directory as a local path; other storage is refused by name."""
    text = str(state)
    if not text.strip():
        raise ArgumentError(f"{argument}= is empty; name a directory beside the query's checkpoint")
    url = urlparse(text)
    if "://" not in text and url.scheme != "file":
        return Path(text).absolute()
    if url.scheme != "file":
        raise ArgumentError(
            f"{argument}={text!r}: it has to be in a file system that every executor mounts; "
            f"{url.scheme}:// is not one. Use a local or shared path."
        )
    return Path(unquote(url.path)).absolute()


def key_names(
    left: pa.Schema, right: pa.Schema, on: On, sides: tuple[str, str] = SIDE_NAMES
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The key columns of both inputs, as these spell them; those of a pair can be compared."""
    for side, schema in zip(sides, (left, right), strict=True):
        _check_unique(side, schema)
    pairs = _key_pairs(on)
    left_keys = tuple(resolve(left, a, sides[0]) for a, _ in pairs)
    right_keys = tuple(resolve(right, b, sides[1]) for _, b in pairs)
    for a, b in zip(left_keys, right_keys, strict=True):
        one, two = left.field(a).type, right.field(b).type
        if common_type(one, two) is None:
            ends = ((sides[0], a, one), (sides[1], b, two))
            raise KeyTypeError(
                f"the join columns differ in type: {sides[0]} {a!r} is {name_of(one)}, {sides[1]} "
                f"{b!r} is {name_of(two)}; cast one of them, for example {cast_of(*ends)}"
            )
    return left_keys, right_keys


def _key_pairs(on: On) -> list[tuple[str, str]]:
    items: Any = [on] if isinstance(on, (str, tuple)) else on
    if not isinstance(items, Sequence) or not items:
        raise ArgumentError("on= names no column; give a name, a list of names, or pairs of names")
    pairs = []
    for item in items:
        pair = (item, item) if isinstance(item, str) else item
        named = isinstance(pair, (tuple, list)) and len(pair) == 2
        if not named or not all(isinstance(name, str) for name in pair):
            raise ArgumentError(
                f"on= takes a name, a list of names, or pairs ('left_column', 'right_column'); "
                f"{item!r} is none of these"
            )
        pairs.append((pair[0], pair[1]))
    return pairs


def _check_unique(side: str, schema: pa.Schema) -> None:
    if (name := _repeated(schema)) is not None:
        raise ColumnClashError(
            f"the {side} input has two columns named {name!r}; rename one of them first"
        )


def _repeated(schema: pa.Schema) -> str | None:
    """The first name that an earlier column has, in whatever case."""
    seen: set[str] = set()
    for name in schema.names:
        if name.lower() in seen:
            return str(name)
        seen.add(name.lower())
    return None


def resolve(schema: pa.Schema, name: str, side: str) -> str:
    """A column's name as the input spells it."""
    if name in schema.names:
        return name
    for candidate in schema.names:
        if candidate.lower() == name.lower():
            return str(candidate)
    raise UnknownColumnError(
        f"the {side} input has no column {name!r}; it has {', '.join(map(repr, schema.names))}"
    )


def check_clashes(
    left: pa.Schema,
    right: pa.Schema,
    left_keys: Sequence[str],
    right_keys: Sequence[str],
    sides: tuple[str, str] = SIDE_NAMES,
) -> None:
    """Refuse a name that two columns of the result would have."""
    shared = {a for a, b in zip(left_keys, right_keys, strict=True) if a == b}
    taken = {name.lower() for name in left.names}
    clashes = [n for n in right.names if n.lower() in taken and n not in shared]
    if clashes:
        raise ColumnClashError(
            f"both inputs have the column{'s' if len(clashes) > 1 else ''} "
            f"{', '.join(map(repr, clashes))}, not joined on as such; rename on one side, for "
            f"example {sides[1]}.withColumnRenamed({clashes[0]!r}, '{sides[1]}_{clashes[0]}')"
        )


def check_output(schema: pa.Schema) -> None:
    """Refuse a result in which the name that a key of a band gets is also another column's."""
    if (name := _repeated(schema)) is not None:
        raise ColumnClashError(
            f"two columns of the result would be named {name!r}: the keys of a band that share "
            "their name get that of their side in front; rename a key, for example "
            "right.withColumnRenamed('key', 'other_key') with on=('key', 'other_key'), or the "
            "other column"
        )


def check_how(how: Any, call: str, known: Sequence[str]) -> None:
    """Refuse a kind of join that a call does not do."""
    if how not in known:
        raise ArgumentError(
            f"how={how!r} is not supported by {call}; it does {', '.join(map(repr, known))}"
        )


def checked_partitions(asked: Any, default: int) -> int:
    """The number of partitions: as asked for, or else the default."""
    return default if asked is None else checked_whole(asked, "partitions")


def checked_whole(value: Any, name: str) -> int:
    """A whole number above 0."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ArgumentError(f"{name}={value!r} is not a whole number of 1 or more")
    return value


def checked_memory(
    memory: str | int | None, partitions: int, least_each: int, default: int | None = None
) -> int | None:
    """The budget in bytes, over all partitions; None is unbounded.

    default: where none is named; None for unbounded.
    """
    least = least_each * partitions
    if memory is None:
        return None if default is None else max(default, least)
    if isinstance(memory, str) and memory.strip().lower() == UNBOUNDED:
        return None
    try:
        total = parse_bytes(memory)
    except ValueError as error:
        raise ArgumentError(f"memory=: {error}, or {UNBOUNDED!r}") from None
    if total < least:
        bare = not str(memory).strip()[-1:].isalpha()
        raise MemoryBudgetError(
            f"memory={memory!r} is{f' {total:,} bytes, which is' if bare else ''} too small: "
            f"{partitions} partition{'s need' if partitions > 1 else ' needs'} at least "
            f"{format_bytes(least)} ({format_bytes(least_each)} each). Raise memory= or lower "
            f"partitions=.{' A number without a unit is in bytes.' if bare else ''}"
        )
    return total


def checked_span(value: Any, name: str, *, or_zero: bool = False) -> dt.timedelta:
    """A duration, given as a text or a timedelta; a bare number is refused, as it has no unit."""
    span = value
    if isinstance(value, str):
        try:
            span = parse_span(value)
        except ValueError:
            span = None
    if not isinstance(span, dt.timedelta):
        raise ArgumentError(
            f"{name}={value!r} is not an interval like '30 seconds', '5 minutes', '1 hour' or "
            "'1 day', or a timedelta"
        )
    if span < dt.timedelta(0) or not (span or or_zero):
        raise ArgumentError(
            f"{name}={value!r} is not an interval {'of 0 or more' if or_zero else 'above zero'}"
        )
    return span


def check_distance(within: Any, type_: pa.DataType) -> None:
    """Refuse a bare number as a distance of times, which says no unit."""
    if pa.types.is_temporal(type_) and isinstance(within, (int, float, Decimal)):
        raise BandKeyError(
            f"within={within!r} has no unit, but the key has type {name_of(type_)}: write "
            f"within='{within} days' or '{within} seconds', or a timedelta"
        )
