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

from dovetail.specs.conditions.condition import (
    COMPUTED,
    Computed,
    Condition,
    Distance,
    Equality,
    Range,
)
from dovetail.specs.conditions.taking_apart import parse_condition
from dovetail.specs.conditions.zones import has_fixed_offset

__all__ = [
    "COMPUTED", "Computed", "Condition", "Distance", "Equality", "Range", "has_fixed_offset",
    "parse_condition",
]  # fmt: skip
