"""Sums, products, quotients and signs of whole columns, with Spark's errors.

Overflow of whole numbers, times and intervals, and division by zero, raise a `ConditionError` if
they happen for a pair that was asked for. Floats overflow to infinity. A NULL on either side gives
NULL, also NULL / 0.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dovetail.errors import ConditionError
from dovetail.kernel.predicates.types import is_decimal

Values: TypeAlias = "pa.Array | pa.Scalar"
Mask = NDArray[np.bool_]
Numbers = NDArray[Any]

_DAY_MICROS = 86_400_000_000
_DECIMALS = {"+": pc.add, "-": pc.subtract, "*": pc.multiply, "abs": pc.abs, "negate": pc.negate}


def calculated(
    operator: str, arguments: list[Values], type_: pa.DataType, asked: Mask | None, text: str
) -> pa.Array:
    """An arithmetic operator on columns; asked: the pairs for which an error counts, None: all."""
    if pa.types.is_null(type_):
        return arguments[0]
    if is_decimal(type_):
        return _DECIMALS[operator](*arguments).cast(type_)
    valid = _all_valid(arguments)
    numbers = [_numbers(argument) for argument in arguments]
    if pa.types.is_date32(type_):
        numbers = [_in_days(a, of) for a, of in zip(numbers, arguments, strict=True)]
    with np.errstate(all="ignore"):
        if pa.types.is_floating(type_):
            result, wrong = _floats(operator, numbers, type_)
        else:
            result, wrong = _whole(operator, numbers, _width(type_))
            if pa.types.is_duration(type_) and pa.types.is_date32(arguments[0].type):
                result = result * _DAY_MICROS
    if wrong is not None:
        wrong = wrong & valid if asked is None else wrong & valid & asked
        if wrong.any():
            raise ConditionError(_complaint(operator, type_, text))
    missing = None if valid is True or valid.all() else ~valid
    return _as_type(result, type_, missing)


def _complaint(operator: str, type_: pa.DataType, text: str) -> str:
    if operator in ("/", "%"):
        return f"division by zero in {text}; write NULLIF(..., 0) around what it is divided by"
    return (
        f"{text} is out of the range of its type, {type_}; cast what it is made of to a wider one"
    )


def _numbers(values: Values) -> Numbers:
    """The numbers behind values of any type but decimals; anything where there is a NULL."""
    type_ = values.type
    if pa.types.is_date32(type_):
        as_number = pa.int32()
    elif pa.types.is_temporal(type_):
        as_number = pa.int64()
    else:
        as_number = type_
    dtype = as_number.to_pandas_dtype()
    if isinstance(values, pa.Scalar):
        number = values.cast(as_number).as_py()
        return np.asarray(0 if number is None else number, dtype=dtype)
    plain = values.view(as_number) if as_number != type_ else values
    if plain.null_count:
        plain = plain.fill_null(0)
    return np.asarray(plain.to_numpy(zero_copy_only=False), dtype=dtype)


def _in_days(numbers: Numbers, values: Values) -> Numbers:
    return numbers // _DAY_MICROS if pa.types.is_duration(values.type) else numbers


def _all_valid(arguments: list[Values]) -> Any:
    """Where no argument is NULL; `True` if that is everywhere."""
    valid: Any = True
    for values in arguments:
        if isinstance(values, pa.Scalar):
            if not values.is_valid:
                valid = np.asarray(False)
        elif values.null_count:
            valid = values.is_valid().to_numpy(zero_copy_only=False) & valid
    return valid if valid is True or valid.shape else np.broadcast_to(valid, _length(arguments))


def _length(arguments: list[Values]) -> int:
    return next(len(values) for values in arguments if not isinstance(values, pa.Scalar))


def _as_type(result: Numbers, type_: pa.DataType, missing: Mask | None) -> pa.Array:
    if pa.types.is_temporal(type_):
        plain = pa.int32() if pa.types.is_date32(type_) else pa.int64()
        return pa.array(result, plain, mask=missing).view(type_)
    return pa.array(result, type_, mask=missing)


def _width(type_: pa.DataType) -> int:
    return int(type_.bit_width)


def _floats(operator: str, numbers: list[Numbers], type_: pa.DataType) -> tuple[Numbers, Any]:
    one, *rest = (a.astype(type_.to_pandas_dtype(), copy=False) for a in numbers)
    if operator in ("abs", "negate"):
        return (np.abs(one) if operator == "abs" else -one), None
    (two,) = rest
    match operator:
        case "+":
            return one + two, None
        case "-":
            return one - two, None
        case "*":
            return one * two, None
        case "/":
            return one / two, two == 0
    return np.fmod(one, two), two == 0


def _whole(operator: str, numbers: list[Numbers], width: int) -> tuple[Numbers, Any]:
    """Whole numbers in 64 bits, and which of them are out of a narrower range."""
    arguments = [a.astype(np.int64, copy=False) for a in numbers]
    result, wrong = _WHOLE[operator](*arguments)
    if width < 64 and operator != "%":
        least, most = -(1 << (width - 1)), (1 << (width - 1)) - 1
        wrong = wrong | (result < least) | (result > most)
        result = result.astype(f"i{width // 8}")
    return result, wrong


_Checked = Callable[..., tuple[Numbers, Any]]
_LEAST = np.iinfo(np.int64).min


def _add(one: Numbers, two: Numbers) -> tuple[Numbers, Any]:
    result = one + two
    return result, ((one ^ result) & (two ^ result)) < 0


def _subtract(one: Numbers, two: Numbers) -> tuple[Numbers, Any]:
    result = one - two
    return result, ((one ^ two) & (one ^ result)) < 0


def _multiply(one: Numbers, two: Numbers) -> tuple[Numbers, Any]:
    result = one * two
    by_itself = (one == 0) | (one == -1)
    divisor = np.where(by_itself, 1, one)
    # a product that was wrapped is never a multiple of one factor by the other
    wrapped = ~by_itself & ((result // divisor != two) | (result % divisor != 0))
    return result, wrapped | ((one == -1) & (two == _LEAST))


def _remainder(one: Numbers, two: Numbers) -> tuple[Numbers, Any]:
    divisor = np.where((two == 0) | (two == -1), 1, two)  # by 1 nothing remains, as by -1
    return np.fmod(one, divisor), two == 0


def _negate(one: Numbers) -> tuple[Numbers, Any]:
    return -one, one == _LEAST


def _absolute(one: Numbers) -> tuple[Numbers, Any]:
    return np.abs(one), one == _LEAST


_WHOLE: dict[str, _Checked] = {
    "+": _add,
    "-": _subtract,
    "*": _multiply,
    "%": _remainder,
    "negate": _negate,
    "abs": _absolute,
}
