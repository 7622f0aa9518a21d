"""A condition taken apart: who evaluates what."""

import datetime as dt
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, cast

import pyarrow as pa

from dovetail.kernel.predicates import Call, Column, Literal, Predicate, Tree, bind
from dovetail.kernel.predicates.tree import qualified
from dovetail.kernel.protocol import LEFT, RIGHT

Distance = int | float | Decimal | dt.timedelta

COMPUTED = "__dovetail_where_"  #: in front of the number of a computed column


@dataclass(frozen=True)
class Computed:
    """A column that Spark adds to one side: `frame.withColumn(name, F.expr(sql_text))`."""

    side: int
    name: str
    sql_text: str


@dataclass(frozen=True)
class Equality:
    """A column of the left side equals one of the right; null_safe: also a NULL a NULL."""

    left: str
    right: str
    null_safe: bool = False


@dataclass(frozen=True)
class Range:
    """Bounds on how far a column of the left side is above one of the right side.

    `lower <= left - right <= upper`, where None is no bound, and `<` takes the place of `<=` where
    a bound is strict. A bound of 0 compares the two columns and subtracts nothing: it may be of any
    type that has an order, such as strings. Any other is of whole numbers, decimals (the difference
    is the exact one), or times (a timedelta; of times with a zone, between moments).

    rounded: the difference is of floats, and the bounds hold for it as Spark rounds it, in the
    wider type of the two. What it says is in the residual as well, which decides; a search has to
    look a little further. A NaN, and the difference of equal infinities, are outside.
    """

    left: str
    right: str
    lower: Distance | None = None
    upper: Distance | None = None
    lower_strict: bool = False
    upper_strict: bool = False
    rounded: bool = False

    @property
    def reach(self) -> Distance | None:
        """How far apart the two columns may be either way; None if there is no such bound."""
        if self.lower is None or self.upper is None:
            return None
        below: Any = abs(self.lower)
        above: Any = abs(self.upper)
        if not below or not above:  # a 0 has no type
            return cast("Distance", above or below)
        return cast("Distance", max(below, above))

    @property
    def is_even(self) -> bool:
        """Whether it says no more than how far apart the columns may be."""
        if self.lower is None or self.upper is None or self.rounded:
            return False
        return -self.lower == self.upper and not (self.lower_strict or self.upper_strict)

    def trees(self, right: pa.DataType) -> Iterator[Tree]:
        """What it says, for a right column of this type; nothing if the residual says it."""
        one, two = Column(LEFT, self.left), Column(RIGHT, self.right)
        bounds = ((">", self.lower, self.lower_strict), ("<", self.upper, self.upper_strict))
        for operator, bound, strict in () if self.rounded else bounds:
            if bound is not None:
                beyond = Call("+", (two, _literal(bound, right))) if bound else two
                yield Call(operator if strict else f"{operator}=", (one, beyond))


def _literal(bound: Distance, beside: pa.DataType) -> Literal:
    """A bound of a type that loses no digit of what it is added to."""
    if isinstance(bound, dt.timedelta):
        return Literal(bound, pa.duration("us"), whole_days=pa.types.is_date(beside))
    number = Decimal(bound)
    exponent = number.as_tuple().exponent
    scale = -exponent if isinstance(exponent, int) and exponent < 0 else 0
    digits = max(len(number.as_tuple().digits), scale)
    return Literal(number, pa.decimal128(digits, scale))


@dataclass(frozen=True)
class Condition:
    """A condition whose parts all have to be TRUE; together they say what its text says.

    First `left_only` and `right_only`, Spark SQL over columns of one side, filter the inputs
    (`frame.where(text)`), then `computed` adds columns to them; the other parts read these too.
    """

    equalities: tuple[Equality, ...]
    ranges: tuple[Range, ...]
    left_only: tuple[str, ...]
    right_only: tuple[str, ...]
    residual: Tree | None
    computed: tuple[Computed, ...]
    canonical: str  #: equal for texts that differ in spelling only: what identifies a state

    def computed_of(self, side: int) -> tuple[Computed, ...]:
        return tuple(column for column in self.computed if column.side == side)

    @property
    def hidden(self) -> tuple[int, int]:
        """How many columns are added to each side."""
        return len(self.computed_of(LEFT)), len(self.computed_of(RIGHT))

    def with_residual(self, trees: Iterable[Tree]) -> "Condition":
        """The same, with more that pairs are asked for in the end."""
        residual = self.residual
        for tree in trees:
            residual = tree if residual is None else Call("and", (residual, tree))
        return replace(self, residual=residual)

    def checked(
        self, left: pa.Schema, right: pa.Schema, *, fixed_zone: bool = False
    ) -> Predicate | None:
        """The residual, ready to evaluate, once all types are known; None if there is none.

        left, right: the schemas with the computed columns. An `ArgumentError` says what to cast,
        also for equalities and ranges.
        """
        texts = {(column.side, column.name): column.sql_text for column in self.computed}

        def shown(column: Column) -> str:
            return texts.get((column.side, column.name)) or qualified(column)

        compared = [("<=>" if e.null_safe else "=", e.left, e.right) for e in self.equalities]
        compared += [("<=", r.left, r.right) for r in self.ranges]
        for operator, one, two in compared:
            tree = Call(operator, (Column(LEFT, one), Column(RIGHT, two)))
            bind(tree, left, right, fixed_zone=fixed_zone, shown=shown)
        if self.residual is None:
            return None
        return bind(self.residual, left, right, fixed_zone=fixed_zone, shown=shown)
