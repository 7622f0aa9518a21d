"""Keys of two types: what Spark's own join of the same rows gives, for join, enrich and join_all.

Values are drawn near the edges where types differ: beyond what a double tells apart, halves, tenths
that have no double, zeros of both signs, NaN, the ends of each type. Both sides draw from one pool,
so that equal, nearly equal and different keys meet.
"""

import decimal
import json
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import dovetail
from dovetail import errors

pytestmark = pytest.mark.spark

SEED = 90_210
ROWS = 300
RANGES = {"tinyint": 7, "smallint": 15, "int": 31, "bigint": 63}
TYPES = {
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
}
PAIRS = [
    ("int", "bigint"),
    ("bigint", "tinyint"),
    ("smallint", "float"),
    ("bigint", "float"),
    ("int", "double"),
    ("bigint", "double"),
    ("double", "float"),
    ("decimal(10,2)", "int"),
    ("bigint", "decimal(5,0)"),
    ("bigint", "decimal(38,18)"),
    ("decimal(10,2)", "decimal(12,5)"),
    ("decimal(20,0)", "decimal(38,18)"),
    ("decimal(10,2)", "double"),
    ("decimal(38,30)", "double"),
    ("float", "decimal(18,6)"),
]
POOL = [
    *(Decimal(n) for n in range(-6, 7)),
    *(Decimal(n) / 10 for n in range(-9, 10)),
    *(Decimal(n) / 8 for n in range(-9, 10)),
    *(Decimal(n) / 100 for n in (1, 7, 29, 57, 115)),
    *(Decimal(2) ** p + d for p in (7, 15, 24, 31, 53, 62) for d in (-1, 0, 1, 2)),
    *(-(Decimal(2) ** p) + d for p in (7, 15, 24, 31, 53, 63) for d in (0, 1)),
]


def keys_of(type_: str, seed: int) -> pa.Array:
    """Keys of a type out of the pool, those that it holds; and what is special about it."""
    rng = np.random.default_rng([SEED, seed])
    found: list[Any] = [None]
    if type_ in RANGES:
        most = 2 ** RANGES[type_]
        found += [int(v) for v in POOL if v == int(v) and -most <= v < most]
        arrow = TYPES[type_]
    elif type_ in TYPES:
        arrow = TYPES[type_]
        found += [*map(float, POOL), 0.0, -0.0, float("nan"), float("inf"), -float("inf"), 1e300]
    else:
        digits, scale = map(int, type_[len("decimal(") : -1].split(","))
        arrow = pa.decimal128(digits, scale)
        with decimal.localcontext(prec=60):
            exact = (v.quantize(Decimal(1).scaleb(-scale)) for v in POOL)
            found += [v for v in exact if abs(v) < Decimal(10) ** (digits - scale)]
    chosen = rng.integers(0, len(found), ROWS)
    return pa.array([found[n] for n in chosen]).cast(arrow, safe=False)


def rows_of(spark: Any, side: str, type_: str, seed: int, key: str = "k") -> DataFrame:
    """A batch DataFrame of keys and ids; null keys, too."""
    table = pa.table({key: keys_of(type_, seed), f"{side}_id": range(ROWS)})
    return spark.createDataFrame(table)


@pytest.mark.parametrize(("one", "two"), PAIRS)
def test_join_when_keys_are_numbers_of_two_types_then_gives_what_spark_gives(
    spark: Any, same_rows: Any, one: str, two: str
) -> None:
    left, right = rows_of(spark, "left", one, 1), rows_of(spark, "right", two, 2)
    joined, expected = dovetail.join(left, right, on="k", partitions=3), left.join(right, "k")
    assert joined.schema["k"].dataType == expected.schema["k"].dataType
    assert joined.columns == expected.columns
    same_rows(joined, expected, f"{one} with {two}, seed {SEED}")


@pytest.mark.parametrize(("one", "two"), [PAIRS[0], PAIRS[5], PAIRS[10], PAIRS[13]])
def test_enrich_when_keys_are_numbers_of_two_types_then_gives_what_spark_gives(
    spark: Any, same_rows: Any, one: str, two: str
) -> None:
    stream, table = rows_of(spark, "left", one, 3), rows_of(spark, "right", two, 4)
    found = dovetail.enrich(stream, table, on="k", how="left", algorithm="seek", partitions=2)
    expected = stream.join(table, "k", "left")
    assert [f.dataType for f in found.schema] == [f.dataType for f in expected.schema]
    same_rows(found, expected, f"enrich, {one} with {two}, seed {SEED}")


@pytest.mark.parametrize(("one", "two"), [PAIRS[1], PAIRS[5], PAIRS[12]])
def test_join_all_when_keys_are_numbers_of_two_types_then_gives_what_spark_gives(
    spark: Any, same_rows: Any, one: str, two: str
) -> None:
    a, b = rows_of(spark, "a", one, 5, "x"), rows_of(spark, "b", two, 6, "y")
    c = rows_of(spark, "c", one, 7, "z").withColumn("w", F.col("c_id") % 7)
    d = spark.range(7).select(F.col("id").cast("int").alias("v"))
    on = [("a.x", "b.y"), ("b.y", "c.z"), ("c.w", "d.v")]
    joined = dovetail.join_all({"a": a, "b": b, "c": c, "d": d}, on=on, partitions=4)
    expected = a.join(b, a.x == b.y).join(c, b.y == c.z).join(d, c.w == d.v)
    same_rows(joined, expected, f"join_all, {one} with {two}, seed {SEED}")


@pytest.mark.parametrize(
    ("one", "two", "within"),
    [
        ("int", "bigint", 2),
        ("bigint", "double", 1.5),
        ("decimal(10,2)", "decimal(12,5)", Decimal("0.25")),
        ("decimal(10,2)", "double", 0.25),
    ],
)
def test_band_join_when_keys_are_numbers_of_two_types_then_gives_what_spark_gives(
    spark: Any, same_rows: Any, one: str, two: str, within: Any
) -> None:
    left, right = rows_of(spark, "left", one, 8, "a"), rows_of(spark, "right", two, 9, "b")
    near = f"abs(a - b) <= {within}{'D' if isinstance(within, float) else ''}"
    if "double" in (one, two):
        near += " AND NOT isnan(a - b)"
    else:
        near = near.replace("a - b", "CAST(a AS DECIMAL(38, 5)) - CAST(b AS DECIMAL(38, 5))")
    expected = left.join(right, F.expr(near))
    joined = dovetail.join(left, right, on=("a", "b"), within=within, partitions=3)
    same_rows(joined, expected, f"band, {one} with {two} within {within}, seed {SEED}")


def test_streams_when_keys_are_of_two_types_then_the_query_gives_what_the_batch_join_gives(
    bench: Any,
) -> None:
    bench.write("left", pa.table({"a": keys_of("bigint", 10), "left_id": range(ROWS)}))
    bench.write("right", pa.table({"b": keys_of("double", 11), "right_id": range(ROWS)}))
    bench.run(bench.join(on=("a", "b")))
    left, right = bench.batch("left"), bench.batch("right")
    bench.check(f"streams, seed {SEED}", left.join(right, left.a == right.b))


def test_staged_table_when_the_stream_s_key_becomes_another_type_then_is_refused(
    bench: Any,
) -> None:
    bench.write("stream", pa.table({"k": keys_of("int", 12), "stream_id": range(ROWS)}))
    table = rows_of(bench.spark, "table", "bigint", 13)
    bench.enrich(table)  # stages; no query has claimed the state yet
    widened = bench.stream("stream").withColumn("k", F.col("k").cast("double"))
    with pytest.raises(errors.StateMismatchError, match=r"compared=\['int64'\]"):
        dovetail.enrich(widened, table, on="k", state=bench.state, partitions=2)


def test_staged_table_when_it_is_of_before_types_were_widened_then_is_used(bench: Any) -> None:
    bench.write("stream", pa.table({"k": keys_of("int", 12), "stream_id": range(ROWS)}))
    path = bench.root / "table"
    rows_of(bench.spark, "table", "int", 13).write.parquet(str(path))
    bench.enrich(str(path))
    staged = bench.state / "table" / "v000001" / "staged.json"
    facts = json.loads(staged.read_text())
    del facts["compared"]
    staged.write_text(json.dumps(facts))
    bench.enrich(str(path))
    assert not dovetail.refresh(bench.state).changed


def test_refresh_when_keys_are_compared_as_another_type_then_stages_for_that_again(
    bench: Any, same_rows: Any
) -> None:
    bench.write("stream", pa.table({"k": keys_of("double", 14), "stream_id": range(ROWS)}))
    path = bench.root / "table"
    rows_of(bench.spark, "table", "decimal(10,2)", 15).write.parquet(str(path))
    bench.enrich(str(path))
    rows_of(bench.spark, "table", "decimal(10,2)", 16).write.mode("overwrite").parquet(str(path))
    assert dovetail.refresh(bench.state).version == "v000002"
    bench.run(bench.enrich(str(path)))
    table = bench.spark.read.parquet(str(path))
    same_rows(bench.results(), bench.batch("stream").join(table, "k"), f"refreshed, seed {SEED}")


def test_join_when_ansi_is_off_then_an_integer_and_a_float_are_refused(
    spark: Any, conf: Any
) -> None:
    left, right = rows_of(spark, "left", "int", 1), rows_of(spark, "right", "float", 2)
    conf("spark.sql.ansi.enabled", "false")
    with pytest.raises(errors.KeyTypeError, match="seven digits; cast both to 'double'"):
        dovetail.join(left, right, on="k")
    doubles = right.withColumn("k", F.col("k").cast("double"))
    dovetail.join(left, doubles, on="k")  # is compared the same in either mode


@pytest.mark.parametrize(
    ("one", "two", "says"),
    [
        ("string", "int", "left.withColumn('k', left['k'].cast('int'))"),
        ("bigint", "string", "right.withColumn('k', right['k'].cast('bigint'))"),
        ("date", "timestamp", "left.withColumn('k', left['k'].cast('timestamp'))"),
        ("timestamp", "timestamp_ntz", "right.withColumn('k', right['k'].cast('timestamp'))"),
        ("boolean", "int", "right.withColumn('k', right['k'].cast('boolean'))"),
        ("decimal(38,0)", "decimal(38,18)", "right['k'].cast('decimal(38,0)')"),
    ],
)
def test_join_when_keys_cannot_be_compared_then_the_error_has_a_cast_that_works(
    spark: Any, one: str, two: str, says: str
) -> None:
    left, right = (
        spark.sql(f"SELECT CAST(NULL AS {t}) k, 1 {n}") for t, n in ((one, "x"), (two, "y"))
    )
    with pytest.raises(errors.KeyTypeError) as raised:
        dovetail.join(left, right, on="k")
    message = str(raised.value)
    assert f"left 'k' is {one}, right 'k' is {two}" in message
    assert says in message
    sides = {"left": left, "right": right}
    side = message.rsplit("for example ", 1)[1].split(".", 1)[0]
    sides[side] = eval(message.rsplit("for example ", 1)[1], {}, dict(sides))
    dovetail.join(**sides, on="k")


def test_join_when_the_key_is_a_variant_then_the_error_calls_it_so(spark: Any) -> None:
    left, right = (spark.sql(f"SELECT parse_json('1') k, 1 {name}") for name in "xy")
    with pytest.raises(errors.KeyTypeError, match="cannot join on a column of type variant"):
        dovetail.join(left, right, on="k")


def test_join_all_when_a_column_is_compared_as_two_types_then_is_refused(spark: Any) -> None:
    inputs = {
        name: rows_of(spark, name, type_, 1) for name, type_ in zip("abc", TYPES, strict=False)
    }
    inputs["c"] = inputs["c"].withColumn("k", F.col("k").cast("double"))
    with pytest.raises(
        errors.KeyTypeError, match=r"b\.k would be compared as smallint .* as double"
    ):
        dovetail.join_all(inputs, on=[("a.k", "b.k"), ("b.k", "c.k")])
