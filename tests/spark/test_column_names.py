"""Columns with dots, backticks, quotes and spaces in their names, as keys and beside them."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import dovetail

pytestmark = pytest.mark.spark

KEY, TEXT, OTHER = "k`e.y", "a ``b`. `c", 'x"y.z`'


@pytest.fixture
def sides(bench: Any) -> dict[str, pa.Table]:
    """Inputs `left`, `right`, `stream` and `table`; the key has another name on the right."""
    rng = np.random.default_rng(5)
    first = pa.table({KEY: rng.integers(0, 30, 80), TEXT: [f"l{n}" for n in range(80)]})
    second = pa.table({OTHER: rng.integers(0, 30, 50), "t.`": [f"r{n}" for n in range(50)]})
    named = {"left": first, "right": second, "stream": first, "table": second}
    for name, table in named.items():
        bench.write(name, table, files=1)
    return named


def expected(spark: SparkSession, sides: dict[str, pa.Table], how: str = "inner") -> Any:
    """Spark's own join, under names that need no quoting."""
    one = spark.createDataFrame(sides["stream"].rename_columns(["k", "a"]))
    two = spark.createDataFrame(sides["table"].rename_columns(["o", "t"]))
    return one.join(two, one.k == two.o, how).toArrow()


def test_join_when_names_hold_dots_and_backticks_then_equals_sparks_join(
    spark: SparkSession, bench: Any, sides: dict[str, pa.Table], same_rows: Any
) -> None:
    wanted = expected(spark, sides)
    batch = dovetail.join(bench.batch("left"), bench.batch("right"), on=[(KEY, OTHER)])
    assert batch.columns == [KEY, TEXT, OTHER, "t.`"]
    same_rows(batch, wanted, "batch")
    bench.run(bench.join(on=[(KEY, OTHER)]))
    same_rows(bench.results(), wanted, "stream")


@pytest.mark.parametrize("how", ["inner", "left"])
def test_enrich_when_names_hold_dots_and_backticks_then_equals_sparks_join(
    spark: SparkSession, bench: Any, sides: dict[str, pa.Table], same_rows: Any, how: str
) -> None:
    wanted = expected(spark, sides, how)
    table = bench.root / "table"
    batch = dovetail.enrich(bench.batch("stream"), table, on=[(KEY, OTHER)], how=how)
    assert batch.columns == [KEY, TEXT, OTHER, "t.`"]
    same_rows(batch, wanted, "batch")
    bench.run(bench.enrich(table, on=[(KEY, OTHER)], how=how))
    same_rows(bench.results(), wanted, "stream")
