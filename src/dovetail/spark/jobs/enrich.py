"""A stream and a table in, a DataFrame out.

    stream -> tag ┐
                  ├ union -> repartition by key -> step -> the user's sink
    clock  -> tag ┘                                 │
    table  -> staged once, by a Spark job ──────────┘

The table is staged when the plan is made (see `staging`). Each partition's step then joins its
rows with its own partition of the staged table.
"""

import atexit
import logging
import shutil
import tempfile
import threading
from dataclasses import replace
from functools import reduce
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from dovetail.costs.latency import pages_within
from dovetail.errors import ArgumentError
from dovetail.semistream.overload import Pace
from dovetail.spark.jobs.choosing import record, with_algorithm
from dovetail.spark.jobs.join import (
    check_collations,
    check_is_frame,
    check_state,
    check_widening,
    clock_of,
    default_state,
)
from dovetail.spark.jobs.refresh import restage
from dovetail.spark.jobs.shedding import check_target
from dovetail.spark.jobs.staging import check_staged_budget, ensure_staged
from dovetail.spark.jobs.streamkeys import SAMPLED_ROWS, StreamKeys
from dovetail.spark.layout import (
    TAG,
    UnionLayout,
    arrow_schema,
    arrow_types,
    compared_keys,
    mark_partition,
    partition_of,
    quoted,
    union_layout,
    woken_partition,
)
from dovetail.spark.session import check_session
from dovetail.spark.sources.tables import OpenTable, Table, open_table
from dovetail.spark.step import batch_step, streaming_step
from dovetail.spark.watermarks import warn_of_watermarks
from dovetail.specs import EnrichOptions, EnrichSpec, enrich_spec

# rows wait for others with which they share a read, in whatever memory
WITHOUT_DEFERRING = "enrich what has been aggregated"
_log = logging.getLogger("dovetail")
_refreshers: dict[Path, threading.Event] = {}  # ends the thread that looks after a state


def plan_enrich(
    stream: DataFrame,
    table: Table,
    options: EnrichOptions,
    name: str,
    history: DataFrame | None = None,
) -> DataFrame:
    """The enriched DataFrame; arguments are checked first, then the table is staged."""
    check_is_frame("the stream", stream)
    warn_of_watermarks({"the stream": stream}, defers=WITHOUT_DEFERRING)
    session = stream.sparkSession
    if options.refresh is not None and isinstance(table, DataFrame):
        raise ArgumentError(
            "refresh= needs a table that can be read again: give its path or name in place of a "
            "DataFrame, or call dovetail.refresh(state, table=...) when it has changed"
        )
    opened = open_table(session, table)
    # a batch is not read for them where they change nothing
    wanted = options.algorithm == "auto" or history is not None
    keys = StreamKeys(stream, history, SAMPLED_ROWS if wanted else 0)
    spec = resolve_enrich(stream, opened, options, name, keys)
    if spec.pace is not None:
        spec = replace(spec, pace=_planned_pace(stream, opened, spec, options))
    if spec.state is None:
        spec = replace(spec, state=_scratch(session))
    ensure_staged(opened, spec)
    check_staged_budget(spec)
    spec = _decided(stream, opened, spec, options, keys)
    if spec.refresh_seconds is not None:
        _refresh_regularly(session, spec)
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
    return shuffled.mapInArrow(step, _output_schema(spec, stream.schema, opened.schema))


def resolve_enrich(
    stream: DataFrame, table: OpenTable, options: EnrichOptions, name: str, keys: StreamKeys
) -> EnrichSpec:
    """The checked spec, and a check of the state directory if there is one already."""
    if table.streaming:
        raise ArgumentError(
            "the table streams: enrich takes a stream and a batch DataFrame. Read the table with "
            "read instead of readStream; two streams are a job for dovetail.join."
        )
    session = stream.sparkSession
    parallelism = check_session(session)
    if stream.isStreaming and options.state is None:
        options = replace(options, state=default_state(session, name))
    spec = enrich_spec(
        arrow_schema("stream", stream), arrow_types("table", table.schema), options, parallelism
    )
    keys.check(spec.semistream)
    _check_overload(stream, options, spec)
    check_collations("stream", stream.schema, spec.semistream.stream_keys)
    check_collations("table", table.schema, spec.semistream.table_keys)
    ends = (spec.semistream.stream_keys, spec.semistream.table_keys)
    check_widening(session, *spec.semistream.schemas, *ends)
    spec = with_algorithm(stream, table, spec, options, keys)
    check_state([stream], spec)
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


def _planned_pace(
    stream: DataFrame, table: OpenTable, spec: EnrichSpec, options: EnrichOptions
) -> Pace:
    """How much a step scans, until it is known how often steps come. Measures the machine."""
    from dovetail.spark.jobs.explain_join import (
        planned_enrich,  # which asks this module for the spec
    )

    assert spec.pace is not None
    plan = planned_enrich(stream, table, spec, options)
    return replace(spec.pace, pages=pages_within(plan, spec.pace.seconds))


def _decided(
    stream: DataFrame,
    table: OpenTable,
    spec: EnrichSpec,
    options: EnrichOptions,
    keys: StreamKeys,
) -> EnrichSpec:
    """The spec with the algorithm that is used: now that the table is staged, its size is known."""
    before, spec = spec.algorithm, with_algorithm(stream, table, spec, options, keys)
    if spec.pace is not None and spec.algorithm != before:
        spec = replace(spec, pace=_planned_pace(stream, table, spec, options))
    record(spec)
    return spec


def _refresh_regularly(session: SparkSession, spec: EnrichSpec) -> None:
    """Look for changes of the table from time to time, while there are session and state.

    A query that is started again takes over from the one before.
    """
    assert spec.state is not None
    state, seconds, over = spec.state, spec.refresh_seconds, threading.Event()
    before = _refreshers.pop(state, None)
    if before is not None:
        before.set()
    _refreshers[state] = over

    def look() -> None:
        while not over.wait(seconds) and not _stopped(session) and state.exists():
            try:
                restage(state, None, session, verify=False)
            except Exception as error:  # noqa: BLE001  the stream goes on with what it has
                if not _stopped(session):
                    _log.warning("the table of %s was not refreshed: %s", state, error)

    threading.Thread(target=look, name=f"refresh {state}", daemon=True).start()


def _stopped(session: SparkSession) -> bool:
    jsc = session.sparkContext._jsc  # no public call tells
    return jsc is None or bool(jsc.sc().isStopped())


def _worth_sending(stream: DataFrame, spec: EnrichSpec) -> DataFrame:
    """Rows with a null key match nothing; only `left` and `anti` have a use for them."""
    if spec.semistream.how in ("left", "anti"):
        return stream
    keys = (stream[quoted(key)].isNotNull() for key in spec.semistream.stream_keys)
    return stream.where(reduce(lambda a, b: a & b, keys))


def _target(spec: EnrichSpec, layout: UnionLayout, schema: StructType) -> Column:
    """The partition of a row: by its key; by all its columns if that has a null; or as woken.

    (By all but maps, which Spark does not hash. Keys are never maps, so there is always one.)
    """
    columns = spec.semistream.key_columns[0]
    keys = [layout.column(0, index) for index in columns]
    types = [schema[name].dataType for name in spec.semistream.stream_keys]
    by_key = partition_of(*compared_keys(keys, types, spec.semistream.codec.types), spec.partitions)
    fields = enumerate(schema.fields)
    hashable = [
        layout.column(0, n) for n, field in fields if "map<" not in field.dataType.simpleString()
    ]
    anywhere = F.pmod(F.hash(*hashable), F.lit(spec.partitions)).cast("int")
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
