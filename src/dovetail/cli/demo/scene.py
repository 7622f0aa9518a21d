"""Where a demo is run: a console, a Spark session, and a directory for all that it makes."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from dovetail.cli.demo.check import compare, report
from dovetail.cli.stopping import Stopped
from dovetail.cli.views import announce
from dovetail.cli.watch import Watched, watch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


@dataclass(frozen=True)
class Scene:
    """A demo at work; the streams that it reads are directories of Parquet files."""

    console: Console
    spark: "SparkSession"
    directory: Path

    def open_stream(self, directory: Path, files_at_once: int = 1) -> "DataFrame":
        """A stream, so many of its files in each micro-batch."""
        return (
            self.spark.readStream.schema(self.spark.read.parquet(str(directory)).schema)
            .option("maxFilesPerTrigger", files_at_once)
            .parquet(str(directory))
        )

    def start(self, result: "DataFrame", checkpoint: str, out: str | None) -> "StreamingQuery":
        """Start a query over all that is there; without `out`, its results are thrown away."""
        writer = result.writeStream.option("checkpointLocation", str(self.directory / checkpoint))
        writer = writer.format("parquet" if out else "noop").trigger(availableNow=True)
        return writer.start(str(self.directory / out) if out else None)

    def watch(self, watched: Watched) -> None:
        """Show a query until it has ended."""
        stopped = watch(self.console, watched)
        if stopped is not None:
            raise Stopped(stopped)

    def check(self, left: Path, right: Path, key: str, how: str, out: str, what: str) -> bool:
        """Compare results with Spark's batch join of the same files, row by row."""
        with announce(self.console, f"Checking against {what}"):
            one, other = (self.spark.read.parquet(str(each)) for each in (left, right))
            expected = one.join(other, key, how)
            found = self.spark.read.schema(expected.schema).parquet(str(self.directory / out))
            result = compare(expected, found)
        return report(self.console, result, what)
