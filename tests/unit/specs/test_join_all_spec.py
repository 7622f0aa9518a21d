"""Every wrong argument of `join_all` has one clear error, and the right ones lead to a spec."""

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest

from dovetail import errors
from dovetail.specs import JoinAllOptions, JoinAllSpec, Known, join_all_spec

INPUTS = {
    "r1": pa.schema([("a", pa.int64()), ("t", pa.timestamp("us"))]),
    "r2": pa.schema([("a", pa.int64()), ("b", pa.string()), ("t", pa.timestamp("us"))]),
    "r3": pa.schema([("b", pa.string()), ("c", pa.int64()), ("r1_a", pa.int64())]),
}
ON = [("r1.a", "r2.a"), ("r2.b", "r3.b")]


def spec(inputs: Any = None, **arguments: Any) -> JoinAllSpec:
    options = JoinAllOptions(**{"on": ON, **arguments})
    renamed = {"r1": INPUTS["r1"], "r2": INPUTS["r2"], "r3": INPUTS["r3"].remove(2)}
    return join_all_spec(renamed if inputs is None else inputs, options, Known(4))


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"on": []}, errors.ArgumentError, ["on=", "no columns"]),
        ({"on": [1]}, errors.ArgumentError, ["on=", "1"]),
        ({"on": "nope"}, errors.UnknownColumnError, ["'nope'", "no input has"]),
        ({"on": "c"}, errors.UnknownColumnError, ["'c'", "only one input"]),
        ({"on": [("r1.a", "r9.a")]}, errors.UnknownColumnError, ["'r9.a'", "no such input"]),
        ({"on": [("r1.a", "r2.z")]}, errors.UnknownColumnError, ["'r2'", "'z'", "'b'"]),
        ({"on": [("r1.a", "r2.b")]}, errors.KeyTypeError, ["bigint", "string", "cast"]),
        ({"on": [("r1.a", "r2.a")]}, errors.ArgumentError, ["r1, r2 | r3", "connect"]),
        ({"on": [("r1.a", "r1.t")]}, errors.ArgumentError, ["'r1'", "itself"]),
        ({"on": [*ON, ("r1.a", "r3.c")]}, errors.ArgumentError, ["cycle"]),
        ({"on": [*ON, ("r2.a", "r1.a", 2)]}, errors.ArgumentError, ["twice", "None and 2"]),
        ({"on": [("r1.a", "r2.a", -1), ON[1]]}, errors.BandKeyError, ["-1", "0 or more"]),
        ({"on": [("r1.a", "r2.a", 1), ("r1.t", "r2.t"), ON[1]]}, errors.BandKeyError, ["only"]),
        ({"within": 1}, errors.BandKeyError, ["string"]),
        ({"how": "left"}, errors.ArgumentError, ["'left'", "inner"]),
        ({"algorithm": "xjoin"}, errors.ArgumentError, ["'xjoin'", "miner", "mjoin"]),
        ({"memory": "300KB"}, errors.MemoryBudgetError, ["300KB", "384.0 KB", "96.0 KB each"]),
        ({"partitions": 0}, errors.ArgumentError, ["partitions=0"]),
        ({"slice_ms": 0}, errors.ArgumentError, ["slice_ms=0"]),
        ({"sizes": {"r1": 1}}, errors.ArgumentError, ["sizes=", "'r2'"]),
        ({"sizes": {"r1": 1, "r2": 0, "r3": 2}}, errors.ArgumentError, ["sizes=", "above 0"]),
        ({"state": "s3://bucket/state"}, errors.ArgumentError, ["s3://"]),
        ({"inputs": INPUTS}, errors.ColumnClashError, ["'r1_a'", "rename"]),
        ({"inputs": {"r1": INPUTS["r1"]}}, errors.ArgumentError, ["2 inputs or more"]),
        ({"inputs": {"x.y": INPUTS["r1"], "b": INPUTS["r2"]}}, errors.ArgumentError, ["dot"]),
        ({"inputs": [INPUTS["r1"]]}, errors.ArgumentError, ["by name"]),
    ],
)
def test_argument_when_wrong_then_one_clear_error(
    arguments: dict[str, Any], error: type[Exception], says: list[str]
) -> None:
    with pytest.raises(error) as raised:
        spec(**arguments)
    for fragment in says:
        assert fragment in str(raised.value)


def test_name_when_shared_then_stands_for_all_inputs_that_have_it() -> None:
    made = spec(on=["A", "b"])
    assert made.keys == (("a",), ("a", "b"), ("b",))
    assert made.identity()["on"] == [["r1.a", "r2.b"], ["r2.a", "r3.b"]]
    assert spec(on=["a", ("r2.a", "r1.a"), *ON]).multiway == made.multiway, "pairs count once"
    assert spec(on=tuple(ON)).multiway == made.multiway, "a tuple of pairs is no pair"
    assert spec(inputs={"r1": INPUTS["r1"], "r2": INPUTS["r2"]}, on=ON[0]).keys == (("a",), ("a",))


def test_within_when_given_then_is_for_pairs_without_their_own() -> None:
    inputs = {name: pa.schema([("t", pa.timestamp("us")), (name, pa.int8())]) for name in "abc"}
    on = [("a.t", "b.t"), ("b.t", "c.t", dt.timedelta(seconds=2))]
    edges = spec(inputs, on=on, within="1 second").multiway.edges
    assert [edge.within for edge in edges] == [1_000_000, 2_000_000]
    on[1] = ("b.t", "c.t", None)
    assert spec(inputs, on=on, within="1 second").multiway.edges[1].within is None


def test_partitions_when_shares_do_not_fill_them_then_are_fewer() -> None:
    made = spec(partitions=5, memory="1MB", sizes={"r1": 2, "r2": 1, "r3": 1})
    assert made.partitions == made.grid.partitions == 4
    assert made.identity()["partitions"] == 5, "what was asked for"
    assert made.partition_bytes == 1 << 18


def test_shares_when_known_then_are_kept() -> None:
    options = JoinAllOptions(on=ON, sizes={"r1": 1, "r2": 1, "r3": 100})
    inputs = {**INPUTS, "r3": INPUTS["r3"].remove(2)}
    fresh = join_all_spec(inputs, options, Known(4))
    assert fresh.grid.shares == (1, 4), "the largest input is cut most"
    kept = join_all_spec(inputs, options, Known(4, shares=[4, 1]))
    assert kept.grid.shares == (4, 1)
