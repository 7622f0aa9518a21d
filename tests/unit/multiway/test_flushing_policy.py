"""MINER's choice of rows to flush, and the order in which relations are probed."""

import numpy as np
import pyarrow as pa
import pytest

from dovetail.kernel.keys import Codes
from dovetail.multiway import multiway_spec
from dovetail.multiway.keyindex import KeyIndex
from dovetail.multiway.miner.areas import LOWER, MIDDLE, MOST, UPPER, Areas
from dovetail.multiway.miner.flushing import move_bounds, slots_to_flush
from dovetail.multiway.probing import ProbeOrder
from dovetail.multiway.rows import Encoder, RelationRows

SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.int64()), ("c", pa.int64())])
SPEC = multiway_spec(
    {f"r{i}": SCHEMA for i in range(1, 5)}, [("r1.a", "r2.a"), ("r2.b", "r3.b"), ("r3.c", "r4.c")]
)


def table_of(a: list[int], b: list[int], ats: list[int] | None = None) -> RelationRows:
    """The second relation, which has two join attributes."""
    encoder = Encoder(SPEC, 1)
    table = RelationRows(encoder, 1 << 20)
    rows = pa.record_batch([a, b, np.zeros(len(a), dtype=np.int64)], SCHEMA)
    codes, _ = encoder.encode(rows)
    ticks = np.array(ats or [0] * len(a))
    table.insert(codes, ticks, rows, np.zeros(len(a), dtype=np.bool_))
    return table


def index_of(codes: Codes) -> KeyIndex:
    index = KeyIndex()
    index.insert(codes, 0)
    return index


def areas_of(
    table: RelationRows, bounds: list[tuple[int, int]], joins: list[list[int]]
) -> list[Areas]:
    found = []
    for codes, (lower, upper), counted in zip(table.codes, bounds, joins, strict=True):
        known = Areas(lower, upper, joins=counted)
        known.rows = known.count(codes)
        found.append(known)
    return found


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_choose_when_the_worst_area_is_of_the_second_attribute_then_takes_its_outermost() -> None:
    table = table_of(list(range(10)), [9, 8, 7, 6, 5, 4, 3, 2, 1, 0])
    areas = areas_of(table, [(2, 7), (2, 7)], [[9, 9, 9], [9, 9, 1]])
    slots, taken = slots_to_flush(table, areas, 2, rng(), tie_breaks=False)
    assert taken == [(1, UPPER)]
    assert table.codes[1].take(slots).tolist() == [8, 9], "in the order of the attribute"
    assert slots.tolist() == [1, 0]


def test_flush_when_rows_leave_then_the_areas_of_the_other_attribute_lose_them_too() -> None:
    table = table_of(list(range(10)), [9, 8, 7, 6, 5, 4, 3, 2, 1, 0])
    areas = areas_of(table, [(2, 7), (2, 7)], [[9, 9, 9], [9, 9, 1]])
    assert areas[0].rows == [3, 4, 3]
    slots, taken = slots_to_flush(table, areas, 2, rng(), tie_breaks=False)
    table.remove(slots)
    move_bounds(table, areas, taken, 2)
    assert areas[0].rows == [1, 4, 3], "codes 0 and 1 have gone from its lower area"
    assert areas[1].upper == 6, "its upper area holds two rows again: 6 and 7"
    assert areas[1].rows == [3, 3, 2]


def test_choose_when_an_area_cannot_fill_the_block_then_the_next_worst_follows() -> None:
    table = table_of(list(range(10)), [5] * 10)
    areas = areas_of(table, [(1, 8), (4, 6)], [[0, 9, 1], [0, 50, 0]])
    slots, taken = slots_to_flush(table, areas, 3, rng(), tie_breaks=False)
    assert taken == [(0, LOWER), (0, UPPER)]
    assert sorted(table.codes[0].take(slots).tolist()) == [0, 1, 9]


def test_choose_when_benefits_are_the_same_then_upper_goes_first_or_ties_are_broken() -> None:
    values = [3, 4, 5, 6, 0, 1, 2, 7, 8, 9]
    table = table_of(values, values, [1, 1, 1, 1, 5, 5, 5, 9, 9, 9])
    areas = areas_of(table, [(2, 7), (2, 7)], [[0, 0, 0], [3, 4, 3]])
    assert slots_to_flush(table, areas, 2, rng(), tie_breaks=False)[1] == [(0, UPPER)]
    assert slots_to_flush(table, areas, 2, rng(), tie_breaks=True)[1] == [(0, MIDDLE)], "the oldest"
    areas[0].partial = [1, 9, 2]
    assert slots_to_flush(table, areas, 2, rng(), tie_breaks=True)[1] == [(0, LOWER)], (
        "fewest matches"
    )


def test_choose_when_bounds_are_not_set_then_takes_from_all_and_sets_both_of_all() -> None:
    table = table_of(list(range(10)), list(range(100, 110)))
    areas = [Areas(), Areas()]
    for known, codes in zip(areas, table.codes, strict=True):
        known.arrived(codes)
    slots, taken = slots_to_flush(table, areas, 4, rng(), tie_breaks=False)
    assert taken == [(0, MIDDLE)]
    assert len(slots) == 4
    table.remove(slots)
    move_bounds(table, areas, taken, 2)
    for known, codes in zip(areas, table.codes, strict=True):
        known.check(codes)
        assert known.rows == [2, 2, 2]


def test_hand_when_bits_are_set_then_passes_them_once_and_clears_them() -> None:
    table = table_of(list(range(10)), [5] * 10)
    areas = areas_of(table, [(-1, 10), (4, 6)], [[0, 0, 0], [0, 50, 0]])
    areas[0].hand = 3
    table.bits[[3, 4, 6]] = True
    slots, _ = slots_to_flush(table, areas, 2, rng(), tie_breaks=False)
    assert slots.tolist() == [5, 7]
    assert table.bits.tolist() == [False] * 10
    assert areas[0].hand == 7


def test_hand_when_all_bits_are_set_then_goes_round_and_takes_from_the_start() -> None:
    table = table_of(list(range(6)), [5] * 6)
    areas = areas_of(table, [(-1, 10), (4, 6)], [[0, 0, 0], [0, 50, 0]])
    areas[0].hand = 4
    table.bits[:] = True
    slots, _ = slots_to_flush(table, areas, 3, rng(), tie_breaks=False)
    assert sorted(slots.tolist()) == [0, 4, 5]


@pytest.mark.parametrize("value", [0, MOST, -MOST - 1])
def test_areas_when_all_codes_are_the_same_then_one_area_holds_them_all(value: int) -> None:
    codes: Codes = np.full(20, value)
    areas = Areas()
    areas.move(index_of(codes), 5, [])
    areas.check(codes)
    assert sorted(areas.rows) == [0, 0, 20]


def test_carry_when_bounds_move_then_both_areas_are_small_and_statistics_stay_with_rows() -> None:
    codes: Codes = np.arange(100)
    areas = Areas(49, 90, joins=[500, 40, 0], partial=[100, 40, 10])
    areas.rows = areas.count(codes)
    areas.carry(index_of(codes), 10, areas.densities())
    areas.check(codes)
    assert (areas.lower, areas.upper) == (9, 90)
    assert areas.rows == [10, 80, 10]
    assert areas.joins == [100, 440, 0], "40 rows went over with ten each"
    assert areas.partial == [20, 120, 10]


def test_carry_when_rows_have_left_then_the_next_ones_bring_what_they_have() -> None:
    codes: Codes = np.arange(100)
    areas = Areas(9, 90, joins=[500, 80, 0])
    areas.rows = areas.count(codes)
    known, left = areas.densities(), codes[:90]
    areas.carry(index_of(left), 10, known)
    areas.check(left)
    assert areas.joins == [500, 70, 10], "the upper area has rows of the middle one now"


def test_carry_when_there_were_no_bounds_then_sets_them() -> None:
    codes: Codes = np.arange(20)
    areas = Areas(joins=[0, 9, 0])
    areas.arrived(codes)
    areas.carry(index_of(codes), 5, areas.densities())
    assert areas.rows == [5, 10, 5]
    assert areas.joins == [0, 0, 0]


# -- probing --------------------------------------------------------------------------------


def test_plan_when_selectivities_are_known_then_follows_them_as_in_the_paper() -> None:
    order = ProbeOrder(SPEC)
    order.found([20, 10, 30])  # sigma(R2,R3) <= sigma(R1,R2) <= sigma(R3,R4)
    rows = [100, 100, 100, 100]
    assert [reach.child for reach in order.plan(1, rows)] == [2, 0, 3]
    assert [reach.child for reach in order.plan(0, rows)] == [1, 2, 3]
    assert [reach.child for reach in order.plan(3, rows)] == [2, 1, 0]


def test_plan_when_relations_differ_in_size_then_factors_are_per_pair_of_rows() -> None:
    order = ProbeOrder(SPEC)
    order.found([20, 30, 0])
    assert order.factors([10, 10, 100, 10]) == [0.2, 0.03, 0.0]
    assert [reach.child for reach in order.plan(1, [10, 10, 100, 10])] == [2, 3, 0]


def test_plan_when_flushed_since_then_keeps_the_factors_until_it_knows_better() -> None:
    order = ProbeOrder(SPEC)
    order.found([1, 4, 9])
    order.flushed([10, 10, 10, 10])
    assert order.factors([5, 5, 5, 5]) == [0.01, 0.04, 0.09]
    order.found([0, 1, 0])
    assert order.factors([5, 5, 5, 5]) == [0.01, 0.04, 0.09]
    restored = ProbeOrder(SPEC)
    restored.restore(order.facts())
    assert restored.edges == order.edges
