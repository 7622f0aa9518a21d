"""The evaluation of a bound tree: columns in, a column out, NULLs as Arrow has them.

Operators that Spark evaluates from left to right and leaves early (AND, OR, CASE, COALESCE, IN) are
evaluated for all pairs as well; what they pass on is for which pairs an error counts (`asked`).
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dovetail.kernel.keytypes import widened
from dovetail.kernel.predicates.arithmetic import Mask, Values, calculated
from dovetail.kernel.predicates.bound import Applied, Bound, Constant, Read, Widened
from dovetail.kernel.predicates.comparing import compared, extreme, searched
from dovetail.kernel.predicates.tree import ARITHMETIC, COMPARISONS

_Asked = Mask | None  # the pairs for which an error counts; None: all


class Evaluation:
    """The evaluation of one tree on the rows of both sides."""

    def __init__(self, sides: tuple[pa.RecordBatch, pa.RecordBatch]) -> None:
        self._sides = sides

    def value(self, node: Bound, asked: _Asked = None) -> Values:
        match node:
            case Read():
                return self._sides[node.side].column(node.index)
            case Constant():
                return pa.scalar(node.value, node.type)
            case Widened():
                return _widened(self.value(node.argument, asked), node.type)
        return self._applied(node, asked)

    def _applied(self, node: Applied, asked: _Asked) -> Values:
        match node.operator:
            case "and":
                return self._and(node, asked)
            case "or":
                return self._or(node, asked)
            case "case":
                return self._case(node, asked)
            case "coalesce":
                return self._coalesce(node, asked)
            case "in":
                return self._in(node, asked)
        values = [self.value(argument, asked) for argument in node.arguments]
        match node.operator:
            case "not":
                return pc.invert(values[0])
            case "is null":
                return pc.is_null(values[0])
            case "least" | "greatest":
                return extreme(node.operator, values)
            case operator if operator in COMPARISONS:
                return compared(operator, values[0], values[1])
            case operator if operator in (*ARITHMETIC, "abs", "negate"):
                return calculated(operator, values, node.type, asked, node.text)
        return searched(node.operator, values[0], values[1])

    def _and(self, node: Applied, asked: _Asked) -> Values:
        one, two = node.arguments
        first = self.value(one, asked)
        return pc.and_kleene(first, self.value(two, self._less(asked, two, first, of=False)))

    def _or(self, node: Applied, asked: _Asked) -> Values:
        one, two = node.arguments
        first = self.value(one, asked)
        return pc.or_kleene(first, self.value(two, self._less(asked, two, first, of=True)))

    def _in(self, node: Applied, asked: _Asked) -> Values:
        sought, *items = node.arguments
        value = self.value(sought, asked)
        asked = asked if not node.can_fail else self._within(asked, pc.is_valid(value))
        found: Values = pa.scalar(False)
        for item in items:
            asked = self._less(asked, item, found, of=True)
            found = pc.or_kleene(found, compared("=", value, self.value(item, asked)))
        return found

    def _coalesce(self, node: Applied, asked: _Asked) -> Values:
        found = self.value(node.arguments[0], asked)
        for argument in node.arguments[1:]:
            missing = pc.is_null(found)
            if argument.can_fail:
                asked = self._within(asked, missing)
            found = pc.if_else(missing, self.value(argument, asked), found)
        return found

    def _case(self, node: Applied, asked: _Asked) -> Values:
        *branches, otherwise = node.arguments
        chosen: list[tuple[Values, Values]] = []
        for condition, result in zip(branches[::2], branches[1::2], strict=True):
            applies = pc.fill_null(self.value(condition, asked), False)
            then = self._within(asked, applies) if result.can_fail else asked
            chosen.append((applies, self.value(result, then)))
            if node.can_fail:
                asked = self._within(asked, pc.invert(applies))
        found = self.value(otherwise, asked)
        for applies, value in reversed(chosen):
            found = pc.if_else(applies, value, found)
        return found

    # -- for which pairs errors count ---------------------------------------------------------

    def _less(self, asked: _Asked, node: Bound, values: Values, *, of: bool) -> _Asked:
        """The pairs asked for without those that are TRUE (or FALSE) already."""
        if not node.can_fail:
            return asked
        settled = values if of else pc.invert(values)
        return self._within(asked, pc.invert(pc.fill_null(settled, False)))

    def _within(self, asked: _Asked, wanted: Values) -> Mask:
        rows = self._sides[0].num_rows
        mask: Mask = (
            np.full(rows, wanted.as_py())
            if isinstance(wanted, pa.Scalar)
            else np.asarray(wanted.to_numpy(zero_copy_only=False))
        )
        return mask if asked is None else mask & asked


def _widened(values: Values, type_: pa.DataType) -> Values:
    if isinstance(values, pa.Array):
        return widened(values, type_)
    return widened(pa.array([values.as_py()], values.type), type_)[0]
