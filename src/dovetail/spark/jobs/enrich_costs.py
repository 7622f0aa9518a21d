"""Inputs of the cost models of an enrichment: sizes and widths that Spark knows."""

import pyarrow as pa
from pyspark.sql import DataFrame

from dovetail.costs.calibrate import factors_for
from dovetail.costs.choice import Recorded
from dovetail.costs.predictions import Machine, PlannedEnrich, TableSize
from dovetail.costs.skew import UNIFORM
from dovetail.costs.widths import row_width
from dovetail.errors import StateError
from dovetail.semistream import StagedTable
from dovetail.spark.endings import MAX_SLICE_MS
from dovetail.spark.jobs.checks import planned_facts
from dovetail.spark.jobs.sizes import rows_by_statistics, rows_of_files, storage_near
from dovetail.spark.jobs.staging import shape_of
from dovetail.spark.jobs.streamkeys import StreamKeys
from dovetail.spark.sources.tables import OpenTable
from dovetail.spark.state.staged import TABLES, staged_version
from dovetail.specs import EnrichOptions, EnrichSpec


def foreseen(
    stream: DataFrame,
    table: OpenTable,
    spec: EnrichSpec,
    options: EnrichOptions,
    recorded: Recorded | None = None,
    keys: StreamKeys | None = None,
    samples: tuple[pa.Table, pa.Table] | None = None,
) -> PlannedEnrich:
    """Collect the inputs of the cost models.

    Measures the machine, for about two seconds, unless this process has done so or it is recorded,
    and takes a sample of `keys`, if there are any to go by, unless that was done.
    """
    sample, table_sample = samples or (None, None)
    size = _table_size(table, spec, table_sample)
    width = row_width(spec.semistream.stream, sample).nbytes
    machine = recorded.machine if recorded else _machine(stream, spec, width, size.row_bytes)
    skew = recorded.skew if recorded else UNIFORM
    if keys is not None and keys.known:
        skew = keys.skew(spec.semistream, size.rows)
    return PlannedEnrich(
        spec=spec.semistream,
        **planned_facts(spec, options, stream),
        table=size,
        machine=machine,
        skew=skew,
        sample=sample,
        latency=None if spec.pace is None else spec.pace.seconds,
        shedding=spec.shedding,
        drain_seconds=MAX_SLICE_MS / 1000 if stream.isStreaming else 0.0,
        why=recorded.choice.why if recorded else "",
    )


def _machine(stream: DataFrame, spec: EnrichSpec, stream_width: float, width: float) -> Machine:
    budget = None if spec.memory_bytes is None else spec.memory_bytes // spec.partitions
    return Machine(
        factors_for(stream_width, width, budget),
        storage_near(spec.state),
        int(stream.sparkSession.sparkContext.defaultParallelism),
    )


def _table_size(table: OpenTable, spec: EnrichSpec, sample: pa.Table | None) -> TableSize:
    """From the staged table if there is one; else from what Spark and the files tell."""
    staged = _staged_size(spec)
    if staged is not None:
        return staged
    schema = spec.semistream.table
    width = row_width(schema, None if sample is None else sample.select(schema.names))
    page_rows = max(1, int(shape_of(spec).page_bytes / max(1.0, width.nbytes)))
    rows, source = table.rows(), "the row count of its snapshot, before any deletes"
    if rows is None:
        rows = rows_of_files(table.read())
        source = "the row count of its Parquet files, before any filter"
    if rows is None:
        every = row_width(pa.schema(list(schema))).nbytes
        rows, counted = rows_by_statistics(table.read(), every)
        source = "by Spark's statistics" if counted else "guessed from Spark's estimate of its size"
    return TableSize(rows, width.nbytes, page_rows, f"{source}; a row's width {width.source}")


def _staged_size(spec: EnrichSpec) -> TableSize | None:
    state = spec.state
    if state is None:
        return None
    rows, nbytes, page_rows = 0, 0.0, 1
    try:
        version = staged_version(state)
        for directory in sorted((state / TABLES / version).glob("p*")):
            part = StagedTable(directory, spec.semistream.table)
            rows += part.rows
            nbytes += part.rows * part.row_bytes
            page_rows = max(page_rows, part.page_rows)
            part.close()
    except StateError:
        return None
    return TableSize(rows, nbytes / max(1, rows), page_rows, f"as staged, {version}")
