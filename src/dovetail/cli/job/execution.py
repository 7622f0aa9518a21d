"""Runs a checked job file on Spark: inputs, join or enrichment, and sink."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dovetail import plan as plans
from dovetail.cli.failures import is_sparks, spark_says
from dovetail.cli.job.file import FILE_FORMATS, Job, Source
from dovetail.errors import ArgumentError, JobFileError, MemoryBudgetError
from dovetail.specs import state_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from dovetail.spark.jobs.enrich_plan import EnrichPlan
    from dovetail.spark.jobs.plans import JoinAllPlan, JoinPlan


def plan(session: "SparkSession", job: Job) -> "JoinPlan | JoinAllPlan | EnrichPlan":
    """The plan of a job; a mistake in its options names the job file."""
    inputs = as_arguments(job, open_inputs(session, job))
    past = as_arguments(job, open_as_batch(session, job))[0] if job.history else None
    with blame(job, job.kind):
        if job.kind == "join":
            return plans.join(*inputs, **job.options)
        if job.kind == "join_all":
            return plans.join_all(*inputs, history=past, **job.options)
        return plans.enrich(*inputs, history=past, **job.options)


def result(session: "SparkSession", job: Job) -> "DataFrame":
    """The job's result as a DataFrame. Of an enrichment, the table is staged here."""
    planned = plan(session, job)
    with blame(job, job.kind):
        return planned.dataframe()


def open_inputs(session: "SparkSession", job: Job) -> dict[str, "DataFrame"]:
    """The inputs by name, as the job file describes them; nothing is read yet."""
    return {
        name: _open(session, job, source, streaming=job.streaming)
        for name, source in job.inputs.items()
    }


def open_as_batch(session: "SparkSession", job: Job) -> dict[str, "DataFrame"]:
    """The inputs as they are now, whatever the job's mode; files only."""
    for source in job.inputs.values():
        if source.format not in FILE_FORMATS:
            raise JobFileError(
                f"{job.file}: a sample can be taken of files only, but {source.side}.format is "
                f"{source.format!r}. Explain with --sample 0."
            )
    return open_inputs(session, replace(job, streaming=False))


def as_arguments(job: Job, inputs: dict[str, "DataFrame"]) -> tuple[Any, ...]:
    """The inputs as the call takes them: each as an argument, or all of them by name."""
    return (inputs,) if job.kind == "join_all" else tuple(inputs.values())


def start(job: Job, joined: "DataFrame", *, available_now: bool) -> "StreamingQuery":
    """Start the streaming query; `available_now` overrides the job's trigger."""
    sink = job.sink
    writer = joined.writeStream.options(**sink.options).queryName(job.spark.app_name)
    writer = writer.option("checkpointLocation", str(sink.checkpoint))
    writer = writer.outputMode(sink.mode or "append")
    trigger = {"availableNow": True} if available_now else job.trigger
    if trigger:
        writer = writer.trigger(**trigger)
    with blame(job, "sink"):
        if sink.table is not None:
            return writer.toTable(sink.table)
        return writer.format(sink.format).start(sink.path)


def write(job: Job, joined: "DataFrame") -> None:
    """Carry out a batch job."""
    sink = job.sink
    if sink.format == "console":  # Spark's console sink is for streams
        joined.show(int(sink.options.get("numRows", "20")), truncate=False)
        return
    writer = joined.write.options(**sink.options).mode(sink.mode or "error")
    with blame(job, "sink"):
        if sink.table is not None:
            writer.saveAsTable(sink.table)
        else:
            writer.format(sink.format).save(sink.path)


def are_files(job: Job) -> bool:
    """Whether all inputs are files, which can be read before the job runs."""
    return all(source.format in FILE_FORMATS for source in job.inputs.values())


def sample(session: "SparkSession", job: Job, rows: int) -> tuple[pa.Table, pa.Table]:
    """Of an enrichment, the first rows of stream and table, read as a batch from files."""
    from dovetail.spark.sources.tables import open_table

    (stream,) = open_as_batch(session, job).values()
    table = open_table(session, job.options["table"]).read()
    return stream.limit(rows).toArrow(), table.limit(rows).toArrow()


def state_of(job: Job) -> Path:
    """Where a streaming job's state is."""
    return state_path(job.options["state"])


@contextmanager
def blame(job: Job, key: str) -> Iterator[None]:
    """Turn what Spark or the join says into an error that names the job file and the key."""
    try:
        yield
    except (ArgumentError, MemoryBudgetError) as error:
        raise JobFileError(f"{job.file}: [{key}]: {error}") from error
    except Exception as error:
        if not is_sparks(error):
            raise
        raise JobFileError(f"{job.file}: {key}: {spark_says(error)}") from error


def _open(session: "SparkSession", job: Job, source: Source, *, streaming: bool) -> "DataFrame":
    reader = session.readStream if streaming else session.read
    reader = reader.format(source.format).options(**source.options)
    with blame(job, f"{source.side}.schema"):
        if source.schema is not None:
            reader = reader.schema(source.schema)
        elif streaming and source.format in FILE_FORMATS and source.format != "text":
            batch = session.read.format(source.format).options(**source.options)
            reader = reader.schema(batch.load(source.path).schema)
    with blame(job, source.side):
        frame: DataFrame = reader.load(source.path)
    if source.watermark is not None:
        with blame(job, f"{source.side}.watermark"):
            frame = frame.withWatermark(*source.watermark)
    if source.select:
        with blame(job, f"{source.side}.select"):
            frame = frame.selectExpr(*source.select)
    return frame
