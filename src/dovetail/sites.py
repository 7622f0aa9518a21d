"""Joins of streams that live at distant sites: the public names.

    dovetail.sites.publish(packets, "grpc+tls://paris.example:7071", query="packets", ...)
    dovetail.sites.register(spark)

`publish` and `register` connect Spark with sites that run as processes. All else is of
`dovetail.multisite`: queries and windows, plans and planners, costs, and a network of sites inside
one process. Spark is imported when it is first needed; what talks to processes
(`dovetail.multisite.live`) is not imported here, so that neither is Arrow Flight.
"""

import datetime as dt
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dovetail.multisite.arrivals import Arrivals
from dovetail.multisite.costs import Cost, CostModel, LinkPrice, Prices
from dovetail.multisite.estimates import Statistics, StreamStatistics
from dovetail.multisite.implied import implied
from dovetail.multisite.messages import Header, Kind, Message, decode, encode
from dovetail.multisite.network import Network
from dovetail.multisite.plan import PAPER, Algorithm, Plan, Step
from dovetail.multisite.planner import algorithm_10, exhaustive, greedy, joint, refine
from dovetail.multisite.query import Query, Stream, topology
from dovetail.multisite.replanning import Planner
from dovetail.multisite.site import Site
from dovetail.multisite.tree import TreeJoin, TreePlan, TreeSimulation
from dovetail.multisite.tree_costs import cheapest_tree, tree_cost
from dovetail.multisite.virtual import Simulation, Usage, VirtualNetwork
from dovetail.multisite.windows import CountWindow, TimeWindow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from dovetail.multisite.live.access import Access

__all__ = [
    "PAPER", "Algorithm", "Arrivals", "Cost", "CostModel", "CountWindow", "Header", "Kind",
    "LinkPrice", "Message", "Network", "Plan", "Planner", "Prices", "Query", "Simulation", "Site",
    "Statistics", "Step", "Stream", "StreamStatistics", "TimeWindow", "TreeJoin", "TreePlan",
    "TreeSimulation", "Usage", "VirtualNetwork", "algorithm_10", "cheapest_tree", "decode",
    "encode", "exhaustive", "greedy", "implied", "joint", "publish", "refine", "register",
    "topology", "tree_cost",
]  # fmt: skip


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
    """Make a DataFrame the input of a stream at a site.

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
    """Let a session read the results of queries over sites.

    >>> dovetail.sites.register(spark)
    >>> reader = spark.readStream.format("dovetail_site").option("query", "packets")
    >>> results = reader.option("address", "grpc+tls://paris.example:7071").load()
    >>> results.select("r1.dest", "r2.size")
    """
    from dovetail.spark.sources.site_source import register as register_source

    register_source(spark)
