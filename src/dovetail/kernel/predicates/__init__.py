"""Conditions that read rows of both sides, evaluated on many pairs at once.

A tree (`tree`) is bound to the schemas of both sides (`bind`), which checks all types before
anything runs. The `Predicate` that comes of it is pickled into tasks, and says of aligned batches
(row `i` of each is a pair) for which pairs the condition is TRUE; FALSE and NULL are both "no".

Semantics are Spark SQL's in ANSI mode, Spark's default since 4.0: three-valued logic, NaN equal to
NaN and above all numbers, -0.0 equal to 0.0, whole numbers and decimals that keep all digits. As
there, an overflow of whole numbers or a division by zero is an error, a `ConditionError`: a NULL in
its place would silently lose or invent results. As there, it is one only where the value is asked
for: not behind a FALSE in AND, a TRUE in OR, or in a branch of CASE that a row does not take. So
pass pairs that all other conditions of the join have let through.

While a predicate is evaluated, it needs about as much memory as the columns it reads for each
operator that is nested in another, and for `contains` and the like the strings once more.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dovetail.kernel.predicates.binding import Binder
from dovetail.kernel.predicates.bound import Bound
from dovetail.kernel.predicates.evaluating import Evaluation
from dovetail.kernel.predicates.tree import (
    OPERATORS,
    Call,
    Column,
    Literal,
    Tree,
    calculates,
    columns_of,
    qualified,
    text_of,
)

__all__ = [
    "OPERATORS", "Call", "Column", "Literal", "Predicate", "Tree", "bind", "calculates",
    "columns_of", "text_of",
]  # fmt: skip


@dataclass(frozen=True)
class Predicate:
    """A condition that is bound to the schemas of both sides."""

    root: Bound

    def mask(self, left: pa.RecordBatch, right: pa.RecordBatch) -> NDArray[np.bool_]:
        """For which pairs the condition is TRUE; the batches have one row for each pair."""
        assert left.num_rows == right.num_rows, (left.num_rows, right.num_rows)
        if not left.num_rows:
            return np.zeros(0, dtype=np.bool_)
        result = Evaluation((left, right)).value(self.root)
        if isinstance(result, pa.Scalar):
            return np.full(left.num_rows, bool(result.as_py()))
        return np.asarray(pc.fill_null(result, False).to_numpy(zero_copy_only=False))


def bind(
    tree: Tree,
    left: pa.Schema,
    right: pa.Schema,
    *,
    fixed_zone: bool = False,
    shown: Callable[[Column], str] = qualified,
) -> Predicate:
    """Check a condition's types against both sides; an `ArgumentError` says what to cast.

    fixed_zone: whether clocks are never changed in the session's time zone; shown: how messages
    write a column.
    """
    return Predicate(Binder((left, right), shown, fixed_zone).condition(tree))
