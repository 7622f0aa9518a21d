"""Batch DataFrames: the same call, all rows at once, no state."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import functions as F

import dovetail

pytestmark = pytest.mark.spark

SEED = 99


@pytest.fixture
def inputs(bench: Any) -> Any:
    rng = np.random.default_rng(SEED)
    for side in ("left", "right"):
        bench.keyed(side, pa.array(rng.integers(0, 300, 2000), mask=rng.random(2000) < 0.05))
    return bench


@pytest.mark.parametrize(
    "options",
    [
        {"memory": "200KB", "partitions": 2},
        {"memory": "70KB", "partitions": 1},
        {"memory": "2MB"},
        {"algorithm": "shj"},
        {},
    ],
    ids=str,
)
def test_batch_join_when_options_vary_then_equals_spark(
    inputs: Any, same_rows: Any, options: dict[str, Any]
) -> None:
    joined = dovetail.join(inputs.batch("left"), inputs.batch("right"), on="k", **options)
    assert not joined.isStreaming
    same_rows(joined, inputs.expected(), f"batch join with {options}, seed {SEED}")


def test_batch_join_when_run_twice_then_gives_the_same_and_leaves_no_files(
    inputs: Any, same_rows: Any
) -> None:
    before = set(Path(tempfile.gettempdir()).glob("dovetail-join-*"))
    joined = dovetail.join(
        inputs.batch("left"), inputs.batch("right"), on="k", memory="200KB", partitions=2
    )
    for attempt in (1, 2):
        same_rows(joined, inputs.expected(), f"run {attempt} of one batch join, seed {SEED}")
    assert joined.limit(3).count() == 3  # a consumer that stops early
    assert set(Path(tempfile.gettempdir()).glob("dovetail-join-*")) <= before


def test_batch_join_when_used_in_a_larger_plan_then_composes(inputs: Any, same_rows: Any) -> None:
    left, right = inputs.batch("left"), inputs.batch("right")
    joined = dovetail.join(left, right, on="k", memory="300KB", partitions=2)
    again = dovetail.join(joined, left.select("k", F.col("left_id").alias("third")), on="k")
    expected = inputs.expected().join(left.select("k", F.col("left_id").alias("third")), "k")
    counts = F.count("*").alias("n"), F.sum("third").alias("s")
    same_rows(
        again.groupBy("k").agg(*counts),
        expected.groupBy("k").agg(*counts),
        f"a join of a join, aggregated, seed {SEED}",
    )


def test_batch_join_when_a_side_is_empty_then_result_is_empty(inputs: Any) -> None:
    left, right = inputs.batch("left"), inputs.batch("right")
    for one, two in ((left.limit(0), right), (left, right.limit(0))):
        assert dovetail.join(one, two, on="k", partitions=2).count() == 0


def test_batch_join_when_state_is_named_then_writes_nothing_there(inputs: Any) -> None:
    joined = dovetail.join(
        inputs.batch("left"), inputs.batch("right"), on="k", state=inputs.state, partitions=2
    )
    assert joined.count() == inputs.expected().count()
    assert not inputs.state.exists()
