"""Two streams that live at distant sites, joined there; Spark on both ends.

    python examples/sites_spark.py

Each site is a process of its own (here on this machine, as `dovetail site run --local` does it).
A Spark stream is published to each of them. The sites send each other as little as they can, and
the results come back as one more stream: packets that pass both routers within ten seconds.
"""

import tempfile
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import dovetail
from dovetail.cli.site.file import read_query
from dovetail.cli.site.plan import choose_plan, deployment
from dovetail.multisite.live.client import SiteClient
from dovetail.multisite.live.local import LocalSites

QUERY = """
name = "packets"
tau = "5 seconds"
delta = "1 second"
clock = "rows"
start = 2026-01-31T12:00:00Z
on = [["north.dest", "west.dest"]]

[streams.north]
site = "oslo"
columns = { ts = "timestamp[us, tz=UTC]", dest = "int64", bytes = "int32" }
window = "10 seconds"

[streams.west]
site = "paris"
columns = { ts = "timestamp[us, tz=UTC]", dest = "int64", bytes = "int32" }
window = "10 seconds"

[statistics.north]
rate = 100
row_bytes = 20
distinct = { dest = 20000 }

[statistics.west]
rate = 100
row_bytes = 20
distinct = { dest = 20000 }
"""
ROWS = 6_000  # of each stream, in a minute


def main() -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("sites-spark")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.log.level", "ERROR")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        (work / "query.toml").write_text(QUERY)
        file = read_query(work / "query.toml")
        sites = LocalSites(work / "sites", file.hosts)
        try:
            for host in file.hosts:
                sites.start(host)
            clients = {h: SiteClient(a, sites.access) for h, a in sites.addresses().items()}
            for client in clients.values():
                client.start(deployment(file, choose_plan(file), sites.addresses()))
            join_at_sites(spark, work, sites, clients)
        finally:
            sites.stop()
    spark.stop()


def join_at_sites(
    spark: SparkSession, work: Path, sites: LocalSites, clients: dict[str, SiteClient]
) -> None:
    publications = []
    for seed, stream in enumerate(("north", "west")):
        make_packets(spark, seed).write.parquet(str(work / stream))
        packets = spark.readStream.schema(spark.read.parquet(str(work / stream)).schema)
        publications.append(
            dovetail.sites.publish(
                packets.parquet(str(work / stream)).withWatermark("ts", "1 second"),
                sites.address("oslo"),  # any site of the query
                query="packets",
                stream=stream,
                checkpoint=work / "ckpt" / stream,
                access=sites.access,
                trigger={"availableNow": True},
            )
        )
    for publication in publications:
        assert publication is not None  # it is a stream
        publication.awaitTermination()
    finish(clients)

    dovetail.sites.register(spark)
    results = (
        spark.readStream.format("dovetail_site")
        .option("address", sites.address("oslo"))
        .option("query", "packets")
        .option("token_file", str(sites.directory / "token"))
        .load()
    )
    query = (
        results.select("north.dest", "north.ts", F.col("west.ts").alias("west_ts"))
        .writeStream.option("checkpointLocation", str(work / "ckpt" / "results"))
        .trigger(availableNow=True)
        .start(str(work / "meetings"))
    )
    query.awaitTermination()

    meetings = spark.read.parquet(str(work / "meetings"))
    meetings.orderBy("ts", "west_ts").show(5, truncate=False)
    same = sorted(meetings.collect()) == sorted(in_one_place(spark, work).collect())
    links = [
        link for client in clients.values() for link in client.status("packets").links.values()
    ]
    print(
        f"{meetings.count():,} meetings; a join in one place finds "
        f"{'the same' if same else 'OTHERS'}; {sum(link.rows for link in links):,} of "
        f"{2 * ROWS:,} rows were sent from site to site"
    )


def make_packets(spark: SparkSession, seed: int) -> DataFrame:
    """A minute of packets, in the order of their times."""
    return spark.range(0, ROWS, numPartitions=1).select(
        F.expr(f"timestamp'2026-01-31 12:00:00Z' + make_interval(0,0,0,0,0,0, id * 60 / {ROWS})")
        .alias("ts"),
        F.pmod(F.hash("id", F.lit(seed)), F.lit(20_000)).cast("long").alias("dest"),
        F.pmod("id", F.lit(1_500)).cast("int").alias("bytes"),
    )  # fmt: skip


def finish(clients: dict[str, SiteClient]) -> None:
    """No row will follow: let the sites' time pass until all results are out."""
    described = next(iter(clients.values())).describe("packets")
    query = described.query
    last = described.first_interval + 60 // 5  # a minute of rows
    beyond = last
    settled = 0
    while settled < last:
        beyond += 1
        for stream in query.streams:
            clients[stream.site].advance("packets", stream.name, query.boundary(beyond))
        statuses = [client.status("packets") for client in clients.values()]
        settled = min(s.settled for status in statuses for s in status.streams.values())
        time.sleep(0.05)


def in_one_place(spark: SparkSession, work: Path) -> DataFrame:
    north, west = (spark.read.parquet(str(work / name)) for name in ("north", "west"))
    apart = F.abs(F.unix_micros(north.ts) - F.unix_micros(west.ts))
    joined = north.join(west, (north.dest == west.dest) & (apart <= 10_000_000))
    return joined.select(north.dest, north.ts, west.ts.alias("west_ts"))


if __name__ == "__main__":
    main()
