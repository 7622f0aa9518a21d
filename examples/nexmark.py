"""Three streams of an auction house, joined continuously: who sells what, and who bids how much.

    python examples/nexmark.py

Persons, auctions and bids as in NEXMark (Tucker, Tufte, Papadimos and Maier, 2008), made here in
its proportions: of 50 events, one is a person, three are auctions and 46 are bids. A person may
come after their auctions, and an auction after the first bids on it; hot auctions get half of the
bids. Files arrive while the query runs. In the end its result is compared with Spark's batch joins
of the same files.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

import dovetail

EVENTS = 20_000
ROUNDS = 4  # in which files arrive
OF_50 = {"person": 1, "auction": 3, "bid": 46}
HOT_SHARE = 0.5  # of the bids are for one auction in a hundred
STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")


def main() -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("nexmark")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "1000")
        .config("spark.log.level", "ERROR")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        events = make_events(np.random.default_rng(46))
        for stream in events:
            (work / stream).mkdir()
        write_round(events, work, 0)
        streams = {stream: read_stream(spark, work / stream) for stream in events}
        offers = dovetail.join_all(
            streams,
            on=[("person.id", "auction.seller"), ("auction.id", "bid.auction")],
            memory="1MB",
            state=work / "ckpt" / "join",
            sizes=OF_50,
        )
        query = (
            offers.writeStream.format("parquet")
            .option("path", str(work / "offers"))
            .option("checkpointLocation", str(work / "ckpt" / "query"))
            .start()
        )
        for number in range(1, ROUNDS):
            query.processAllAvailable()
            write_round(events, work, number)
            print(f"round {number}: {dovetail.progress(work / 'ckpt' / 'join')}")
        query.processAllAvailable()
        query.stop()
        print(f"at the end: {dovetail.progress(work / 'ckpt' / 'join')}")
        check(spark, work)
    spark.stop()


def make_events(rng: np.random.Generator) -> dict[str, pa.Table]:
    """All events of each kind, in the order in which they come."""
    count = {kind: EVENTS * part // 50 for kind, part in OF_50.items()}
    persons, auctions, bids = count.values()
    hot = rng.choice(auctions, max(1, auctions // 100), replace=False)
    on_hot = rng.random(bids) < HOT_SHARE
    return {
        "person": pa.table(
            {
                "id": rng.permutation(persons),
                "name": np.char.mod("person-%04d", rng.integers(0, persons, persons)),
                "state": rng.choice(STATES, persons),
            }
        ),
        "auction": pa.table(
            {
                "id": rng.permutation(auctions),
                "seller": rng.integers(0, persons, auctions),
                "category": rng.integers(10, 15, auctions),
                "reserve": rng.integers(1, 1000, auctions),
            }
        ),
        "bid": pa.table(
            {
                "auction": np.where(on_hot, rng.choice(hot, bids), rng.integers(0, auctions, bids)),
                "bidder": rng.integers(0, persons, bids),
                "price": rng.integers(1, 10_000, bids),
            }
        ),
    }


def write_round(events: dict[str, pa.Table], work: Path, number: int) -> None:
    """The next file of each stream."""
    for stream, table in events.items():
        start, stop = (len(table) * n // ROUNDS for n in (number, number + 1))
        hidden = work / stream / f".{number}.parquet"  # a stream must not see half a file
        pq.write_table(table.slice(start, stop - start), hidden)
        hidden.rename(work / stream / f"{number}.parquet")


def read_stream(spark: SparkSession, path: Path) -> DataFrame:
    return spark.readStream.schema(spark.read.parquet(str(path)).schema).parquet(str(path))


def check(spark: SparkSession, work: Path) -> None:
    """The result against Spark's batch joins of the same files."""
    person, auction, bid = (spark.read.parquet(str(work / stream)) for stream in OF_50)
    person, auction = (
        person.withColumnRenamed("id", "person_id"),
        auction.withColumnRenamed("id", "auction_id"),
    )
    expected = person.join(auction, person.person_id == auction.seller)
    expected = expected.join(bid, expected.auction_id == bid.auction)
    found = spark.read.parquet(str(work / "offers"))
    if found.columns != expected.columns:
        sys.exit(f"the columns differ: {found.columns} and {expected.columns}")
    wrong = found.exceptAll(expected).count() + expected.exceptAll(found).count()
    if wrong:
        sys.exit(f"{wrong:,} rows differ from Spark's batch joins")
    best = found.groupBy("category").agg({"price": "max"}).orderBy("category").collect()
    print(f"highest bid by category: { {row[0]: row[1] for row in best} }")
    print(f"{found.count():,} offers; checked against Spark's batch joins: identical")


if __name__ == "__main__":
    main()
