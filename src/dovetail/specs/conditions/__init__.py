"""The condition of a join, `where=`: Spark SQL text over columns of both sides, taken apart.

`parse_condition` reads the text and resolves its columns; what is joined is then found by the
`Condition`'s parts, all of which have to be TRUE:

- conjuncts that read one side, as text, for Spark to filter that input with;
- *equalities* of a column of each side, by which rows can be hashed;
- *ranges*, which bound how far a column of one side is above one of the other, and can be searched;
- the *residual*, everything else: a tree for `dovetail.kernel.predicates`.

Whatever reads one side only and is more than a column is a *computed column*, which Spark adds to
that input: all its functions work there as they always do, and only operators that mix the sides
are evaluated by Dovetail. A computed column is computed for every row that passes its side's own
conjuncts, also where Spark would not have come to it: `left.n = 0 OR right.x < 10 / left.n` fails
for an `n` of 0, and `10 / NULLIF(left.n, 0)` does not.

Types are checked twice: those of plain columns here, and all others by `Condition.checked`, once
Spark has said of which type the computed columns are.
"""

import pyarrow as pa

from dovetail.errors import ArgumentError
from dovetail.kernel.protocol import SIDE_NAMES
from dovetail.specs.conditions.condition import (
    COMPUTED,
    Computed,
    Condition,
    Distance,
    Equality,
    Range,
)
from dovetail.specs.conditions.zones import has_fixed_offset

__all__ = [
    "COMPUTED", "Computed", "Condition", "Distance", "Equality", "Range", "has_fixed_offset",
    "parse_condition",
]  # fmt: skip


def parse_condition(
    text: str,
    left: pa.Schema,
    right: pa.Schema,
    *,
    sides: tuple[str, str] = SIDE_NAMES,
    fixed_zone: bool = False,
) -> Condition:
    """Take a condition apart; an `ArgumentError` says what in it cannot be done, and what can.

    sides: what the inputs are called in front of a column's name; fixed_zone: whether clocks are
    never changed in the session's time zone (`has_fixed_offset`). If they are, distances of whole
    days between times with a zone are left to Spark.
    """
    # a worker unpickles conditions and reads none, so it does not wait for sqlglot
    from dovetail.specs.conditions.taking_apart import taken_apart

    if not isinstance(text, str):
        raise ArgumentError(f"where={text!r} is not a text; write a condition in Spark SQL")
    return taken_apart(text, (left, right), sides, fixed_zone)
