"""What a multi-way join may be, and what is said about one that cannot."""

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest

from dovetail.errors import (
    ArgumentError,
    BandKeyError,
    ColumnClashError,
    KeyTypeError,
    UnknownColumnError,
)
from dovetail.multiway import Edge, MultiWaySpec, checked_algorithm, multiway_spec

A = pa.schema(
    [("id", pa.int64()), ("k", pa.int64()), ("s", pa.string()), ("t", pa.timestamp("us"))]
)
B = pa.schema([("id", pa.int64()), ("k", pa.int64()), ("s", pa.string()), ("x", pa.float64())])
C = pa.schema([("c", pa.int64()), ("k", pa.int64()), ("d", pa.date32()), ("t", pa.timestamp("us"))])
INPUTS = {"a": A, "b": B, "c": C}


def test_spec_when_names_clash_then_these_are_prefixed() -> None:
    spec = multiway_spec(INPUTS, [("a.k", "b.k"), ("b.id", "c.c")])
    assert spec.output.names == [
        "a_id", "a_k", "a_s", "a_t", "b_id", "b_k", "b_s", "x", "c", "c_k", "d", "c_t",
    ]  # fmt: skip
    assert spec.output.field("a_t").type == pa.timestamp("us")


def test_spec_when_two_edges_use_a_column_then_it_is_one_attribute() -> None:
    spec = multiway_spec(INPUTS, [("a.k", "b.k"), ("c.k", "b.k")])
    assert spec.attributes == ((("k",),), (("k",),), (("k",),))
    assert spec.joins_one_attribute
    assert not multiway_spec(INPUTS, [("a.k", "b.k"), ("c.k", "b.id")]).joins_one_attribute
    assert not multiway_spec(INPUTS, [("a.k", "b.k"), ("c.k", "b.k", 1)]).joins_one_attribute


def test_spec_when_two_pairs_join_the_same_inputs_then_they_are_one_edge() -> None:
    spec = multiway_spec({"a": A, "b": B}, [("b.k", "a.k"), ("a.s", "b.s")])
    assert spec.edges == (Edge((0, 1), (("k", "s"), ("k", "s"))),)
    assert not spec.codecs[0].exact


def test_spec_when_a_band_is_a_time_span_then_is_in_units_of_the_key() -> None:
    spec = multiway_spec({"a": A, "c": C}, [("a.T", "c.t", dt.timedelta(seconds=2))])
    assert spec.edges == (Edge((0, 1), (("t",), ("t",)), 2_000_000),)


@pytest.mark.parametrize(
    ("on", "error", "said"),
    [
        ([], ArgumentError, "names no columns"),
        ("a.k", ArgumentError, "names no columns"),
        ([("a.k",)], ArgumentError, r"\('a.k',\)"),
        ([("a.k", "b.k"), ("z.k", "c.k")], UnknownColumnError, "no such input.*'a', 'b', 'c'"),
        ([("a.k", "b.nope"), ("b.k", "c.k")], UnknownColumnError, "'b' has no column 'nope'.*'x'"),
        ([("a.k", "b.k")], ArgumentError, r"a, b \| c"),
        ([("a.k", "b.k"), ("b.k", "c.k"), ("c.k", "a.k")], ArgumentError, "cycle.*'a' and 'c'"),
        ([("a.k", "a.id"), ("b.k", "c.k")], ArgumentError, "'a' with itself"),
        ([("a.k", "b.s"), ("b.k", "c.k")], KeyTypeError, "a.k is bigint and b.s is string"),
        ([("a.s", "b.s", 1), ("b.k", "c.k")], BandKeyError, "numeric, date or timestamp"),
        ([("a.k", "b.k", -1), ("b.k", "c.k")], BandKeyError, "0 or more"),
        ([("a.k", "b.k", 1), ("a.id", "b.id"), ("b.k", "c.k")], BandKeyError, "only condition"),
    ],
)
def test_spec_when_the_graph_is_wrong_then_says_what_and_where(
    on: Any, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        multiway_spec(INPUTS, on)


@pytest.mark.parametrize("count", [1, 9])
def test_spec_when_there_are_too_few_or_too_many_inputs_then_refuses(count: int) -> None:
    inputs = {f"r{i}": A for i in range(count)}
    with pytest.raises(ArgumentError, match=f"2 to 8 inputs, not {count}"):
        multiway_spec(inputs, [(f"r{i}.k", f"r{i + 1}.k") for i in range(max(1, count - 1))])


def test_spec_when_a_prefixed_name_exists_already_then_refuses() -> None:
    odd = pa.schema([("k", pa.int64()), ("a_k", pa.int64())])
    with pytest.raises(ColumnClashError, match="'a_k'"):
        multiway_spec({"a": A, "z": odd}, [("a.k", "z.k")])


def test_spec_when_an_input_has_a_column_twice_then_refuses() -> None:
    odd = pa.schema([("k", pa.int64()), ("K", pa.int64())])
    with pytest.raises(ColumnClashError, match="'z' has two columns"):
        multiway_spec({"a": A, "z": odd}, [("a.k", "z.k")])


def test_spec_when_made_by_hand_then_is_checked_as_well() -> None:
    with pytest.raises(UnknownColumnError, match="nope"):
        MultiWaySpec(("a", "b"), (A, B), (Edge((0, 1), (("nope",), ("k",))),))
    with pytest.raises(BandKeyError, match="exactly one"):
        MultiWaySpec(("a", "b"), (A, B), (Edge((0, 1), (("k", "id"), ("k", "id")), 1),))


def test_choose_when_the_name_is_unknown_then_lists_those_there_are() -> None:
    assert checked_algorithm("auto") == "miner"
    with pytest.raises(ArgumentError, match=r"'xjoin'.*auto, miner, miner-paper, mjoin"):
        checked_algorithm("xjoin")
