"""`dovetail demo`: the main job on local Spark, with data that it makes, checked in the end."""

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from dovetail.api import join, progress
from dovetail.cli.demo_data import KEY, Streams, make_streams
from dovetail.cli.session import spark_session
from dovetail.cli.views import announce, make_console, summary
from dovetail.cli.watch import Watched, watch
from dovetail.errors import ArgumentError
from dovetail.kernel.memory import format_bytes, parse_bytes
from dovetail.twoway.base import MIN_BUDGET_BYTES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAME = "demo"
EXAMPLES = """
[bold]Examples[/bold]

  [cyan]dovetail demo[/cyan]                         200,000 rows a side

  [cyan]dovetail demo --rows 1000000[/cyan]          more rows; takes minutes

  [cyan]dovetail demo --memory 8MB[/cyan]            a budget of your own

  [cyan]dovetail demo --keep /tmp/demo[/cyan]        keep data, results and state
"""
_BATCH_SHARE = 1 / 8  # of a partition's budget: what one input batch may take at most
_LARGEST_BATCH = 10_000
_EXAMPLES_SHOWN = 3


@dataclass(frozen=True)
class Settings:
    """How the demo is to run."""

    partitions: int
    budget_bytes: int
    batch_rows: int


@dataclass(frozen=True)
class Comparison:
    """The multiset of result rows against that of Spark's batch join."""

    expected: int
    found: int
    missing: int  #: rows of the batch join that the result lacks
    surplus: int  #: rows of the result that the batch join lacks
    examples: tuple[str, ...] = ()  #: some of either


def command(
    rows: Annotated[int, typer.Option(min=1, help="Rows on each side.")] = 200_000,
    budget_share: Annotated[
        float, typer.Option(min=0.0, help="The budget, as a share of the input's size in memory.")
    ] = 0.05,
    memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="The budget as a size, 8MB say.", show_default=False),
    ] = None,
    partitions: Annotated[int, typer.Option(min=1, help="Hash partitions of the join.")] = 2,
    keep: Annotated[
        Path | None,
        typer.Option(help="Keep everything in this new or empty directory.", show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Other data for another number.")] = 1,
) -> None:
    """Join two made-up streams on local Spark inside a small budget, and check the result."""
    console = make_console()
    with _workplace(keep) as directory:
        with announce(console, f"Making two streams of {rows:,} rows"):
            streams = make_streams(directory / "in", rows, seed)
        settings = _settings(console, streams, budget_share, memory, partitions)
        conf = {
            "spark.sql.execution.arrow.maxRecordsPerBatch": str(settings.batch_rows),
            "spark.sql.shuffle.partitions": "4",
            "spark.sql.warehouse.dir": str(directory / "warehouse"),
            # a short program: compiling it to the utmost would take a third of the work
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        }
        with spark_session(console, "dovetail-demo", "local[2]", conf) as spark:
            finished = _run(console, spark, directory, streams, settings)
            same = finished and _check(console, spark, directory, streams)
        if keep is not None:
            kept = f"Kept in {directory}; try: dovetail top {directory / 'state'} --once"
            console.print(kept, markup=False, soft_wrap=True)
    if not finished:
        raise typer.Exit(130)
    if not same:
        raise typer.Exit(1)


def _settings(
    console: Console, streams: Streams, share: float, memory: str | None, partitions: int
) -> Settings:
    """The budget, and input batches small enough for it."""
    size = streams.nbytes
    least = MIN_BUDGET_BYTES * partitions
    if memory is not None:
        try:
            budget = parse_bytes(memory)
        except ValueError as error:
            raise ArgumentError(f"--memory: {error}") from None
    else:
        budget = max(int(size * share), least)
    row_bytes = max(1, size // (2 * streams.rows))
    batch = max(1, min(_LARGEST_BATCH, int(budget / partitions * _BATCH_SHARE) // row_bytes))
    raised = " (the least that runs)" if memory is None and budget == least else ""
    console.print(
        f"Two streams of {streams.rows:,} rows, {format_bytes(size)} in memory together. "
        f"Budget: {format_bytes(budget)}, {100 * budget / size:.0f} % of that{raised}."
    )
    return Settings(partitions, budget, batch)


def _run(
    console: Console, spark: "SparkSession", directory: Path, streams: Streams, settings: Settings
) -> bool:
    """Join the streams into Parquet files. Whether it came to its end."""
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
    finished = watch(console, Watched(query, state, expected))
    seconds = time.monotonic() - started
    if finished:
        console.print(summary(progress(state), seconds, ("orders", "payments"), nulls))
    else:
        console.print("Stopped.")
    return finished


def _check(console: Console, spark: "SparkSession", directory: Path, streams: Streams) -> bool:
    """Compare the result with Spark's batch join of the same files, row by row."""
    with announce(console, "Checking against Spark's batch join"):
        orders, payments = (spark.read.parquet(str(p)) for p in streams.directories.values())
        expected = orders.join(payments, KEY)
        found = spark.read.schema(expected.schema).parquet(str(directory / "out"))
        result = compare(expected, found)
    if not result.missing and not result.surplus:
        console.print(
            f"[bold green]checked[/bold green] against Spark's batch join: {result.found:,} rows, "
            "identical"
        )
        return True
    console.print(
        f"[bold red]wrong[/bold red]: the result has {result.found:,} rows, Spark's batch join "
        f"{result.expected:,}; {result.missing:,} are missing and {result.surplus:,} are too many"
    )
    for example in result.examples:
        console.print(f"  {example}", markup=False, soft_wrap=True)
    return False


def compare(expected: "DataFrame", found: "DataFrame") -> Comparison:
    """Compare two DataFrames of the same columns as multisets of rows, exactly."""
    from pyspark.sql import functions as F

    side = F.col("__side")
    sides = expected.withColumn("__side", F.lit(1)).unionByName(
        found.withColumn("__side", F.lit(0))
    )
    counts = sides.groupBy(*expected.columns).agg(
        F.sum(side).alias("__expected"), F.sum(1 - side).alias("__found")
    )
    missing = F.col("__expected") - F.col("__found")
    totals = counts.agg(
        F.sum("__expected"),
        F.sum("__found"),
        F.sum(F.greatest(missing, F.lit(0))),
        F.sum(F.greatest(-missing, F.lit(0))),
    ).first()
    assert totals is not None
    rows_expected, rows_found, rows_missing, rows_surplus = (int(value or 0) for value in totals)
    different = []
    if rows_missing or rows_surplus:
        different = counts.where(missing != 0).limit(_EXAMPLES_SHOWN).collect()
    examples = tuple(str(row) for row in different)
    return Comparison(rows_expected, rows_found, rows_missing, rows_surplus, examples)


@contextmanager
def _workplace(keep: Path | None) -> Iterator[Path]:
    """A directory for everything: a temporary one, or the one that is to be kept."""
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="dovetail-demo-") as name:
            yield Path(name)
        return
    if keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise ArgumentError(
            f"--keep {keep}: there is something there already; name a new directory"
        )
    keep.mkdir(parents=True, exist_ok=True)
    yield keep.absolute()
