"""Runs a checked job file on Spark: inputs, join or enrichment, and sink."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from dovetail.api import enrich, join, join_all
from dovetail.cli.failures import is_sparks, spark_says
from dovetail.cli.job.file import FILE_FORMATS, EnrichJob, Job, JoinAllJob, JoinJob, Source
from dovetail.errors import ArgumentError, JobFileError, MemoryBudgetError
from dovetail.specs import state_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def plan(session: "SparkSession", job: Job) -> "DataFrame":
    """The job's result as a DataFrame. Of an enrichment, the table is staged here."""
    if isinstance(job, JoinJob):
        return join_inputs(job, *open_inputs(session, job))
    if isinstance(job, JoinAllJob):
        inputs = open_all(session, job)
        history = open_all(session, job, as_batch=True) if job.history else None
        with blame(job, "join_all"):
            return join_all(inputs, history=history, **vars(job.join_all))
    stream = open_stream(session, job)
    past = stream_as_batch(session, job) if job.history else None
    with blame(job, "enrich"):
        return enrich(stream, job.table, history=past, **vars(job.enrich))


def open_stream(session: "SparkSession", job: EnrichJob) -> "DataFrame":
    """The stream of an enrichment; nothing is read yet."""
    return _open(session, job, job.stream, streaming=job.streaming)


def open_inputs(session: "SparkSession", job: JoinJob) -> tuple["DataFrame", "DataFrame"]:
    """Both inputs, as the job file describes them; nothing is read yet."""
    left, right = (
        _open(session, job, source, streaming=job.streaming) for source in (job.left, job.right)
    )
    return left, right


def open_all(
    session: "SparkSession", job: JoinAllJob, *, as_batch: bool = False
) -> dict[str, "DataFrame"]:
    """The inputs by name; as they are now, whatever the job's mode, if they are to be a batch."""
    streaming = job.streaming and not as_batch
    return {
        name: _open(session, job, source, streaming=streaming)
        for name, source in job.inputs.items()
    }


def join_inputs(job: JoinJob, left: "DataFrame", right: "DataFrame") -> "DataFrame":
    """The joined DataFrame; a mistake in `[join]` names the job file."""
    with blame(job, "join"):
        return join(left, right, **vars(job.join))


def start(job: Job, joined: "DataFrame", *, available_now: bool) -> "StreamingQuery":
    """Start the streaming query; `available_now` overrides the job's trigger."""
    sink = job.sink
    writer = joined.writeStream.options(**sink.options).queryName(job.spark.app_name)
    writer = writer.option("checkpointLocation", str(sink.checkpoint))
    writer = writer.outputMode(sink.mode or "append")
    if available_now or job.trigger.available_now:
        writer = writer.trigger(availableNow=True)
    elif job.trigger.once:
        writer = writer.trigger(once=True)
    elif job.trigger.processing_time:
        writer = writer.trigger(processingTime=job.trigger.processing_time)
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


def are_files(job: JoinJob | JoinAllJob) -> bool:
    """Whether all inputs are files, which can be read before the job runs."""
    sources = (job.left, job.right) if isinstance(job, JoinJob) else job.inputs.values()
    return all(source.format in FILE_FORMATS for source in sources)


def open_as_batch(session: "SparkSession", job: JoinJob) -> tuple["DataFrame", "DataFrame"]:
    """Both inputs as they are now, whatever the job's mode; files only."""
    for source in (job.left, job.right):
        _check_is_file(job, source)
    left, right = (_open(session, job, source, streaming=False) for source in (job.left, job.right))
    return left, right


def sample(session: "SparkSession", job: EnrichJob, rows: int) -> tuple[pa.Table, pa.Table]:
    """The first rows of stream and table, read as a batch from files."""
    from dovetail.spark.sources.tables import open_table

    stream = stream_as_batch(session, job)
    table = open_table(session, job.table).read()
    return stream.limit(rows).toArrow(), table.limit(rows).toArrow()


def stream_as_batch(session: "SparkSession", job: EnrichJob) -> "DataFrame":
    """The stream as it is now, whatever the job's mode; files only."""
    _check_is_file(job, job.stream)
    return _open(session, job, job.stream, streaming=False)


def _check_is_file(job: Job, source: Source) -> None:
    if source.format not in FILE_FORMATS:
        raise JobFileError(
            f"{job.file}: a sample can be taken of files only, but {source.side}.format is "
            f"{source.format!r}. Explain with --sample 0."
        )


def state_of(job: Job) -> Path:
    """Where a streaming job's state is; it has been planned, so it is a path."""
    if isinstance(job, JoinAllJob):
        state = job.join_all.state
    else:
        state = job.join.state if isinstance(job, JoinJob) else job.enrich.state
    assert state is not None
    return state_path(state)


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
