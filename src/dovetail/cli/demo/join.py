"""`dovetail demo`: two streams joined, and the result checked."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from dovetail.api import join, progress
from dovetail.cli.demo.check import compare, report
from dovetail.cli.demo.data import KEY, Settings, Streams
from dovetail.cli.stopping import Stopped
from dovetail.cli.views import announce, summary
from dovetail.cli.watch import Watched, watch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run(
    console: Console, spark: "SparkSession", directory: Path, streams: Streams, settings: Settings
) -> None:
    """Join the streams into Parquet files, to the end."""
    state = directory / "state"
    with announce(console, "Planning the join"):
        orders, payments = (
            spark.readStream.schema(spark.read.parquet(str(path)).schema)
            .option("maxFilesPerTrigger", 1)
            .parquet(str(path))
            for path in streams.directories.values()
        )
        joined = join(
            orders,
            payments,
            on=KEY,
            memory=settings.budget_bytes,
            state=state,
            partitions=settings.partitions,
        )
    started = time.monotonic()
    query = (
        joined.writeStream.format("parquet")
        .option("path", str(directory / "out"))
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    nulls = streams.null_keys["orders"], streams.null_keys["payments"]
    expected = streams.rows - nulls[0], streams.rows - nulls[1]
    stopped = watch(console, Watched(query, state, expected))
    if stopped is not None:
        raise Stopped(stopped)
    seconds = time.monotonic() - started
    console.print(summary(progress(state), seconds, ("orders", "payments"), nulls))


def check(console: Console, spark: "SparkSession", directory: Path, streams: Streams) -> bool:
    """Compare the result with Spark's batch join of the same files, row by row."""
    with announce(console, "Checking against Spark's batch join"):
        orders, payments = (spark.read.parquet(str(p)) for p in streams.directories.values())
        expected = orders.join(payments, KEY)
        found = spark.read.schema(expected.schema).parquet(str(directory / "out"))
        result = compare(expected, found)
    return report(console, result)
