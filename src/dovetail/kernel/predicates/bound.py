"""Trees whose types are known and agree: what is evaluated.

Every node has its type, and whatever Spark would cast in silence is a `Widened` node.
"""

from dataclasses import dataclass

import pyarrow as pa

from dovetail.kernel.predicates.tree import Value


@dataclass(frozen=True)
class Read:
    """A column of one side's batch, by its place."""

    type: pa.DataType
    side: int
    index: int
    can_fail: bool = False


@dataclass(frozen=True)
class Constant:
    """One value for all pairs."""

    type: pa.DataType
    value: Value
    can_fail: bool = False


@dataclass(frozen=True)
class Widened:
    """Numbers in a wider type, or NULLs in any."""

    type: pa.DataType
    argument: "Bound"

    @property
    def can_fail(self) -> bool:
        return self.argument.can_fail


@dataclass(frozen=True)
class Applied:
    """An operator, applied to arguments of the types that it takes."""

    type: pa.DataType
    operator: str
    arguments: "tuple[Bound, ...]"
    text: str  #: as messages show it
    can_fail: bool  #: whether some values are an error: then it matters which pairs it is asked for


Bound = Read | Constant | Widened | Applied
