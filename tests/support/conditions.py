"""Conditions evaluated slowly and simply: Python over rows, with None for NULL.

Nothing here knows of `dovetail.kernel.predicates` but its trees. Numbers are Python's: whole ones
of any size, `Decimal`s with enough digits, floats. What Spark makes an error is a `Failed`.
"""

import datetime as dt
import math
from collections.abc import Callable
from decimal import Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from dovetail.kernel.predicates import Call, Column, Literal, Tree
from dovetail.specs.conditions import Range

Row = dict[str, Any]
_EXACT = Context(prec=120)


class Failed(Exception):
    """A value that does not exist: Spark fails in ANSI mode."""


def holds(tree: Tree, left: Row, right: Row, types: Callable[[Tree], pa.DataType]) -> bool:
    """Whether a condition is TRUE for two rows; types: of every part of the tree."""
    return Slowly((left, right), types).value(tree) is True


class Slowly:
    """The evaluation of a tree for one pair of rows."""

    def __init__(self, rows: tuple[Row, Row], types: Callable[[Tree], pa.DataType]) -> None:
        self._rows = rows
        self._types = types

    def value(self, tree: Tree) -> Any:
        if isinstance(tree, Column):
            return self._rows[tree.side][tree.name]
        if isinstance(tree, Literal):
            return tree.value
        return getattr(self, _METHODS[tree.operator])(tree)

    def logic(self, tree: Call) -> Any:
        decisive = tree.operator == "or"
        one = self.value(tree.arguments[0])
        if one is decisive:
            return decisive
        two = self.value(tree.arguments[1])
        if two is decisive:
            return decisive
        return None if one is None or two is None else not decisive

    def not_(self, tree: Call) -> Any:
        value = self.value(tree.arguments[0])
        return None if value is None else not value

    def is_null(self, tree: Call) -> Any:
        return self.value(tree.arguments[0]) is None

    def compare(self, tree: Call) -> Any:
        one, two = (self.value(argument) for argument in tree.arguments)
        if tree.operator == "<=>" and (one is None or two is None):
            return one is None and two is None
        if one is None or two is None:
            return None
        kinds = [self._types(argument) for argument in tree.arguments]
        order = compare(one, two, as_floats=any(map(pa.types.is_floating, kinds)))
        return {
            "=": order == 0, "<=>": order == 0, "<>": order != 0, "<": order < 0,
            "<=": order <= 0, ">": order > 0, ">=": order >= 0,
        }[tree.operator]  # fmt: skip

    def in_(self, tree: Call) -> Any:
        sought, *items = tree.arguments
        if self.value(sought) is None:
            return None
        floats = any(pa.types.is_floating(self._types(item)) for item in tree.arguments)
        unknown = False
        for item in items:
            value = self.value(item)
            if value is None:
                unknown = True
            elif compare(self.value(sought), value, as_floats=floats) == 0:
                return True
        return None if unknown else False

    def case(self, tree: Call) -> Any:
        *branches, otherwise = tree.arguments
        for condition, value in zip(branches[::2], branches[1::2], strict=True):
            if self.value(condition) is True:
                return self._as_own(tree, self.value(value))
        return self._as_own(tree, self.value(otherwise))

    def coalesce(self, tree: Call) -> Any:
        for argument in tree.arguments:
            value = self.value(argument)
            if value is not None:
                return self._as_own(tree, value)
        return None

    def extreme(self, tree: Call) -> Any:
        found = None
        wanted = -1 if tree.operator == "least" else 1
        for argument in tree.arguments:
            value = self._as_own(tree, self.value(argument))
            if value is None:
                continue
            if found is None or compare(value, found) == wanted:
                found = value
        return found

    def strings(self, tree: Call) -> Any:
        one, two = (self.value(argument) for argument in tree.arguments)
        if one is None or two is None:
            return None
        if tree.operator == "contains":
            return two in one
        return one.startswith(two) if tree.operator == "startswith" else one.endswith(two)

    def calculate(self, tree: Call) -> Any:
        values = [self.value(argument) for argument in tree.arguments]
        if any(value is None for value in values):
            return None
        type_ = self._types(tree)
        if pa.types.is_floating(type_):
            values = [_as_float(value, type_) for value in values]
        found = _calculated(tree.operator, values, type_)
        if isinstance(found, float):
            return _as_float(found, type_)
        return _in_range(found, type_)

    def _as_own(self, tree: Call, value: Any) -> Any:
        """A value in the type of the call that chose it."""
        if value is not None and pa.types.is_floating(self._types(tree)):
            return _as_float(value, self._types(tree))
        return value


_METHODS = {
    "and": "logic", "or": "logic", "not": "not_", "is null": "is_null", "in": "in_",
    "case": "case", "coalesce": "coalesce", "least": "extreme", "greatest": "extreme",
    "contains": "strings", "startswith": "strings", "endswith": "strings",
    **dict.fromkeys(("=", "<=>", "<>", "<", "<=", ">", ">="), "compare"),
    **dict.fromkeys(("+", "-", "*", "/", "%", "abs", "negate"), "calculate"),
}  # fmt: skip


def compare(one: Any, two: Any, *, as_floats: bool = False) -> int:
    """-1, 0 or 1 as Spark orders values: NaN above all, and equal to itself."""
    if as_floats:
        one, two = float(one), float(two)
    if isinstance(one, str):
        one, two = one.encode(), two.encode()
    nans = [isinstance(value, float) and math.isnan(value) for value in (one, two)]
    if any(nans):
        return nans[0] - nans[1]
    return int(one > two) - int(one < two)


def within(range_: Range, left: Any, right: Any) -> bool:
    """Whether two values are within a range."""
    if left is None or right is None:
        return False
    for bound, strict, way in (
        (range_.lower, range_.lower_strict, 1),
        (range_.upper, range_.upper_strict, -1),
    ):
        if bound is None:
            continue
        order = compare(left, right, as_floats=_any_float(left, right))
        if bound != 0 or range_.rounded:
            order = compare(_difference(left, right), bound)
        if order * way < 0 or (strict and order == 0):
            return False
    return True


def _difference(left: Any, right: Any) -> Any:
    if isinstance(left, Decimal) or isinstance(right, Decimal):
        return _EXACT.subtract(Decimal(left), Decimal(right))
    return left - right


def _any_float(*values: Any) -> bool:
    return any(isinstance(value, float) for value in values)


def _as_float(value: Any, type_: pa.DataType) -> float:
    return float(np.float32(value)) if pa.types.is_float32(type_) else float(value)


def _calculated(operator: str, values: list[Any], type_: pa.DataType) -> Any:
    one, *rest = values
    if operator == "abs":
        return abs(one) if not isinstance(one, Decimal) else one.copy_abs()
    if operator == "negate":
        return -one if not isinstance(one, Decimal) else one.copy_negate()
    (two,) = rest
    if operator in ("/", "%"):
        if two == 0:
            raise Failed
        if operator == "/":
            return _quotient(float(one), float(two))
        if isinstance(one, float):
            return math.fmod(one, two) if math.isfinite(one) else math.nan
        return int(math.copysign(1, one)) * (abs(one) % abs(two))
    if pa.types.is_decimal(type_):
        apply = {"+": _EXACT.add, "-": _EXACT.subtract, "*": _EXACT.multiply}[operator]
        return apply(Decimal(one), Decimal(two))
    with np.errstate(all="ignore"):
        if isinstance(one, float):
            one = (np.float32 if pa.types.is_float32(type_) else np.float64)(one)
            return float({"+": one + two, "-": one - two, "*": one * two}[operator])
        try:
            return {"+": lambda: one + two, "-": lambda: one - two, "*": lambda: one * two}[
                operator
            ]()
        except OverflowError:
            raise Failed from None


def _quotient(one: float, two: float) -> float:
    with np.errstate(all="ignore"):
        return float(np.float64(one) / np.float64(two))


def _in_range(value: Any, type_: pa.DataType) -> Any:
    if pa.types.is_integer(type_):
        limit = 1 << (type_.bit_width - 1)
        if not -limit <= value < limit:
            raise Failed
    if isinstance(value, dt.timedelta):
        micros = value // dt.timedelta(microseconds=1)
        if not -(1 << 63) <= micros < 1 << 63:
            raise Failed
    return value
