"""`dovetail demo enrich`: orders meet their customers, and those of unknown ones are found."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from dovetail.api import enrich, progress
from dovetail.cli.demo.check import compare, report
from dovetail.cli.demo.data import CUSTOMER_KEY, Settings, Shop
from dovetail.cli.stopping import Stopped
from dovetail.cli.views import announce, enrich_summary
from dovetail.cli.watch import Watched, watch
from dovetail.specs import EnrichHow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: what is done, and where its results and its state go
_JOBS: dict[EnrichHow, tuple[str, str]] = {
    "left": ("enriched", "state"),
    "anti": ("unknown", "state-unknown"),
}


def run(
    console: Console, spark: "SparkSession", directory: Path, shop: Shop, settings: Settings
) -> None:
    """Enrich the orders into Parquet files, then find unknown customers, to the end.

    The second query has a state of its own, and so stages the table too, its keys alone.
    """
    for how in _JOBS:
        _one(console, spark, directory, shop, settings, how)


def _one(
    console: Console,
    spark: "SparkSession",
    directory: Path,
    shop: Shop,
    settings: Settings,
    how: EnrichHow,
) -> None:
    out, state_name = _JOBS[how]
    state = directory / state_name
    orders = (
        spark.readStream.schema(spark.read.parquet(str(shop.orders)).schema)
        .option("maxFilesPerTrigger", 1)
        .parquet(str(shop.orders))
    )
    started = time.monotonic()
    what = "customers" if how == "left" else "customers' keys"
    console.print(f"Staging the table of {what} …")
    result = enrich(
        orders,
        shop.table,
        on=CUSTOMER_KEY,
        how=how,
        memory=settings.budget_bytes,
        state=state,
        partitions=settings.partitions,
    )
    staged = time.monotonic()
    query = (
        result.writeStream.format("parquet")
        .option("path", str(directory / out))
        .option("checkpointLocation", str(directory / f"checkpoint-{out}"))
        .trigger(availableNow=True)
        .start()
    )
    stopped = watch(console, Watched(query, state, (shop.rows, 0)))
    if stopped is not None:
        raise Stopped(stopped)
    seconds = time.monotonic() - staged
    done = progress(state)
    if how == "left":
        console.print(enrich_summary(done, seconds, staged - started))
    else:
        found = sum(done.rows_out.values())
        console.print(f"An anti join found {found:,} orders of no known customer: {seconds:.1f} s.")


def check(console: Console, spark: "SparkSession", directory: Path, shop: Shop) -> bool:
    """Compare both results with Spark's batch joins of the same files, row by row."""
    orders, customers = (spark.read.parquet(str(path)) for path in (shop.orders, shop.table))
    same = True
    for how, (out, _) in _JOBS.items():
        with announce(console, f"Checking against Spark's batch {how} join"):
            expected = orders.join(customers, CUSTOMER_KEY, how)
            found: DataFrame = spark.read.schema(expected.schema).parquet(str(directory / out))
            result = compare(expected, found)
        same = report(console, result, f"Spark's batch {how} join") and same
    return same
