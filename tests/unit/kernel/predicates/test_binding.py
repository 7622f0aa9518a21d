"""What Spark would cast in silence is refused before it runs, with the cast to write."""

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest

from dovetail.errors import ArgumentError, UnknownColumnError
from dovetail.kernel.predicates import Call, Column, Literal, Tree, bind

TYPES = {
    "i": pa.int32(),
    "g": pa.int64(),
    "d": pa.float64(),
    "m": pa.decimal128(38, 10),
    "w": pa.decimal128(38, 0),
    "s": pa.string(),
    "k": pa.bool_(),
    "y": pa.date32(),
    "n": pa.timestamp("us"),
    "z": pa.timestamp("us", tz="UTC"),
    "v": pa.duration("us"),
    "st": pa.struct([("a", pa.int32())]),
    "li": pa.list_(pa.int32()),
}
SCHEMA = pa.schema(list(TYPES.items()))
DAY = Literal(dt.timedelta(days=1), pa.duration("us"), whole_days=True)
HOUR = Literal(dt.timedelta(hours=1), pa.duration("us"))


def both(operator: str, left: str, right: str) -> Call:
    return Call(operator, (Column(0, left), Column(1, right)))


@pytest.mark.parametrize(
    ("tree", "says"),
    [
        (both("=", "s", "i"), "left.s, string, and right.i, int, differ in type; cast one of them"),
        (both("=", "s", "i"), "for example CAST(left.s AS INT)"),
        (both("<", "d", "s"), "CAST(right.s AS DOUBLE)"),
        (both("<", "y", "z"), "CAST(left.y AS TIMESTAMP)"),
        (both("<", "z", "n"), "CAST(right.n AS TIMESTAMP)"),
        (both("=", "s", "y"), "CAST(left.s AS DATE)"),
        (both("=", "k", "i"), "differ in type"),
        (both("=", "m", "w"), "left.m, decimal(38,10), and right.w, decimal(38,0), differ in type"),
        (both("in", "i", "s"), "CAST(right.s AS INT)"),
        (both("coalesce", "i", "s"), "CAST(right.s AS INT)"),
        (both("greatest", "i", "n"), "differ in type"),
        (Call("case", (Column(0, "k"), Column(0, "i"), Column(1, "s"))), "CAST(right.s AS INT)"),
        (both("=", "st", "st"), "compare fields of them, or use IS NULL"),
        (both("<", "li", "li"), "compares values of type list"),
        (both("least", "st", "st"), "compare fields of them"),
        (both("and", "k", "i"), "right.i is int, and AND takes conditions"),
        (both("+", "i", "g"), "left.i + right.g is bigint, not a condition"),
        (Call("not", (Column(0, "i"),)), "NOT takes conditions"),
        (both("contains", "s", "i"), "write CAST(right.i AS STRING)"),
        (both("+", "m", "m"), "would be rounded: write CAST(left.m AS DOUBLE)"),
        (both("/", "m", "i"), "would be rounded"),
        (both("%", "m", "m"), "would be rounded"),
        (both("+", "s", "i"), "takes two numbers"),
        (both("*", "v", "i"), "takes two numbers"),
        (both("-", "z", "z"), "write CAST(left.z AS TIMESTAMP_NTZ) and CAST(right.z AS"),
        (both("+", "z", "v"), "when the clocks are changed"),
        (Call("+", (both("greatest", "z", "z"), DAY)), "when the clocks are changed"),
        (Call("+", (both("greatest", "y", "y"), HOUR)), "whole days"),
        (both("+", "y", "i"), "whole days"),
        (both("-", "y", "n"), "TIMESTAMP_NTZ"),
        (Call("abs", (both("coalesce", "s", "s"),)), "needs a number or an interval"),
        (Call("negate", (both("coalesce", "n", "n"),)), "needs a number or an interval"),
    ],
)  # fmt: skip
def test_types_when_they_do_not_agree_then_are_refused_with_a_way_out(
    tree: Tree, says: str
) -> None:
    with pytest.raises(ArgumentError) as refused:
        bind(tree, SCHEMA, SCHEMA)
    assert says in str(refused.value)
    assert str(refused.value).startswith("where=: ")


@pytest.mark.parametrize(
    "tree",
    [
        both("=", "i", "d"),
        both("<=>", "y", "y"),
        both("<", "k", "k"),
        both("is null", "st", "st"),
        Call("is null", (both("coalesce", "st", "st"),)),
        Call(">", (both("-", "y", "y"), DAY)),
        Call(">", (both("+", "n", "v"), Column(1, "n"))),
        Call("=", (both("/", "i", "g"), Column(1, "m"))),
    ],
)
def test_types_when_they_agree_then_are_bound(tree: Tree) -> None:
    assert bind(tree, SCHEMA, SCHEMA).root.type == pa.bool_()


def test_times_when_clocks_are_never_changed_then_days_are_added() -> None:
    for shifted in (both("+", "z", "v"), Call("-", (both("greatest", "z", "z"), DAY))):
        bind(Call("<", (shifted, Column(0, "z"))), SCHEMA, SCHEMA, fixed_zone=True)
    hour = Call("+", (both("greatest", "z", "z"), HOUR))
    bind(Call("<", (hour, Column(0, "z"))), SCHEMA, SCHEMA)


def test_decimals_when_a_constant_is_whole_then_it_has_as_many_digits_as_written() -> None:
    schema = pa.schema({"m": pa.decimal128(36, 0)})
    value = both("coalesce", "m", "m")
    five, long = Literal(5, pa.int32()), Column(0, "m")
    bind(Call("=", (Call("*", (value, five)), long)), schema, schema)
    many = Literal(Decimal(12), pa.decimal128(2, 0))
    with pytest.raises(ArgumentError, match="would be rounded"):
        bind(Call("=", (Call("*", (value, many)), long)), schema, schema)


def test_names_when_messages_show_them_otherwise_then_do() -> None:
    with pytest.raises(ArgumentError, match="one of S, string"):
        bind(both("=", "s", "i"), SCHEMA, SCHEMA, shown=lambda c: f"one of {c.name.upper()}")


def test_columns_when_a_schema_lacks_them_then_is_said() -> None:
    with pytest.raises(UnknownColumnError, match="the right input has no column 'other'"):
        bind(both("=", "i", "other"), SCHEMA, SCHEMA)
