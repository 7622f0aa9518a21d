"""The oracles against each other, and against answers written out by hand."""

import math
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from support.arrivals import Bursts, Poll, Push, burst_script, random_script
from support.generators import (
    BAND_TYPES,
    KEY_TYPES,
    Shape,
    draw_ranks,
    join_spec,
    make_relation,
    make_relations,
)
from support.oracle import duckdb_pairs, nested_loop


def answer(left: list[Any], right: list[Any], type_: pa.DataType, within: Any = None) -> Any:
    relations = (
        pa.record_batch({"k0": pa.array(left, type_), "left_id": np.arange(len(left))}),
        pa.record_batch({"k0": pa.array(right, type_), "right_id": np.arange(len(right))}),
    )
    spec = join_spec(relations, within)
    looped, queried = nested_loop(spec, *relations), duckdb_pairs(spec, *relations)
    assert looped.tolist() == queried.tolist()
    return looped.tolist()


@pytest.mark.parametrize(
    ("left", "right", "type_", "within", "expected"),
    [
        ([None, 1], [None, 1], pa.int64(), None, [[1, 1]]),
        ([math.nan, 0.0], [math.nan, -0.0, None], pa.float64(), None, [[0, 0], [1, 1]]),
        (["", "a"], ["a", "", "A"], pa.string(), None, [[0, 1], [1, 0]]),
        ([math.nan, math.inf], [math.nan, math.inf, 1e308], pa.float64(), 1.0, []),
        ([math.inf], [5.0, math.inf], pa.float64(), math.inf, [[0, 0]]),
        ([-(2**63)], [2**63 - 1, -(2**63)], pa.int64(), 2**63 - 1, [[0, 1]]),
        ([16777216.0], [16777217.0], pa.float32(), 0.5, [[0, 0]]),
        ([Decimal("1.00")], [Decimal("1.05"), Decimal("1.06")], pa.decimal128(9, 2), 5, [[0, 0]]),
        ([date(2020, 1, 1)], [date(2020, 1, 3), date(2019, 1, 1)], pa.date32(), 2, [[0, 0]]),
        ([timedelta(0)], [timedelta(microseconds=2)], pa.duration("us"), 1, []),
    ],
)
def test_oracles_when_the_answer_is_known_then_give_it(
    left: list[Any], right: list[Any], type_: pa.DataType, within: Any, expected: Any
) -> None:
    assert answer(left, right, type_, within) == expected


@pytest.mark.parametrize("keys", [(name,) for name in KEY_TYPES] + [("int32", "string", "float64")])
def test_oracles_when_keys_are_generated_then_agree(keys: tuple[str, ...]) -> None:
    rng = np.random.default_rng(0)
    shape = Shape(150, keys, "zipf", 30, null_share=0.1, nan_share=0.1)
    relations = make_relations(rng, shape, shape)
    spec = join_spec(relations)
    expected = nested_loop(spec, *relations)
    assert len(expected) > 0
    assert np.array_equal(expected, duckdb_pairs(spec, *relations))


@pytest.mark.parametrize("key", BAND_TYPES)
@pytest.mark.parametrize("within", [0, 3])
def test_oracles_when_bands_are_generated_then_agree(key: str, within: int) -> None:
    rng = np.random.default_rng(0)
    shape = Shape(100, (key,), domain=40, null_share=0.1, nan_share=0.1)
    relations = make_relations(rng, shape, shape)
    spec = join_spec(relations, within)
    expected = nested_loop(spec, *relations)
    assert len(expected) > 0
    assert np.array_equal(expected, duckdb_pairs(spec, *relations))


def test_relation_when_made_again_from_its_seed_then_is_the_same() -> None:
    shape = Shape(50, ("string", "float32"), "zipf", 20, 0.1, 0.1, "mixed", 30)
    one, two = (make_relation(np.random.default_rng(7), shape, 0) for _ in range(2))
    assert one.serialize().equals(two.serialize())


@pytest.mark.parametrize("name", KEY_TYPES)
def test_relation_when_shares_are_asked_for_then_has_them(name: str) -> None:
    shape = Shape(2_000, (name,), null_share=0.3, nan_share=0.2, payload_bytes=100)
    batch = make_relation(np.random.default_rng(0), shape, 1)
    batch.validate(full=True)
    assert batch.schema.names == ["k0", "right_id", "right_text"]
    assert batch["k0"].type == KEY_TYPES[name]
    assert 0.25 < batch["k0"].null_count / 2_000 < 0.35
    assert 90 < np.mean([len(text) for text in batch["right_text"].to_pylist()]) < 110
    if pa.types.is_floating(batch["k0"].type):
        nans = sum(math.isnan(value) for value in batch["k0"].drop_null().to_pylist())
        assert 0.1 < nans / 2_000 < 0.2


def test_ranks_when_drawn_then_follow_their_distribution() -> None:
    rng = np.random.default_rng(0)
    assert set(draw_ranks(rng, 50, "single", 9)) == {8}
    assert draw_ranks(rng, 5, "sequential", 3).tolist() == [0, 1, 2, 0, 1]
    uniform, zipf = (
        np.bincount(draw_ranks(rng, 10_000, name, 50), minlength=50) for name in ("uniform", "zipf")
    )
    assert uniform.max() < 2 * uniform.min()
    assert zipf[0] > 2_000
    assert zipf.min() > 0


def test_scripts_when_drawn_then_push_every_row() -> None:
    rng = np.random.default_rng(0)
    for script in (random_script(rng, (70, 90)), burst_script(rng, (70, 90), Bursts(20, 10))):
        for side, rows in enumerate((70, 90)):
            pushed = sum(s.rows for s in script if isinstance(s, Push) and s.side == side)
            assert pushed >= rows
    assert any(isinstance(step, Poll) for step in script), "pauses are work time"


def test_bursts_when_drawn_then_time_goes_on_and_rows_add_up() -> None:
    events = Bursts(30, 10).events(np.random.default_rng(0), 500)
    assert sum(rows for _, rows in events) == 500
    times = [when for when, _ in events]
    assert times == sorted(times)
    gaps = np.diff(times)
    assert gaps.max() > 5 * np.median(gaps)
