"""The conjuncts of a condition, each put where it is evaluated best."""

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from sqlglot import exp

from dovetail.errors import ArgumentError
from dovetail.kernel.predicates import Call, Column, Tree, text_of
from dovetail.kernel.predicates.tree import joined, qualified
from dovetail.kernel.protocol import LEFT, RIGHT, SIDE_NAMES
from dovetail.specs.conditions.columns import Names
from dovetail.specs.conditions.condition import Condition, Equality, Range
from dovetail.specs.conditions.distances import MIRRORED, Fact, facts
from dovetail.specs.conditions.parsing import canonical, operands_of, parsed
from dovetail.specs.conditions.parts import COMPARISONS, Parts

_SHOWN = 60  # characters of a text that is too long for a message


def taken_apart(
    text: str, schemas: tuple[pa.Schema, pa.Schema], sides: tuple[str, str], fixed_zone: bool
) -> Condition:
    """The parts of a condition; see `parse_condition`."""
    try:
        root = parsed(text)
        names = Names(text, schemas, sides)
        names.resolve(root)
        return _Sorter(Parts(names, fixed_zone)).condition(root)
    except RecursionError:
        raise ArgumentError(
            f"where={text[:_SHOWN]!r}... is nested too deeply; make parts of it columns"
        ) from None


@dataclass
class _Sorter:
    """The parts of a condition, by who evaluates them."""

    parts: Parts
    equalities: list[Equality] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)
    one_sided: tuple[list[str], list[str]] = field(default_factory=lambda: ([], []))
    rest: list[Tree] = field(default_factory=list)

    def condition(self, root: exp.Expr) -> Condition:
        for conjunct in operands_of(root, exp.And):
            self._place(conjunct)
        condition = Condition(
            equalities=tuple(dict.fromkeys(self.equalities)),
            ranges=tuple(_merged(self.facts)),
            left_only=tuple(self.one_sided[LEFT]),
            right_only=tuple(self.one_sided[RIGHT]),
            residual=joined("and", self.rest) if self.rest else None,
            computed=tuple(self.parts.computed),
            canonical="",
        )
        return replace(condition, canonical=_canonical(condition))

    def _place(self, node: exp.Expr) -> None:
        """Put one conjunct where it belongs."""
        sides = self.parts.names.sides_of(node)
        if len(sides) < 2:
            self._one_sided(sides, self.parts.names.cut(node))
            return
        if isinstance(node, exp.Between) and not node.args.get("symmetric"):
            low, high = node.args["low"], node.args["high"]
            self.parts.check_grouping(node, node.this, low, high)
            self._compare(">=", node.this, low)
            self._compare("<=", node.this, high)
            return
        operator = COMPARISONS.get(type(node))
        if operator is not None:
            self.parts.check_grouping(node, node.this, node.expression)
            self._compare(operator, node.this, node.expression)
            return
        self.rest.append(self.parts.tree(node))

    def _one_sided(self, sides: set[int], text: str) -> None:
        self.one_sided[next(iter(sides), LEFT)].append(text)

    def _compare(self, operator: str, one: exp.Expr, two: exp.Expr) -> None:
        """Place a comparison that stands for itself, or is half of a BETWEEN."""
        names = self.parts.names
        first, second = names.sides_of(one), names.sides_of(two)
        if len(first | second) < 2:
            self._one_sided(first | second, f"({names.cut(one)}) {operator} ({names.cut(two)})")
            return
        found = facts(self.parts, operator, one, two)
        each_one_side = len(first) == 1 and len(second) == 1
        if each_one_side and operator in ("=", "<=>"):
            ends = (self.parts.column(one), self.parts.column(two))
            left, right = ends if first == {LEFT} else ends[::-1]
            self.equalities.append(Equality(left.name, right.name, null_safe=operator == "<=>"))
            return
        if not found and each_one_side and operator in MIRRORED:
            ends = (self.parts.column(one), self.parts.column(two))
            if first == {RIGHT}:
                ends, operator = ends[::-1], MIRRORED[operator]
            found = [Fact(ends[0].name, ends[1].name, operator, 0)]
        self.facts += found
        if not found or any(fact.rounded for fact in found):
            self.rest.append(self._tree(operator, one, two))

    def _tree(self, operator: str, one: exp.Expr, two: exp.Expr) -> Tree:
        return Call(operator, (self.parts.tree(one), self.parts.tree(two)))


def _merged(found: list[Fact]) -> Iterator[Range]:
    """One range for all facts about two columns."""
    pairs: dict[tuple[str, str, bool], list[Fact]] = {}
    for fact in found:
        pairs.setdefault((fact.left, fact.right, fact.rounded), []).append(fact)
    for (left, right, rounded), about in pairs.items():
        if rounded and not any(fact.excludes_nan for fact in about):
            continue  # the residual says it, and a NaN is within it
        range_ = Range(left, right, rounded=rounded)
        for fact in about:
            if fact.operator in (">", ">=", "="):
                range_ = _raised(range_, fact.bound, fact.operator == ">")
            if fact.operator in ("<", "<=", "="):
                range_ = _lowered(range_, fact.bound, fact.operator == "<")
        yield range_


def _raised(range_: Range, bound: Any, strict: bool) -> Range:
    """A range with a lower bound more."""
    if range_.lower is not None and _tighter(range_.lower, range_.lower_strict, bound, strict, 1):
        return range_
    return replace(range_, lower=bound, lower_strict=strict)


def _lowered(range_: Range, bound: Any, strict: bool) -> Range:
    """A range with an upper bound more."""
    if range_.upper is not None and _tighter(range_.upper, range_.upper_strict, bound, strict, -1):
        return range_
    return replace(range_, upper=bound, upper_strict=strict)


def _tighter(known: Any, known_strict: bool, bound: Any, strict: bool, way: int) -> bool:
    """Whether a known bound leaves out all that another one does."""
    one, two = _comparable(known, bound), _comparable(bound, known)
    if one == two:
        return known_strict or not strict
    return bool(one > two) if way > 0 else bool(one < two)


def _comparable(bound: Any, beside: Any) -> Any:
    """A bound of 0, which has no type, beside one of time."""
    is_span = isinstance(beside, dt.timedelta) and not isinstance(bound, dt.timedelta)
    return dt.timedelta(0) if is_span else bound


def _canonical(condition: Condition) -> str:
    """The text of a condition, computed columns written out."""
    texts = {
        (column.side, column.name): f"{SIDE_NAMES[column.side]}[{canonical(column.sql_text)}]"
        for column in condition.computed
    }

    def shown(column: Column) -> str:
        return texts.get((column.side, column.name)) or qualified(column)

    def pair(one: str, two: str) -> tuple[str, str]:
        return shown(Column(LEFT, one)), shown(Column(RIGHT, two))

    lines = []
    for equality in condition.equalities:
        operator = "<=>" if equality.null_safe else "="
        lines.append(f" {operator} ".join(pair(equality.left, equality.right)))
    for range_ in condition.ranges:
        difference = " - ".join(pair(range_.left, range_.right))
        low = f"{range_.lower} {'<' if range_.lower_strict else '<='} "
        high = f" {'<' if range_.upper_strict else '<='} {range_.upper}"
        lines.append(f"{low}{difference}{high}")
    for side, only in ((LEFT, condition.left_only), (RIGHT, condition.right_only)):
        lines += [f"{SIDE_NAMES[side]}: {canonical(text)}" for text in only]
    if condition.residual is not None:
        lines.append(text_of(condition.residual, shown))
    return "\n".join(lines)
