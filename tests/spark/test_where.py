"""Joins with `where=`: what Spark's own join with the same condition gives, stream or batch."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import dovetail
from dovetail import errors

pytestmark = pytest.mark.spark

SEED = 77
ROWS = 900
START = 1_790_000_000_000_000  # microseconds since 1970

#: arguments, and the whole condition as Spark has it
CONDITIONS: dict[str, tuple[dict[str, Any], str]] = {
    "of both sides": (
        {"on": "k", "where": "amount < price"},
        "l.k = r.k AND l.amount < r.price",
    ),
    "of one side each": (
        {"on": "k", "where": "amount > 2 AND name LIKE 'a%' AND NOT closed <=> true"},
        "l.k = r.k AND l.amount > 2 AND r.name LIKE 'a%' AND NOT r.closed <=> true",
    ),
    "with a key": (
        {"where": "left.k = right.k AND upper(colour) = name"},
        "l.k = r.k AND upper(l.colour) = r.name",
    ),
    "with an unknown": (
        {"on": "k", "where": "amount <> price OR colour IS NULL OR closed"},
        "l.k = r.k AND (l.amount <> r.price OR l.colour IS NULL OR r.closed)",
    ),
    "with an interval": (
        {"on": "k", "where": "till BETWEEN at AND at + INTERVAL 40 SECONDS"},
        "l.k = r.k AND r.till BETWEEN l.at AND l.at + INTERVAL 40 SECONDS",
    ),
    "with bounds by column": (
        {"on": "k", "where": "till BETWEEN at AND ends"},
        "l.k = r.k AND r.till BETWEEN l.at AND l.ends",
    ),
    "a band by itself": (
        {"where": "till > at - INTERVAL 2 SECONDS AND till <= at + INTERVAL 3 SECONDS"},
        "r.till > l.at - INTERVAL 2 SECONDS AND r.till <= l.at + INTERVAL 3 SECONDS",
    ),
    "a band and more": (
        {"where": "abs(amount - price) <= 1 AND left_id % 2 = right_id % 3"},
        "abs(l.amount - r.price) <= 1 AND l.left_id % 2 = r.right_id % 3",
    ),
    "beside a band": (
        {"on": [("at", "till")], "within": "2 seconds", "where": "left.k = right.k OR amount > 4"},
        "abs(unix_micros(l.at) - unix_micros(r.till)) <= 2000000 AND (l.k = r.k OR l.amount > 4)",
    ),
    "null safe": (
        {"on": "k", "where": "colour <=> shade"},
        "l.k = r.k AND l.colour <=> r.shade",
    ),
}  # fmt: skip


def some(rng: np.random.Generator, column: Any) -> pa.Array:
    """A column with a tenth of nulls."""
    return pa.array(column, mask=rng.random(len(column)) < 0.1)


@pytest.fixture
def inputs(bench: Any) -> Any:
    rng = np.random.default_rng(SEED)
    times = [START + np.sort(rng.integers(0, 300_000_000, ROWS)) for _ in range(2)]
    micros = pa.timestamp("us", tz="UTC")
    colours = np.array(["amber", "blue", "ash", "AMBER"])
    bench.write(
        "left",
        pa.table(
            {
                "k": some(rng, rng.integers(0, 40, ROWS)),
                "left_id": np.arange(ROWS),
                "at": pa.array(times[0]).cast(micros),
                "ends": pa.array(times[0] + rng.integers(0, 90_000_000, ROWS)).cast(micros),
                "amount": some(rng, rng.integers(0, 6, ROWS).astype(float)),
                "colour": some(rng, colours[rng.integers(0, 4, ROWS)]),
                "left_text": ["x" * 120] * ROWS,
            }
        ),
        3,
    )
    bench.write(
        "right",
        pa.table(
            {
                "k": some(rng, rng.integers(0, 40, ROWS).astype(np.int32)),
                "right_id": np.arange(ROWS),
                "till": pa.array(times[1]).cast(micros),
                "price": some(rng, rng.choice([0.0, 1.0, 3.5, np.nan], ROWS)),
                "name": some(rng, colours[rng.integers(0, 4, ROWS)]),
                "shade": some(rng, colours[rng.integers(0, 4, ROWS)]),
                "closed": some(rng, rng.random(ROWS) < 0.3),
                "right_text": ["y" * 120] * ROWS,
            }
        ),
        3,
    )
    return bench


def as_spark_has_it(bench: Any, condition: str, joined: DataFrame) -> DataFrame:
    """Spark's own join, with the columns of ours."""
    both = bench.batch("left").alias("l").join(bench.batch("right").alias("r"), F.expr(condition))
    columns = {"k": "l.k", "left_k": "l.k", "right_k": "r.k"}
    return both.select([F.col(columns.get(name, name)).alias(name) for name in joined.columns])


def sides(bench: Any, name: str, frames: Any) -> list[DataFrame]:
    """Both inputs; where `k` is no key of both, the right one is named apart."""
    left, right = (frames(side) for side in ("left", "right"))
    if "l.k = r.k AND" in CONDITIONS[name][1]:
        return [left, right]
    return [left, right.withColumnRenamed("k", "other_k")]


def arguments_of(name: str) -> dict[str, Any]:
    arguments = dict(CONDITIONS[name][0])
    if "l.k = r.k AND" not in CONDITIONS[name][1]:
        arguments["where"] = arguments["where"].replace("left.k = right.k", "k = other_k")
    return arguments


@pytest.mark.parametrize("name", CONDITIONS)
def test_stream_when_it_has_a_condition_then_equals_sparks_join(
    inputs: Any, same_rows: Any, name: str
) -> None:
    frames = sides(inputs, name, inputs.stream)
    joined = dovetail.join(
        *frames, **arguments_of(name), memory="200KB", state=inputs.state, partitions=2
    )
    assert not any(column.startswith("__dovetail") for column in joined.columns)
    inputs.run(joined)
    wanted = as_spark_has_it(inputs, CONDITIONS[name][1], joined.drop("other_k"))
    assert wanted.count() > 100
    assert inputs.progress().spilled_bytes > 0
    assert inputs.progress().pending_rows == 0
    same_rows(inputs.results().drop("other_k"), wanted, f"{name}, seed {SEED}")


@pytest.mark.parametrize("algorithm", ["shj", "xjoin"])
def test_batch_when_it_has_a_condition_then_equals_sparks_join(
    inputs: Any, same_rows: Any, algorithm: str
) -> None:
    name = "with an unknown"
    frames = sides(inputs, name, inputs.batch)
    joined = dovetail.join(*frames, **arguments_of(name), memory="4MB", algorithm=algorithm)
    wanted = as_spark_has_it(inputs, CONDITIONS[name][1], joined)
    same_rows(joined, wanted, f"{algorithm}, seed {SEED}")


def test_state_when_the_condition_is_another_then_is_refused(inputs: Any) -> None:
    def joined(where: str) -> DataFrame:
        return inputs.join(where=where)

    inputs.run(joined("amount < price AND colour = name"))
    joined("colour=right.name and AMOUNT   < price")  # the same, in another spelling
    with pytest.raises(errors.StateMismatchError, match="where"):
        joined("amount <= price AND colour = name")


def test_explain_when_there_is_a_condition_then_says_who_does_what(inputs: Any) -> None:
    frames = [inputs.stream(side) for side in ("left", "right")]
    plan = dovetail.plan.join(
        *frames, "k", where="amount < price AND length(colour) < length(name) AND closed",
        memory="4MB", state=inputs.state,
    )  # fmt: skip
    history = (inputs.batch("left"), inputs.batch("right"))
    text = str(plan.explain(history=history))
    for part in (
        "right: Spark filters it by closed",
        "left: Spark computes length(colour)",
        "asked of every pair whose keys match",
        "where= lets only some of them through",
    ):
        assert " ".join(part.split()) in " ".join(text.split()), text


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({}, errors.ArgumentError, "on= is missing"),
        ({"where": "amount < price"}, errors.ArgumentError, "neither an equality .* nor a range"),
        ({"on": "k", "where": "amount <"}, errors.ArgumentError, "where="),
        ({"on": "k", "where": "amuont < price"}, errors.UnknownColumnError, "amuont"),
        ({"on": "k", "where": "k > 3"}, errors.ArgumentError, r"left\.k"),
        ({"on": "k", "where": "no_such(amount) > 3"}, errors.ArgumentError, "no_such"),
        ({"on": "k", "where": "colour < price"}, errors.ArgumentError, "cast"),
        ({"where": "left.k = right.k", "within": 2}, errors.ArgumentError, "within= needs on="),
        ({"on": "k", "where": 3}, errors.ArgumentError, "not a text"),
    ],
)
def test_condition_when_it_cannot_be_then_says_why(
    inputs: Any, arguments: dict[str, Any], error: type[Exception], said: str
) -> None:
    frames = [inputs.batch(side) for side in ("left", "right")]
    with pytest.raises(error, match=said):
        dovetail.join(*frames, memory="4MB", **arguments)


def test_condition_when_ansi_is_off_then_refuses_arithmetic_of_both_sides(
    inputs: Any, conf: Any
) -> None:
    conf("spark.sql.ansi.enabled", "false")
    frames = [inputs.batch(side) for side in ("left", "right")]
    dovetail.join(*frames, "k", where="amount < price", memory="4MB")
    with pytest.raises(errors.ArgumentError, match="ansi"):
        dovetail.join(*frames, "k", where="left_id % 3 = right_id + left_id", memory="4MB")
