"""A plan says what watermarks do not do yet around a join."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import dovetail
from dovetail.errors import EventTimeWarning
from dovetail.spark.watermarks import watermarked

pytestmark = pytest.mark.spark

LATE = "dropped as late"


@pytest.fixture
def stream(spark: Any, tmp_path: Path) -> Callable[[str], DataFrame]:
    """A stream with a time; nothing is ever read of it."""

    def make(name: str) -> DataFrame:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        schema = f"k LONG, {name}_at TIMESTAMP"
        frame: DataFrame = spark.readStream.schema(schema).parquet(str(folder))
        return frame

    return make


def warned(call: Callable[[], Any]) -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        call()
    return found


@pytest.mark.parametrize(
    ("options", "defers"),
    [
        ({"memory": "1MB"}, True),
        ({"memory": "1MB", "algorithm": "shj"}, False),
        ({"memory": "unbounded"}, False),
        ({}, True),
    ],
)
def test_join_when_an_input_has_a_watermark_then_warns_once_where_it_was_called(
    stream: Any, tmp_path: Path, options: dict[str, Any], defers: bool
) -> None:
    left, right = stream("left").withWatermark("left_at", "1 minute"), stream("right")

    def call() -> DataFrame:
        return dovetail.join(left, right, on="k", state=tmp_path / "state", **options)

    (found,) = warned(call)
    assert found.category is EventTimeWarning
    assert found.filename == __file__
    text = str(found.message)
    assert "left has one, of the column 'left_at'" in text
    assert "refuses withWatermark behind it" in text
    assert (LATE in text) == defers
    assert ("set memory='unbounded'" in text) == defers


def test_join_all_and_enrich_when_an_input_has_a_watermark_then_warn_likewise(
    stream: Any, spark: Any, tmp_path: Path
) -> None:
    a, b = stream("a"), stream("b").withWatermark("b_at", "1 minute")
    state = tmp_path / "state"
    table = spark.sql("SELECT 1L k, 2 v")
    calls = {
        "all": lambda: dovetail.join_all({"a": a, "b": b}, on="k", memory="1MB", state=state),
        "enrich": lambda: dovetail.enrich(b, table, on="k", memory="4MB", state=state / "enrich"),
    }
    for name, call in calls.items():
        (found,) = warned(call)
        assert (found.category, found.filename) == (EventTimeWarning, __file__), name
        assert "'b_at'" in str(found.message), name
        assert LATE in str(found.message), name


def test_explain_when_an_input_has_a_watermark_then_warns_as_the_join_would(
    stream: Any, spark: Any, tmp_path: Path
) -> None:
    left, right = stream("left"), stream("right").withWatermark("right_at", "1 minute")
    options = {"on": "k", "memory": "1MB", "state": tmp_path / "state"}
    both = {"a": left, "b": right}
    table = spark.sql("SELECT 1L k, 2 v")
    for call in (
        lambda: dovetail.plan.join(left, right, **options).explain(),
        lambda: dovetail.plan.join_all(both, **options).explain(),
        lambda: dovetail.plan.enrich(right, table, **{**options, "memory": "4MB"}).explain(),
    ):
        (found,) = warned(call)
        assert (found.category, found.filename) == (EventTimeWarning, __file__)
        assert LATE in str(found.message)


def test_explain_when_results_may_be_put_off_then_says_what_a_watermark_would_do(
    stream: Any, tmp_path: Path
) -> None:
    left, right = stream("left"), stream("right")
    options = {"on": "k", "state": tmp_path / "state"}

    def says_so(call: Callable[[], object]) -> bool:
        return "windows behind a watermark may have closed" in " ".join(str(call()).split())

    assert says_so(lambda: dovetail.plan.join(left, right, memory="1MB", **options).explain())
    unbounded = {"memory": "unbounded", **options}
    assert not says_so(lambda: dovetail.plan.join(left, right, **unbounded).explain())
    both = {"a": left, "b": right}
    assert says_so(lambda: dovetail.plan.join_all(both, memory="1MB", **options).explain())
    assert not says_so(lambda: dovetail.plan.join_all(both, **unbounded).explain())


def test_join_when_there_is_no_watermark_or_it_is_a_batch_then_does_not_warn(
    stream: Any, spark: Any, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    assert not warned(
        lambda: dovetail.join(stream("a"), stream("b"), on="k", memory="1MB", state=state)
    )
    batch = spark.sql("SELECT 1L k, timestamp'2026-01-01 00:00:00' at")
    marked = batch.withWatermark("at", "1 minute")
    assert not warned(lambda: dovetail.join(marked, batch.select("k"), on="k", memory="1MB"))


def test_watermarked_when_a_column_was_renamed_or_nested_then_it_is_found(stream: Any) -> None:
    frame = stream("a").withWatermark("a_at", "1 minute")
    assert list(watermarked(frame.withColumnRenamed("a_at", "then").schema)) == ["then"]
    assert list(watermarked(frame.select(F.col("a_at").alias("t"), "k").schema)) == ["t"]
    nested = frame.select("k", F.struct("k", "a_at").alias("s"))
    assert list(watermarked(nested.schema)) == ["s.a_at"]
    assert list(watermarked(frame.select(F.array(F.struct("a_at")).alias("l")).schema)) == [
        "l.a_at"
    ]
    assert not list(watermarked(stream("a").schema))
