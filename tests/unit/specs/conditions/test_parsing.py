"""Every part of a condition is found where it stands in the text."""

import pytest
from sqlglot import exp

from dovetail.specs.conditions.parsing import bare, canonical, is_bracketed, parsed, span_of

TEXTS = [
    "left.a = right.b",
    "a + b - c * (d + 1) % 2 / e > -f",
    "a = 1 OR b BETWEEN c AND d + 1 AND NOT e IN (1, b, 'x')",
    "coalesce(a, 1, 'b', NULL) = least( x , y[0].z , nvl(m['k'], left.s.t.u.v.w))",
    "CASE WHEN a > 1 THEN b ELSE 'c' END = CASE x WHEN 1 THEN y END",
    "if(a, b, c) IS NOT NULL AND (a = b) IS NULL",
    "t - INTERVAL 1 HOUR 5 MINUTES < u + INTERVAL '5' DAY",
    "a /* x */ = -- y\n b AND 'ä\U0001f600' = c",
    "transform(a, x -> x.f + left.y + x)[0] = CAST(b AS DECIMAL(10, 2))",
    "nullif(a, b) <=> mod(a + 1, b) AND left(a, 2) = right(b, 2)",
    "abs(a - b) <= 5 AND x::int = DATE'2024-01-01' AND s = 'it''s'",
]


@pytest.mark.parametrize("text", TEXTS)
def test_spans_when_cut_out_then_read_as_the_same_part(text: str) -> None:
    seen = 0
    for node in parsed(text).walk():
        if not isinstance(node, (exp.Column, exp.Binary, exp.Func, exp.Paren, exp.Literal)):
            continue
        if node.find_ancestor(exp.Interval, exp.DataType, exp.Cast, exp.Lambda, exp.Case):
            continue
        if isinstance(node.parent, (exp.Dot, exp.Bracket)):  # only a whole path is cut out
            continue
        if isinstance(node, exp.Is) and isinstance(node.parent, exp.Not):  # IS NOT NULL
            continue
        start, stop = span_of(node)
        assert bare(parsed(text[start:stop])) == bare(node), text[start:stop]
        seen += 1
    assert seen > 2


def test_brackets_when_sqlglot_puts_them_there_then_do_not_count() -> None:
    text = "a = b IS NULL"
    assert not is_bracketed(parsed(text).this, text)
    text = "(a = b) IS NULL"
    assert is_bracketed(parsed(text).this, text)


def test_canonical_when_words_differ_in_case_then_strings_do_not() -> None:
    assert canonical("A  =\n'X' -- so") == "a = 'X'"
    assert canonical("`a b` <> `A`") == "`a b` <> a"
    assert canonical("5L != 0x") == canonical("5l <> 0X")


def test_column_when_it_is_called_like_a_changing_function_then_is_taken() -> None:
    assert parsed("left.now = right.uuid").find(exp.EQ)
    assert parsed("`current_date` = uuid").find(exp.EQ)
