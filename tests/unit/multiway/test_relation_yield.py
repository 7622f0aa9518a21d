"""What rows in memory yield, and which relation rows are flushed from."""

from collections.abc import Sequence

import numpy as np
import pytest

from dovetail.multiway.keyindex import KeyIndex
from dovetail.multiway.miner.relation_yield import AttributeYield, victim


def index_of(codes: Sequence[int]) -> KeyIndex:
    index = KeyIndex()
    index.insert(np.array(codes), 0)
    return index


def yield_of(index: KeyIndex, lower: float, upper: float) -> AttributeYield:
    """The yield of the rows of an index, halved where they are now."""
    counted = AttributeYield(found=[lower, upper])
    counted.halve(index)
    return counted


def test_gains_when_counted_then_each_half_has_its_own() -> None:
    counted = yield_of(index_of([1, 2, 3, 4]), 0.0, 0.0)
    assert counted.middle == 2
    counted.count(np.array([1, 2, 4]), None)
    counted.count(np.array([2, 3]), np.array([10, 100]))
    assert counted.found == [12.0, 101.0]
    counted.fade()
    assert 0 < counted.found[0] < 12.0
    assert counted.found[0] / counted.found[1] == pytest.approx(12 / 101)


def test_poorer_half_when_halves_are_even_then_is_the_one_that_yields_less() -> None:
    index = index_of(range(10))
    assert yield_of(index, 100.0, 5.0).of_poorer_half(index) == pytest.approx(1.0)
    assert yield_of(index, 5.0, 100.0).of_poorer_half(index) == pytest.approx(1.0)


def test_poorer_half_when_most_rows_have_one_code_then_is_filled_up_from_them() -> None:
    index = index_of([0] * 8 + [7, 9])
    counted = yield_of(index, 80.0, 0.0)
    assert counted.middle == 0
    assert counted.of_poorer_half(index) == pytest.approx(3 * 10 / 5), "two of none, three of ten"
    lone = index_of([4])
    assert yield_of(lone, 6.0, 0.0).of_poorer_half(lone) == pytest.approx(6.0)


def test_victim_when_one_relation_yields_far_less_then_is_that_one() -> None:
    indexes = [[index_of(range(rows))] for rows in (50, 60, 40)]
    rich, poor = [500.0, 500.0], [900.0, 100.0]
    counted = [[yield_of(some[0], *rich)] for some in indexes]
    assert victim(indexes, counted) == 1, "the largest, if none is worse"
    counted[2] = [yield_of(indexes[2][0], *poor)]
    assert victim(indexes, counted) == 2


def test_victim_when_a_relation_is_small_already_then_is_left_alone() -> None:
    large, small = index_of(range(100)), index_of(range(8))
    counted = [[yield_of(large, 500.0, 500.0)], [yield_of(small, 50.0, 0.0)]]
    assert victim([[large], [small]], counted) == 0


def test_victim_when_results_are_few_then_is_the_largest() -> None:
    large, small = index_of(range(60)), index_of(range(50))
    counted = [[yield_of(large, 20.0, 20.0)], [yield_of(small, 1.0, 0.0)]]
    assert victim([[large], [small]], counted) == 0


def test_victim_when_a_relation_has_two_attributes_then_the_worse_one_tells() -> None:
    one, two = index_of(range(60)), index_of(range(50))
    counted = [
        [yield_of(one, 600.0, 600.0)],
        [yield_of(two, 500.0, 500.0), yield_of(two, 990.0, 10.0)],
    ]
    assert victim([[one], [two, two]], counted) == 1
