"""Queries: streams at sites, their windows, and equalities between their columns.

`tau` is the execution interval: the rows of interval `n`, with times in `[(n - 1) * tau, n * tau)`,
are joined together. `delta` bounds the delay of one message over one link (Sect. 2.2). All times
are in the unit of the streams' time columns. Inside, columns are called `stream.column`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from dovetail.errors import ArgumentError, KeyTypeError, UnknownColumnError
from dovetail.kernel.keys import KeyCodec
from dovetail.multisite.windows import Times, Window

#: No time is further from 0. Times are 64-bit numbers; an eighth of their range is left for what is
#: added to them, such as windows and delays. (In nanoseconds since 1970 that is the year 2225.)
MOST_TIME = 7 << 60


@dataclass(frozen=True)
class Stream:
    """A stream and the window on it. `site` is the host; streams of one host ship for nothing."""

    name: str
    schema: pa.Schema
    window: Window
    time: str = "ts"
    site: str = ""

    def __post_init__(self) -> None:
        if not self.name or "." in self.name:
            raise ArgumentError(f"a stream cannot be called {self.name!r}: a name without dots")
        if self.time not in self.schema.names:
            raise UnknownColumnError(
                f"stream {self.name!r} has no column {self.time!r} for its time; "
                f"it has {', '.join(self.schema.names)}"
            )
        type_ = self.schema.field(self.time).type
        if not (pa.types.is_integer(type_) or pa.types.is_timestamp(type_)):
            raise ArgumentError(
                f"the time column {self.name}.{self.time} has type {type_}: "
                "it must be an integer or a timestamp"
            )
        if not self.site:
            object.__setattr__(self, "site", self.name)

    @cached_property
    def qualified(self) -> pa.Schema:
        """The schema with the names that columns have inside."""
        return pa.schema([f.with_name(f"{self.name}.{f.name}") for f in self.schema])

    @property
    def time_column(self) -> str:
        return f"{self.name}.{self.time}"


@dataclass(frozen=True)
class StepKey:
    """How a row that is made of some streams meets the rows of one more stream.

    `same` are columns of the former that must equal each other, because the same column of the new
    stream equals all of them: rows that fail it are left out before anything is sent.
    """

    probe: tuple[str, ...]  #: columns of the rows so far
    stored: tuple[str, ...]  #: columns of the new stream, in order
    codec: KeyCodec
    same: tuple[tuple[str, str], ...] = ()


def key_of(schema: pa.Schema, columns: Iterable[str]) -> StepKey:
    """The key that these columns of stored rows are."""
    names = tuple(columns)
    return StepKey(names, names, KeyCodec(tuple(schema.field(name).type for name in names)))


@dataclass(frozen=True)
class Query:
    """Streams, the equalities that join them, and the times of the model."""

    streams: tuple[Stream, ...]
    on: tuple[tuple[str, str], ...]
    tau: int
    delta: int
    lateness: int = 0  #: how long after its interval has ended a row may still come in
    compact: bool = True  #: shorter messages where there are any than the paper's, see `compact`
    _keys: dict[tuple[frozenset[str], str], StepKey | None] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        names = [stream.name for stream in self.streams]
        if len(names) < 2 or len(set(names)) < len(names):
            raise ArgumentError(f"a join needs two or more streams of different names, not {names}")
        if self.tau < 1 or self.delta < 0 or self.lateness < 0:
            raise ArgumentError(
                f"tau={self.tau}, delta={self.delta}, lateness={self.lateness}: the interval must "
                "be 1 or more, the delays 0 or more"
            )
        for left, right in self.on:
            self._check_equality(left, right)
        reached = {names[0]}
        while more := {n for n in names if n not in reached and self.key(reached, n)}:
            reached |= more
        if missing := [name for name in names if name not in reached]:
            raise ArgumentError(
                f"nothing joins {', '.join(missing)} with {', '.join(sorted(reached))}: "
                "add an equality to on="
            )

    def _check_equality(self, left: str, right: str) -> None:
        types = []
        for column in (left, right):
            owner = column.partition(".")[0]
            stream = next((s for s in self.streams if s.name == owner), None)
            if stream is None or column not in stream.qualified.names:
                raise UnknownColumnError(f"on= names {column!r}, which no stream has")
            types.append(stream.qualified.field(column).type)
        if left.partition(".")[0] == right.partition(".")[0]:
            raise ArgumentError(f"{left} = {right} is within one stream: filter it beforehand")
        if types[0] != types[1]:
            raise KeyTypeError(
                f"{left} is {types[0]} and {right} is {types[1]}: cast one of them, "
                "join columns must have the same type"
            )

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(stream.name for stream in self.streams)

    @cached_property
    def _ranks(self) -> dict[str, int]:
        return {name: rank for rank, name in enumerate(self.names)}

    def rank(self, name: str) -> int:
        """The place of a stream in the query; of equal times, the lower comes first."""
        return self._ranks[name]

    def stream(self, name: str) -> Stream:
        return self.streams[self.rank(name)]

    @cached_property
    def result_schema(self) -> pa.Schema:
        return pa.schema([field for stream in self.streams for field in stream.qualified])

    @cached_property
    def result_columns(self) -> list[str]:
        return list(self.result_schema.names)

    def key(self, done: Iterable[str], new: str) -> StepKey | None:
        """The equalities between streams already joined and a new one; None if there are none."""
        where = (frozenset(done), new)
        if where not in self._keys:
            self._keys[where] = self._make_key(*where)
        return self._keys[where]

    def _make_key(self, done: frozenset[str], new: str) -> StepKey | None:
        stored: dict[str, str] = {}
        same: list[tuple[str, str]] = []
        for pair in self.on:
            for old_column, new_column in (pair, pair[::-1]):
                if old_column.partition(".")[0] not in done or new_column.split(".")[0] != new:
                    continue
                first = stored.setdefault(new_column, old_column)
                if first != old_column:
                    same.append((first, old_column))
        if not stored:
            return None
        key = key_of(self.stream(new).qualified, sorted(stored))
        return replace(key, probe=tuple(stored[c] for c in key.stored), same=tuple(same))

    def boundary(self, interval: int) -> int:
        """The time at which an interval ends, exclusive."""
        return interval * self.tau

    def tick_time(self, interval: int) -> int:
        """When the rows of an interval are all there."""
        return self.boundary(interval) + self.lateness

    def interval_of(self, times: Times) -> Times:
        """The interval that each time is in."""
        return np.floor_divide(times, self.tau) + 1


def times_of(column: pa.Array) -> Times:
    """A time column as 64-bit numbers."""
    return KeyCodec((column.type,)).encode([column])[0]


def check_times(stream: Stream, column: pa.Array) -> None:
    """Refuse rows without a time, or with one that cannot be reckoned with."""
    if column.null_count:
        raise ArgumentError(
            f"stream {stream.name!r} has rows without a time ({stream.time} is null): leave them "
            "out"
        )
    times = times_of(column)
    if len(times) and (times.min() < -MOST_TIME or times.max() > MOST_TIME):
        raise ArgumentError(
            f"stream {stream.name!r} has times from {times.min()} to {times.max()}: they must be "
            f"within {MOST_TIME} of 0, to be reckoned with as 64-bit numbers"
        )


def topology(kind: str, names: Sequence[str], columns: Sequence[str]) -> list[tuple[str, str]]:
    """The equalities of a join graph as in the paper's experiments (Fig. 6).

    `kind` is `chain`, `star` (the first stream is the centre), `cycle` or `full`; every edge is an
    equality on each of the columns.
    """
    count = len(names)
    edges = {
        "chain": [(i, i + 1) for i in range(count - 1)],
        "star": [(0, i) for i in range(1, count)],
        "cycle": [(i, (i + 1) % count) for i in range(count if count > 2 else 1)],
        "full": [(i, j) for i in range(count) for j in range(i + 1, count)],
    }
    if kind not in edges:
        raise ArgumentError(f"no join graph is called {kind!r}; there are {', '.join(edges)}")
    return [(f"{names[i]}.{c}", f"{names[j]}.{c}") for i, j in edges[kind] for c in columns]
