"""A stream and a table in, a DataFrame out.

    stream -> tag ┐
                  ├ union -> repartition by key -> step -> the user's sink
    clock  -> tag ┘                                 │
    table  -> staged once, by a Spark job ──────────┘

The table is staged when the plan is made (see `staging`). Each partition's step then joins its
rows with its own partition of the staged table.
"""

import atexit
import shutil
import tempfile
from dataclasses import replace
from functools import reduce
from pathlib import Path

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from dovetail.errors import ArgumentError
from dovetail.spark.layout import (
    TAG,
    UnionLayout,
    mark_partition,
    partition_of,
    union_layout,
    woken_partition,
)
from dovetail.spark.plan import (
    arrow_schema,
    check_collations,
    clock_of,
    default_state,
)
from dovetail.spark.session import check_session
from dovetail.spark.staging import ensure_staged
from dovetail.spark.state import IDENTITY, compare_identity, read_identity
from dovetail.spark.step import batch_step, streaming_step
from dovetail.specs import EnrichOptions, EnrichSpec, enrich_spec

Table = DataFrame | str | Path


def plan_enrich(stream: DataFrame, table: Table, options: EnrichOptions, name: str) -> DataFrame:
    """The enriched DataFrame; arguments are checked first, then the table is staged."""
    session = stream.sparkSession
    frame = table if isinstance(table, DataFrame) else read_table(session, table)
    spec = resolve_enrich(stream, frame, options, name)
    if spec.state is None:
        spec = replace(spec, state=_scratch(session))
    ensure_staged(frame, spec)
    layout = union_layout(stream.schema, StructType())
    tagged = layout.tagged(_worth_sending(stream, spec), 0)
    if stream.isStreaming:
        tagged = tagged.unionAll(layout.ticks(clock_of(session, spec)))
    target = _target(spec, layout, stream.schema)
    shuffled = mark_partition(tagged.repartitionById(spec.partitions, target))
    if stream.isStreaming:
        cores = check_session(session)
        step = streaming_step(spec, layout, keep_operator=spec.partitions >= cores)
    else:
        step = batch_step(spec, layout)
    return shuffled.mapInArrow(step, _output_schema(spec, stream.schema, frame.schema))


def resolve_enrich(
    stream: DataFrame, table: DataFrame, options: EnrichOptions, name: str
) -> EnrichSpec:
    """The checked spec, and a check of the state directory if there is one already."""
    if table.isStreaming:
        raise ArgumentError(
            "the table streams: enrich takes a stream and a batch DataFrame. Read the table with "
            "read instead of readStream; two streams are a job for dovetail.join."
        )
    session = stream.sparkSession
    parallelism = check_session(session)
    if stream.isStreaming and options.state is None:
        options = replace(options, state=default_state(session, name))
    spec = enrich_spec(
        arrow_schema("stream", stream), arrow_schema("table", table), options, parallelism
    )
    check_collations("stream", stream.schema, spec.semistream.stream_keys)
    check_collations("table", table.schema, spec.semistream.table_keys)
    if stream.isStreaming and spec.state is not None and (spec.state / IDENTITY).exists():
        compare_identity(spec.state, read_identity(spec.state), spec.identity())
    return spec


def read_table(session: SparkSession, table: str | Path) -> DataFrame:
    """A table given by the path of Parquet files, or by its name in the catalogue."""
    text = str(table)
    path = Path(text)
    try:
        if path.is_dir() and (path / "_delta_log").is_dir():
            raise ArgumentError(
                f"table={text!r} is a Delta table: read it with spark.read.format('delta') and "
                "hand over the DataFrame"
            )
        if path.exists() or "/" in text:
            return session.read.parquet(text)
        return session.table(text)
    except AnalysisException as error:
        reason = str(error).splitlines()[0]
        raise ArgumentError(
            f"table={text!r} is neither the path of Parquet files nor the name of a table that "
            f"this session knows: {reason}"
        ) from error


def _worth_sending(stream: DataFrame, spec: EnrichSpec) -> DataFrame:
    """Rows with a null key match nothing; only `left` and `anti` have a use for them."""
    if spec.semistream.how in ("left", "anti"):
        return stream
    keys = (stream[f"`{key}`"].isNotNull() for key in spec.semistream.stream_keys)
    return stream.where(reduce(lambda a, b: a & b, keys))


def _target(spec: EnrichSpec, layout: UnionLayout, schema: StructType) -> Column:
    """The partition of a row: by its key; by all its columns if that has a null; or as woken."""
    columns = spec.semistream.key_columns[0]
    keys = [layout.column(0, index) for index in columns]
    types = [schema[name].dataType for name in spec.semistream.stream_keys]
    by_key = partition_of(keys, types, spec.partitions)
    everything = [layout.column(0, index) for index in range(len(schema.fields))]
    anywhere = F.pmod(F.hash(*everything), F.lit(spec.partitions)).cast("int")
    missing = reduce(lambda a, b: a | b, (key.isNull() for key in keys))
    tag = F.col(TAG)
    return F.when(tag != 0, woken_partition(tag)).when(missing, anywhere).otherwise(by_key)


def _output_schema(spec: EnrichSpec, stream: StructType, table: StructType) -> StructType:
    """The Spark types of the output, from the inputs' own schemas."""
    schema = StructType()
    for field in stream.fields:
        schema.add(field.name, field.dataType, nullable=field.nullable)
    for name in spec.output.names[len(stream.fields) :]:
        field = table[name]
        schema.add(name, field.dataType, field.nullable or spec.semistream.how == "left")
    return schema


def _scratch(session: SparkSession) -> Path:
    """Where a batch job stages its table: gone when this process ends."""
    if not (session.sparkContext.master or "").startswith("local"):
        raise ArgumentError(
            "state= is needed on a cluster, for a batch DataFrame too: a directory that every "
            "executor reaches, where the table is staged"
        )
    directory = Path(tempfile.mkdtemp(prefix="dovetail-staged-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory
