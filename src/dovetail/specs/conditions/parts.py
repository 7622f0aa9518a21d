"""Parts of a condition to trees: what one side computes, and the operators that mix the sides.

A part that reads one side and is more than a column becomes a computed column of that side, so all
functions on one side are Spark's own. A part that reads neither is a literal or else computed on
the left. Equal parts share a column.
"""

from collections.abc import Callable

import pyarrow as pa
from sqlglot import exp

from dovetail.errors import ArgumentError
from dovetail.kernel.predicates import Call, Column, Literal, Tree
from dovetail.kernel.predicates.tree import joined
from dovetail.kernel.protocol import LEFT
from dovetail.specs.conditions.columns import Names
from dovetail.specs.conditions.condition import COMPUTED, Computed
from dovetail.specs.conditions.literals import literal
from dovetail.specs.conditions.parsing import bare, canonical, is_bracketed, operands_of

#: Of both sides, by the classes of sqlglot.
COMPARISONS: dict[type[exp.Expr], str] = {
    exp.EQ: "=",
    exp.NullSafeEQ: "<=>",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}
_BINARY: dict[type[exp.Expr], str] = {
    **COMPARISONS,
    exp.And: "and",
    exp.Or: "or",
    exp.Add: "+",
    exp.Sub: "-",
    exp.Mul: "*",
    exp.Div: "/",
    exp.Mod: "%",
    exp.Contains: "contains",
    exp.StartsWith: "startswith",
    exp.EndsWith: "endswith",
}
_MANY: dict[type[exp.Expr], str] = {
    exp.Coalesce: "coalesce",
    exp.Least: "least",
    exp.Greatest: "greatest",
}
_UNARY: dict[type[exp.Expr], str] = {exp.Not: "not", exp.Neg: "negate", exp.Abs: "abs"}
_NULL_TESTS = ("isnull", "isnotnull")
MIXED = (
    "=, <=>, <>, <, <=, >, >=, IS [NOT] DISTINCT FROM, AND, OR, NOT, IS [NOT] NULL, TRUE or FALSE, "
    "IN with a list, BETWEEN, + - * / %, CASE, IF, COALESCE, NVL, NULLIF, ABS, LEAST, GREATEST, "
    "CONTAINS, STARTSWITH, ENDSWITH"
)
# Where the brackets are left out, sqlglot and Spark may group these differently.
_LOOSE: tuple[type[exp.Expr], ...] = (
    exp.Not, exp.Between, exp.In, exp.Is, exp.Like, exp.ILike, exp.RegexpLike, exp.Escape,
    exp.NullSafeNEQ, exp.Connector, *COMPARISONS,
)  # fmt: skip


class Parts:
    """Turns nodes of the syntax tree into trees, and collects the columns these need.

    fixed_zone: whether clocks are never changed in the session's time zone. If they are, times with
    a zone are subtracted as Spark does it: as the session's clocks show them.
    """

    def __init__(self, names: Names, fixed_zone: bool) -> None:
        self.names = names
        self.fixed_zone = fixed_zone
        self.computed: list[Computed] = []
        self._by_text: dict[tuple[int, str], Column] = {}

    def column(self, node: exp.Expr) -> Column:
        """A part that reads one side (or none), as a column of it."""
        node = bare(node)
        plain = self.names.plain(node)
        if plain is not None:
            return plain
        side = next(iter(self.names.sides_of(node)), LEFT)
        return self.compute(side, self.names.cut(node))

    def compute(self, side: int, sql_text: str) -> Column:
        """A column that Spark computes on one side."""
        key = (side, canonical(sql_text))
        if key not in self._by_text:
            name = f"{COMPUTED}{len(self.computed)}"
            self.computed.append(Computed(side, name, sql_text))
            self._by_text[key] = Column(side, name)
        return self._by_text[key]

    def constant(self, node: exp.Expr) -> Literal | None:
        """The literal that a part is, if it is one."""
        node = bare(node)
        return None if self.names.sides_of(node) else literal(self.names.cut(node))

    def moment(self, node: exp.Expr) -> Column | None:
        """The column of times with a zone that a part is, if it is one."""
        plain = self.names.plain(bare(node))
        if plain is None:
            return None
        type_ = self.names.type_of(plain)
        return plain if pa.types.is_timestamp(type_) and type_.tz else None

    def on_the_clock(self, node: exp.Expr) -> Column:
        """A column of times with a zone, as the session's clocks show them."""
        node = bare(node)
        (side,) = self.names.sides_of(node)
        return self.compute(side, f"CAST({self.names.cut(node)} AS TIMESTAMP_NTZ)")

    def tree(self, node: exp.Expr) -> Tree:
        """Any part as a tree."""
        node = bare(node)
        if len(self.names.sides_of(node)) < 2:
            return self.constant(node) or self.column(node)
        kind = type(node)
        if kind in _BINARY:
            return self._binary(node, _BINARY[kind])
        if kind in _MANY:
            parts = (node.this, *node.expressions)
            return Call(_MANY[kind], tuple(self.tree(part) for part in parts))
        if kind in _UNARY:
            if not isinstance(node, exp.Not):
                self.check_grouping(node, node.this)
            return Call(_UNARY[kind], (self.tree(node.this),))
        special = _SPECIAL.get(kind)
        made = special(self, node) if special is not None else None
        if made is None:
            raise ArgumentError(
                f"where=: {self.names.written(node)} reads columns of both sides, which only "
                f"these do: {MIXED}; apply other functions to each side, and compare the results"
            )
        return made

    def check_grouping(self, node: exp.Expr, *operands: exp.Expr) -> None:
        """Refuse an operand that needs brackets to be read in one way only."""
        for operand in operands:
            inner = operand
            while isinstance(inner, exp.Paren) and not is_bracketed(inner, self.names.text):
                inner = inner.this
            if isinstance(inner, _LOOSE):
                raise ArgumentError(
                    f"where=: {self.names.written(node)} can be read in several ways; put brackets "
                    f"around {self.names.written(inner)}"
                )

    # -- calls of both sides ------------------------------------------------------------------

    def _binary(self, node: exp.Expr, operator: str) -> Tree:
        if operator in ("and", "or"):
            return joined(operator, [self.tree(part) for part in operands_of(node, type(node))])
        one, two = node.this, node.expression
        self.check_grouping(node, one, two)
        if operator == "-" and not self.fixed_zone and self.moment(one) and self.moment(two):
            return Call("-", (self.on_the_clock(one), self.on_the_clock(two)))
        return Call(operator, (self.tree(one), self.tree(two)))

    def _between(self, node: exp.Expr) -> Tree | None:
        low, high = node.args["low"], node.args["high"]
        if node.args.get("symmetric"):
            return None
        self.check_grouping(node, node.this, low, high)
        this = self.tree(node.this)
        return Call(
            "and", (Call(">=", (this, self.tree(low))), Call("<=", (this, self.tree(high))))
        )

    def _in(self, node: exp.Expr) -> Tree | None:
        if not node.expressions:
            return None
        self.check_grouping(node, node.this)
        return Call("in", tuple(self.tree(part) for part in (node.this, *node.expressions)))

    def _is(self, node: exp.Expr) -> Tree | None:
        self.check_grouping(node, node.this)
        this = self.tree(node.this)
        if isinstance(node.expression, exp.Null):
            return Call("is null", (this,))
        if isinstance(node.expression, exp.Boolean):
            return Call("<=>", (this, Literal(bool(node.expression.this), pa.bool_())))
        return None

    def _distinct(self, node: exp.Expr) -> Tree:
        self.check_grouping(node, node.this, node.expression)
        return Call("not", (Call("<=>", (self.tree(node.this), self.tree(node.expression))),))

    def _case(self, node: exp.Expr) -> Tree:
        parts: list[Tree] = []
        for branch in node.args["ifs"]:
            condition = self.tree(branch.this)
            if node.this is not None:
                condition = Call("=", (self.tree(node.this), condition))
            parts += [condition, self.tree(branch.args["true"])]
        return Call("case", (*parts, self._otherwise(node.args.get("default"))))

    def _if(self, node: exp.Expr) -> Tree:
        otherwise = self._otherwise(node.args.get("false"))
        return Call("case", (self.tree(node.this), self.tree(node.args["true"]), otherwise))

    def _otherwise(self, node: exp.Expr | None) -> Tree:
        return Literal(None, pa.null()) if node is None else self.tree(node)

    def _null_if(self, node: exp.Expr) -> Tree:
        this = self.tree(node.this)
        equal = Call("=", (this, self.tree(node.expression)))
        return Call("case", (equal, Literal(None, pa.null()), this))

    def _by_name(self, node: exp.Expr) -> Tree | None:
        name = node.name.lower()
        if name not in _NULL_TESTS or len(node.expressions) != 1:
            return None
        test = Call("is null", (self.tree(node.expressions[0]),))
        return test if name == "isnull" else Call("not", (test,))


_SPECIAL: dict[type[exp.Expr], Callable[[Parts, exp.Expr], Tree | None]] = {
    exp.Between: Parts._between,
    exp.In: Parts._in,
    exp.Is: Parts._is,
    exp.NullSafeNEQ: Parts._distinct,
    exp.Case: Parts._case,
    exp.If: Parts._if,
    exp.Nullif: Parts._null_if,
    exp.Anonymous: Parts._by_name,
}
