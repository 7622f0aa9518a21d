"""The streaming equality join gives what Spark's batch join of the same files gives."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import functions as F

import dovetail
from support.depth import only_full

pytestmark = pytest.mark.spark

SEED = 20_240_607
TINY = "200KB"  # 100 KB for each of two partitions: about a third of what the tests put in
KEY_TYPES = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "decimal(10,2)": pa.decimal128(10, 2),
    "decimal(38,10)": pa.decimal128(38, 10),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "time": pa.time64("us"),
    "day-time interval": pa.duration("us"),
}


OF_ONE_SORT = ("byte", "short", "int", "float", "decimal(10,2)", "timestamp_ntz")


@pytest.mark.parametrize(
    "name", [*(name for name in KEY_TYPES if name not in OF_ONE_SORT), *only_full(*OF_ONE_SORT)]
)
def test_join_when_keyed_by_any_atomic_type_then_equals_spark(bench: Any, name: str) -> None:
    rows, text = (220, 500) if name == "boolean" else (900, 130)
    for number, side in enumerate(("left", "right")):
        bench.keyed(side, bench.keys_of(KEY_TYPES[name], rows, 70, SEED + number), 1, text)
    bench.run(bench.join(memory=TINY))
    assert bench.progress().spilled_bytes > 0, f"{name}: nothing was spilled"
    bench.check(f"key of type {name}, seed {SEED}, memory {TINY}")


@pytest.mark.parametrize(
    ("algorithm", "memory"),
    [
        ("xjoin", "150KB"),
        ("shj", "20MB"),
        ("diner", "150KB"),
        *only_full(
            ("xjoin", None),
            ("diner", None),
            ("diner-paper", "150KB"),
            ("hmj", "150KB"),
            ("rpj", "150KB"),
            ("pmj", "150KB"),
            ("dphj", "150KB"),
        ),
    ],
)
def test_join_when_budget_varies_then_equals_spark(
    bench: Any, algorithm: str, memory: str | None
) -> None:
    rng = np.random.default_rng(SEED)
    for side in ("left", "right"):
        bench.keyed(side, rng.integers(0, 400, 2500), files=4)
    bench.run(bench.join(memory=memory, algorithm=algorithm, files_per_trigger=2))
    progress = bench.progress()
    assert (progress.spilled_bytes > 0) == (algorithm != "shj" and memory is not None)
    if memory is not None:
        assert 0 < progress.memory["total"] <= progress.budget_bytes
    bench.check(f"{algorithm} with memory {memory}, seed {SEED}")


def test_join_when_files_arrive_unevenly_then_equals_spark(bench: Any) -> None:
    rng = np.random.default_rng(SEED)
    bench.keyed("left", rng.integers(0, 300, 2000), files=5)
    bench.keyed("right", rng.integers(0, 300, 1000), files=1)
    query = bench.run(bench.join(memory=TINY, partitions=1))
    assert len({record["batch"] for record in bench.progress().records()}) >= 5, query.id
    bench.check(f"five files against one, seed {SEED}")


ON: dict[str, tuple[Any, Callable[..., Any]]] = {
    "a name": ("a", lambda left, right: left.join(right.drop("b"), "a")),
    "a list of names": (["a", "b"], lambda left, right: left.join(right, ["a", "b"])),
    "a pair": (
        ("left_x", "right_x"),
        lambda left, right: left.join(right.drop("a", "b"), left["left_x"] == right["right_x"]),
    ),
    "pairs": (
        [("a", "right_a"), ("left_x", "right_x")],
        lambda left, right: left.join(
            right.drop("b").withColumnRenamed("a", "right_a"),
            (left["a"] == F.col("right_a")) & (left["left_x"] == F.col("right_x")),
        ),
    ),
    "names and pairs": (
        ["b", ("left_x", "right_x")],
        lambda left, right: left.join(right.drop("a"), "b").where("left_x = right_x"),
    ),
    "a name in other letter case": ("B", lambda left, right: left.join(right.drop("a"), "b")),
}
DROPPED = {
    "a name": ["b"],
    "a pair": ["a", "b"],
    "pairs": ["b"],
    "names and pairs": ["a"],
    "a name in other letter case": ["a"],
}


@pytest.mark.parametrize("form", ON)
def test_join_when_on_takes_any_form_then_equals_spark(
    bench: Any, form: str, same_rows: Any
) -> None:
    on, spark_join = ON[form]
    for number, side in enumerate(("left", "right")):
        bench.write(side, bench.two_column_rows(side, SEED + number), files=1)
    left, right = bench.batch("left"), bench.batch("right")
    renamed = right.drop(*DROPPED.get(form, []))
    if form == "pairs":
        renamed = renamed.withColumnRenamed("a", "right_a")
    joined = dovetail.join(left, renamed, on=on, partitions=2)
    expected = spark_join(left, right)
    assert set(joined.columns) == set(expected.columns), form
    same_rows(joined.select(expected.columns), expected, f"on as {form}, seed {SEED}")


def test_join_when_key_is_composite_with_nulls_then_equals_spark(bench: Any) -> None:
    for number, side in enumerate(("left", "right")):
        bench.write(side, bench.two_column_rows(side, SEED + number), files=3)
    bench.run(bench.join(on=["a", "b"], memory="140KB"))
    assert bench.progress().spilled_bytes > 0
    bench.check(f"composite key, seed {SEED}", bench.expected(["a", "b"]))


def test_join_when_payload_is_nested_then_equals_spark(bench: Any) -> None:
    for number, side in enumerate(("left", "right")):
        bench.write(side, bench.nested_rows(side, SEED + number))
    bench.run(bench.join(memory=TINY))
    assert bench.progress().spilled_bytes > 0
    bench.check(f"nested payload, seed {SEED}")
    assert bench.results().schema.simpleString() == bench.expected().schema.simpleString()


@pytest.mark.parametrize("zone", ["America/St_Johns"])  # daylight saving and half an hour
def test_join_when_session_is_in_another_time_zone_then_equals_spark(
    bench: Any, conf: Any, zone: str
) -> None:
    conf("spark.sql.session.timeZone", zone)
    hours = 3_600_000_000 * np.arange(24 * 300, step=7)  # through two changes of the clock
    for side in ("left", "right"):
        times = pa.array(np.random.default_rng([SEED, len(side)]).permutation(hours))
        bench.write(
            side,
            pa.table(
                {
                    "k": times.cast(pa.timestamp("us", tz="UTC")),
                    f"{side}_local": times.cast(pa.timestamp("us")),
                    f"{side}_time": times.cast(pa.timestamp("us", tz="UTC")),
                    f"{side}_nested": pa.array([{"t": t} for t in times.to_pylist()]).cast(
                        pa.struct({"t": pa.timestamp("us", tz="UTC")})
                    ),
                }
            ),
        )
    bench.run(bench.join(memory=TINY))
    bench.check(f"time zone {zone}, seed {SEED}")


@pytest.mark.parametrize("empty", [("left",), ("left", "right")])
def test_join_when_a_side_is_empty_then_result_is_empty(bench: Any, empty: tuple[str, ...]) -> None:
    for side in ("left", "right"):
        bench.keyed(side, np.arange(0 if side in empty else 500), files=1)
    bench.run(bench.join(memory=TINY))
    assert bench.results().count() == 0, empty


@pytest.mark.parametrize("algorithm", ["shj", "xjoin", "diner"])
def test_join_when_all_rows_have_one_key_then_equals_spark(bench: Any, algorithm: str) -> None:
    for side in ("left", "right"):
        bench.keyed(side, np.full(220, 7), text=400)
    bench.run(bench.join(memory=None if algorithm == "shj" else TINY, algorithm=algorithm))
    if algorithm != "shj":
        assert bench.progress().spilled_bytes > 0
    bench.check(f"single key, {algorithm}")


def test_join_when_first_batches_bring_no_row_to_join_then_equals_spark(bench: Any) -> None:
    """The state begins with the query, not with the first row that reaches the join."""
    nulls = pa.array([None] * 10, pa.int64())
    for side in ("left", "right"):
        bench.keyed(side, nulls, files=2)
        bench.keyed(side, pa.array(range(50)), files=1)
    bench.run(bench.join())
    bench.check("two batches of null keys first")


def test_join_when_column_names_are_awkward_then_equals_spark(bench: Any) -> None:
    for number, side in enumerate(("left", "right")):
        table = bench.two_column_rows(side, SEED + number).select(["a", f"{side}_id"])
        bench.write(side, table.rename_columns(["the key", f"{side}.id"]), files=1)
    bench.run(bench.join(on="the key"))
    bench.check("names with blanks and dots", bench.expected("the key"))
