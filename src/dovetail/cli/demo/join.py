"""`dovetail demo`: two streams joined, and the result checked."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from dovetail.api import join, progress
from dovetail.cli.demo.check import compare, report
from dovetail.cli.demo.data import KEY, Settings, Streams
from dovetail.cli.demo.rival import open_stream, spark_join
from dovetail.cli.demo.view import SideBySide, when
from dovetail.cli.stopping import Stopped
from dovetail.cli.views import announce, percent, summary
from dovetail.cli.watch import Watched, watch
from dovetail.kernel.memory import format_bytes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from dovetail.spark.state.metrics import Progress

_BESIDE = (
    "Beside it, on the same cores and over the same files, runs Spark's own stream-stream join "
    "(no watermark, default state store). Compared is the memory that each reports for its rows."
)


def run(
    console: Console, spark: "SparkSession", directory: Path, streams: Streams, settings: Settings
) -> None:
    """Join the streams into Parquet files, to the end."""
    query = _start(console, spark, directory, streams, settings)
    started = time.monotonic()
    _watch(console, Watched(query, directory / "state", _expected(streams)))
    console.print(_summary(directory, streams, time.monotonic() - started))


def run_beside_spark(
    console: Console, spark: "SparkSession", directory: Path, streams: Streams, settings: Settings
) -> None:
    """The same, while Spark's own join of the same files runs too, for its memory to be seen."""
    state = directory / "state"
    console.print(_BESIDE, soft_wrap=True)
    query = _start(console, spark, directory, streams, settings)
    started = time.monotonic()
    with spark_join(spark, streams, directory / "checkpoint-spark") as rival:
        view = SideBySide(streams, rival)
        expected = _expected(streams)
        _watch(console, Watched(query, state, expected, view.frame, view.line, rival.look))
        seconds = time.monotonic() - started
        with announce(console, "Letting Spark's own join take in the rest"):
            rival.finish()
    console.print(_summary(directory, streams, seconds))
    done = progress(state)
    console.print(view.outcome(done))
    console.print()
    console.print(outcome(done, view), soft_wrap=True)


def outcome(done: "Progress", view: SideBySide) -> str:
    """In one sentence: when results came, in which memory, and what Spark's own join held."""
    early, later = when(done)
    share, memory = percent(early, early + later), format_bytes(done.memory.get("total", 0))
    said = f"[bold]{share} of the results came while rows arrived, in {memory}.[/bold]"
    rival = view.rival
    if not rival.moments:
        return said
    held = format_bytes(rival.moments[-1].held_bytes)
    if rival.given_up:
        part = percent(rival.moments[-1].files, rival.files)
        return f"{said} Spark's own join held {held} at {part} of the rows, and was stopped."
    return f"{said} Spark's own join held {held} in the end."


def _start(
    console: Console, spark: "SparkSession", directory: Path, streams: Streams, settings: Settings
) -> "StreamingQuery":
    with announce(console, "Planning the join"):
        left, right = (open_stream(spark, each.directory) for each in streams.both)
        joined = join(
            left,
            right,
            on=KEY,
            memory=settings.budget_bytes,
            state=directory / "state",
            partitions=settings.partitions,
        )
    return (
        joined.writeStream.format("parquet")
        .option("path", str(directory / "out"))
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )


def _expected(streams: Streams) -> tuple[int, int]:
    left, right = (each.rows - each.null_keys for each in streams.both)
    return left, right


def _watch(console: Console, watched: Watched) -> None:
    stopped = watch(console, watched)
    if stopped is not None:
        raise Stopped(stopped)


def _summary(directory: Path, streams: Streams, seconds: float) -> Table:
    names = [each.name for each in streams.both]
    nulls = [each.null_keys for each in streams.both]
    return summary(progress(directory / "state"), seconds, names, nulls)


def check(console: Console, spark: "SparkSession", directory: Path, streams: Streams) -> bool:
    """Compare the result with Spark's batch join of the same files, row by row."""
    with announce(console, "Checking against Spark's batch join"):
        left, right = (spark.read.parquet(str(each.directory)) for each in streams.both)
        expected = left.join(right, KEY)
        found = spark.read.schema(expected.schema).parquet(str(directory / "out"))
        result = compare(expected, found)
    return report(console, result)
