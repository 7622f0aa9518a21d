"""A join as one part of a longer query: a second join behind it, an aggregation, foreachBatch.

    python examples/pipeline.py

Orders meet payments, paid orders meet shipments, and what was shipped is added up by country.
Every join has a state directory of its own.
"""

import tempfile
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import dovetail

ROWS = 6_000
FILES = 2


def main() -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("pipeline")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "1000")
        .config("spark.log.level", "ERROR")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        make_inputs(spark, work)
        orders, payments, shipments = (
            read_stream(spark, work / side) for side in ("orders", "payments", "shipments")
        )
        paid = dovetail.join(
            orders, payments, on="order_id", memory="1MB", state=work / "ckpt" / "paid"
        )
        shipped = dovetail.join(
            paid, shipments, on="order_id", memory="1MB", state=work / "ckpt" / "shipped"
        )
        by_country = shipped.groupBy("country").agg(
            F.count("*").alias("shipments"), F.round(F.sum("amount"), 2).alias("amount")
        )

        def show(batch: DataFrame, number: int) -> None:
            """Called with the totals after every micro-batch; write them anywhere."""
            totals = {row["country"]: row["shipments"] for row in batch.collect()}
            if totals:
                print(f"batch {number}: {sum(totals.values()):,} shipments {totals}")

        query = (
            by_country.writeStream.outputMode("complete")
            .foreachBatch(show)
            .option("checkpointLocation", str(work / "ckpt" / "query"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        for part in ("paid", "shipped"):
            print(f"{part}: {dovetail.progress(work / 'ckpt' / part)}")
    spark.stop()


def make_inputs(spark: SparkSession, work: Path) -> None:
    """Every order is shipped, and nine in ten are paid."""
    rows = spark.range(ROWS).withColumnRenamed("id", "order_id")
    frames = {
        "orders": rows.withColumn("amount", F.col("order_id") % 500 + 0.5),
        "payments": rows.where("order_id % 10 < 9").withColumn(
            "country", F.expr("element_at(array('DE', 'FR', 'IT'), int(order_id % 3) + 1)")
        ),
        "shipments": rows.withColumn("parcel", F.hex("order_id")),
    }
    for name, frame in frames.items():
        frame.repartition(FILES).write.parquet(str(work / name))


def read_stream(spark: SparkSession, path: Path) -> DataFrame:
    schema = spark.read.parquet(str(path)).schema
    reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
    return reader.parquet(str(path))


if __name__ == "__main__":
    main()
