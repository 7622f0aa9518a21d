"""Join two streams inside a megabyte of memory, and print some of the result.

    python examples/two_streams.py

Bids and asks arrive as files; a bid meets the asks at its price.
"""

import tempfile
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import dovetail

ROWS = 20_000
PRICES = 5_000


def main() -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("two-streams")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "1000")
        .config("spark.log.level", "ERROR")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        for seed, (side, who) in enumerate([("bid", "buyer"), ("ask", "seller")]):
            rows = spark.range(ROWS).select(
                (F.rand(seed) * PRICES).cast("int").alias("price"),
                F.col("id").alias(f"{side}_id"),
                F.concat(F.lit("trader-"), F.col("id") % 97).alias(who),
            )
            rows.repartition(4).write.parquet(str(work / side))

        bids, asks = (
            spark.readStream.schema(spark.read.parquet(str(work / side)).schema)
            .option("maxFilesPerTrigger", 1)
            .parquet(str(work / side))
            for side in ("bid", "ask")
        )
        trades = dovetail.join(bids, asks, on="price", memory="1MB", state=work / "ckpt" / "join")
        query = (
            trades.writeStream.format("parquet")
            .option("path", str(work / "trades"))
            .option("checkpointLocation", str(work / "ckpt" / "query"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

        result = spark.read.parquet(str(work / "trades"))
        result.orderBy("price", "bid_id", "ask_id").show(5)
        print(f"{result.count():,} pairs")
        print(dovetail.progress(work / "ckpt" / "join"))
    spark.stop()


if __name__ == "__main__":
    main()
