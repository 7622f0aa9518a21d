"""Every wrong argument of a join has one clear error: what, where, and what to do."""

import datetime as dt
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dovetail import errors
from dovetail.semistream.overload import Shedding
from dovetail.specs import (
    EnrichOptions,
    EnrichSpec,
    JoinAllOptions,
    JoinOptions,
    JoinSpec,
    Known,
    enrich_spec,
    join_all_spec,
    join_spec,
    state_path,
)
from dovetail.twoway.base import MIN_BUDGET_BYTES

LEFT = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us")), ("name", pa.string())])
RIGHT = pa.schema([("id", pa.int64()), ("seen", pa.timestamp("us")), ("label", pa.string())])


def spec(left: pa.Schema = LEFT, right: pa.Schema = RIGHT, **arguments: Any) -> JoinSpec:
    return join_spec(left, right, JoinOptions(**{"on": "id", **arguments}), default_partitions=4)


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"on": "nope"}, errors.UnknownColumnError, ["left", "'nope'", "'id', 'at', 'name'"]),
        ({"on": [("id", "nope")]}, errors.UnknownColumnError, ["right", "'nope'", "'seen'"]),
        ({"on": []}, errors.ArgumentError, ["on=", "no column"]),
        ({"on": [("id", "id", "id")]}, errors.ArgumentError, ["on=", "pairs"]),
        ({"on": [1]}, errors.ArgumentError, ["on=", "1"]),
        ({"on": [("id", "label")]}, errors.KeyTypeError, ["bigint", "string", "cast"]),
        ({"on": ["id", ("at", "seen")], "within": 1}, errors.BandKeyError, ["one key", "2"]),
        ({"within": -1}, errors.BandKeyError, ["-1", "0 or more"]),
        ({"within": "5"}, errors.BandKeyError, ["'5' is a text", "bigint", "number"]),
        ({"within": [5]}, errors.BandKeyError, ["number, a timedelta or a text", "[5]"]),
        ({"within": dt.timedelta(1)}, errors.BandKeyError, ["time span", "bigint"]),
        ({"within": 1, "algorithm": "xjoin"}, errors.ArgumentError, ["band", "shj"]),
        ({"algorithm": "magic"}, errors.ArgumentError, ["'magic'", "xjoin", "shj"]),
        ({"how": "left"}, errors.ArgumentError, ["'left'", "inner"]),
        ({"memory": "lots"}, errors.ArgumentError, ["memory=", "'lots'", "64MB"]),
        ({"memory": 1.5}, errors.ArgumentError, ["memory=", "1.5"]),
        ({"memory": "100KB"}, errors.MemoryBudgetError, ["100KB", "256.0 KB", "partitions="]),
        ({"memory": 64}, errors.MemoryBudgetError, ["is 64 bytes, which is too small", "unit"]),
        ({"memory": "-64MB"}, errors.ArgumentError, ["memory=", "negative", "'-64MB'"]),
        ({"memory": -1}, errors.ArgumentError, ["memory=", "negative", "'64MB'"]),
        ({"partitions": 0}, errors.ArgumentError, ["partitions=0"]),
        ({"partitions": True}, errors.ArgumentError, ["partitions=True"]),
        ({"slice_ms": 0}, errors.ArgumentError, ["slice_ms=0"]),
        ({"state": "s3://bucket/state"}, errors.ArgumentError, ["s3://", "local or shared path"]),
        ({"state": " "}, errors.ArgumentError, ["state=", "empty"]),
    ],
)
def test_argument_when_wrong_then_one_clear_error(
    arguments: dict[str, Any], error: type[Exception], says: list[str]
) -> None:
    with pytest.raises(error) as raised:
        spec(**arguments)
    assert type(raised.value) is error
    for words in says:
        assert words in str(raised.value)


def test_columns_when_they_clash_then_all_are_named() -> None:
    right = RIGHT.append(pa.field("Name", pa.string())).append(pa.field("AT", pa.int8()))
    with pytest.raises(errors.ColumnClashError, match=r"'Name', 'AT'.*withColumnRenamed"):
        spec(right=right)


def test_columns_when_one_input_has_a_name_twice_then_it_is_named() -> None:
    with pytest.raises(errors.ColumnClashError, match="left input has two columns named 'ID'"):
        spec(left=LEFT.append(pa.field("ID", pa.int64())))


def test_key_when_not_atomic_then_is_refused() -> None:
    nested = pa.schema([("k", pa.list_(pa.int64()))])
    with pytest.raises(errors.KeyTypeError, match="atomic"):
        spec(left=nested, right=nested, on="k")


def test_band_when_key_is_a_string_then_is_refused() -> None:
    strings = pa.schema([("k", pa.string())])
    with pytest.raises(errors.BandKeyError, match="numeric, date or timestamp key, not string"):
        spec(left=strings, right=strings, on="k", within=1)


def test_output_when_key_has_one_name_then_appears_once() -> None:
    assert spec().twoway.layout.schema.names == ["id", "at", "name", "seen", "label"]


def test_output_when_keys_have_two_names_then_both_appear() -> None:
    names = spec(right=RIGHT.set(0, pa.field("rid", pa.int64())), on=("id", "rid"))
    assert names.twoway.layout.schema.names == ["id", "at", "name", "rid", "seen", "label"]


def test_key_when_letter_case_differs_then_is_found() -> None:
    assert spec(on="ID").twoway.left_keys == ("id",)


def test_budget_when_split_then_partitions_share_it_evenly() -> None:
    assert spec(memory="64MB").partition_bytes == 16 << 20
    assert spec(memory=4 * MIN_BUDGET_BYTES).partition_bytes == MIN_BUDGET_BYTES
    assert spec().partition_bytes is None


@pytest.mark.parametrize(
    ("within", "key", "width"),
    [
        (dt.timedelta(seconds=5), pa.timestamp("us"), 5_000_000),
        ("5 seconds", pa.timestamp("us"), 5_000_000),
        ("1 minute 250ms", pa.timestamp("us", "UTC"), 60_250_000),
        ("2 days", pa.date32(), 2),
        (dt.timedelta(seconds=2), pa.timestamp("us", "UTC"), 2_000_000),
        (dt.timedelta(days=3), pa.date32(), 3),
        (Decimal("0.05"), pa.decimal128(10, 2), 5),
        (0.5, pa.float64(), 0.5),
        (7, pa.int16(), 7),
    ],
)
def test_band_when_key_has_a_unit_then_width_is_in_it(
    within: Any, key: pa.DataType, width: float
) -> None:
    schema = pa.schema([("k", key)])
    band = spec(left=schema, right=schema, on="k", within=within)
    assert band.twoway.within == width
    assert band.algorithm == "diner"


@pytest.mark.parametrize(
    "key", [pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.date32(), pa.duration("us")]
)
@pytest.mark.parametrize("within", [2, 0.5, Decimal(3)])
def test_band_when_key_is_a_time_and_the_width_has_no_unit_then_is_refused(
    within: Any, key: pa.DataType
) -> None:
    schema = pa.schema([("k", key)])
    says = f"or '{within} seconds'"
    with pytest.raises(errors.BandKeyError, match=says):
        spec(left=schema, right=schema, on="k", within=within)
    options = JoinAllOptions([("a.k", "b.k", within)])
    with pytest.raises(errors.BandKeyError, match=says):
        join_all_spec({"a": schema, "b": schema}, options, Known(2))


@pytest.mark.parametrize("state", ["/data/a b", "file:///data/a%20b", Path("/data/a b")])
def test_state_when_local_then_is_a_path(state: str | Path) -> None:
    assert state_path(state) == Path("/data/a b")


def test_identity_when_memory_or_slices_change_then_stays_the_same() -> None:
    assert spec(memory="64MB").identity() == spec(memory=None, slice_ms=9).identity()
    assert spec(partitions=2).identity() != spec(partitions=3).identity()


# -- enrich -----------------------------------------------------------------------------------

STREAM = pa.schema([("id", pa.int64()), ("customer", pa.string())])
TABLE = pa.schema([("name", pa.string()), ("city", pa.string()), ("id", pa.int64())])


def test_enrich_when_columns_are_named_then_a_key_of_another_name_is_staged_but_not_shown() -> None:
    options = EnrichOptions(on=[("customer", "name")], columns=["city"])
    found = enrich_spec(STREAM, TABLE, options, 1)
    assert found.semistream.table.names == ["name", "city"]
    assert found.output.names == ["id", "customer", "city"]


def test_enrich_when_a_shown_column_clashes_then_is_refused_and_can_be_left_out() -> None:
    with pytest.raises(errors.ColumnClashError, match="'id'"):
        enrich_spec(STREAM, TABLE, EnrichOptions(on=[("customer", "name")]), 1)
    for options in (
        EnrichOptions(on=[("customer", "name")], columns=["name"]),
        EnrichOptions(on=[("customer", "name")], how="anti"),
    ):
        enrich_spec(STREAM, TABLE, options, 1)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"shed": "some"}, ["'some'", "'keep', 'sample', 'topw', 'cluster'"]),
        ({"shed_to": "/data/left-out"}, ["shed_to='/data/left-out'", "without shed="]),
        ({"shed": "keep", "shed_to": " "}, ["shed_to=", "empty"]),
        ({"shed": "keep", "shed_to": "s3://b/x"}, ["shed_to=", "s3://", "local or shared path"]),
        ({"shed": "keep", "shed_to": "/ckpt/state/x"}, ["shed_to", "/ckpt/state", "beside"]),
        ({"shed": "keep", "shed_to": "/ckpt/a/../state"}, ["shed_to", "/ckpt/state", "beside"]),
        ({"shed": "keep", "shed_to": "/ckpt"}, ["shed_to", "/ckpt/state", "beside"]),
        ({"latency": "soon"}, ["latency='soon'", "'30 seconds'"]),
        ({"latency": "0 seconds"}, ["latency='0 seconds'", "above zero"]),
        ({"latency": 2}, ["latency=2 is not an interval", "timedelta"]),
        ({"latency": True}, ["latency=True"]),
        ({"latency": dt.timedelta(seconds=-1)}, ["latency=", "above zero"]),
        ({"refresh": 5}, ["refresh=5", "'5 minutes'"]),
    ],
)
def test_enrich_when_shedding_or_latency_is_wrong_then_one_clear_error(
    arguments: dict[str, Any], says: list[str]
) -> None:
    with pytest.raises(errors.ArgumentError) as raised:
        enriched(**arguments)
    for fragment in says:
        assert fragment in str(raised.value)


@pytest.mark.parametrize(
    ("latency", "seconds"),
    [("5 seconds", 5), ("250 milliseconds", 0.25), ("1.5 s", 1.5), (dt.timedelta(0, 7), 7)],
)
def test_enrich_when_latency_is_given_in_any_way_then_is_in_seconds(
    latency: Any, seconds: float
) -> None:
    found = enriched(latency=latency)
    assert found.pace is not None
    assert found.pace.seconds == pytest.approx(seconds)


def test_enrich_when_shedding_is_asked_for_then_is_not_part_of_the_identity() -> None:
    plain, shedding = enriched(), enriched(shed="topw", shed_to="/data/left-out", partitions=5)
    assert (plain.shedding, plain.pace) == (None, None)
    assert shedding.shedding == Shedding("topw", Path("/data/left-out"), turns=3)
    kept = enriched(shed="topw", shed_to="/data/left-out")
    assert kept.identity() == plain.identity(), "it may be changed from one run to the next"


def test_enrich_when_parquet_does_not_keep_a_column_then_shed_to_is_refused() -> None:
    odd = STREAM.append(pa.field("took", pa.list_(pa.duration("us"))))
    options = EnrichOptions("customer", columns=[], shed="keep", shed_to="/data/left-out")
    table = pa.schema([("customer", pa.string())])
    with pytest.raises(errors.ArgumentError, match=r"'took'.*cast it"):
        enrich_spec(odd, table, options, 1)
    enrich_spec(odd, table, replace(options, shed_to=None), 1)


def enriched(**arguments: Any) -> EnrichSpec:
    options = EnrichOptions([("customer", "name")], how="semi", state="/ckpt/state")
    return enrich_spec(STREAM, TABLE, replace(options, **arguments), 2)
