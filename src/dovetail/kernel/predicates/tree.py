"""Conditions on pairs of rows, as trees: values that are compared, pickled and printed.

A tree reads columns of both sides, by name. `OPERATORS` lists the operators of its calls; what is
not among them Spark computes on one side, as a column of its own, before rows are joined.

`case` has conditions and values in turns, then the value of ELSE; `in` has the value looked for in
front of the list; `is null` and `negate` have one argument. BETWEEN is two comparisons.
"""

import datetime as dt
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal

import pyarrow as pa

from dovetail.kernel.protocol import SIDE_NAMES

Value = bool | int | float | Decimal | str | dt.date | dt.datetime | dt.timedelta | None

COMPARISONS = ("=", "<=>", "<>", "<", "<=", ">", ">=")
ARITHMETIC = ("+", "-", "*", "/", "%")
_MANY = ("and", "or", *ARITHMETIC, *COMPARISONS)
OPERATORS = (
    *COMPARISONS, *ARITHMETIC, "and", "or", "not", "is null", "in", "case", "coalesce", "least",
    "greatest", "abs", "negate", "contains", "startswith", "endswith",
)  # fmt: skip


@dataclass(frozen=True)
class Column:
    """A column of one side, as its schema spells it."""

    side: int
    name: str


@dataclass(frozen=True)
class Literal:
    """A constant, of the type that Spark gives it."""

    value: Value
    type: pa.DataType
    whole_days: bool = False  #: an INTERVAL of days and nothing smaller: a date stays one with it


@dataclass(frozen=True)
class Call:
    """An operator and what it is applied to."""

    operator: str
    arguments: "tuple[Tree, ...]"


Tree = Column | Literal | Call


def joined(operator: str, trees: Sequence[Tree]) -> Tree:
    """Trees with `and` or `or` between them, in their order and with little nesting."""
    if len(trees) == 1:
        return trees[0]
    middle = len(trees) // 2
    return Call(operator, (joined(operator, trees[:middle]), joined(operator, trees[middle:])))


def columns_of(tree: Tree) -> Iterator[Column]:
    """All columns that a tree reads, each as often as it does."""
    if isinstance(tree, Column):
        yield tree
    elif isinstance(tree, Call):
        for argument in tree.arguments:
            yield from columns_of(argument)


def calculates(tree: Tree) -> bool:
    """Whether a tree has arithmetic, which may overflow."""
    if not isinstance(tree, Call):
        return False
    own = tree.operator in (*ARITHMETIC, "abs", "negate")
    return own or any(map(calculates, tree.arguments))


def qualified(column: Column) -> str:
    """A column as SQL names it: `left.amount`."""
    name = column.name if column.name.isidentifier() else f"`{column.name.replace('`', '``')}`"
    return f"{SIDE_NAMES[column.side]}.{name}"


def text_of(tree: Tree, shown: Callable[[Column], str] = qualified) -> str:
    """A tree as SQL, the same for equal trees."""
    if isinstance(tree, Column):
        return shown(tree)
    if isinstance(tree, Literal):
        return _literal_text(tree)
    parts = [text_of(argument, shown) for argument in tree.arguments]
    match tree.operator:
        case operator if operator in _MANY:
            return f"({f' {operator.upper()} '.join(parts)})"
        case "not":
            return f"(NOT {parts[0]})"
        case "negate":
            return f"(- {parts[0]})"
        case "is null":
            return f"({parts[0]} IS NULL)"
        case "in":
            return f"({parts[0]} IN ({', '.join(parts[1:])}))"
        case "case":
            pairs = zip(parts[:-1:2], parts[1::2], strict=True)
            whens = " ".join(f"WHEN {condition} THEN {value}" for condition, value in pairs)
            return f"CASE {whens} ELSE {parts[-1]} END"
        case operator:
            return f"{operator}({', '.join(parts)})"


def _literal_text(literal: Literal) -> str:
    value = literal.value
    if value is None or isinstance(value, bool):
        return {None: "NULL", True: "TRUE", False: "FALSE"}[value]
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace("'", "\\'")
        return f"'{escaped}'"
    if isinstance(value, dt.timedelta):
        if literal.whole_days:
            return f"INTERVAL '{value.days}' DAY"
        return f"INTERVAL '{value // dt.timedelta(microseconds=1)}' MICROSECOND"
    if isinstance(value, dt.datetime):
        return f"TIMESTAMP_NTZ'{value}'"
    if isinstance(value, dt.date):
        return f"DATE'{value}'"
    suffixes = {pa.int8(): "Y", pa.int16(): "S", pa.int64(): "L", pa.float32(): "F"}
    suffix = "D" if pa.types.is_float64(literal.type) else suffixes.get(literal.type, "")
    return f"{value}{suffix}"
