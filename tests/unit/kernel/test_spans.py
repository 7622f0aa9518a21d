"""Spans of time as people write them."""

import datetime as dt

import pytest

from dovetail.kernel.spans import parse_span


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("5 minutes", dt.timedelta(minutes=5)),
        ("1 hour 30 min", dt.timedelta(minutes=90)),
        ("250ms", dt.timedelta(milliseconds=250)),
        ("1.5 days", dt.timedelta(hours=36)),
    ],
)
def test_parse_span_when_it_is_one_then_gives_it(text: str, meant: dt.timedelta) -> None:
    assert parse_span(text) == meant


@pytest.mark.parametrize("text", ["", "5", "minutes", "5 minutes and", "-5 minutes", "5 m 3"])
def test_parse_span_when_it_is_none_then_refuses(text: str) -> None:
    with pytest.raises(ValueError, match=r"span of time|unit of time"):
        parse_span(text)
