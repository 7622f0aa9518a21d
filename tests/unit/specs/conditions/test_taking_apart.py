"""Conditions are taken apart as they are meant, and refused where they cannot be."""

import datetime as dt
import pickle
import subprocess
import sys
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from dovetail.errors import ArgumentError, UnknownColumnError
from dovetail.kernel.predicates import text_of
from dovetail.specs.conditions import Computed, Condition, Equality, Range, parse_condition

MOMENT = pa.timestamp("us", tz="UTC")
LEFT = pa.schema(
    [
        ("id", pa.int64()),
        ("a", pa.int32()),
        ("d", pa.float64()),
        ("Name", pa.string()),
        ("amount", pa.decimal128(10, 2)),
        ("wide", pa.decimal128(38, 10)),
        ("at", pa.timestamp("us")),
        ("seen", MOMENT),
        ("day", pa.date32()),
        ("flag", pa.bool_()),
        ("place", pa.struct([("Lat", pa.float64()), ("of", pa.struct([("zip", pa.string())]))])),
        ("odd `name", pa.int32()),
        ("right", pa.struct([("x", pa.int32())])),
    ]
)
RIGHT = pa.schema(
    [
        ("id", pa.int64()),
        ("b", pa.int32()),
        ("d", pa.float64()),
        ("label", pa.string()),
        ("amount", pa.decimal128(12, 4)),
        ("wide", pa.decimal128(38, 10)),
        ("opened", pa.timestamp("us")),
        ("closed", pa.timestamp("us")),
        ("seen", MOMENT),
        ("day", pa.date32()),
        ("flag", pa.bool_()),
    ]
)
HOUR = dt.timedelta(hours=1)


def apart(text: str, **options: Any) -> Condition:
    condition = parse_condition(text, LEFT, RIGHT, **options)
    assert pickle.loads(pickle.dumps(condition)) == condition
    assert hash(condition) == hash(parse_condition(text, LEFT, RIGHT, **options))
    return condition


def residual(text: str) -> str:
    condition = apart(text)
    assert condition.residual is not None
    return text_of(condition.residual)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a = b", [Equality("a", "b")]),
        ("right.b == left.a", [Equality("a", "b")]),
        ("(LEFT.A = `b`)", [Equality("a", "b")]),
        ("a <=> b", [Equality("a", "b", null_safe=True)]),
        ("a IS NOT DISTINCT FROM b", [Equality("a", "b", null_safe=True)]),
        ("left.id = right.id AND (a = b AND a = b)", [Equality("id", "id"), Equality("a", "b")]),
        ("`odd ``name` = b", [Equality("odd `name", "b")]),
    ],
)
def test_equalities_when_columns_of_both_sides_are_equal_then_are_pairs(
    text: str, expected: list[Equality]
) -> None:
    condition = apart(text)
    assert condition.equalities == tuple(expected)
    assert (condition.ranges, condition.computed, condition.residual) == ((), (), None)


def test_equalities_when_sides_are_computed_then_are_pairs_of_computed_columns() -> None:
    condition = apart("lower(left.Name) = right.label AND place.lat = right.d * 2")
    assert condition.computed == (
        Computed(0, "__dovetail_where_0", "lower(Name)"),
        Computed(0, "__dovetail_where_1", "place.lat"),
        Computed(1, "__dovetail_where_2", "d * 2"),
    )
    assert condition.equalities == (
        Equality("__dovetail_where_0", "label"),
        Equality("__dovetail_where_1", "__dovetail_where_2"),
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a < b", [Range("a", "b", upper=0, upper_strict=True)]),
        ("b <= a", [Range("a", "b", lower=0)]),
        ("a > b", [Range("a", "b", lower=0, lower_strict=True)]),
        ("left.Name >= label", [Range("Name", "label", lower=0)]),
        ("left.d <= right.d", [Range("d", "d", upper=0)]),
        ("a - b <= 5", [Range("a", "b", upper=5)]),
        ("5 > b - a", [Range("a", "b", lower=-5, lower_strict=True)]),
        ("a + 5 < b - 2", [Range("a", "b", upper=-7, upper_strict=True)]),
        ("- a + b >= 3", [Range("a", "b", upper=-3)]),
        ("-(a - b) >= 3", [Range("a", "b", upper=-3)]),
        ("a - b = 5", [Range("a", "b", 5, 5)]),
        ("a - b BETWEEN -5 AND 5", [Range("a", "b", -5, 5)]),
        ("abs(b - a) < 5", [Range("a", "b", -5, 5, True, True)]),
        ("5 >= abs(a - b)", [Range("a", "b", -5, 5)]),
        ("a BETWEEN b - 1 AND b + 2.5", [Range("a", "b", -1, Decimal("2.5"))]),
        ("a >= b AND a <= b + 9 AND a < b + 9 AND a < b + 10",
         [Range("a", "b", 0, 9, False, True)]),
        ("left.amount - right.amount <= 1.5", [Range("amount", "amount", upper=Decimal("1.5"))]),
        ("left.at BETWEEN opened AND closed",
         [Range("at", "opened", lower=0), Range("at", "closed", upper=0)]),
        ("left.at BETWEEN opened AND opened + INTERVAL 1 HOUR", [Range("at", "opened", 0, HOUR)]),
        ("opened - left.at > INTERVAL '-1' HOUR",
         [Range("at", "opened", upper=HOUR, upper_strict=True)]),
        ("left.at + INTERVAL 2 DAYS <= opened", [Range("at", "opened", upper=-48 * HOUR)]),
        ("left.seen >= right.seen - INTERVAL 60 MINUTES", [Range("seen", "seen", lower=-HOUR)]),
        ("left.day <= right.day + INTERVAL 1 WEEK",
         [Range("day", "day", upper=dt.timedelta(days=7))]),
        ("left.day - right.day < INTERVAL 36 HOURS",
         [Range("day", "day", upper=36 * HOUR, upper_strict=True)]),
    ],
)  # fmt: skip
def test_ranges_when_columns_are_related_by_a_constant_then_are_bounds(
    text: str, expected: list[Range]
) -> None:
    condition = apart(text)
    assert condition.ranges == tuple(expected)
    assert (condition.equalities, condition.computed, condition.residual) == ((), (), None)


@pytest.mark.parametrize(
    ("text", "sql"),
    [
        ("left.d + 1 < right.d", "d + 1"),  # floats round
        ("left.Name || 'x' < label", "Name || 'x'"),
        ("left.day + INTERVAL 3 HOURS < opened", "day + INTERVAL 3 HOURS"),
        ("left.at + INTERVAL 1 MONTH < opened", "at + INTERVAL 1 MONTH"),
        ("left.seen + INTERVAL 1 DAY < right.seen", "seen + INTERVAL 1 DAY"),
        ("a * 2 < b", "a * 2"),
        ("left.wide + 0.5 < right.wide", "wide + 0.5"),
    ],
)
def test_ranges_when_a_constant_cannot_be_taken_out_then_are_of_computed_columns(
    text: str, sql: str
) -> None:
    condition = apart(text)
    assert [column.sql_text for column in condition.computed] == [sql]
    (found,) = condition.ranges
    assert (found.left, found.upper) == ("__dovetail_where_0", 0)
    assert condition.residual is None


def test_ranges_when_clocks_are_changed_then_differences_are_of_what_clocks_show() -> None:
    text = "left.seen - right.seen <= INTERVAL 1 HOUR"
    condition = apart(text)
    assert [c.sql_text for c in condition.computed] == ["CAST(seen AS TIMESTAMP_NTZ)"] * 2
    assert condition.ranges == (Range("__dovetail_where_0", "__dovetail_where_1", upper=HOUR),)
    assert apart(text, fixed_zone=True).ranges == (Range("seen", "seen", upper=HOUR),)


def test_ranges_when_clocks_are_never_changed_then_days_are_constants() -> None:
    condition = apart("left.seen + INTERVAL 1 DAY < right.seen", fixed_zone=True)
    assert condition.ranges == (Range("seen", "seen", upper=-24 * HOUR, upper_strict=True),)


def test_ranges_when_differences_are_of_floats_then_are_rounded_and_residual_too() -> None:
    condition = apart("left.d - right.d BETWEEN -0.5 AND 0.5")
    half = Decimal("0.5")
    assert condition.ranges == (Range("d", "d", -half, half, rounded=True),)
    assert condition.residual is not None
    # a difference that is NaN is above all bounds
    assert apart("left.d - right.d >= -0.5").ranges == ()


@pytest.mark.parametrize(
    ("text", "left", "right"),
    [
        ("left.a > 1 AND a = b", ["a > 1"], []),
        ("a = b AND (`left`.`odd ``name` IN (1, 2) OR flag_of(left . id))",
         ["`odd ``name` IN (1, 2) OR flag_of(id)"], []),
        ("right.id IS NOT NULL AND right.Label LIKE 'left.%'", [],
         ["id IS NOT NULL", "Label LIKE 'left.%'"]),
        ("TRUE AND 1 + 1 = 2", ["TRUE", "1 + 1 = 2"], []),
        ("a BETWEEN 1 AND b", ["(a) >= (1)"], []),
        ("left.Name = 'it''s' /* so */ -- and so\n AND a = b", ["Name = 'it''s'"], []),
        ("exists(array(a), x -> x > left.a)", ["exists(array(a), x -> x > a)"], []),
        ("NOT left.flag AND NOT right.flag", ["NOT flag"], ["NOT flag"]),
        ("left.right.x = 1", ["right.x = 1"], []),
        ("right.x = 1", ["right.x = 1"], []),  # no column of the right side: a field
    ],
)  # fmt: skip
def test_conjuncts_when_they_read_one_side_then_are_text_for_it(
    text: str, left: list[str], right: list[str]
) -> None:
    condition = apart(text)
    assert (list(condition.left_only), list(condition.right_only)) == (left, right)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a = b OR left.id > right.id", "((left.a = right.b) OR (left.id > right.id))"),
        ("a <> b", "(left.a <> right.b)"),
        ("a != b", "(left.a <> right.b)"),
        ("NOT a = b", "(NOT (left.a = right.b))"),
        ("!(a = b)", "(NOT (left.a = right.b))"),
        ("a NOT BETWEEN 1 AND b",
         "(NOT ((left.a >= 1) AND (left.a <= right.b)))"),
        ("a NOT IN (b, 3)", "(NOT (left.a IN (right.b, 3)))"),
        ("(a + b) IS NULL", "((left.a + right.b) IS NULL)"),
        ("a + b IS NOT NULL", "(NOT ((left.a + right.b) IS NULL))"),
        ("(a = b) IS TRUE", "((left.a = right.b) <=> TRUE)"),
        ("(a = b) IS UNKNOWN", "((left.a = right.b) IS NULL)"),
        ("a IS DISTINCT FROM b", "(NOT (left.a <=> right.b))"),
        ("a + b * 2 > -b", "((left.a + __0) > __1)"),
        ("a - b - a = 0", "(((left.a - right.b) - left.a) = 0)"),
        ("a % b / a <> 0.5", "(((left.a % right.b) / left.a) <> 0.5)"),
        ("CASE WHEN a > b THEN left.flag END",
         "CASE WHEN (left.a > right.b) THEN left.flag ELSE NULL END"),
        ("CASE a WHEN b THEN TRUE ELSE right.flag END",
         "CASE WHEN (left.a = right.b) THEN TRUE ELSE right.flag END"),
        ("if(left.flag, right.flag, FALSE)",
         "CASE WHEN left.flag THEN right.flag ELSE FALSE END"),
        ("ifnull(left.flag, right.flag)", "coalesce(left.flag, right.flag)"),
        ("nullif(a, b) > 1", "(CASE WHEN (left.a = right.b) THEN NULL ELSE left.a END > 1)"),
        ("greatest(a, b, 3) = abs(a * b)",
         "(greatest(left.a, right.b, 3) = abs((left.a * right.b)))"),
        ("isnull(coalesce(a, b))", "(coalesce(left.a, right.b) IS NULL)"),
        ("contains(left.Name, label)", "contains(left.Name, right.label)"),
        ("coalesce(a, b) > 5L", "(coalesce(left.a, right.b) > 5L)"),
        ("left.day + INTERVAL 1 DAY > right.day OR left.flag",
         "((__0 > right.day) OR left.flag)"),
        ("greatest(left.day, right.day) = DATE'2024-02-29'",
         "(greatest(left.day, right.day) = DATE'2024-02-29')"),
        ("coalesce(left.seen, right.seen) > TIMESTAMP'2024-02-29 12:00:00'",
         "(coalesce(left.seen, right.seen) > __0)"),
        ("greatest(a, b) > pow(2, 3)", "(greatest(left.a, right.b) > __0)"),
    ],
)  # fmt: skip
def test_residual_when_sides_are_mixed_then_is_a_tree(text: str, expected: str) -> None:
    found = residual(text)
    for number in range(3):
        for side in ("left", "right"):
            found = found.replace(f"{side}.__dovetail_where_{number}", f"__{number}")
    assert found == expected


def test_computed_when_parts_are_equal_then_is_one_column() -> None:
    condition = apart("lower( left.Name ) = label OR LOWER(name) = upper(label) OR a * 2 = b")
    assert [column.sql_text for column in condition.computed] == [
        "lower( Name )",
        "upper(label)",
        "a * 2",
    ]
    assert condition.computed_of(1) == (Computed(1, "__dovetail_where_1", "upper(label)"),)


def test_computed_when_constants_are_of_no_side_then_is_of_the_left() -> None:
    (column,) = apart("least(a, b) < CAST('5' AS INT)").computed
    assert column == Computed(0, "__dovetail_where_0", "CAST('5' AS INT)")


def test_sides_when_inputs_have_names_then_are_qualified_by_them() -> None:
    condition = apart("Orders.id = payments.id", sides=("orders", "payments"))
    assert condition.equalities == (Equality("id", "id"),)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("a = b AND a > 1", "LEFT.a=right.B  and/**/(left.A>1)"),
        ("a <> b", "a != b"),
        ("left.Name = 'x' AND a = b", 'NAME == "x" AND a = b'),
        ("lower(left.Name) = label", "LOWER (name) = `label`"),
        ("a - b <= 5", "a <= b + 5"),
    ],
)
def test_canonical_when_spelled_otherwise_then_is_the_same(one: str, two: str) -> None:
    assert apart(one).canonical == apart(two).canonical


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("a = b", "a <=> b"),
        ("a - b <= 5", "a - b < 5"),
        ("a = b AND left.Name = 'x'", "a = b AND left.Name = 'X'"),
        ("a = b AND left.Name = 'it''s'", "a = b AND left.Name = 'its'"),
        ("a = b AND a > 1.5BD", "a = b AND a > 1.5::DECIMAL"),
        ("a = b AND left.id > 1", "a = b AND right.id > 1"),
        ("a < b OR left.flag", "a < b OR right.flag"),
    ],
)
def test_canonical_when_meant_otherwise_then_differs(one: str, two: str) -> None:
    assert apart(one).canonical != apart(two).canonical


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "where= is empty"),
        ("  -- nothing\n", "where= is empty"),
        ("a =", "cannot be understood at line 1, column"),
        ("a = b b", "column 7, near 'b'"),
        ("a = b; SELECT 1", "cannot be understood"),
        ("a = 'b", "not closed"),
        ("id = b", "both inputs have a column 'id'; write left.id or right.id"),
        ("a IN (SELECT 1)", "(SELECT 1) is a subquery; join"),
        ("EXISTS (SELECT 1)", "is a subquery"),
        ("a = (SELECT 1)", "is a subquery"),
        ("sum(left.a) > b", "sum(left.a) is an aggregate"),
        ("max(a) OVER () > b", "is a window function"),
        ("left.* = 1", "name the ones to compare"),
        ("explode(left.Name) = label", "explode makes several rows of one"),
        ("a < rand()", "rand says something else each time"),
        ("left.seen < Current_Timestamp", "Current_Timestamp says something else"),
        ("left.seen < now()", "now says something else"),
        ("uuid() = label", "uuid says something else"),
        ("left.Name LIKE label", "left.Name LIKE label reads columns of both sides"),
        ("concat(left.Name, label) = 'x'", "which only these do: =, <=>"),
        ("my_function(a, b)", "my_function(a, b) reads columns of both sides"),
        ("a & b = 1", "a & b reads columns of both sides"),
        ("a DIV b = 1", "reads columns of both sides"),
        ("left.Name RLIKE label OR left.flag", "reads columns of both sides"),
        ("a = b IS NULL", "in several ways; put brackets around a = b"),
        ("a = b = left.flag", "put brackets around a = b"),
        ("a < b IN (TRUE)", "put brackets around"),
        ("left.flag = a BETWEEN b AND 3", "put brackets around"),
    ],
)
def test_condition_when_it_cannot_be_done_then_says_why(text: str, says: str) -> None:
    with pytest.raises(ArgumentError) as refused:
        apart(text)
    assert says in str(refused.value)
    assert str(refused.value).startswith("where")


def test_condition_when_it_is_no_text_then_is_refused() -> None:
    with pytest.raises(ArgumentError, match="is not a text"):
        parse_condition(True, LEFT, RIGHT)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nothing = b", "neither input has a column 'nothing': the left input has 'id', 'a'"),
        ("left.b = 1", "the left input has no column 'b'; it has 'id', 'a'"),
        ("`left.a` = b", "neither input has a column 'left.a'"),
        ("place.lon = 1", "'place' has no field 'lon'; it has 'Lat', 'of'"),
        ("left.place.of.city = label", "has no field 'city'; it has 'zip'"),
    ],
)
def test_names_when_unknown_then_known_ones_are_listed(text: str, says: str) -> None:
    with pytest.raises(UnknownColumnError) as refused:
        apart(text)
    assert says in str(refused.value)


def test_condition_when_brackets_are_written_then_comparisons_of_comparisons_are_taken() -> None:
    assert residual("(a = b) = left.flag") == "((left.a = right.b) = left.flag)"
    assert residual("(a = b) IS NULL") == "((left.a = right.b) IS NULL)"


def test_checked_when_types_differ_then_names_the_cast() -> None:
    condition = apart("a = b AND lower(left.Name) <= right.d * 2")
    left = LEFT.append(pa.field("__dovetail_where_0", pa.string()))
    right = RIGHT.append(pa.field("__dovetail_where_1", pa.float64()))
    with pytest.raises(ArgumentError, match=r"CAST\(lower\(Name\) AS DOUBLE\)"):
        condition.checked(left, right)
    left = LEFT.append(pa.field("__dovetail_where_0", pa.float64()))
    assert condition.checked(left, right) is None


def test_checked_when_there_is_a_residual_then_evaluates_it() -> None:
    condition = apart("a = b OR left.flag")
    predicate = condition.checked(LEFT, RIGHT)
    assert predicate is not None
    left = pa.RecordBatch.from_pylist([{"a": 1}, {"a": 1}, {"flag": True}], LEFT)
    right = pa.RecordBatch.from_pylist([{"b": 1}, {"b": 2}, {}], RIGHT)
    assert predicate.mask(left, right).tolist() == [True, False, True]


def test_conditions_when_only_unpickled_then_sqlglot_is_not_loaded() -> None:
    code = "import sys, dovetail.specs.conditions; assert 'sqlglot' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_ranges_when_decimals_have_many_digits_then_constants_keep_them() -> None:
    many = "1" * 36
    (found,) = apart(f"a - b <= {many} AND -(a - b) < {many}.5").ranges
    assert (found.upper, found.lower) == (Decimal(many), Decimal(f"-{many}.5"))


def test_condition_when_it_has_thousands_of_alternatives_then_is_evaluated() -> None:
    for operator in ("OR", "AND"):
        condition = apart(f" {operator} ".join(f"a + b <> {n}" for n in range(2_000)))
        predicate = condition.checked(LEFT, RIGHT)
        assert predicate is not None
        left, right = (pa.RecordBatch.from_pylist([{"a": 1, "b": 1}], s) for s in (LEFT, RIGHT))
        assert predicate.mask(left, right).tolist() == [operator == "OR"]


def test_condition_when_it_is_nested_too_deeply_then_is_refused() -> None:
    with pytest.raises(ArgumentError, match="nested too deeply"):
        apart("(" * 3_000 + "a = b" + ")" * 3_000)


@pytest.mark.parametrize(
    ("text", "sides"),
    [
        ("timestampadd(DAY, left.a, right.opened) IS NULL", 2),
        ("named_struct('k', left.a).k = 1", 1),
        ("extract(HOUR FROM left.at) = 1", 1),
    ],
)
def test_names_when_functions_take_words_then_columns_are_still_found(
    text: str, sides: int
) -> None:
    if sides == 1:
        assert apart(text).left_only
    else:
        with pytest.raises(ArgumentError, match="reads columns of both sides"):
            apart(text)


def test_names_when_sqlglot_takes_a_column_for_a_word_then_is_refused() -> None:
    with pytest.raises(ArgumentError, match="not understood where it stands"):
        apart("date_trunc(left.Name, left.at) = 1")
