"""Names in a condition to columns of the two sides, and its parts as text for one of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import pyarrow as pa
from sqlglot import exp
from sqlglot.tokens import TokenType  # type: ignore[attr-defined]  # it has no __all__

from dovetail.errors import ArgumentError, UnknownColumnError
from dovetail.kernel.predicates import Column
from dovetail.kernel.protocol import SIDES
from dovetail.specs.conditions.parsing import (
    Span,
    bare,
    inseparable,
    parsed,
    shown,
    span_of,
    tokens_of,
)


@dataclass(frozen=True)
class Found:
    """A column that a condition names."""

    column: Column
    qualifier: Span | None  #: `left.` or `right.` in front of it
    is_field: bool  #: a field of it is meant, and not the column itself


@dataclass
class Names:
    """The columns of two schemas, looked up as Spark does: whatever the case.

    sides: what the two inputs are called in front of a column's name.
    """

    text: str
    schemas: tuple[pa.Schema, pa.Schema]
    sides: tuple[str, str]
    _found: dict[int, Found] = field(default_factory=dict)

    def resolve(self, root: exp.Expr) -> None:
        """Look up all names in a tree."""
        starts = set()
        for node in root.find_all(exp.Column):
            self._found[id(node)] = self._resolved(node)
            starts.add(_start(node.parts[0]))
        self._check_all_found(starts)

    def sides_of(self, node: exp.Expr) -> set[int]:
        """The sides that a part of the tree reads."""
        return {self._found[id(name)].column.side for name in node.find_all(exp.Column)}

    def plain(self, node: exp.Expr) -> Column | None:
        """The column that a part of the tree is, if it is one and no more."""
        if not isinstance(node, exp.Column):
            return None
        found = self._found[id(node)]
        return None if found.is_field else found.column

    def type_of(self, column: Column) -> pa.DataType:
        return self.schemas[column.side].field(column.name).type

    def written(self, node: exp.Expr) -> str:
        """A part of the text as the user wrote it, or nearly so."""
        return shown(self.text, node)

    def cut(self, node: exp.Expr) -> str:
        """A part of the text as the user wrote it, but for the sides in front of columns.

        What is cut out is read once more: if it says something else by itself, it is refused.
        """
        start, stop = span_of(node)
        if bare(parsed(self.text[start:stop])) != bare(node):
            raise inseparable(node)
        pieces = []
        for found in self._found_in(node):
            if found.qualifier is not None:
                pieces.append(self.text[start : found.qualifier[0]])
                start = found.qualifier[1]
        return "".join([*pieces, self.text[start:stop]])

    def _found_in(self, node: exp.Expr) -> list[Found]:
        """The columns of a part, in the order of the text."""
        names = [self._found[id(name)] for name in node.find_all(exp.Column)]
        return sorted(names, key=lambda found: found.qualifier or (0, 0))

    def _resolved(self, node: exp.Column) -> Found:
        parts = [part for part in node.parts if isinstance(part, exp.Identifier)]
        names = [part.name for part in parts]
        sides = [side.lower() for side in self.sides]
        if len(names) > 1 and names[0].lower() in sides:
            side = sides.index(names[0].lower())
            column = self._column(side, names[1])
            if column is not None:
                self._check_fields(column, names[2:])
                qualifier = (_start(parts[0]), _start(parts[1]))
                return Found(column, qualifier, len(names) > 2)
            if not any(self._column(other, names[0]) for other in SIDES):
                raise UnknownColumnError(
                    f"where=: the {self.sides[side]} input has no column {names[1]!r}; it has "
                    f"{_listed(self.schemas[side])}"
                )
        column = self._unqualified(names[0])
        self._check_fields(column, names[1:])
        return Found(column, None, len(names) > 1)

    def _check_all_found(self, starts: set[int]) -> None:
        """Refuse a text in which sqlglot has taken a column for something else."""
        sides = [side.lower() for side in self.sides]
        before: TokenType | None = None
        tokens = tokens_of(self.text)
        for token, after in pairwise(tokens):
            qualifies = token.text.lower() in sides and after.token_type == TokenType.DOT
            is_text = token.token_type in (TokenType.STRING, TokenType.RAW_STRING)
            if qualifies and not is_text and before != TokenType.DOT and token.start not in starts:
                raise ArgumentError(
                    f"where=: {self.text[token.start :]!r} is not "
                    "understood where it stands; make what it is in a column of its input"
                )
            before = token.token_type

    def _unqualified(self, name: str) -> Column:
        found = [column for side in SIDES if (column := self._column(side, name))]
        if len(found) > 1:
            ways = " or ".join(f"{side}.{name}" for side in self.sides)
            raise ArgumentError(f"where=: both inputs have a column {name!r}; write {ways}")
        if not found:
            has = "; ".join(
                f"the {side} input has {_listed(schema)}"
                for side, schema in zip(self.sides, self.schemas, strict=True)
            )
            raise UnknownColumnError(f"where=: neither input has a column {name!r}: {has}")
        return found[0]

    def _column(self, side: int, name: str) -> Column | None:
        names = self.schemas[side].names
        if name in names:
            return Column(side, name)
        alike = [known for known in names if known.lower() == name.lower()]
        return Column(side, alike[0]) if alike else None

    def _check_fields(self, column: Column, names: Sequence[str]) -> None:
        type_ = self.type_of(column)
        for name in names:
            if not pa.types.is_struct(type_):
                return  # an array or a map: Spark's to say
            known = {item.name.lower(): item for item in type_}
            if name.lower() not in known:
                raise UnknownColumnError(
                    f"where=: the {self.sides[column.side]} input's {column.name!r} has no field "
                    f"{name!r}; it has {', '.join(repr(item.name) for item in type_)}"
                )
            type_ = known[name.lower()].type


def _start(identifier: exp.Expr) -> int:
    return int(identifier.meta["start"])


def _listed(schema: pa.Schema) -> str:
    return ", ".join(map(repr, schema.names))
