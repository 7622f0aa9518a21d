"""The job of `enrich`: a partition's rows are joined with its part of the staged table."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from dovetail.costs.choice import Recorded
from dovetail.costs.retune import Tuner
from dovetail.errors import ArgumentError
from dovetail.kernel.protocol import Context, Operator, Snapshot
from dovetail.semistream import StagedTable, make
from dovetail.spark.jobs.checks import check_collations, check_widening, settled
from dovetail.spark.jobs.course import Course, Leg, Loaded
from dovetail.spark.jobs.enrich_course import EnrichCourse
from dovetail.spark.jobs.job import Job, Route
from dovetail.spark.jobs.shedding import check_target
from dovetail.spark.layout import (
    UnionLayout,
    arrow_schema,
    arrow_types,
    partition_of,
    with_keys,
)
from dovetail.spark.sources.tables import OpenTable
from dovetail.spark.state import Manifest
from dovetail.spark.state.staged import staged_partition, staged_version
from dovetail.specs import EnrichOptions, EnrichSpec, enrich_spec


@dataclass(frozen=True)
class EnrichJob(Job):
    """A stream that is looked up in a staged table."""

    spec: EnrichSpec
    table: StructType  #: the types of the table's columns
    recorded: Recorded | None = None  #: how the algorithm came about, and what it should do
    tuner: Tuner | None = None  #: for settings that follow the arrivals

    def rows(self, frames: Sequence[DataFrame]) -> list[DataFrame]:
        """Rows with a null key match nothing; only `left` and `anti` have a use for them."""
        (stream,) = frames
        if self.spec.semistream.how in ("left", "anti"):
            return [stream]
        return [with_keys(stream, self.spec.semistream.stream_keys)]

    def routes(self, layout: UnionLayout, schemas: Sequence[StructType]) -> list[Route]:
        """By the key of a row; by all its columns if that has a null.

        (By all but maps, which Spark does not hash. Keys are never maps, so there is always one.)
        """
        (schema,) = schemas
        spec, partitions = self.spec.semistream, self.spec.partitions
        keys = layout.keys(0, schema, spec.stream_keys, spec.codec.types)
        by_key = partition_of(*keys, partitions)
        hashable = [
            layout.column(0, number)
            for number, field in enumerate(schema.fields)
            if "map<" not in field.dataType.simpleString()
        ]
        anywhere = F.pmod(F.hash(*hashable), F.lit(partitions)).cast("int")
        nulls = (layout.column(0, index).isNull() for index in spec.key_columns[0])
        missing = reduce(lambda a, b: a | b, nulls)
        return [Route(F.when(missing, anywhere).otherwise(by_key))]

    def output(self, schemas: Sequence[StructType]) -> StructType:
        (stream,) = schemas
        schema = StructType()
        for field in stream.fields:
            schema.add(field.name, field.dataType, nullable=field.nullable)
        for name in self.spec.output.names[len(stream.fields) :]:
            field = self.table[name]
            nullable = field.nullable or self.spec.semistream.how == "left"
            schema.add(name, field.dataType, nullable)
        return schema

    def load(self, directory: Path, partition: int, stem: str, parent: Manifest | None) -> Loaded:
        """As any job's; a finished operator on an older version of the table is left out."""
        if parent is not None and not parent.pending:
            assert self.spec.state is not None
            if parent.snapshot.meta["table"] != staged_version(self.spec.state):
                parent = None
        return super().load(directory, partition, stem, parent)

    def build(
        self,
        context: Context,
        partition: int,
        snapshot: Snapshot | None,
        resources: contextlib.ExitStack,
    ) -> Operator:
        state = self.spec.state
        assert state is not None
        version = staged_version(state) if snapshot is None else snapshot.meta["table"]
        directory = staged_partition(state, version, partition)
        table = resources.enter_context(
            contextlib.closing(StagedTable(directory, self.spec.semistream.table))
        )
        return make(self.spec.algorithm, self.spec.semistream, context, table, snapshot)

    def course(self, leg: Leg, loaded: Loaded) -> Course:
        return EnrichCourse(self, leg, loaded)


def resolve_enrich(
    stream: DataFrame, table: OpenTable, options: EnrichOptions, name: str
) -> EnrichSpec:
    """The checked spec; whether the state directory fits is not looked at."""
    if table.streaming:
        raise ArgumentError(
            "the table streams: enrich takes a stream and a batch DataFrame. Read the table with "
            "read instead of readStream; two streams are a job for dovetail.join."
        )
    if options.refresh is not None and table.source is None:
        raise ArgumentError(
            "refresh= needs a table that can be read again: give its path or name in place of a "
            "DataFrame, or call dovetail.refresh(state, table=...) when it has changed"
        )
    options, parallelism, memory = settled(stream, options, name)
    schemas = (arrow_schema("stream", stream), arrow_types("table", table.schema))
    spec = enrich_spec(*schemas, options, parallelism, memory)
    _check_overload(stream, options, spec)
    check_collations("stream", stream.schema, spec.semistream.stream_keys)
    check_collations("table", table.schema, spec.semistream.table_keys)
    ends = (spec.semistream.stream_keys, spec.semistream.table_keys)
    check_widening(stream.sparkSession, *spec.semistream.schemas, *ends)
    return spec


def _check_overload(stream: DataFrame, options: EnrichOptions, spec: EnrichSpec) -> None:
    """Refuse what makes sense for a stream only, and a place that rows cannot go to."""
    for name in ("shed", "latency"):
        if getattr(options, name) is not None and not stream.isStreaming:
            raise ArgumentError(
                f"{name}= is for streams: nothing outruns a batch DataFrame, and none of its rows "
                "wait for others. Leave it out, or read the input with readStream."
            )
    if spec.shedding is not None and spec.shedding.to is not None:
        check_target(spec.shedding.to)
