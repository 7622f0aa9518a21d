"""Trees bound to the schemas of both sides: every type is checked before a row has been seen.

What Spark casts in silence and Dovetail does not (a string beside a number or a time, a date
beside a timestamp, a time with a zone beside one without) is refused, with the cast to write.
"""

from collections.abc import Callable, Sequence
from decimal import Decimal

import pyarrow as pa

from dovetail.errors import ArgumentError, UnknownColumnError
from dovetail.kernel.keytypes import name_of
from dovetail.kernel.predicates.bound import Applied, Bound, Constant, Read, Widened
from dovetail.kernel.predicates.tree import (
    ARITHMETIC,
    COMPARISONS,
    OPERATORS,
    Call,
    Column,
    Literal,
    Tree,
    text_of,
)
from dovetail.kernel.predicates.types import (
    INTERVAL,
    as_decimal,
    is_comparable,
    is_decimal,
    is_exact,
    is_number,
    numeric_type,
    shared_type,
    time_type,
)
from dovetail.kernel.protocol import SIDE_NAMES

_STRINGS = ("contains", "startswith", "endswith")


class Binder:
    """Gives the nodes of a tree their types.

    shown: how messages write a column; fixed_zone: see `predicates.types`.
    """

    def __init__(
        self, schemas: tuple[pa.Schema, pa.Schema], shown: Callable[[Column], str], fixed_zone: bool
    ) -> None:
        self._schemas = schemas
        self._shown = shown
        self._fixed_zone = fixed_zone

    def condition(self, tree: Tree) -> Bound:
        """A tree that is a condition: TRUE, FALSE or NULL for every pair."""
        bound = self.bind(tree)
        if not _is_type(bound, pa.bool_()):
            raise ArgumentError(
                f"where=: {self._text(tree)} is {name_of(bound.type)}, not a condition; compare it "
                "with something"
            )
        return _widened(bound, pa.bool_())

    def bind(self, tree: Tree) -> Bound:
        if isinstance(tree, Literal):
            return Constant(tree.type, tree.value)
        if isinstance(tree, Column):
            schema = self._schemas[tree.side]
            index = schema.get_field_index(tree.name)
            if index < 0:
                raise UnknownColumnError(
                    f"the {SIDE_NAMES[tree.side]} input has no column {tree.name!r}, or several"
                )
            return Read(schema.field(index).type, tree.side, index)
        assert tree.operator in OPERATORS, tree.operator
        arguments = [self.bind(argument) for argument in tree.arguments]
        match tree.operator:
            case "and" | "or" | "not":
                return self._logic(tree, arguments)
            case operator if operator in COMPARISONS or operator == "in":
                return self._call(tree, pa.bool_(), self._alike(tree, arguments))
            case "is null":
                return self._call(tree, pa.bool_(), arguments)
            case "case":
                return self._case(tree, arguments)
            case "coalesce":
                return self._choice(tree, arguments, nested=True)
            case "least" | "greatest":
                return self._choice(tree, arguments)
            case operator if operator in _STRINGS:
                return self._strings(tree, arguments)
            case "abs" | "negate":
                return self._signed(tree, arguments)
        assert tree.operator in ARITHMETIC
        return self._arithmetic(tree, arguments)

    # -- the kinds of calls -------------------------------------------------------------------

    def _logic(self, tree: Call, arguments: Sequence[Bound]) -> Bound:
        for argument, bound in zip(tree.arguments, arguments, strict=True):
            if not _is_type(bound, pa.bool_()):
                raise ArgumentError(
                    f"where=: {self._text(argument)} is {name_of(bound.type)}, and "
                    f"{tree.operator.upper()} takes conditions; compare it with something"
                )
        return self._call(tree, pa.bool_(), [_widened(bound, pa.bool_()) for bound in arguments])

    def _case(self, tree: Call, arguments: Sequence[Bound]) -> Bound:
        conditions = [self.condition(argument) for argument in tree.arguments[:-1:2]]
        places = [*range(1, len(arguments) - 1, 2), len(arguments) - 1]
        values = self._alike(
            Call(tree.operator, tuple(tree.arguments[place] for place in places)),
            [arguments[place] for place in places],
            nested=True,
        )
        mixed = [bound for pair in zip(conditions, values[:-1], strict=True) for bound in pair]
        return self._call(tree, values[-1].type, [*mixed, values[-1]])

    def _choice(self, tree: Call, arguments: Sequence[Bound], *, nested: bool = False) -> Bound:
        alike = self._alike(tree, arguments, nested=nested)
        return self._call(tree, alike[0].type, alike)

    def _strings(self, tree: Call, arguments: Sequence[Bound]) -> Bound:
        for argument, bound in zip(tree.arguments, arguments, strict=True):
            if not any(_is_type(bound, type_) for type_ in (pa.string(), pa.large_string())):
                raise ArgumentError(
                    f"where=: {tree.operator} takes strings, and {self._text(argument)} is "
                    f"{name_of(bound.type)}; write {self._cast(argument, pa.string())}"
                )
        return self._call(tree, pa.bool_(), arguments)

    def _signed(self, tree: Call, arguments: Sequence[Bound]) -> Bound:
        (bound,) = arguments
        interval = bound.type == INTERVAL
        if not (is_number(bound.type) or interval or pa.types.is_null(bound.type)):
            raise ArgumentError(
                f"where=: {self._text(tree)} needs a number or an interval of time, not "
                f"{name_of(bound.type)}"
            )
        return self._call(tree, bound.type, [bound], can_fail=_overflows(bound.type))

    def _arithmetic(self, tree: Call, arguments: Sequence[Bound]) -> Bound:
        one, two = (bound.type for bound in arguments)
        if is_number(one) and is_number(two):
            return self._numbers(tree, arguments)
        literal = next((a for a in tree.arguments if isinstance(a, Literal)), None)
        span = literal.value if literal is not None and literal.type == INTERVAL else None
        type_ = time_type(
            tree.operator,
            one,
            two,
            span=span,  # type: ignore[arg-type]  # the value of an interval is a timedelta
            whole_days=literal is not None and literal.whole_days,
            fixed_zone=self._fixed_zone,
        )
        if type_ is None:
            raise ArgumentError(
                f"where=: {self._text(tree)} takes {name_of(one)} and {name_of(two)}: "
                f"{self._way_out(tree, one, two)}"
            )
        return self._call(tree, type_, arguments, can_fail=True)

    def _numbers(self, tree: Call, arguments: Sequence[Bound]) -> Bound:
        one, two = (bound.type for bound in arguments)
        if is_decimal(one) != is_decimal(two):  # Spark gives a literal as few digits as it has
            one, two = (_tight(bound) for bound in arguments)
        type_ = numeric_type(tree.operator, one, two)
        if type_ is None:
            casts = " or ".join(self._cast(a, pa.float64()) for a in tree.arguments)
            raise ArgumentError(
                f"where=: {self._text(tree)} of {name_of(one)} and {name_of(two)} would be "
                f"rounded: write {casts}, or a decimal with fewer digits"
            )
        taken = [type_, type_]
        if is_decimal(type_):
            taken = [as_decimal(one), as_decimal(two)]
        parts = [_widened(bound, to) for bound, to in zip(arguments, taken, strict=True)]
        divides = tree.operator in ("/", "%")
        return self._call(tree, type_, parts, can_fail=divides or _overflows(type_))

    # -- types that agree ---------------------------------------------------------------------

    def _alike(
        self, tree: Call, arguments: Sequence[Bound], *, nested: bool = False
    ) -> list[Bound]:
        """Arguments in their common type; nested: one that is only chosen from, not compared."""
        type_ = shared_type(*(bound.type for bound in arguments))
        if type_ is None:
            raise ArgumentError(f"where=: {self._differing(tree, arguments)}")
        if not (nested or is_comparable(type_)):
            raise ArgumentError(
                f"where=: {self._text(tree)} compares values of type {name_of(type_)}; compare "
                "fields of them, or use IS NULL"
            )
        return [_widened(bound, type_) for bound in arguments]

    def _differing(self, tree: Call, arguments: Sequence[Bound]) -> str:
        """The first two arguments without a common type, and a cast that helps."""
        ends = list(zip(tree.arguments, arguments, strict=True))
        one, two = next(
            ((a, b) for a in ends for b in ends if shared_type(a[1].type, b[1].type) is None),
            (ends[0], ends[-1]),
        )
        if _rank(one[1].type) > _rank(two[1].type):
            one, two = two, one
        return (
            f"{self._text(one[0])}, {name_of(one[1].type)}, and {self._text(two[0])}, "
            f"{name_of(two[1].type)}, differ in type; cast one of them, for example "
            f"{self._cast(one[0], two[1].type)}"
        )

    def _way_out(self, tree: Call, one: pa.DataType, two: pa.DataType) -> str:
        times = [a for a, t in zip(tree.arguments, (one, two), strict=True) if t != INTERVAL]
        zoned = [t for t in (one, two) if pa.types.is_timestamp(t) and t.tz]
        if zoned and all(t == INTERVAL or t == zoned[0] for t in (one, two)):
            if tree.operator not in ("+", "-"):
                return "times are added and subtracted only"
            casts = " and ".join(f"CAST({self._text(a)} AS TIMESTAMP_NTZ)" for a in times)
            return (
                "what this is depends on when the clocks are changed in the session's time zone; "
                f"write {casts}, or compare the times of each side, shifted by the interval"
            )
        if pa.types.is_date32(one) or pa.types.is_date32(two):
            return (
                "of a date it takes INTERVAL constants of whole days, and another date; for all "
                "else write CAST(... AS TIMESTAMP_NTZ)"
            )
        return "it takes two numbers, two times of one type, or a time and an INTERVAL"

    # -- words --------------------------------------------------------------------------------

    def _call(
        self, tree: Call, type_: pa.DataType, arguments: Sequence[Bound], can_fail: bool = False
    ) -> Bound:
        can_fail = can_fail or any(bound.can_fail for bound in arguments)
        return Applied(type_, tree.operator, tuple(arguments), self._text(tree), can_fail)

    def _text(self, tree: Tree) -> str:
        text = text_of(tree, self._shown)
        return text[1:-1] if isinstance(tree, Call) and text.startswith("(") else text

    def _cast(self, tree: Tree, type_: pa.DataType) -> str:
        return f"CAST({self._text(tree)} AS {name_of(type_).upper()})"


def _is_type(bound: Bound, type_: pa.DataType) -> bool:
    return bool(bound.type == type_ or pa.types.is_null(bound.type))


def _overflows(type_: pa.DataType) -> bool:
    """Whether a result of this type may be out of its range: decimals get the digits they need."""
    return is_exact(type_) and not is_decimal(type_)


def _rank(type_: pa.DataType) -> int:
    """What is cast to what: a string to anything, a date to a time, a time to one with a zone."""
    order = ("string", "date", "timestamp_ntz")
    return order.index(name_of(type_)) if name_of(type_) in order else len(order)


def _tight(bound: Bound) -> pa.DataType:
    """The type of a number beside a decimal: a whole constant has as many digits as are written."""
    if isinstance(bound, Constant) and isinstance(bound.value, int):
        return pa.decimal128(len(str(abs(bound.value))), 0)
    return bound.type


def _widened(bound: Bound, type_: pa.DataType) -> Bound:
    if bound.type == type_:
        return bound
    if not isinstance(bound, Constant):
        return Widened(type_, bound)
    value = bound.value
    if value is not None and pa.types.is_floating(type_):
        value = float(value)  # type: ignore[arg-type]  # only numbers are widened
    elif value is not None and is_decimal(type_):
        value = Decimal(value)  # type: ignore[arg-type]
    return Constant(type_, value)
