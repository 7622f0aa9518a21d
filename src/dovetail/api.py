"""The public calls: arguments in, DataFrames out.

Spark is imported when it is first needed, so that `import dovetail` is quick and works without
Java.
"""

import datetime as dt
import functools
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, Protocol

from dovetail import plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from dovetail.sites.live.access import Access
    from dovetail.spark.jobs.refresh import Refreshed
    from dovetail.spark.state.metrics import Progress

P = ParamSpec("P")


class _Plan(Protocol):
    def dataframe(self) -> "DataFrame": ...


def _carried_out(plan_of: Callable[P, _Plan]) -> Callable[P, "DataFrame"]:
    """Turn a function that makes a plan into one that returns the plan's DataFrame."""

    @functools.wraps(plan_of)
    def call(*args: P.args, **kwargs: P.kwargs) -> "DataFrame":
        return plan_of(*args, **kwargs).dataframe()

    signature = inspect.signature(plan_of)
    call.__signature__ = signature.replace(return_annotation="DataFrame")  # type: ignore[attr-defined]
    call.__module__ = __name__
    return call


join = _carried_out(plan.join)
join_all = _carried_out(plan.join_all)
enrich = _carried_out(plan.enrich)


def refresh(state: str | Path, table: "DataFrame | str | Path | None" = None) -> "Refreshed":
    """Stage a table that has changed anew; a running `enrich` takes it up with its next rows.

    A row that is being joined finishes on the version it began with. Returns the `version` in use
    and whether it is a `changed` one; printed, that is "staged as v000002" or "unchanged, v000001".
    It is the same if the table's files (of an Iceberg or Delta table: its snapshot) are.

    table: needed if the table was given to `enrich` as a DataFrame.

    >>> print(dovetail.refresh("ckpt/orders-enrich"))
    """
    from dovetail.spark.jobs.refresh import restage
    from dovetail.spark.session import active_session

    return restage(state, table, active_session())


def progress(state: str | Path) -> "Progress":
    """The progress of a join so far, from its state directory; needs no running query.

    >>> print(dovetail.progress("ckpt/join"))
    """
    from dovetail.spark.state.metrics import progress as read_progress

    return read_progress(state)


def publish(
    df: "DataFrame",
    site: str,
    *,
    query: str,
    stream: str,
    checkpoint: str | Path,
    access: "Access | None" = None,
    lateness: str | dt.timedelta | None = None,
    trigger: Mapping[str, object] | None = None,
    name: str | None = None,
    timeout: str | dt.timedelta = "10 minutes",
) -> "StreamingQuery | None":
    """Make a DataFrame the input of a stream at a site; called as `dovetail.sites.publish`.

    Starts a streaming query and returns it. Each row is put exactly once, across failures and
    restarts with the same checkpoint, also where a micro-batch that is run again comes in another
    order. A batch DataFrame is put at once, in the order of its times, and None is returned; the
    same call again has no effect.

    site: the address of any site of the query, `"grpc+tls://host:port"`.
    query, stream: the names of a query that runs there, and of one of its streams. The DataFrame
        has that stream's columns, in any order.
    checkpoint: a folder of its own that driver and executors reach by the same path; Spark's
        checkpoint goes below it, and the rows of the current micro-batch.
    access: the token and the CA; default: as the environment says. They stay with the driver.
    lateness: how much older than the newest row of all earlier micro-batches a row may be,
        `"5 seconds"`; intervals end by it where the rows of a query make its time. Default: the
        delay of `withWatermark`; of a batch DataFrame, 0. A stream without new rows holds all
        others up, unless `SiteClient.advance` is called for it; so publish all streams of a query
        at the same time.
    trigger: as for `DataStreamWriter.trigger`, `{"availableNow": True}`.
    name: of the streaming query.
    timeout: how long to wait for a site that is behind or away before the query fails.

    >>> dovetail.sites.publish(
    ...     packets.withWatermark("ts", "5 seconds"),
    ...     "grpc+tls://paris.example:7071",
    ...     query="packets",
    ...     stream="r1",
    ...     checkpoint="ckpt/r1",
    ... )
    """
    from dovetail.spark.sources.site_publish import PublishOptions
    from dovetail.spark.sources.site_publish import publish as publish_planned

    options = PublishOptions(
        site, query, stream, checkpoint, access, lateness, trigger, name, timeout
    )
    return publish_planned(df, options)


def register(spark: "SparkSession") -> None:
    """Let a session read the results of queries over sites; called as `dovetail.sites.register`.

    >>> dovetail.sites.register(spark)
    >>> reader = spark.readStream.format("dovetail_site").option("query", "packets")
    >>> results = reader.option("address", "grpc+tls://paris.example:7071").load()
    >>> results.select("r1.dest", "r2.size")
    """
    from dovetail.spark.sources.site_source import register as register_source

    register_source(spark)
