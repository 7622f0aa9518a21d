"""How the rows of a join find each other: by keys or a band, and what is left to ask of a pair.

`on=` and `within=` say so, and `where=`. Its equalities are keys as well; without any key, a range
with both bounds is a band. What else it says of both sides is asked of every pair that is found.
"""

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

import pyarrow as pa

from dovetail.errors import ArgumentError
from dovetail.kernel.predicates import Call, Column, Predicate, Tree
from dovetail.kernel.protocol import LEFT, RIGHT, SIDE_NAMES
from dovetail.specs.arguments import On
from dovetail.specs.conditions import Condition, Distance, Equality, Range

Within = int | float | Decimal | dt.timedelta | str | None

_ROUNDING = 1 + 2.0**-20  # a search that goes by rounded differences looks so much further


@dataclass(frozen=True)
class Matching:
    """The keys or the band of a join, and the parts of its condition that these do not settle."""

    on: On
    within: Within
    equalities: tuple[Equality, ...] = ()
    ranges: tuple[Range, ...] = ()

    def rest(self, right: pa.Schema) -> Iterator[Tree]:
        """What is left to ask of a pair, besides the condition's own residual."""
        for equality in self.equalities:
            ends = (Column(LEFT, equality.left), Column(RIGHT, equality.right))
            yield Call("<=>" if equality.null_safe else "=", ends)
        for range_ in self.ranges:
            yield from range_.trees(right.field(range_.right).type)


def words_of(condition: Condition, residual: Predicate | None) -> list[str]:
    """What becomes of a condition, in words."""
    lines = [
        f"{side}: Spark filters it by {text}"
        for side, only in zip(SIDE_NAMES, (condition.left_only, condition.right_only), strict=True)
        for text in only
    ]
    lines += [
        f"{SIDE_NAMES[column.side]}: Spark computes {column.sql_text}, a column that is kept with "
        "each row and is in no result"
        for column in condition.computed
    ]
    if residual is None:
        return [*lines, "all else are keys"]
    return [*lines, "what reads both sides and is no key is asked of every pair whose keys match"]


def matching_of(on: On | None, within: Within, condition: Condition | None) -> Matching:
    """Take keys or a band out of the arguments; an `ArgumentError` if there is neither."""
    if condition is None:
        if on is None:
            raise ArgumentError("on= is missing: name the columns to join on, or write where=")
        return Matching(on, within)
    if within is not None:
        if on is None:
            raise ArgumentError("within= needs on=, the column that it is a distance of")
        return Matching(on, within, condition.equalities, condition.ranges)
    keys = [each for each in condition.equalities if not each.null_safe]
    others = tuple(each for each in condition.equalities if each.null_safe)
    named = [] if on is None else [on] if isinstance(on, (str, tuple)) else list(on)
    pairs = [(each.left, each.right) for each in keys]
    pairs = [pair for pair in pairs if pair not in named and not _is_named(pair, named)]
    if named or pairs:
        return Matching([*named, *pairs], None, others, condition.ranges)
    return _band(condition)


def _is_named(pair: tuple[str, str], named: list[str | tuple[str, str]]) -> bool:
    return pair[0] == pair[1] and pair[0] in named


def _band(condition: Condition) -> Matching:
    """The first range with both bounds as a band; it looks as far either way as either bound."""
    found = next((each for each in condition.ranges if each.reach is not None), None)
    if found is None:
        raise ArgumentError(
            "where= has neither an equality of a left and a right column nor a range with both "
            "bounds, so that every row would have to be compared with every other. Add one of "
            "them, such as left.id = right.id, or clicked_at BETWEEN shown_at AND shown_at + "
            "INTERVAL 1 HOUR"
        )
    asked = tuple(each for each in condition.ranges if each is not found or not each.is_even)
    within = _further(found.reach) if found.rounded else found.reach
    return Matching([(found.left, found.right)], within, condition.equalities, asked)


def _further(reach: Distance | None) -> float:
    assert isinstance(reach, (int, float, Decimal))
    return float(reach) * _ROUNDING


__all__ = ["Matching", "Within", "matching_of", "words_of"]
