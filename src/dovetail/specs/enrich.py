"""The arguments of `dovetail.enrich`, and the spec of a stream and a table that they lead to."""

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from dovetail.errors import ArgumentError
from dovetail.kernel.keys import KeyCodec
from dovetail.kernel.keytypes import compared_types
from dovetail.semistream import HOWS, KEYS_SCHEMA, SemiStreamSpec, checked_algorithm
from dovetail.semistream.base import MIN_BUDGET_BYTES
from dovetail.semistream.overload import Pace, Shedding
from dovetail.semistream.shedding import SHEDDERS
from dovetail.specs.arguments import (
    On,
    check_clashes,
    check_how,
    checked_memory,
    checked_partitions,
    checked_span,
    checked_whole,
    key_names,
    resolve,
    state_path,
)
from dovetail.specs.job import JobOptions, JobSpec, describe

_SIDES = ("stream", "table")


@dataclass(frozen=True)
class EnrichSpec(JobSpec):
    """A checked join of a stream with a table, as it was asked for."""

    semistream: SemiStreamSpec
    refresh_seconds: float | None = None  #: how often to look whether the table has changed
    shedding: Shedding | None = None
    pace: Pace | None = None  #: how long rows may wait

    @property
    def inputs(self) -> tuple[pa.Schema, ...]:
        return (self.semistream.stream,)

    @property
    def kept(self) -> tuple[pa.Schema, ...]:
        return (*self.semistream.schemas, KEYS_SCHEMA)

    @property
    def output(self) -> pa.Schema:
        return self.semistream.layout.schema

    def identity(self) -> dict[str, Any]:
        spec = self.semistream
        return {
            "job": "enrich",
            "algorithm": self.algorithm,
            "partitions": self.partitions,
            "how": spec.how,
            "ordered": spec.ordered,
            "on": [list(spec.stream_keys), list(spec.table_keys)],
            "stream": describe(spec.stream),
            "table": describe(spec.table),
            "columns": list(spec.layout.schema.names[len(spec.stream.names) :]),
        }


@dataclass(frozen=True)
class EnrichOptions(JobOptions):
    """The arguments of `dovetail.enrich` besides stream and table, as the caller gave them."""

    on: On
    columns: Sequence[str] | None = None
    ordered: bool = False
    refresh: str | dt.timedelta | None = None
    shed: str | Shedding | None = None  #: or with rates in place of measured ones, for tests
    shed_to: str | Path | None = None
    latency: str | dt.timedelta | None = None


def enrich_spec(
    stream: pa.Schema,
    table: pa.Schema,
    options: EnrichOptions,
    default_partitions: int,
    default_memory: int | None = None,
) -> EnrichSpec:
    """Check the arguments of an enrichment against the schemas of stream and table.

    The staged columns are the keys, where they are shown or have to be compared, and `columns`.
    """
    check_how(options.how, "enrich", HOWS)
    stream_keys, table_keys = key_names(stream, table, options.on, _SIDES)
    # refuses what cannot be a key
    KeyCodec(compared_types(stream, table, stream_keys, table_keys))
    wanted = _columns(options.columns, table)
    if options.how in ("semi", "anti"):
        wanted = ()
    names = [n for n in table.names if n in table_keys or n in wanted]
    staged = pa.schema([table.field(name) for name in names])
    shown = pa.schema([table.field(name) for name in names if name in wanted])
    check_clashes(stream, shown, stream_keys, table_keys, _SIDES)
    partitions = checked_partitions(options.partitions, default_partitions)
    latency = _seconds(options.latency, "latency")
    return EnrichSpec(
        algorithm=checked_algorithm(options.algorithm),
        memory_bytes=checked_memory(options.memory, partitions, MIN_BUDGET_BYTES, default_memory),
        partitions=partitions,
        state=None if options.state is None else state_path(options.state),
        slice_ms=checked_whole(options.slice_ms, "slice_ms"),
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
    return tuple(resolve(table, name, "table") for name in columns)


def _seconds(value: Any, name: str) -> float | None:
    return None if value is None else checked_span(value, name).total_seconds()


def _flag(ordered: Any) -> bool:
    if not isinstance(ordered, bool):
        raise ArgumentError(f"ordered={ordered!r} is neither True nor False")
    return ordered
