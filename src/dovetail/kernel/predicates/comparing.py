"""Comparisons of whole columns as Spark makes them: NaN equals NaN and is above all, -0.0 is 0.0.

Strings are compared as UTF-8, byte by byte, which is their binary order in Spark.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dovetail.kernel.predicates.arithmetic import Values

_ARROW = {
    "=": pc.equal, "<>": pc.not_equal, "<": pc.less, "<=": pc.less_equal, ">": pc.greater,
    ">=": pc.greater_equal,
}  # fmt: skip


def compared(operator: str, one: Values, two: Values) -> pa.Array:
    """TRUE, FALSE or NULL for each pair; both of one type."""
    if operator == "<=>":
        neither = pc.and_(pc.is_null(one), pc.is_null(two))
        return pc.or_(pc.fill_null(compared("=", one, two), False), neither)
    type_ = one.type
    if pa.types.is_null(type_):
        return pc.cast(one, pa.bool_())
    result = _ARROW[operator](_comparable(one), _comparable(two))
    if not pa.types.is_floating(type_):
        return result
    return _with_nan(operator, result, pc.is_nan(one), pc.is_nan(two))


def _comparable(values: Values) -> Values:
    """Booleans as numbers: Arrow has no order of them."""
    return pc.cast(values, pa.uint8()) if pa.types.is_boolean(values.type) else values


def _with_nan(operator: str, result: pa.Array, one: Values, two: Values) -> pa.Array:
    """A comparison of floats, in which NaN is a number above all others.

    With a NaN Arrow says TRUE to `<>` and FALSE to all else.
    """
    match operator:
        case "=":
            return pc.or_(result, pc.and_(one, two))
        case "<>":
            return pc.and_(result, pc.invert(pc.and_(one, two)))
        case "<":
            return pc.or_(result, pc.and_not(two, one))
        case "<=":
            return pc.or_(result, two)
        case ">":
            return pc.or_(result, pc.and_not(one, two))
    return pc.or_(result, one)


def extreme(operator: str, arguments: list[Values]) -> pa.Array:
    """The least or the greatest of several values, those that are NULL left out."""
    than = "<" if operator == "least" else ">"
    found = arguments[0]
    for values in arguments[1:]:
        better = pc.fill_null(compared(than, values, found), False)
        found = pc.if_else(pc.or_(better, pc.is_null(found)), values, found)
    return found


_STRINGS: dict[str, Callable[..., Any]] = {
    "contains": lambda text, part: np.strings.find(text, part) >= 0,
    "startswith": np.strings.startswith,
    "endswith": np.strings.endswith,
}


_PRIVATE_USE = range(0xE000, 0xF900)  # characters that have no meaning of their own


def searched(operator: str, one: Values, two: Values) -> pa.Array:
    """Whether a string contains, starts with or ends with another."""
    valid = pc.and_(pc.is_valid(one), pc.is_valid(two))
    if _any_has("\0", one, two):  # which numpy takes for the end of a string
        unused = next(chr(n) for n in _PRIVATE_USE if not _any_has(chr(n), one, two))
        one, two = (pc.replace_substring(values, "\0", unused) for values in (one, two))
    found = _STRINGS[operator](_strings(one), _strings(two))
    return pc.if_else(valid, pa.array(found), pa.scalar(None, pa.bool_()))


def _any_has(character: str, *sides: Values) -> bool:
    for values in sides:
        has = pc.match_substring(values, character)
        if has.as_py() if isinstance(has, pa.Scalar) else pc.any(has).as_py():
            return True
    return False


def _strings(values: Values) -> Any:
    type_ = np.dtypes.StringDType()
    if isinstance(values, pa.Scalar):
        return np.asarray(values.as_py() or "", dtype=type_)
    return values.fill_null("").to_numpy(zero_copy_only=False).astype(type_)
