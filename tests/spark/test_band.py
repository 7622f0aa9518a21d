"""The band join gives what Spark gives for `abs(left - right) <= within`."""

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import functions as F

import dovetail

pytestmark = pytest.mark.spark

SEED = 7_311
ROWS = 400
DAY_US = 86_400_000_000


def numbers(seed: int, spread: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-spread, spread, ROWS)


def some_nulls(column: pa.Array, seed: int) -> pa.Array:
    chosen = np.random.default_rng(seed).random(ROWS) < 0.05
    return pa.array(np.where(chosen, None, column.to_numpy(zero_copy_only=False)), column.type)


def doubles(seed: int) -> pa.Array:
    values = numbers(seed, 3000) * 0.1
    values[:8] = [np.nan, np.inf, -np.inf, -0.0, 0.0, 1e300, 5e-324, np.nan]
    return pa.array(values)


def decimals(seed: int) -> pa.Array:
    return pa.array([Decimal(int(n)).scaleb(-2) for n in numbers(seed, 9000)], pa.decimal128(10, 2))


# Key values by seed, within=, and Spark's own words for the same predicate.
BANDS: dict[str, tuple[Any, Any, str]] = {
    "long": (lambda seed: pa.array(numbers(seed, 2000)), 9, "abs(a - b) <= 9"),
    "double": (doubles, 0.3, "abs(a - b) <= 0.3D"),
    "float": (
        lambda seed: doubles(seed).cast(pa.float32(), safe=False),
        0.25,
        "abs(a - b) <= 0.25D",
    ),
    "date": (
        lambda seed: pa.array(numbers(seed, 900).astype(np.int32), pa.date32()),
        dt.timedelta(days=3),
        "abs(datediff(a, b)) <= 3",
    ),
    "timestamp": (
        lambda seed: pa.array(numbers(seed, DAY_US), pa.timestamp("us", tz="UTC")),
        dt.timedelta(minutes=5),
        "abs(unix_micros(a) - unix_micros(b)) <= 300000000",
    ),
    "decimal": (decimals, Decimal("0.37"), "abs(a - b) <= 0.37"),
}


@pytest.mark.parametrize("kind", BANDS)
def test_band_join_when_key_has_a_distance_then_equals_spark(bench: Any, kind: str) -> None:
    values, within, condition = BANDS[kind]
    for number, (side, key) in enumerate((("left", "a"), ("right", "b"))):
        keys = some_nulls(values(SEED + number), SEED + number)
        bench.write(side, pa.table({key: keys, f"{side}_id": np.arange(ROWS)}))
    bench.run(bench.join(on=("a", "b"), within=within, partitions=None))
    expected = bench.batch("left").join(bench.batch("right"), F.expr(condition))
    assert expected.count() > ROWS // 4, "the band is too narrow to test anything"
    bench.check(f"within={within!r} on {kind}, seed {SEED}", expected)


def test_band_join_when_key_shares_its_name_then_keeps_the_left_value(
    bench: Any, same_rows: Any
) -> None:
    for number, side in enumerate(("left", "right")):
        bench.write(side, pa.table({"k": numbers(SEED + number, 2000), f"{side}_id": range(ROWS)}))
    left, right = bench.batch("left"), bench.batch("right")
    joined = dovetail.join(left, right, on="k", within=2)
    expected = left.join(right.withColumnRenamed("k", "k2"), F.expr("abs(k - k2) <= 2")).drop("k2")
    assert joined.columns == ["k", "left_id", "right_id"]
    same_rows(joined, expected, f"band join on one name, seed {SEED}")


def test_band_join_when_memory_is_given_then_stays_within_it(bench: Any) -> None:
    for number, (side, key) in enumerate((("left", "a"), ("right", "b"))):
        bench.write(side, pa.table({key: numbers(SEED + number, 2000), f"{side}_id": range(ROWS)}))
    bench.run(bench.join(on=("a", "b"), within=1, memory="1MB", partitions=1))
    progress = bench.progress()
    assert progress.identity["algorithm"] == "shj"
    assert 0 < progress.memory["total"] <= 1_000_000
    expected = bench.batch("left").join(bench.batch("right"), F.expr("abs(a - b) <= 1"))
    bench.check(f"band join in 1 MB, seed {SEED}", expected)
