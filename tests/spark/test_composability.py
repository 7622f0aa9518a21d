"""The join is an ordinary streaming DataFrame: anything may stand before and behind it."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import dovetail
from dovetail.errors import EventTimeWarning

pytestmark = pytest.mark.spark

SEED = 4_242
TINY = "250KB"


@pytest.fixture
def inputs(bench: Any) -> Any:
    rng = np.random.default_rng(SEED)
    for side in ("left", "right"):
        bench.keyed(side, rng.integers(0, 200, 1200), text=60)
    return bench


def run_into_memory(frame: DataFrame, checkpoint: Path, mode: str, name: str) -> DataFrame:
    """Run a query to its end into a table of the session; only the sink's own rows are kept."""
    writer = frame.writeStream.format("memory").queryName(name).outputMode(mode)
    if mode == "complete":
        writer = writer.option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination()
    return frame.sparkSession.table(name)


def test_aggregation_when_behind_a_join_in_complete_mode_then_equals_spark(
    inputs: Any, same_rows: Any
) -> None:
    counts = F.count("*").alias("n"), F.sum("right_id").alias("s")
    counted = inputs.join(memory=TINY).groupBy("k").agg(*counts)
    got = run_into_memory(counted, inputs.checkpoint, "complete", "complete_counts")
    assert inputs.progress().spilled_bytes > 0
    expected = inputs.expected().groupBy("k").agg(*counts)
    same_rows(got, expected, f"counts in complete mode, seed {SEED}")


def test_aggregation_when_behind_a_join_in_update_mode_then_last_update_equals_spark(
    inputs: Any, same_rows: Any
) -> None:
    latest: dict[int, tuple[int, int]] = {}

    def keep(batch: DataFrame, number: int) -> None:
        latest.update({row["k"]: (row["n"], row["s"]) for row in batch.collect()})

    counts = F.count("*").alias("n"), F.sum("left_id").alias("s")
    counted = inputs.join(memory=TINY).groupBy("k").agg(*counts)
    query = counted.writeStream.outputMode("update").foreachBatch(keep)
    query = query.option("checkpointLocation", str(inputs.checkpoint)).trigger(availableNow=True)
    query.start().awaitTermination()
    got = pa.table(
        {
            "k": list(latest),
            "n": [n for n, _ in latest.values()],
            "s": [s for _, s in latest.values()],
        }
    )
    expected = inputs.expected().groupBy("k").agg(*counts)
    same_rows(got, expected, f"counts in update mode, seed {SEED}")


def test_join_when_behind_another_join_then_equals_spark(inputs: Any) -> None:
    rng = np.random.default_rng(SEED + 1)
    inputs.write("third", pa.table({"t": rng.permutation(1500), "third_id": range(1500)}))
    first = inputs.join(memory=TINY)
    second = dovetail.join(
        first,
        inputs.stream("third"),
        on=("left_id", "t"),
        memory="600KB",
        partitions=2,
        state=inputs.root / "state2",
    )
    inputs.run(second)
    for state in (inputs.state, inputs.root / "state2"):
        progress = dovetail.progress(state)
        assert progress.spilled_bytes > 0, state
        assert progress.pending_rows == 0, state
    expected = inputs.expected().join(inputs.batch("third"), F.col("left_id") == F.col("t"))
    inputs.check(f"a join of a join, seed {SEED}", expected)


def test_join_when_the_join_before_it_is_silent_at_first_then_equals_spark(bench: Any) -> None:
    """The second join sees its first row in the third batch."""
    bench.keyed("left", np.arange(300), files=3)
    bench.keyed("right", np.arange(200, 300), files=1)
    bench.write("third", pa.table({"t": pa.array([], pa.int64())}), files=1)
    bench.write("third", pa.table({"t": np.arange(250, 300)}), files=1)
    first = bench.join()
    second = dovetail.join(
        first.where("k >= 250"), bench.stream("third"), on=("k", "t"), state=bench.root / "second"
    )
    bench.run(second)
    expected = bench.expected().join(bench.batch("third"), F.col("k") == F.col("t"))
    bench.check("a second join that starts late", expected)


@pytest.mark.parametrize("partitions", [1, 3])
def test_coalesce_when_behind_a_join_then_every_partition_keeps_its_state(
    inputs: Any, partitions: int
) -> None:
    inputs.run(inputs.join(memory="400KB", partitions=partitions).coalesce(1))
    assert len(inputs.progress().partitions) == partitions
    inputs.check(f"coalesce(1) behind {partitions} partitions, seed {SEED}")


def test_union_when_behind_a_join_then_equals_spark(inputs: Any) -> None:
    """The union gives the join's tasks other numbers than their partitions."""
    columns = "k", "left_id", "left_text"
    other = inputs.stream("left").select(*columns)
    inputs.run(other.union(inputs.join(memory=TINY).select(*columns)))
    expected = inputs.batch("left").select(*columns).union(inputs.expected().select(*columns))
    inputs.check(f"a union with a stream, seed {SEED}", expected)


def test_union_when_of_one_join_with_itself_then_has_every_row_twice(inputs: Any) -> None:
    joined = inputs.join(memory=TINY)
    inputs.run(joined.union(joined))
    inputs.check(f"a join with itself, seed {SEED}", inputs.expected().union(inputs.expected()))


def test_union_when_of_two_joins_then_equals_spark(inputs: Any) -> None:
    by_id = dovetail.join(
        inputs.stream("left").select("left_id", "left_text"),
        inputs.stream("right").select("right_id", "right_text"),
        on=("left_id", "right_id"),
        state=inputs.root / "by_id",
        memory="300KB",
        partitions=2,
    )
    columns = "left_id", "right_id", "left_text"
    inputs.run(by_id.select(*columns).union(inputs.join(memory=TINY).select(*columns)))
    same_id = inputs.batch("left").join(
        inputs.batch("right").drop("k"), F.col("left_id") == F.col("right_id")
    )
    expected = same_id.select(*columns).union(inputs.expected().select(*columns))
    inputs.check(f"a union of two joins, seed {SEED}", expected)


def test_operators_when_around_a_join_then_equal_spark(inputs: Any) -> None:
    """Watermark, projection, filter and a UDF before it; filter, explode and projection after."""
    shout = F.udf(lambda text: text.upper()[:9])

    def upstream(frame: DataFrame) -> DataFrame:
        at = F.timestamp_seconds(F.col("left_id"))
        return frame.withColumn("at", at).where("left_id % 3 > 0").withColumn("l", shout("k"))

    def downstream(frame: DataFrame) -> DataFrame:
        parts = F.explode(F.array(F.col("left_id"), F.col("right_id"))).alias("part")
        return frame.where("left_id < right_id").select("k", "at", "l", parts)

    left = upstream(inputs.stream("left").withColumn("k", F.col("k").cast("string")))
    left = left.withWatermark("at", "10 seconds")
    right = inputs.stream("right").withColumn("k", F.col("k").cast("string"))
    with pytest.warns(EventTimeWarning):
        joined = dovetail.join(
            left.drop("left_text"), right, on="k", memory=TINY, partitions=2, state=inputs.state
        )
    inputs.run(downstream(joined))
    batch_left = upstream(inputs.batch("left").withColumn("k", F.col("k").cast("string")))
    batch_right = inputs.batch("right").withColumn("k", F.col("k").cast("string"))
    expected = downstream(batch_left.drop("left_text").join(batch_right, "k"))
    inputs.check(f"operators around a join, seed {SEED}", expected)


@pytest.mark.parametrize("style", ["one action", "two actions", "cached", "peeks first"])
def test_foreach_batch_when_it_uses_the_batch_in_any_way_then_each_row_comes_once(
    inputs: Any, style: str, same_rows: Any
) -> None:
    tables: list[pa.Table] = []
    counts: Counter[bool] = Counter()

    def sink(batch: DataFrame, number: int) -> None:
        if style == "cached":
            batch = batch.persist()
        if style == "peeks first":
            batch.isEmpty()
        tables.append(batch.toArrow())
        if style in ("two actions", "cached"):
            counts[batch.count() == len(tables[-1])] += 1
        if style == "cached":
            batch.unpersist()

    query = inputs.join(memory=TINY).writeStream.foreachBatch(sink)
    query = query.option("checkpointLocation", str(inputs.checkpoint)).trigger(availableNow=True)
    query.start().awaitTermination()
    assert inputs.progress().spilled_bytes > 0
    assert counts[False] == 0, f"{style}: a second action saw another number of rows"
    same_rows(pa.concat_tables(tables), inputs.expected(), f"foreachBatch, {style}, seed {SEED}")


def test_join_when_of_a_stream_with_itself_then_equals_spark(inputs: Any) -> None:
    stream = inputs.stream("left")
    renamed = stream.toDF("k", "other_id", "other_text")
    joined = dovetail.join(stream, renamed, on="k", memory=TINY, partitions=2, state=inputs.state)
    inputs.run(joined)
    batch = inputs.batch("left")
    expected = batch.join(batch.toDF("k", "other_id", "other_text"), "k")
    inputs.check(f"a self-join, seed {SEED}", expected)
