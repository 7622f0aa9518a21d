"""Generated conditions on generated rows: what is evaluated in columns is what rows say one by one.

The oracle (`support.conditions`) goes through the rows in Python. Errors are compared as well: a
pair for which the oracle finds no value makes the evaluation fail, and without such pairs it gives
the oracle's answers.
"""

import datetime as dt
import functools
import pickle
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.errors import ArgumentError, ConditionError
from dovetail.kernel.predicates import Call, Column, Literal, Tree, bind, text_of
from dovetail.kernel.predicates.binding import Binder
from dovetail.kernel.predicates.tree import qualified
from dovetail.kernel.protocol import SIDES
from support import depth
from support.conditions import Failed, holds

pytestmark = pytest.mark.fuzz

TYPES = {
    "tiny": pa.int8(),
    "whole": pa.int32(),
    "long": pa.int64(),
    "single": pa.float32(),
    "double": pa.float64(),
    "money": pa.decimal128(8, 2),
    "wide": pa.decimal128(25, 6),
    "text": pa.string(),
    "flag": pa.bool_(),
    "day": pa.date32(),
    "time": pa.timestamp("us"),
    "moment": pa.timestamp("us", tz="UTC"),
    "span": pa.duration("us"),
}
SCHEMA = pa.schema(list(TYPES.items()))
NUMBERS = (  # with those that are special more often
    "double",
    "single",
    "long",
    "tiny",
    "whole",
    "long",
    "single",
    "double",
    "money",
    "wide",
)
EPOCH = dt.datetime(2024, 2, 29)
floats = [0.0, -0.0, 0.5, 1.0, 0.1, -2.5, float("nan"), float("inf"), float("-inf"), 3e38]
POOLS: dict[str, list[Any]] = {
    "tiny": [0, 1, 2, -1, 100, 127, -128],
    "whole": [0, 1, 2, -1, 46341, 2**31 - 1, -(2**31)],
    "long": [0, 1, 2, -1, 3037000500, 2**53 + 1, 2**63 - 1, -(2**63)],
    "single": [float(np.float32(value)) for value in floats],
    "double": [*floats, 1e308, 2.0**53],
    "money": [Decimal(text) for text in ("0.00", "0.10", "1.00", "-2.50", "999999.99")],
    "wide": [Decimal(text) for text in ("0", "0.1", "1", "0.000001", "-9999999999999999999")],
    "text": ["", "a", "ab", "b", "ä", "\U0001f600", "a\0", "\ue000"],
    "flag": [True, False],
    "day": [dt.date(2024, 2, 28), dt.date(2024, 2, 29), dt.date(1970, 1, 1)],
    "time": [EPOCH, EPOCH + dt.timedelta(microseconds=1), EPOCH + dt.timedelta(hours=1)],
    "span": [dt.timedelta(0), dt.timedelta(hours=1), dt.timedelta(microseconds=-1)],
}
POOLS["moment"] = [time.replace(tzinfo=dt.UTC) for time in POOLS["time"]]
KINDS = (NUMBERS, ("text",), ("day",), ("time",), ("moment",), ("span",), ("flag",))
LITERALS: dict[str, list[Literal]] = {
    "number": [
        Literal(1, pa.int32()),
        Literal(-3, pa.int32()),
        Literal(2, pa.int64()),
        Literal(Decimal("0.5"), pa.decimal128(1, 1)),
        Literal(0.1, pa.float64()),
    ],
    "text": [Literal("a", pa.string()), Literal("", pa.string())],
    "flag": [Literal(True, pa.bool_())],
    "day": [Literal(dt.date(2024, 2, 29), pa.date32())],
    "time": [Literal(EPOCH, pa.timestamp("us"))],
    "span": [Literal(dt.timedelta(hours=1), pa.duration("us"))],
    "moment": [],
}
NULL = Literal(None, pa.null())


ROWS = 60  # of each side: enough for most pairs of special values to meet

Rows = list[dict[str, Any]]


def rows(rng: np.random.Generator) -> Rows:
    columns = {}
    for name, pool in POOLS.items():
        chosen = rng.integers(0, len(pool) + 1, ROWS)
        columns[name] = [None if n == len(pool) else pool[n] for n in chosen]
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


@st.composite
def values(draw: st.DrawFn, kind: tuple[str, ...], left: int) -> Tree:
    """A tree whose values are of one kind; left: how many operators may be nested yet."""
    column = st.builds(Column, st.sampled_from(SIDES), st.sampled_from(kind))
    if left <= 0 or draw(st.booleans()):
        return draw(column)
    name = "number" if kind is NUMBERS else kind[0]
    part = functools.partial(values, kind)
    ways = ["case", "choice", "choice"]
    ways += ["sum", "sum", "signed"] if kind is NUMBERS else []
    ways += ["span", "signed"] if kind == ("span",) else []
    ways += ["shifted"] if kind in (("time",), ("moment",), ("day",)) else []
    way = draw(st.sampled_from(ways))
    argument = st.one_of(part(left - 1), st.sampled_from([*LITERALS[name], NULL]))
    if way == "case":
        branch = (draw(conditions(left - 1)), draw(part(left - 1)))
        return Call("case", (*branch, draw(argument)))
    if way == "choice":
        operator = draw(st.sampled_from(["coalesce", "least", "greatest"]))
        return Call(operator, (draw(part(left - 1)), draw(argument)))
    if way == "signed":
        return Call(draw(st.sampled_from(["abs", "negate"])), (draw(part(left - 1)),))
    if way == "shifted":
        by = Literal(dt.timedelta(days=2), pa.duration("us"), whole_days=True)
        shifts: list[Tree] = [by] if kind == ("day",) else [by, Column(0, "span")]
        return Call(
            draw(st.sampled_from("+-")), (draw(part(left - 1)), draw(st.sampled_from(shifts)))
        )
    if way == "span":
        point = draw(st.sampled_from(["time", "moment", "day", "span"]))
        return Call("-", (draw(values((point,), left - 1)), draw(values((point,), left - 1))))
    literal = st.sampled_from(LITERALS["number"])
    operator = draw(st.sampled_from("+-*/%"))
    return Call(operator, (draw(part(left - 1)), draw(st.one_of(part(left - 1), literal))))


@st.composite
def conditions(draw: st.DrawFn, left: int) -> Tree:
    """A tree that is TRUE, FALSE or NULL."""
    way = draw(
        st.sampled_from(["compare"] * 3 + ["in", "null", "text"] + ["logic"] * 3 * (left > 0))
    )
    inner = conditions(left - 1)
    if way == "logic":
        operator = draw(st.sampled_from(["and", "or", "not"]))
        return Call(operator, tuple(draw(inner) for _ in range(1 if operator == "not" else 2)))
    if way == "text":
        operator = draw(st.sampled_from(["contains", "startswith", "endswith"]))
        part = st.one_of(values(("text",), left - 1), st.just(LITERALS["text"][0]))
        return Call(operator, (draw(values(("text",), left - 1)), draw(part)))
    kind = draw(st.sampled_from(KINDS))
    name = "number" if kind is NUMBERS else kind[0]
    one = draw(values(kind, left - 1))
    if way == "null":
        return Call("is null", (one,))
    other = st.one_of(values(kind, left - 1), st.sampled_from([*LITERALS[name], NULL]))
    if way == "in":
        return Call("in", (one, *draw(st.lists(other, min_size=1, max_size=3))))
    operator = draw(st.sampled_from(["=", "<=>", "<>", "<", "<=", ">", ">="]))
    return Call(operator, (one, draw(other)))


def bound(tree: Tree) -> Any:
    """The predicate; None if a type in the tree is refused."""
    try:
        return bind(tree, SCHEMA, SCHEMA, fixed_zone=True)
    except ArgumentError:
        return None


@settings(max_examples=depth.EXAMPLES * 30)
@given(conditions(4), st.integers(0, 2**32))
def test_predicate_when_evaluated_in_columns_then_says_what_rows_say(tree: Tree, seed: int) -> None:
    predicate = bound(tree)
    if predicate is None:
        return
    predicate = pickle.loads(pickle.dumps(predicate))
    binder = Binder((SCHEMA, SCHEMA), qualified, True)
    types = functools.cache(lambda part: binder.bind(part).type)
    rng = np.random.default_rng(seed)
    pairs = rows(rng), rows(rng)
    expected: list[bool | None] = []
    for left, right in zip(*pairs, strict=True):
        try:
            expected.append(holds(tree, left, right, types))
        except Failed:
            expected.append(None)
    left, right = (pa.RecordBatch.from_pylist(side, SCHEMA) for side in pairs)
    good = pa.array(
        [place for place, value in enumerate(expected) if value is not None], pa.int64()
    )
    if len(good) < len(expected):
        with pytest.raises(ConditionError):
            predicate.mask(left, right)
    mask = predicate.mask(left.take(good), right.take(good))
    assert mask.dtype == np.bool_
    assert mask.tolist() == [value for value in expected if value is not None], text_of(tree)


def test_generated_conditions_when_bound_then_most_are_evaluated() -> None:
    """Or else the test above would say little."""
    taken = []

    @settings(max_examples=100, database=None)
    @given(conditions(4))
    def count(tree: Tree) -> None:
        taken.append(bound(tree) is not None)

    count()
    assert sum(taken) > len(taken) / 2, (sum(taken), len(taken))
