"""Text to syntax: sqlglot's tree of a condition, with the place in the text of every part.

The tree says how a condition is taken apart. What Spark is to compute is cut out of the text as the
user wrote it, and not printed from the tree, so that Spark gets exactly what it was meant to get.

What can have no meaning in a join's condition is refused here: subqueries, aggregates, window
functions, generators, and functions that say something else each time.
"""

from collections.abc import Callable
from typing import Any

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ParseError, TokenError
from sqlglot.parsers.spark import SparkParser
from sqlglot.tokens import Token, TokenType  # type: ignore[attr-defined]  # it has no __all__

from dovetail.errors import ArgumentError

Span = tuple[int, int]  # from the first character of a part to behind its last

_SPAN = "span"
_LEVELS = (
    "disjunction", "conjunction", "equality", "comparison", "range", "bitwise", "term", "factor",
    "unary", "type", "atom",
)  # fmt: skip
_CHANGING = {
    "current_date", "current_time", "current_timestamp", "input_file_block_length",
    "input_file_block_start", "input_file_name", "java_method", "localtimestamp",
    "monotonically_increasing_id", "now", "rand", "randn", "random", "randstr", "reflect",
    "shuffle", "spark_partition_id", "try_reflect", "uniform", "uuid",
}  # fmt: skip
_WITHOUT_BRACKETS = {"current_date", "current_time", "current_timestamp", "localtimestamp"}
_GENERATORS = {
    "explode", "explode_outer", "inline", "inline_outer", "json_tuple", "posexplode",
    "posexplode_outer", "stack", "variant_explode", "variant_explode_outer",
}  # fmt: skip
_REFUSED: tuple[tuple[tuple[type[exp.Expr], ...], str], ...] = (
    ((exp.Query, exp.Subquery), "is a subquery; join with what it selects as an input of its own"),
    ((exp.Window,), "is a window function; compute it as a column of its input first"),
    ((exp.AggFunc,), "is an aggregate; compute it as a column of its input first"),
    ((exp.Star,), "is all columns; name the ones to compare"),
)


class _Dialect(Spark):
    """Spark SQL in which, as in Spark 4, a doubled quote stands for itself in a string."""

    class Tokenizer(Spark.Tokenizer):
        STRING_ESCAPES = ["\\", "'", '"']  # noqa: RUF012  # read by sqlglot, once


class _Parser(SparkParser):
    """sqlglot's parser, which notes for each node where it stands in the text."""


def _noting(parse: Callable[..., exp.Expr | None]) -> Callable[..., exp.Expr | None]:
    def noted(self: Any, *arguments: Any, **named: Any) -> exp.Expr | None:
        before = arguments[0] if arguments else named.get("this")
        start = span_of(before)[0] if isinstance(before, exp.Expr) else self._curr.start
        node = parse(self, *arguments, **named)
        if node is not None and _SPAN not in node.meta:
            node.meta[_SPAN] = (start, self._prev.end + 1)
        return node

    return noted


for _level in _LEVELS:
    setattr(_Parser, f"_parse_{_level}", _noting(getattr(SparkParser, f"_parse_{_level}")))


def parsed(text: str) -> exp.Expr:
    """The syntax tree of a condition; an `ArgumentError` if it is none or has no meaning."""
    tokens = tokens_of(text)
    if not tokens:
        raise ArgumentError(
            "where= is empty; give a condition on columns of both sides, for example "
            '"left.amount > right.least_amount", or leave where= out'
        )
    _check_calls(text, tokens)
    dialect = _Dialect()
    try:
        (root,) = _Parser(dialect=dialect).parse_into(exp.Condition, tokens, text)
    except ParseError as error:
        raise ArgumentError(_no_sense(text, error)) from None
    assert root is not None
    for node in root.walk():
        for classes, why in _REFUSED:
            if isinstance(node, classes):
                raise ArgumentError(f"where=: {shown(text, node)} {why}")
    return root


def tokens_of(text: str) -> list[Token]:
    try:
        return _Dialect().tokenize(text)
    except TokenError:
        raise ArgumentError(
            f"where={text!r} cannot be read: a quote or a comment in it is not closed"
        ) from None


def span_of(node: exp.Expr) -> Span:
    """Where a node stands in the text."""
    if (span := _known(node)) is not None:
        return span
    if isinstance(node, exp.Binary):
        return span_of(node.left)[0], span_of(node.right)[1]
    if isinstance(node, exp.Paren):  # one that sqlglot put there
        return span_of(node.this)
    raise inseparable(node)


def operands_of(node: exp.Expr, kind: type[exp.Expr]) -> list[exp.Expr]:
    """What AND (or OR) joins, without brackets, from left to right; a single one if it is none."""
    found = []
    open_ = [node]
    while open_:
        node = bare(open_.pop())
        if isinstance(node, kind):
            open_ += [node.expression, node.this]
        else:
            found.append(node)
    return found


def inseparable(node: exp.Expr) -> ArgumentError:
    return ArgumentError(
        f"where=: {node.sql('spark')} cannot be told apart from what is around it; put brackets "
        "around it, or make it a column of its input"
    )


def bare(node: exp.Expr) -> exp.Expr:
    """A node without brackets around it."""
    while isinstance(node, exp.Paren):
        node = node.this
    return node


def is_bracketed(node: exp.Expr, text: str) -> bool:
    """Whether a node is brackets that the user wrote, and not some that sqlglot put there."""
    if not isinstance(node, exp.Paren):
        return False
    start, _ = span_of(node)
    return text[start] == "(" and span_of(node.this)[0] > start


def shown(text: str, node: exp.Expr) -> str:
    """A node as the user wrote it, or nearly so."""
    span = _known(node)
    return node.sql("spark") if span is None else text[slice(*span)]


def canonical(text: str) -> str:
    """A text without what means nothing: spaces, comments, case, backticks around plain names."""
    plain = []
    behind = 0
    for token in tokens_of(text):
        if token.start >= behind:  # a number like 5L is three tokens at one place
            plain.append(_plain(token, text[token.start : token.end + 1]))
            behind = token.end + 1
    return " ".join(plain)


def _plain(token: Token, written: str) -> str:
    match token.token_type:
        case TokenType.STRING:
            return "'" + token.text.replace("\\", "\\\\").replace("'", "\\'") + "'"
        case TokenType.RAW_STRING:
            return f"r{token.text!r}"
        case TokenType.HEX_STRING:
            return f"x'{token.text.upper()}'"
        case TokenType.IDENTIFIER if not token.text.isidentifier():
            return f"`{token.text.lower().replace('`', '``')}`"
        case TokenType.EQ:
            return "="
        case TokenType.NEQ:
            return "<>"
    return written.strip("`").lower()


def _known(node: exp.Expr) -> Span | None:
    return node.meta.get(_SPAN)


def _check_calls(text: str, tokens: list[Token]) -> None:
    """Refuse functions by their names: sqlglot does not know all of them."""
    closed = Token(TokenType.SEMICOLON, "")
    for before, token, after in zip([closed, *tokens], tokens, [*tokens[1:], closed], strict=False):
        name = token.text.lower()
        if token.token_type in (TokenType.STRING, TokenType.IDENTIFIER, TokenType.RAW_STRING):
            continue
        if TokenType.DOT in (before.token_type, after.token_type):
            continue  # a column of that name
        called = after.token_type == TokenType.L_PAREN
        written = text[token.start : token.end + 1]
        if name in _CHANGING and (called or name in _WITHOUT_BRACKETS):
            raise ArgumentError(
                f"where=: {written} says something else each time it is asked, and a pair of rows "
                "may be looked at more than once; make it a column of its input"
            )
        if name in _GENERATORS and called:
            raise ArgumentError(
                f"where=: {written} makes several rows of one; call it on its input first"
            )


def _no_sense(text: str, error: ParseError) -> str:
    (place, *_) = error.errors or [{}]
    found = place.get("highlight")
    at = f" at line {place['line']}, column {place['col']}" if place.get("line") else ""
    near = f", near {found!r}" if found else ""
    return (
        f"where={text!r} is not a condition in Spark SQL: it cannot be understood{at}{near}; "
        "write one expression, like in a WHERE clause but without the word WHERE"
    )
