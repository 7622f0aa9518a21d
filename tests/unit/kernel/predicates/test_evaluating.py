"""Errors are raised for the pairs that Spark would come to, and for no others."""

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from dovetail.errors import ConditionError
from dovetail.kernel.predicates import Call, Column, Literal, Tree, bind

INT64 = pa.int64()
L, R = Column(0, "x"), Column(1, "x")
ZERO, ONE = Literal(0, INT64), Literal(1, INT64)
FALSE = Literal(False, pa.bool_())


def call(operator: str, *arguments: Tree) -> Call:
    return Call(operator, arguments)


def mask(tree: Tree, left: list[Any], right: list[Any], type_: pa.DataType = INT64) -> list[bool]:
    sides = [pa.record_batch({"x": pa.array(values, type_)}) for values in (left, right)]
    predicate = bind(tree, sides[0].schema, sides[1].schema, fixed_zone=True)
    return list(predicate.mask(*sides).tolist())


REMAINS = call("=", call("%", L, R), ZERO)
IS_ZERO = call("=", R, ZERO)


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        (call("or", IS_ZERO, REMAINS), [True, True, False]),
        (call("and", call("<>", R, ZERO), REMAINS), [False, True, False]),
        (call("case", IS_ZERO, FALSE, REMAINS), [False, True, False]),
        (call("case", call("<>", R, ZERO), REMAINS, FALSE), [False, True, False]),
        (call("coalesce", call("case", IS_ZERO, FALSE, Literal(None, pa.null())), REMAINS),
         [False, True, False]),
        (call("in", R, ZERO, call("%", L, R)), [True, False, False]),
    ],
)  # fmt: skip
def test_division_when_a_guard_is_in_front_then_is_no_error(
    tree: Tree, expected: list[bool]
) -> None:
    assert mask(tree, [5, 6, 7], [0, 3, 2]) == expected


@pytest.mark.parametrize(
    "tree",
    [
        REMAINS,
        call("or", REMAINS, IS_ZERO),
        call("case", REMAINS, FALSE, FALSE),
        call(">", call("/", L, R), ONE),
        call("in", call("%", L, R), ZERO),
    ],
)
def test_division_when_by_zero_then_is_an_error_that_names_it(tree: Tree) -> None:
    with pytest.raises(ConditionError, match=r"division by zero in left.x [%/] right.x"):
        mask(tree, [5, 6], [0, 3])


def test_division_when_a_number_is_null_then_is_null() -> None:
    unknown = call("is null", call("/", L, R))
    assert mask(unknown, [None, 6, None], [0, None, None]) == [True, True, True]


@pytest.mark.parametrize(
    ("operator", "left", "right"),
    [
        ("+", 127, 1),
        ("-", -128, 1),
        ("*", 64, 2),
        ("*", -128, -1),
    ],
)
@pytest.mark.parametrize("bits", [8, 16, 32, 64])
def test_whole_numbers_when_they_overflow_then_are_errors(
    operator: str, left: int, right: int, bits: int
) -> None:
    type_ = {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: INT64}[bits]
    most = (1 << (bits - 1)) - 1
    left = {127: most, -128: -most - 1, 64: most // 2 + 1}[left]
    tree = call("<>", call(operator, L, R), Literal(0, pa.int8()))
    with pytest.raises(ConditionError, match="out of the range of its type"):
        mask(tree, [left], [right], type_)
    assert mask(tree, [left], [0], type_) == [operator != "*"]


@pytest.mark.parametrize("operator", ["negate", "abs"])
def test_sign_when_the_least_number_has_none_then_is_an_error(operator: str) -> None:
    tree = call("=", call(operator, call("least", L, R)), ONE)
    with pytest.raises(ConditionError, match="out of the range"):
        mask(tree, [-(2**63)], [1])
    assert mask(tree, [-1], [5]) == [True]


def test_remainder_when_divided_by_minus_one_then_is_nothing() -> None:
    assert mask(REMAINS, [-(2**63), 7, -7], [-1, -2, 7]) == [True, False, True]


def test_times_when_out_of_range_then_are_errors() -> None:
    span = Literal(dt.timedelta(days=100_000_000), pa.duration("us"))
    tree = call("=", call("+", call("greatest", L, R), span), L)
    far = dt.datetime(9999, 1, 1)
    tree = call("=", call("+", call("+", call("greatest", L, R), span), span), L)
    with pytest.raises(ConditionError, match="timestamp"):
        mask(tree, [far], [None], pa.timestamp("us"))


def test_decimals_when_multiplied_then_keep_all_digits() -> None:
    tree = call("=", call("*", L, R), Literal(Decimal("0.00000001"), pa.decimal128(8, 8)))
    assert mask(tree, [Decimal("0.0001")], [Decimal("0.0001")], pa.decimal128(18, 4)) == [True]


def test_condition_when_it_is_a_constant_or_null_then_is_so_for_all() -> None:
    assert mask(Literal(True, pa.bool_()), [1, 2], [1, 2]) == [True, True]
    assert mask(Literal(None, pa.null()), [1, 2], [1, 2]) == [False, False]
    assert mask(call("=", L, Literal(None, pa.null())), [1], [1]) == [False]
    assert mask(REMAINS, [], []) == []


def test_nested_columns_when_tested_for_null_then_are_answered() -> None:
    type_ = pa.struct([("a", pa.int32())])
    tree = call("and", call("is null", L), call("not", call("is null", R)))
    assert mask(tree, [None, {"a": None}], [{"a": 1}, None], type_) == [True, False]
