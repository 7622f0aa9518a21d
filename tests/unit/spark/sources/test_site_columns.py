"""Columns of sites as Spark has them, and back."""

import pyarrow as pa
import pytest

from dovetail.errors import ArgumentError
from dovetail.sites import Query, Stream, TimeWindow
from dovetail.spark.sources.site_columns import result_rows, result_type, site_rows


def test_columns_when_the_site_has_types_of_its_own_then_values_stay_the_same() -> None:
    schema = pa.schema(
        [("ts", pa.timestamp("ms")), ("text", pa.large_string()), ("day", pa.date32())]
    )
    streams = [Stream(name, schema, TimeWindow(1)) for name in ("a", "b")]
    query = Query(tuple(streams), (("a.text", "b.text"),), tau=1, delta=0)
    day = pa.array([3], pa.date32())
    spark_rows = pa.record_batch(
        {"text": ["x"], "day": day, "ts": pa.array([7000], pa.timestamp("us", "Europe/Rome"))}
    )
    expected = pa.record_batch([pa.array([7], schema.field(0).type), ["x"], day], schema=schema)
    assert site_rows(spark_rows, streams[0]).equals(expected)
    joined = pa.record_batch(
        [*expected.columns, *expected.columns], names=list(query.result_columns)
    )
    (row,) = result_rows(joined, result_type(query)).to_pylist()
    assert row["a"] == row["b"] == expected.to_pylist()[0]
    finer = pa.array([7001], pa.timestamp("us", "UTC"))
    with pytest.raises(ArgumentError, match=r"'ts'.*exactly"):
        site_rows(spark_rows.set_column(2, "ts", finer), streams[0])
