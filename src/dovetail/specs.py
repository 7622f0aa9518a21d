"""What a call asks for, checked: arguments in, frozen specs out.

Every complaint about arguments is made here, before anything is planned or written. Column names
follow Spark's default: letter case does not tell two columns apart.
"""

import datetime as dt
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast
from urllib.parse import unquote, urlparse

import pyarrow as pa

from dovetail.costs.choice import Recorded
from dovetail.costs.retune import Tuned, Tuner
from dovetail.errors import (
    ArgumentError,
    BandKeyError,
    ColumnClashError,
    KeyTypeError,
    MemoryBudgetError,
    StateMissingError,
    UnknownColumnError,
)
from dovetail.kernel.files import storage_problem
from dovetail.kernel.keys import KeyCodec, band_width
from dovetail.kernel.memory import parse_bytes
from dovetail.kernel.protocol import SIDE_NAMES, Context, Operator, Snapshot
from dovetail.semistream import HOWS, KEYS_SCHEMA, SemiStreamSpec, StagedTable
from dovetail.semistream import choose as choose_semistream
from dovetail.semistream import make as make_semistream
from dovetail.semistream.base import MIN_BUDGET_BYTES as LEAST_ENRICH_BYTES
from dovetail.semistream.overload import Pace, Shedding
from dovetail.semistream.shedding import SHEDDERS
from dovetail.twoway import TwoWaySpec, choose, make
from dovetail.twoway.base import MIN_BUDGET_BYTES

if TYPE_CHECKING:
    from dovetail.semistream import SemiStreamJoin
    from dovetail.semistream.meshjoin import AMeshJoin

_UNITS = {"millisecond": 0.001, "second": 1, "minute": 60, "hour": 3600, "day": 86400}
On = str | tuple[str, str] | Sequence[str | tuple[str, str]]
Within = int | float | Decimal | dt.timedelta | None


@dataclass(frozen=True)
class JobSpec(ABC):
    """What the runtime has to know of any job, whatever its algorithm."""

    algorithm: str
    memory_bytes: int | None  #: over all partitions; None is unbounded
    partitions: int
    state: Path | None  #: None for a batch join, which keeps nothing
    slice_ms: int
    eager: ClassVar[bool] = False  #: deferred work is due at once, not only in a silence

    @property
    def partition_bytes(self) -> int | None:
        """One partition's share of the budget."""
        return None if self.memory_bytes is None else self.memory_bytes // self.partitions

    @property
    @abstractmethod
    def inputs(self) -> tuple[pa.Schema, ...]:
        """The schemas of the rows that are pushed, by side."""

    @property
    @abstractmethod
    def kept(self) -> tuple[pa.Schema, ...]:
        """The schemas of the rows that an operator puts on disk."""

    @property
    @abstractmethod
    def output(self) -> pa.Schema: ...

    @abstractmethod
    def operator(self, context: Context, partition: int, snapshot: Snapshot | None) -> Operator:
        """One partition's operator, new or as of a snapshot."""

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """What must not change during the life of a state directory."""

    def outdated(self, operator: Operator) -> bool:
        """Whether the operator should be drained and made anew."""
        return False

    def expendable(self, snapshot: Snapshot, pending: int) -> bool:
        """Whether an operator of this snapshot would be outdated and has nothing to finish."""
        return False

    def release(self, operator: Operator) -> None:
        """Close what an operator that is used no more holds open, its block store aside."""
        return

    def retune(
        self, operator: Operator, known: dict[str, Any] | None, rows: int, now: float
    ) -> dict[str, Any] | None:
        """Before `rows` rows are pushed that came by `now`: settings that follow the arrivals.

        `known` is what this returned last, also in an earlier step; None for settings that stay.
        """
        return None

    @property
    def predicted(self) -> dict[str, float] | None:
        """What one partition is expected to do, for its records; None if nothing is."""
        return None


@dataclass(frozen=True)
class JoinSpec(JobSpec):
    """A checked two-way join, ready to be planned."""

    twoway: TwoWaySpec

    @property
    def inputs(self) -> tuple[pa.Schema, ...]:
        return self.twoway.schemas

    @property
    def kept(self) -> tuple[pa.Schema, ...]:
        return self.twoway.schemas

    @property
    def output(self) -> pa.Schema:
        return self.twoway.layout.schema

    def operator(self, context: Context, partition: int, snapshot: Snapshot | None) -> Operator:
        return make(self.algorithm, self.twoway, context, snapshot)

    def identity(self) -> dict[str, Any]:
        """What must not change during the life of a state directory."""
        return {
            "job": "join",
            "algorithm": self.algorithm,
            "partitions": self.partitions,
            "on": [list(self.twoway.left_keys), list(self.twoway.right_keys)],
            "within": None if self.twoway.within is None else repr(self.twoway.within),
            "left": _describe(self.twoway.left),
            "right": _describe(self.twoway.right),
        }


TABLES = "table"  #: where a state directory keeps its staged tables
CURRENT = "current"  #: and in there, the name of the version in use


def staged_version(state: Path) -> str:
    """The version of the staged table that new rows are joined with."""
    path = state / TABLES / CURRENT
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        raise StateMissingError(
            f"{path} is gone: the state directory has no staged table. Restore {state / TABLES} "
            "from a backup, or start over with a new state directory and a new checkpoint."
        ) from None
    except OSError as error:
        raise storage_problem(error, path, "read") from error


@dataclass(frozen=True)
class EnrichSpec(JobSpec):
    """A checked join of a stream with a table, ready to be planned."""

    semistream: SemiStreamSpec
    refresh_seconds: float | None = None  #: how often to look whether the table has changed
    shedding: Shedding | None = None
    pace: Pace | None = None  #: how long rows may wait
    recorded: Recorded | None = None  #: how the algorithm came about, and what it should do
    tuner: Tuner | None = None  #: for settings that follow the arrivals
    eager: ClassVar[bool] = True

    @property
    def inputs(self) -> tuple[pa.Schema, ...]:
        return (self.semistream.stream,)

    @property
    def kept(self) -> tuple[pa.Schema, ...]:
        return (*self.semistream.schemas, KEYS_SCHEMA)

    @property
    def output(self) -> pa.Schema:
        return self.semistream.layout.schema

    def operator(self, context: Context, partition: int, snapshot: Snapshot | None) -> Operator:
        assert self.state is not None
        version = staged_version(self.state) if snapshot is None else snapshot.meta["table"]
        directory = self.state / TABLES / version / f"p{partition:05d}"
        table = StagedTable(directory, self.semistream.table)
        return make_semistream(self.algorithm, self.semistream, context, table, snapshot)

    def outdated(self, operator: Operator) -> bool:
        assert self.state is not None
        return cast("SemiStreamJoin", operator).table.version != staged_version(self.state)

    def expendable(self, snapshot: Snapshot, pending: int) -> bool:
        assert self.state is not None
        return not pending and snapshot.meta["table"] != staged_version(self.state)

    def release(self, operator: Operator) -> None:
        cast("SemiStreamJoin", operator).table.close()

    def retune(
        self, operator: Operator, known: dict[str, Any] | None, rows: int, now: float
    ) -> dict[str, Any] | None:
        if self.tuner is None:
            return None
        tuned = self.tuner.after(Tuned.of(known), rows, now)
        cast("AMeshJoin", operator).tune(tuned.w, tuned.b)
        return tuned.facts()

    @property
    def predicted(self) -> dict[str, float] | None:
        return None if self.recorded is None else self.recorded.of_a_partition()

    def identity(self) -> dict[str, Any]:
        spec = self.semistream
        return {
            "job": "enrich",
            "algorithm": self.algorithm,
            "partitions": self.partitions,
            "how": spec.how,
            "ordered": spec.ordered,
            "on": [list(spec.stream_keys), list(spec.table_keys)],
            "stream": _describe(spec.stream),
            "table": _describe(spec.table),
            "columns": list(spec.layout.schema.names[len(spec.stream.names) :]),
        }


@dataclass(frozen=True)
class EnrichOptions:
    """The arguments of `dovetail.enrich` besides stream and table, as the caller gave them."""

    on: On
    how: str = "inner"
    memory: str | int | None = None
    state: str | Path | None = None
    algorithm: str = "auto"
    columns: Sequence[str] | None = None
    ordered: bool = False
    refresh: str | dt.timedelta | None = None
    partitions: int | None = None
    slice_ms: int = 250
    shed: str | Shedding | None = None  #: or with rates in place of measured ones, for tests
    shed_to: str | Path | None = None
    latency: str | float | dt.timedelta | None = None


def enrich_spec(
    stream: pa.Schema, table: pa.Schema, options: EnrichOptions, default_partitions: int
) -> EnrichSpec:
    """Check the arguments of an enrichment against the schemas of stream and table.

    The staged columns are the keys, where they are shown or have to be compared, and `columns`.
    """
    if options.how not in HOWS:
        raise ArgumentError(
            f"how={options.how!r} is not supported by enrich; it does "
            f"{', '.join(repr(how) for how in HOWS)}"
        )
    for side, schema in (("stream", stream), ("table", table)):
        _check_unique(side, schema)
    pairs = _key_pairs(options.on)
    stream_keys = tuple(_resolve(stream, a, "stream") for a, _ in pairs)
    table_keys = tuple(_resolve(table, b, "table") for _, b in pairs)
    _check_types(stream, table, stream_keys, table_keys, ("stream", "table"))
    KeyCodec(tuple(stream.field(name).type for name in stream_keys))  # refuses what cannot be one
    wanted = _columns(options.columns, table)
    if options.how in ("semi", "anti"):
        wanted = ()
    names = [n for n in table.names if n in table_keys or n in wanted]
    staged = pa.schema([table.field(name) for name in names])
    shown = pa.schema([table.field(name) for name in names if name in wanted])
    _check_clashes(stream, shown, stream_keys, table_keys, ("stream", "table"))
    partitions = _partitions(options.partitions, default_partitions)
    latency = _seconds(options.latency, "latency")
    return EnrichSpec(
        algorithm=choose_semistream(options.algorithm),
        memory_bytes=_memory(options.memory, partitions, LEAST_ENRICH_BYTES),
        partitions=partitions,
        state=None if options.state is None else state_path(options.state),
        slice_ms=_slice_ms(options.slice_ms),
        semistream=SemiStreamSpec(
            stream,
            staged,
            stream_keys,
            table_keys,
            options.how,
            ordered=_flag(options.ordered),
            columns=wanted,
        ),
        refresh_seconds=_seconds(options.refresh, "refresh"),
        shedding=_shedding(options, stream, turns=-(-partitions // max(1, default_partitions))),
        pace=None if latency is None else Pace(latency),
    )


def _shedding(options: EnrichOptions, stream: pa.Schema, turns: int) -> Shedding | None:
    if options.shed is None:
        if options.shed_to is not None:
            raise ArgumentError(
                f"shed_to={str(options.shed_to)!r} says where rows that are left out go, but "
                f"without shed= none are; add shed={next(iter(SHEDDERS))!r} or another strategy"
            )
        return None
    asked = options.shed if isinstance(options.shed, Shedding) else Shedding(options.shed)
    if asked.strategy not in SHEDDERS:
        raise ArgumentError(
            f"shed={asked.strategy!r} is no strategy; there are {', '.join(map(repr, SHEDDERS))}"
        )
    if options.shed_to is None:
        return replace(asked, turns=turns)
    to = state_path(options.shed_to, "shed_to").resolve()
    state = None if options.state is None else state_path(options.state).resolve()
    if state is not None and (to.is_relative_to(state) or state.is_relative_to(to)):
        raise ArgumentError(
            f"shed_to={str(to)!r} and the state directory {state} lie in each other; name a "
            "directory beside it, where a batch job finds nothing but the rows left out"
        )
    for field in stream:
        if _holds_interval(field.type):
            raise ArgumentError(
                f"shed_to=: the stream's column {field.name!r} is a {field.type}, which Parquet "
                "does not keep; cast it, or leave it out with select()"
            )
    return replace(asked, to=to, turns=turns)


def _holds_interval(type_: pa.DataType) -> bool:
    if pa.types.is_duration(type_) or pa.types.is_interval(type_):
        return True
    return any(_holds_interval(type_.field(index).type) for index in range(type_.num_fields))


def _columns(columns: Sequence[str] | None, table: pa.Schema) -> tuple[str, ...]:
    if columns is None:
        return tuple(table.names)
    if isinstance(columns, str) or not all(isinstance(name, str) for name in columns):
        raise ArgumentError(f"columns={columns!r} is not a list of column names")
    return tuple(_resolve(table, name, "table") for name in columns)


def _seconds(value: Any, name: str) -> float | None:
    """An interval like "5 minutes" in seconds; for `latency`, a bare number is one too."""
    if value is None:
        return None
    if isinstance(value, dt.timedelta):
        seconds = value.total_seconds()
    elif name == "latency" and isinstance(value, (int, float)) and not isinstance(value, bool):
        seconds = float(value)
    else:
        number, _, unit = str(value).strip().partition(" ")
        try:
            seconds = float(number) * _UNITS[unit.strip().lower().removesuffix("s")]
        except (ValueError, KeyError):
            raise ArgumentError(
                f"{name}={value!r} is not an interval like '30 seconds', '5 minutes', '1 hour' "
                "or '1 day'"
            ) from None
    if not 0 < seconds < float("inf"):
        raise ArgumentError(f"{name}={value!r} is not an interval above zero")
    return seconds


def _flag(ordered: Any) -> bool:
    if not isinstance(ordered, bool):
        raise ArgumentError(f"ordered={ordered!r} is neither True nor False")
    return ordered


@dataclass(frozen=True)
class JoinOptions:
    """The arguments of `dovetail.join` besides the two inputs, as the caller gave them."""

    on: On
    within: Within = None
    how: str = "inner"
    memory: str | int | None = None
    state: str | Path | None = None
    algorithm: str = "auto"
    partitions: int | None = None
    slice_ms: int = 250


def join_spec(
    left: pa.Schema, right: pa.Schema, options: JoinOptions, default_partitions: int
) -> JoinSpec:
    """Check a join's arguments against the schemas of its inputs."""
    if options.how != "inner":
        raise ArgumentError(f"how={options.how!r} is not supported by join; it does how='inner'")
    for side, schema in zip(SIDE_NAMES, (left, right), strict=True):
        _check_unique(side, schema)
    pairs = _key_pairs(options.on)
    left_keys = tuple(_resolve(left, a, "left") for a, _ in pairs)
    right_keys = tuple(_resolve(right, b, "right") for _, b in pairs)
    _check_types(left, right, left_keys, right_keys)
    _check_clashes(left, right, left_keys, right_keys)
    within = _within(options.within, [left.field(name).type for name in left_keys])
    algorithm = choose(options.algorithm, within)
    partitions = _partitions(options.partitions, default_partitions)
    twoway = TwoWaySpec(left, right, left_keys, right_keys, within)
    KeyCodec(twoway.codec.types)  # refuses key types that cannot be joined on
    return JoinSpec(
        twoway=twoway,
        algorithm=algorithm,
        memory_bytes=_memory(options.memory, partitions),
        partitions=partitions,
        state=None if options.state is None else state_path(options.state),
        slice_ms=_slice_ms(options.slice_ms),
    )


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
    seen: dict[str, str] = {}
    for name in schema.names:
        if name.lower() in seen:
            raise ColumnClashError(
                f"the {side} input has two columns named {name!r}; rename one of them first"
            )
        seen[name.lower()] = name


def _resolve(schema: pa.Schema, name: str, side: str) -> str:
    if name in schema.names:
        return name
    for candidate in schema.names:
        if candidate.lower() == name.lower():
            return str(candidate)
    raise UnknownColumnError(
        f"the {side} input has no column {name!r}; it has {', '.join(map(repr, schema.names))}"
    )


def _check_types(
    left: pa.Schema,
    right: pa.Schema,
    left_keys: Sequence[str],
    right_keys: Sequence[str],
    sides: tuple[str, str] = SIDE_NAMES,
) -> None:
    for a, b in zip(left_keys, right_keys, strict=True):
        one, two = left.field(a).type, right.field(b).type
        if one != two:
            raise KeyTypeError(
                f"the join columns differ in type: {sides[0]} {a!r} is {one}, {sides[1]} {b!r} is "
                f"{two}; "
                "cast one of them"
            )


def _check_clashes(
    left: pa.Schema,
    right: pa.Schema,
    left_keys: Sequence[str],
    right_keys: Sequence[str],
    sides: tuple[str, str] = SIDE_NAMES,
) -> None:
    shared = {a for a, b in zip(left_keys, right_keys, strict=True) if a == b}
    taken = {name.lower() for name in left.names}
    clashes = [n for n in right.names if n.lower() in taken and n not in shared]
    if clashes:
        raise ColumnClashError(
            f"both inputs have the column{'s' if len(clashes) > 1 else ''} "
            f"{', '.join(map(repr, clashes))}, not joined on as such; rename on one side, for "
            f"example {sides[1]}.withColumnRenamed({clashes[0]!r}, '{sides[1]}_{clashes[0]}')"
        )


def _within(within: Within, types: Sequence[pa.DataType]) -> int | float | None:
    if within is None:
        return None
    if len(types) != 1:
        raise BandKeyError(f"a band join (within=) has one key, not {len(types)}")
    return band_width(within, types[0])


def _partitions(asked: Any, default: int) -> int:
    if asked is not None and (isinstance(asked, bool) or not isinstance(asked, int) or asked < 1):
        raise ArgumentError(f"partitions={asked!r} is not a whole number of 1 or more")
    return default if asked is None else int(asked)


def _memory(
    memory: str | int | None, partitions: int, least_each: int = MIN_BUDGET_BYTES
) -> int | None:
    if memory is None:
        return None
    try:
        total = parse_bytes(memory)
    except ValueError as error:
        raise ArgumentError(f"memory=: {error}") from None
    least = least_each * partitions
    if total < least:
        raise MemoryBudgetError(
            f"memory={memory!r} is too small: {partitions} partition"
            f"{'s need' if partitions > 1 else ' needs'} at least {least >> 10}KiB"
            f" ({least_each >> 10}KiB each). Raise memory= or lower partitions=."
        )
    return total


def _slice_ms(slice_ms: Any) -> int:
    if isinstance(slice_ms, bool) or not isinstance(slice_ms, int) or slice_ms < 1:
        raise ArgumentError(f"slice_ms={slice_ms!r} is not a whole number of 1 or more")
    return slice_ms


def _describe(schema: pa.Schema) -> Mapping[str, str]:
    return {field.name: str(field.type) for field in schema}
