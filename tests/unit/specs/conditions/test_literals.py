"""Constants have the values and types that Spark gives them, or are left to Spark."""

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from dovetail.kernel.predicates import Literal
from dovetail.specs.conditions.literals import literal

SPAN = pa.duration("us")


@pytest.mark.parametrize(
    ("text", "value", "type_"),
    [
        ("5", 5, pa.int32()),
        ("- 5", -5, pa.int32()),
        ("2147483648", 2**31, pa.int64()),
        ("-2147483648", -(2**31), pa.int32()),
        ("9223372036854775808", Decimal(2**63), pa.decimal128(19, 0)),
        ("5L", 5, pa.int64()),
        ("5s", 5, pa.int16()),
        ("-128Y", -128, pa.int8()),
        ("0.50", Decimal("0.50"), pa.decimal128(2, 2)),
        ("5.", Decimal(5), pa.decimal128(1, 0)),
        (".05", Decimal("0.05"), pa.decimal128(2, 2)),
        ("1.5BD", Decimal("1.5"), pa.decimal128(2, 1)),
        ("1.5D", 1.5, pa.float64()),
        ("1e3", 1000.0, pa.float64()),
        ("'a b'", "a b", pa.string()),
        ('"it\'s"', "it's", pa.string()),
        ("TRUE", True, pa.bool_()),
        ("null", None, pa.null()),
        ("DATE '2024-02-29'", dt.date(2024, 2, 29), pa.date32()),
        ("timestamp_ntz'2024-02-29'", dt.datetime(2024, 2, 29), pa.timestamp("us")),
        (
            "TIMESTAMP_NTZ '2024-02-29 01:02:03.5'",
            dt.datetime(2024, 2, 29, 1, 2, 3, 500_000),
            pa.timestamp("us"),
        ),
        ("INTERVAL 5 MINUTES", dt.timedelta(minutes=5), SPAN),
        ("interval '5' minute", dt.timedelta(minutes=5), SPAN),
        ("INTERVAL '-5' minute", dt.timedelta(minutes=-5), SPAN),
        ("- INTERVAL 1 HOUR", dt.timedelta(hours=-1), SPAN),
        ("INTERVAL '1 hour 30 seconds'", dt.timedelta(hours=1, seconds=30), SPAN),
        ("INTERVAL 1 day -1 hours", dt.timedelta(hours=23), SPAN),
    ],
)
def test_literal_when_it_means_one_thing_then_has_its_type(
    text: str, value: Any, type_: pa.DataType
) -> None:
    found = literal(text)
    assert found == Literal(value, type_)
    assert found is not None
    assert type(found.value) is type(value)


@pytest.mark.parametrize("text", ["INTERVAL 2 WEEKS", "INTERVAL '1' DAY", "interval 1 day 1 week"])
def test_literal_when_it_is_of_days_alone_then_says_so(text: str) -> None:
    found = literal(text)
    assert found is not None
    assert found.whole_days


@pytest.mark.parametrize(
    "text",
    [
        "1 + 1",
        "1.5F",
        "1e3BD",
        "300Y",
        "1.5L",
        "1" * 39,
        "'a\\n'",
        "'it''s'",
        "'a' 'b'",
        "'${spark.x}'",
        "r'a'",
        "TIMESTAMP'2024-02-29 00:00:00'",
        "DATE'2024-02-30'",
        "DATE'2024-2-3'",
        "INTERVAL 1 MONTH",
        "INTERVAL '1 2' DAY TO HOUR",
        "INTERVAL '1.5' SECOND",
        "INTERVAL 999999999999 DAYS",
        "CAST('1' AS INT)",
        "pi()",
    ],
)
def test_literal_when_it_is_spark_s_to_say_then_is_none(text: str) -> None:
    assert literal(text) is None
