"""The band join gives what Spark gives for `abs(left - right) <= within`."""

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import functions as F

import dovetail
from dovetail import errors
from dovetail.spark.jobs.bands import band_partitions
from dovetail.spark.state import IDENTITY
from support.depth import only_full

pytestmark = pytest.mark.spark

SEED = 7_311
ROWS = 400
DAY_US = 86_400_000_000
INT64 = np.iinfo(np.int64)


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
    "timestamp_ntz": (
        lambda seed: pa.array(numbers(seed, DAY_US), pa.timestamp("us")),
        dt.timedelta(minutes=5),
        "abs(timestampdiff(MICROSECOND, a, b)) <= 300000000",
    ),
    "decimal": (decimals, Decimal("0.37"), "abs(a - b) <= 0.37"),
    "decimal of many digits": (
        lambda seed: pa.array(
            [Decimal(int(n) * 10**13).scaleb(-17) for n in numbers(seed, 9000)],
            pa.decimal128(18, 17),
        ),
        Decimal("0.002"),
        "abs(a - b) <= 0.002",
    ),
    "long at the ends": (
        lambda seed: pa.array(
            np.where(numbers(seed, 2) < 0, INT64.min, INT64.max - 800) + abs(numbers(seed, 800))
        ),
        40,
        "abs(cast(a as decimal(38)) - cast(b as decimal(38))) <= 40",
    ),
    "equal doubles": (lambda seed: pa.array(numbers(seed, 150) * 0.1), 0, "abs(a - b) <= 0D"),
}


OF_ONE_SORT = ("timestamp_ntz", "decimal of many digits", "equal doubles")  #: as another one is


@pytest.mark.parametrize(
    "kind", [*(kind for kind in BANDS if kind not in OF_ONE_SORT), *only_full(*OF_ONE_SORT)]
)
def test_band_join_when_key_has_a_distance_then_equals_spark(bench: Any, kind: str) -> None:
    values, within, condition = BANDS[kind]
    for number, (side, key) in enumerate((("left", "a"), ("right", "b"))):
        keys = some_nulls(values(SEED + number), SEED + number)
        bench.write(side, pa.table({key: keys, f"{side}_id": np.arange(ROWS)}))
    bench.run(bench.join(on=("a", "b"), within=within, partitions=3))
    expected = bench.batch("left").join(bench.batch("right"), F.expr(condition))
    assert expected.count() > ROWS // 4, "the band is too narrow to test anything"
    bench.check(f"within={within!r} on {kind}, seed {SEED}", expected)


def test_band_join_when_key_shares_its_name_then_keeps_both_by_the_name_of_their_side(
    bench: Any, same_rows: Any
) -> None:
    for number, side in enumerate(("left", "right")):
        bench.write(side, pa.table({"k": numbers(SEED + number, 2000), f"{side}_id": range(ROWS)}))
    left, right = bench.batch("left"), bench.batch("right")
    joined = dovetail.join(left, right, on="k", within=2)
    assert joined.columns == ["left_k", "left_id", "right_k", "right_id"]
    expected = left.withColumnRenamed("k", "left_k").join(
        right.withColumnRenamed("k", "right_k"), F.expr("abs(left_k - right_k) <= 2")
    )
    same_rows(joined, expected, f"band join on one name, seed {SEED}")


def test_band_join_when_a_column_has_the_name_that_a_key_would_get_then_is_refused(
    spark: Any,
) -> None:
    left, right = spark.sql("SELECT 1 k, 2 x"), spark.sql("SELECT 1 k, 2 LEFT_K")
    with pytest.raises(errors.ColumnClashError, match="'LEFT_K'") as refused:
        dovetail.join(left, right, on="k", within=2)
    assert "withColumnRenamed" in str(refused.value)


def test_band_join_when_its_state_is_of_before_both_keys_were_kept_then_is_refused(
    bench: Any,
) -> None:
    for number, side in enumerate(("left", "right")):
        bench.write(side, pa.table({"k": numbers(SEED + number, 20), f"{side}_id": range(ROWS)}))
    bench.run(bench.join(on="k", within=2))
    path = bench.state / IDENTITY
    identity = json.loads(path.read_text())
    del identity["output"]  # as state of such joins was written when one key was dropped
    path.write_text(json.dumps(identity))
    with pytest.raises(errors.StateMismatchError, match="output=None, but now output="):
        bench.join(on="k", within=2)


def test_band_join_when_memory_is_given_then_spills_and_stays_within_it(bench: Any) -> None:
    for number, (side, key) in enumerate((("left", "a"), ("right", "b"))):
        wide = [f"{row:04}" * 500 for row in range(ROWS)]  # 2 KB
        keys = numbers(SEED + number, 2000)
        bench.write(side, pa.table({key: keys, f"{side}_id": range(ROWS), f"{side}_text": wide}))
    bench.run(bench.join(on=("a", "b"), within=1, memory="1MB", partitions=1))
    progress = bench.progress()
    assert progress.identity["algorithm"] == "diner"
    assert 0 < progress.memory["total"] <= 1 << 20
    assert progress.spilled_bytes > 500_000, "the rows fitted in memory"
    expected = bench.batch("left").join(bench.batch("right"), F.expr("abs(a - b) <= 1"))
    bench.check(f"band join in 1 MB, seed {SEED}", expected)


PARTITIONS = 7
#: Keys of whole numbers in units of the band, and the greatest number that they can be made of.
EXACT: dict[str, tuple[Any, int]] = {
    "bigint": (pa.array, 10**18),
    "date": (lambda found: pa.array(found.astype(np.int32), pa.date32()), 7 * 10**5),
    "timestamp": (lambda found: pa.array(found, pa.timestamp("us", tz="UTC")), 6 * 10**16),
    "timestamp_ntz": (lambda found: pa.array(found, pa.timestamp("us")), 6 * 10**16),
    "decimal": (
        lambda found: pa.array([Decimal(int(n)).scaleb(-2) for n in found], pa.decimal128(18, 2)),
        10**17,
    ),
}


def routed(spark: Any, keys: pa.Array, within: float, side: int) -> list[set[int]]:
    frame = spark.createDataFrame(pa.table({"n": np.arange(len(keys)), "k": keys}))
    target = band_partitions(F.col("k"), frame.schema["k"].dataType, within, PARTITIONS, side)
    found = frame.select("n", target.alias("p")).orderBy("n").collect()
    assert all(len(row.p) == len(set(row.p)) for row in found), "a row is sent there twice"
    return [set(row.p) for row in found]


def assert_pairs_meet_once(
    spark: Any, keys: tuple[pa.Array, pa.Array], matching: np.ndarray, within: float
) -> None:
    """Each of these pairs of rows is together in one partition, and in no other."""
    homes, copies = (routed(spark, some, within, side) for side, some in enumerate(keys))
    assert {len(home) for home in homes} == {1}
    assert {len(copy) for copy in copies} <= {1, 2}
    assert len(matching) > len(homes) // 4
    lost = [(keys[0][a], keys[1][b]) for a, b in matching.tolist() if not homes[a] <= copies[b]]
    assert not lost, f"these pairs do not meet: {lost[:3]}"
    assert len(set.union(*homes)) > PARTITIONS // 2, "the rows are not spread"


@pytest.mark.parametrize("type_", ["double", "float"])
@pytest.mark.parametrize("within", [0, 1, 3e5])
def test_rows_when_floats_match_then_meet_in_the_left_ones_only_partition(
    spark: Any, type_: str, within: float
) -> None:
    rng = np.random.default_rng(SEED)
    sizes = 10.0 ** rng.integers(-3, 18, 300) * rng.choice([-1, 1], 300)
    left = np.concatenate([rng.random(300) * sizes, numbers(SEED, 40) + 0.0])
    # the neighbours of each at the very edge of the band, and a rounding beyond it
    edge = left + rng.choice([-1, 0, 1], len(left)) * within
    right = np.concatenate([edge, np.nextafter(edge, np.inf), np.nextafter(edge, -np.inf)])
    kind = {"double": np.float64, "float": np.float32}[type_]
    left, right = left.astype(kind), right.astype(kind)
    matching = np.argwhere(np.abs(left[:, None] - right[None, :]) <= within)
    assert_pairs_meet_once(spark, (pa.array(left), pa.array(right)), matching, within)


@pytest.mark.parametrize("type_", EXACT)
@pytest.mark.parametrize("within", [0, 1, 3 * 10**5])
def test_rows_when_whole_numbers_match_then_meet_in_the_left_ones_only_partition(
    spark: Any, type_: str, within: int
) -> None:
    made, most = EXACT[type_]
    within = min(within, most // 1_000)  # days are few: a wider band has them all in one cell
    rng = np.random.default_rng(SEED)
    sizes = most ** rng.random(300) * rng.choice([-1, 1], 300)
    left = np.concatenate([sizes.astype(np.int64), numbers(SEED, 40)])
    # the neighbours of each at the very edge of the band, and one within and beyond it
    edge = left + rng.choice([-1, 0, 1], len(left)) * within
    right = np.concatenate([edge, edge + 1, edge - 1])
    matching = np.argwhere(np.abs(left[:, None] - right[None, :]) <= within)
    assert_pairs_meet_once(spark, (made(left), made(right)), matching, within)


def test_rows_when_the_band_is_endless_then_all_go_to_one_partition(spark: Any) -> None:
    values = pa.array([-1e300, 0.0, 7.5, np.inf])
    homes = [routed(spark, values, float("inf"), side) for side in (0, 1)]
    assert len(set.union(*homes[0], *homes[1])) == 1
