"""Comparisons that say how far a column of one side is from one of the other.

`left.t - right.t <= INTERVAL 1 HOUR`, `left.t <= right.t + INTERVAL 1 HOUR` and `right.t >= left.t
- INTERVAL 1 HOUR` say the same. Each side of the comparison is brought into the form of columns
that are added or subtracted, and a constant. This is done only where no step rounds: with whole
numbers, decimals of up to 38 digits, dates with whole days, and times. (What Spark would call an
overflow on the way is none here: the distance is compared as it is.)

Floats round at each step, so only the difference of two columns of floats is taken for a distance,
as `rounded`.
"""

import datetime as dt
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
from sqlglot import exp

from dovetail.kernel.predicates import Column, Literal
from dovetail.kernel.predicates.types import INTERVAL, is_exact, is_number, numeric_type, time_type
from dovetail.kernel.protocol import LEFT, RIGHT
from dovetail.specs.conditions.condition import Distance
from dovetail.specs.conditions.parsing import bare
from dovetail.specs.conditions.parts import Parts

_EXACTLY = Context(prec=80)  # sums of constants of up to 38 digits

MIRRORED = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


@dataclass(frozen=True)
class Fact:
    """`left - right`, compared with a constant; the columns themselves if that is 0.

    excludes_nan: of floats, that a difference that is no number makes it FALSE.
    """

    left: str
    right: str
    operator: str
    bound: Distance
    rounded: bool = False
    excludes_nan: bool = True


@dataclass(frozen=True)
class _Form:
    """Columns that are added (1) or subtracted (-1), and a constant."""

    terms: tuple[tuple[int, Column], ...]
    constant: Any
    type: pa.DataType
    literal: Literal | None = None


def facts(parts: Parts, operator: str, one: exp.Expr, two: exp.Expr) -> list[Fact]:
    """What a comparison of mixed parts says of distances; nothing if it is of another form."""
    if operator not in MIRRORED:
        return []
    distance = _absolute(parts, operator, one, two)
    if distance is not None:
        return distance
    left, right = _form(parts, one), _form(parts, two)
    if left is None or right is None or not _alike(left, right):
        return []
    terms = [*left.terms, *((-sign, column) for sign, column in right.terms)]
    signs = {column.side: (sign, column) for sign, column in terms}
    if len(terms) != 2 or len(signs) != 2 or signs[LEFT][0] == signs[RIGHT][0]:
        return []
    rounded = not is_exact(left.type) or not is_exact(right.type)
    if rounded and left.terms and right.terms:
        return []  # of floats only a difference and a constant
    sign, column = signs[LEFT]
    bound = _combined(_negated(left.constant), right.constant)
    seen = operator if left.terms else MIRRORED[operator]  # with the difference in front
    if sign < 0:
        operator, bound = MIRRORED[operator], _negated(bound)
    names = (column.name, signs[RIGHT][1].name)
    return [Fact(*names, operator, bound, rounded, excludes_nan=seen in ("<", "<=", "="))]


def _absolute(parts: Parts, operator: str, one: exp.Expr, two: exp.Expr) -> list[Fact] | None:
    """Of `abs(left.x - right.x) <= 5`: two facts."""
    one, two = bare(one), bare(two)
    if isinstance(two, exp.Abs):
        one, two, operator = two, one, MIRRORED[operator]
    if not isinstance(one, exp.Abs) or len(parts.names.sides_of(one)) < 2:
        return None
    limit = parts.constant(two)
    if operator not in ("<", "<=") or limit is None:
        return []
    above = facts(parts, operator, one.this, two)
    if len(above) != 1 or limit.value is None:
        return []
    (fact,) = above
    other = Fact(fact.left, fact.right, MIRRORED[fact.operator], _negated(fact.bound), fact.rounded)
    return [fact, other]


def _form(parts: Parts, node: exp.Expr) -> _Form | None:
    """A part as a sum of columns and a constant; None if it is another one, or a step rounds."""
    node = bare(node)
    literal = parts.constant(node)
    if literal is not None:
        known = literal.type == INTERVAL or is_number(literal.type)
        return _Form((), literal.value, literal.type, literal) if known else None
    plain = parts.names.plain(node)
    if plain is not None:
        return _Form(((1, plain),), 0, parts.names.type_of(plain))
    if isinstance(node, exp.Neg):
        form = _form(parts, node.this)
        if form is None or not form.terms or not is_exact(form.type) or not _has_sign(form.type):
            return None
        return _Form(_turned(form), _negated(form.constant), form.type)
    if isinstance(node, (exp.Add, exp.Sub)):
        return _sum(parts, node)
    return None


def _sum(parts: Parts, node: exp.Add | exp.Sub) -> _Form | None:
    one, two = _form(parts, node.this), _form(parts, node.expression)
    if one is None or two is None or not (one.terms or two.terms):
        return None
    operator = "+" if isinstance(node, exp.Add) else "-"
    if operator == "-" and not parts.fixed_zone and len(parts.names.sides_of(node)) > 1:
        ends = (node.this, node.expression)
        if all(map(parts.moment, ends)):
            shown = [parts.on_the_clock(end) for end in ends]
            return _Form(((1, shown[0]), (-1, shown[1])), 0, INTERVAL)
    type_ = _sum_type(parts, operator, one, two)
    if type_ is None:
        return None
    if operator == "-":
        two = _Form(_turned(two), _negated(two.constant), two.type)
    return _Form((*one.terms, *two.terms), _combined(one.constant, two.constant), type_)


def _sum_type(parts: Parts, operator: str, one: _Form, two: _Form) -> pa.DataType | None:
    if is_number(one.type) and is_number(two.type):
        types = [_tight(one, two), _tight(two, one)]
        type_ = numeric_type(operator, *types)
        exact = type_ is not None and is_exact(type_)
        of_columns = all(form.constant == 0 and len(form.terms) == 1 for form in (one, two))
        return type_ if exact or of_columns else None
    literal = one.literal or two.literal
    return time_type(
        operator,
        one.type,
        two.type,
        span=None if literal is None or literal.type != INTERVAL else literal.value,  # type: ignore[arg-type]  # of an interval it is a timedelta
        whole_days=literal is not None and literal.whole_days,
        fixed_zone=parts.fixed_zone,
    )


def _tight(form: _Form, beside: _Form) -> pa.DataType:
    """The type of a number; beside a decimal, a whole constant has as many digits as it needs."""
    if isinstance(form.constant, int) and form.literal and pa.types.is_decimal(beside.type):
        return pa.decimal128(len(str(abs(form.constant))), 0)
    return form.type


def _alike(one: _Form, two: _Form) -> bool:
    """Whether two forms are compared without rounding, or one is a difference of floats."""
    if not (one.terms or two.terms):
        return False
    if is_number(one.type) and is_number(two.type):
        if is_exact(one.type) and is_exact(two.type):
            return numeric_type("-", one.type, two.type) is not None
        return not (one.terms and two.terms)
    return bool(one.type == two.type)


def _has_sign(type_: pa.DataType) -> bool:
    return is_number(type_) or bool(type_ == INTERVAL)


def _turned(form: _Form) -> tuple[tuple[int, Column], ...]:
    return tuple((-sign, column) for sign, column in form.terms)


def _negated(constant: Any) -> Any:
    # a decimal's own minus rounds it to 28 digits
    return constant.copy_negate() if isinstance(constant, Decimal) else -constant


def _combined(one: Any, two: Any) -> Any:
    """The sum of two constants, exactly; one of no time at all is 0."""
    if isinstance(one, dt.timedelta) or isinstance(two, dt.timedelta):
        zero = dt.timedelta(0)
        return (one or zero) + (two or zero)
    if isinstance(one, Decimal) or isinstance(two, Decimal):
        return _EXACTLY.add(Decimal(one), Decimal(two))
    return one + two
