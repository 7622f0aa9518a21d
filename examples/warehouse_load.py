"""Load a warehouse in real time: orders meet their customers as they come.

    python examples/warehouse_load.py [scale factor]

Orders of TPC-H (scale factor 0.01, unless another is given: 15,000 of them) arrive as files. Each
gets the surrogate key of its customer from a lookup table, and then what the table of customers has
about that one. The lookup table does not know the newest customers yet; an anti join finds their
orders, to be loaded later. In the end both results are compared with Spark's batch joins.

Needs tpchgen-cli: pip install tpchgen-cli
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

import dovetail

FILES = 3
NEW_SHARE = 0.02  # of the customers: those that the lookup table does not know yet


def main() -> None:
    scale = sys.argv[1] if len(sys.argv) > 1 else "0.01"
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("warehouse-load")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "1000")
        .config("spark.log.level", "ERROR")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        generate(work / "tpch", scale)
        customers = spark.read.parquet(str(work / "tpch" / "customer"))
        make_lookup(customers, work / "lookup")
        orders = read_stream(spark, work / "tpch" / "orders")

        keyed = dovetail.enrich(
            orders, work / "lookup", on="o_custkey", memory="1MB", state=work / "ckpt" / "keys"
        )
        facts = dovetail.enrich(
            keyed,
            customers,
            on=[("o_custkey", "c_custkey")],
            columns=["c_name", "c_nationkey", "c_mktsegment"],
            memory="1MB",
            state=work / "ckpt" / "customers",
        )
        early = dovetail.enrich(
            orders,
            work / "lookup",
            on="o_custkey",
            how="anti",
            memory="1MB",
            state=work / "ckpt" / "early",
        )
        load(facts, work, "facts")
        load(early, work, "early")
        for part in ("keys", "customers", "early"):
            print(f"{part}: {dovetail.progress(work / 'ckpt' / part)}")
        check(spark, work)
    spark.stop()


def generate(directory: Path, scale: str) -> None:
    """Orders and customers of TPC-H, as Parquet files."""
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    program = shutil.which("tpchgen-cli", path=places)
    if program is None:
        sys.exit("tpchgen-cli is not installed: pip install tpchgen-cli")
    options = ["--tables=customer,orders", f"--parts={FILES}", f"--output-dir={directory}"]
    subprocess.run([program, "parquet", "-s", scale, *options], check=True, capture_output=True)


def make_lookup(customers: DataFrame, path: Path) -> None:
    """The warehouse's own keys of the customers that it knows: all but the newest."""
    by_age = Window.orderBy("c_custkey")
    numbered = customers.select(
        F.col("c_custkey").alias("o_custkey"),
        (F.row_number().over(by_age) + 1_000_000).cast("bigint").alias("customer_sk"),
        F.percent_rank().over(by_age).alias("rank"),
    )
    numbered.where(F.col("rank") < 1 - NEW_SHARE).drop("rank").write.parquet(str(path))


def read_stream(spark: SparkSession, path: Path) -> DataFrame:
    schema = spark.read.parquet(str(path)).schema
    reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
    wanted = ("o_orderkey", "o_custkey", "o_totalprice", "o_orderdate")
    return reader.parquet(str(path)).select(*wanted)


def load(rows: DataFrame, work: Path, name: str) -> None:
    query = (
        rows.writeStream.format("parquet")
        .option("path", str(work / name))
        .option("checkpointLocation", str(work / "ckpt" / f"query-{name}"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def check(spark: SparkSession, work: Path) -> None:
    """Both results against Spark's batch joins of the same files."""
    orders, customers = (
        spark.read.parquet(str(work / "tpch" / name)) for name in ("orders", "customer")
    )
    lookup = spark.read.parquet(str(work / "lookup"))
    facts, early = (spark.read.parquet(str(work / name)) for name in ("facts", "early"))
    matching = orders.o_custkey == customers.c_custkey
    expected = {
        "facts": orders.join(customers, matching).join(lookup, "o_custkey").select(*facts.columns),
        "early": orders.join(lookup, "o_custkey", "left_anti").select(*early.columns),
    }
    for name, found in (("facts", facts), ("early", early)):
        wrong = found.exceptAll(expected[name]).count() + expected[name].exceptAll(found).count()
        if wrong:
            sys.exit(f"{name}: {wrong:,} rows differ from Spark's batch join")
    print(
        f"{facts.count():,} orders loaded, {early.count():,} of unknown customers held back; "
        "checked against Spark's batch joins: identical"
    )


if __name__ == "__main__":
    main()
