"""Conditions taken apart and evaluated say of each pair of rows what Spark's own filter says."""

import datetime as dt
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from dovetail.kernel.predicates import Call, Column, bind
from dovetail.kernel.protocol import LEFT, RIGHT, SIDES
from dovetail.spark.layout import arrow_schema
from dovetail.specs.conditions import Condition, has_fixed_offset, parse_condition
from support.conditions import within

pytestmark = pytest.mark.spark

NAMES = ("l", "r")  # Spark does not take `left` for the name of a table
ROWS = 36
SEED = 20_261_119
SLACK = 1e-6  # more than a difference of floats around 1 is rounded by
MIDNIGHT = dt.datetime(2024, 3, 31)  # the night in which Berlin's clocks are put forward
CONDITIONS = """
l.i = r.i
l.b = r.g AND l.f = r.d
l.d = r.d
l.d <=> r.d AND l.s <=> r.i
l.t = r.t OR l.t IS NULL AND r.t IS NOT NULL
l.m = r.w
l.m < r.i
l.m >= r.d
l.f < r.d
l.f = r.i
l.d <> r.d
l.d > r.f OR l.d < r.f
NOT l.d <= r.d
l.t < r.t
l.t >= concat(r.t, 'a')
l.e < r.e
l.e = r.e OR l.k
l.k = r.k
l.k < r.k
l.k <=> r.k
l.k AND r.k
l.k OR r.k
NOT (l.k OR r.k)
(l.k AND r.k) IS NULL
(l.k OR r.k) IS NOT TRUE
(l.k = r.k) IS FALSE
(l.i > r.i) IS UNKNOWN
l.i IS DISTINCT FROM r.i
l.i IS NOT DISTINCT FROM r.i
l.i BETWEEN r.b AND r.s
l.i NOT BETWEEN r.b AND r.s
l.i BETWEEN -3 AND r.s
l.i IN (r.i, r.b, 5)
l.i NOT IN (r.i, NULL, 5)
l.i IN (r.m, 1.5, 2)
l.g IN (r.d, r.i)
l.b - CAST(r.s AS INT) BETWEEN -3 AND 3
l.i - CAST(r.s AS BIGINT) <= 2.5 AND l.i - CAST(r.s AS BIGINT) > -2
abs(CAST(l.b AS INT) - r.s) < 4
l.b + 2 <= r.s
l.b + 2L <= CAST(r.s AS INT) - 1 OR r.g < 0
CAST(l.b AS INT) * r.s > 10
CAST(l.b AS BIGINT) + r.s - 3 = r.b
l.b / NULLIF(r.s, 0) > 0.5
l.b / (r.d + 1e300) <= 0
l.b % NULLIF(r.s, 0) = 1
r.s % NULLIF(l.b, 0) < 0
l.g % NULLIF(r.b, 0) = -1
l.s % NULLIF(r.b, 0) * 3 = 3
l.d % NULLIF(r.f, 0) > 1
l.d % NULLIF(r.f, 0) <=> l.d
- (CAST(l.b AS INT) - r.s) > 2
l.d - r.d <= 0.5
l.d - r.d >= -0.5
l.d - r.d BETWEEN -0.5 AND 0.5
abs(l.d - r.d) <= 0.1
abs(l.f - r.f) <= 0.1
0.5 >= l.d - r.d AND l.d - r.d > -1.5
l.f + r.f > 1
l.f * r.d <= 0.3
l.f + r.i > 0.1
l.m + r.i > 1.5
l.m - r.m BETWEEN -1.5 AND 2
l.m * r.m = 0.25
l.m * 2 - r.i < 0.01
l.m + r.d > 0.3
-l.m <= r.m
l.m + 0.5 <= r.m
greatest(l.d, r.d) = r.d
least(l.d, r.f) < 0
greatest(l.i, r.m) >= 1.5
least(l.t, r.t, 'b') = l.t
coalesce(l.i, r.i) > 0
coalesce(l.i, r.m, 1) = 1
nvl(l.t, r.t) = 'ä'
nullif(l.i, r.i) IS NULL
if(l.k, r.i, l.i) > 0
CASE WHEN l.k THEN r.i > 0 WHEN r.k THEN l.i > 0 END
CASE l.b WHEN r.b THEN l.k WHEN 1 THEN r.k ELSE FALSE END
CASE WHEN r.s = 0 THEN l.k ELSE l.b / r.s > 0 END
r.b = 0 OR l.s % r.b = 0
r.b <> 0 AND l.s % r.b = 0
l.y = r.y
l.y - r.y <= INTERVAL 3 DAYS
r.y BETWEEN l.y AND l.y + INTERVAL 1 WEEK
l.y + INTERVAL '1' DAY > r.y
greatest(l.y, r.y) - INTERVAL 2 DAYS < DATE'2024-03-31'
l.n - r.n BETWEEN INTERVAL '-1' HOUR AND INTERVAL '1' HOUR
r.n >= l.n AND r.n < l.n + INTERVAL 1 DAY 2 HOURS
greatest(l.n, r.n) > TIMESTAMP_NTZ'2024-03-31 02:30:00'
greatest(l.n, r.n) + INTERVAL '90' MINUTES > l.n + r.v
l.n - r.n > r.v
l.n + r.v > r.n
l.z <= r.z
l.z < r.z + INTERVAL 90 MINUTES
r.z BETWEEN l.z - INTERVAL 1 HOUR AND l.z + INTERVAL 1 HOUR
r.z BETWEEN l.z AND l.z + INTERVAL 1 DAY
l.z - r.z <= INTERVAL '23' HOUR
l.z - r.z > INTERVAL '1' HOUR OR l.k
abs(l.z - r.z) <= INTERVAL 1 DAY
greatest(l.z, r.z) > TIMESTAMP'2024-03-31 03:00:00'
l.v < r.v
l.v + r.v > INTERVAL 2 HOURS
l.v - INTERVAL 1 HOUR <= r.v
-(l.v - r.v) = INTERVAL 0 SECONDS
contains(l.t, r.t)
startswith(l.t, r.t) OR endswith(l.t, r.t)
lower(l.t) = lower(r.t)
l.st.p = r.st.q.o
coalesce(l.st, r.st) IS NULL
l.st IS NULL OR r.st.q IS NULL
length(l.t) > 1 AND r.i > 0 AND l.i = r.i
l.t = 'it''s' OR r.t = "it's" OR l.t = r.t
transform(array(l.i), x -> x + 0L)[0] <= r.i -- the end
!l.k = r.k
l.b = 1 = TRUE OR r.k
""".strip().splitlines()


def values_of(name: str, rng: np.random.Generator) -> list[Any]:
    if name == "id":
        return list(range(ROWS))
    nan, inf = float("nan"), float("inf")
    pools: dict[str, list[Any]] = {
        "b": [0, 1, 1, 2, 3, -1, -5, 127, -128],
        "s": [0, 1, 2, 3, -1, -4, 5, 32767, -32768],
        "i": [0, 1, 2, 3, 5, -1, 2**31 - 1, -(2**31)],
        "g": [0, 1, 2, 5, -1, 2**53, 2**53 + 1, 2**63 - 1, -(2**63)],
        "f": [0.0, -0.0, 0.1, 0.5, 1.0, nan, inf, -inf, 3.4e38, -2.5, 1e-45],
        "d": [0.0, -0.0, 0.1, 0.5, 1.0, nan, inf, -inf, 1.7e308, -2.5, float(np.float32(0.1)),
              2.0**53, 0.6, 1.1],
        "m": [Decimal(text) for text in ("0.00", "0.50", "1.00", "1.50", "-0.50", "99999999.99")],
        "w": [Decimal(text) for text in ("0.5", "1.0000000001", "1", "-0.5", "9" * 28)],
        "t": ["", "a", "A", "b", "ab", "ä", "\U0001f600", "\uffee", "it's", "a\x00", "%", "z"],
        "e": [b"", b"\x00", b"\x7f", b"\xff", b"\x80a"],
        "k": [True, False],
        "y": [dt.date(2024, 3, day) for day in (28, 29, 30, 31)] + [dt.date(1, 1, 3)],
        "n": [MIDNIGHT + dt.timedelta(minutes=30 * n) for n in range(-4, 12)],
        "v": [dt.timedelta(hours=n) for n in (-2, 0, 1, 2, 25)],
    }  # fmt: skip
    pools["n"] += [MIDNIGHT + dt.timedelta(days=n) for n in (-1, 1, 2)]
    pools["z"] = [value.replace(tzinfo=dt.UTC) for value in pools["n"]]
    pools["st"] = [{"p": n, "q": None if n == 2 else {"o": n}} for n in range(3)]
    pool = [*pools[name], None]
    return [pool[n] for n in rng.integers(0, len(pool), ROWS)]


TYPES = {
    "id": pa.int32(),
    "b": pa.int8(),
    "s": pa.int16(),
    "i": pa.int32(),
    "g": pa.int64(),
    "f": pa.float32(),
    "d": pa.float64(),
    "m": pa.decimal128(10, 2),
    "w": pa.decimal128(38, 10),
    "t": pa.string(),
    "e": pa.binary(),
    "k": pa.bool_(),
    "y": pa.date32(),
    "n": pa.timestamp("us"),
    "z": pa.timestamp("us", tz="UTC"),
    "v": pa.duration("us"),
    "st": pa.struct([("p", pa.int32()), ("q", pa.struct([("o", pa.int32())]))]),
}


def rows(seed: int) -> pa.Table:
    rng = np.random.default_rng(seed)
    return pa.table({name: pa.array(values_of(name, rng), type_) for name, type_ in TYPES.items()})


def with_computed(frame: DataFrame, side: int, conditions: list[Condition]) -> pa.Table:
    """A side's rows with the computed columns of all conditions, and what its own conjuncts say."""
    columns = []
    for number, condition in enumerate(conditions):
        columns += [
            F.expr(column.sql_text).alias(f"{column.name}_{number}")
            for column in condition.computed_of(side)
        ]
        own = condition.left_only if side == LEFT else condition.right_only
        passes = " AND ".join(f"({text})" for text in own) or "TRUE"
        columns.append(F.expr(f"coalesce({passes}, FALSE)").alias(f"passes_{number}"))
    wide = frame.select("*", *columns)
    return wide.toArrow().cast(arrow_schema(NAMES[side], wide)).sort_by("id")


def of_condition(table: pa.Table, condition: Condition, side: int, number: int) -> pa.Table:
    """The columns that a condition reads, under their own names."""
    computed = {f"{column.name}_{number}": column.name for column in condition.computed_of(side)}
    chosen = table.select([*TYPES, *computed])
    return chosen.rename_columns([*TYPES, *computed.values()])


def found_mask(
    condition: Condition, sides: list[pa.Table], passes: list[np.ndarray], fixed: bool
) -> np.ndarray:
    """What all parts of a condition say of every pair, in their order."""
    left, right = (table.combine_chunks().to_batches()[0] for table in sides)
    pairs = np.divmod(np.arange(ROWS * ROWS), ROWS)
    many = [batch.take(pa.array(at)) for batch, at in zip((left, right), pairs, strict=True)]
    mask = np.logical_and.outer(*passes).ravel()
    for equality in condition.equalities:
        tree = Call(
            "<=>" if equality.null_safe else "=",
            (Column(LEFT, equality.left), Column(RIGHT, equality.right)),
        )
        mask &= bind(tree, left.schema, right.schema).mask(*many)
    around: list[np.ndarray] = []
    for range_ in condition.ranges:
        ends = (many[LEFT][range_.left].to_pylist(), many[RIGHT][range_.right].to_pylist())
        if range_.rounded:  # the residual decides, within bounds that are a little wider
            lower, upper = (None if b is None else float(b) for b in (range_.lower, range_.upper))
            range_ = replace(
                range_,
                lower=None if lower is None else lower - SLACK,
                upper=None if upper is None else upper + SLACK,
            )
        inside = np.array([within(range_, a, b) for a, b in zip(*ends, strict=True)])
        if range_.rounded:
            around.append(inside)
        else:
            mask &= inside
    predicate = condition.checked(left.schema, right.schema, fixed_zone=fixed)
    if predicate is not None:
        chosen = np.flatnonzero(mask)  # errors count for pairs that are left
        mask[chosen] = predicate.mask(*(batch.take(pa.array(chosen)) for batch in many))
    assert all(inside[mask].all() for inside in around), condition
    return mask


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
def test_conditions_when_taken_apart_then_say_what_spark_says(
    spark: SparkSession, conf: Callable[[str, str], None], zone: str
) -> None:
    seed = SEED + len(zone)
    conf("spark.sql.session.timeZone", zone)
    # what two conditions share would be computed once, before an OR in front of it is looked at
    conf("spark.sql.subexpressionElimination.enabled", "false")
    schema = from_arrow_schema(pa.schema(list(TYPES.items())), prefer_timestamp_ntz=True)
    frames = [spark.createDataFrame(rows(seed + side), schema) for side in SIDES]
    schemas = [arrow_schema(NAMES[side], frame) for side, frame in enumerate(frames)]
    fixed = has_fixed_offset(zone)
    conditions = [
        parse_condition(text, *schemas, sides=NAMES, fixed_zone=fixed) for text in CONDITIONS
    ]
    tables = [with_computed(frames[side], side, conditions) for side in SIDES]
    both = frames[0].alias("l").crossJoin(frames[1].alias("r"))
    said = [
        F.coalesce(F.expr(text), F.lit(False)).alias(f"c{n}") for n, text in enumerate(CONDITIONS)
    ]
    pair = (F.col("l.id") * ROWS + F.col("r.id")).alias("pair")
    expected = both.select(pair, *said).toArrow().sort_by("pair")
    true = np.array([np.asarray(expected[f"c{n}"]).sum() for n in range(len(CONDITIONS))])
    assert (true > 0).mean() > 0.9, "most conditions are TRUE for some pairs"
    assert (true < ROWS * ROWS).all(), "none is TRUE for all"
    for number, (text, condition) in enumerate(zip(CONDITIONS, conditions, strict=True)):
        passes = [np.asarray(table[f"passes_{number}"]) for table in tables]
        sides = [of_condition(tables[side], condition, side, number) for side in SIDES]
        found = found_mask(condition, sides, passes, fixed)
        wanted = expected[f"c{number}"].to_numpy()
        wrong = np.flatnonzero(found != wanted)
        if len(wrong):
            at = divmod(int(wrong[0]), ROWS)
            pair = [side.slice(row, 1).to_pylist()[0] for side, row in zip(sides, at, strict=True)]
            raise AssertionError(
                f"seed {seed}: {text}: {len(wrong)} pairs differ, Spark says "
                f"{wanted[wrong[0]]} for {pair}; {condition}"
            )
