"""What rows in memory yield, and which relation rows are flushed from."""

import numpy as np
import pytest

from dovetail.multiway.gains import Gains, victim


def gains_of(codes: list[int], lower: float, upper: float) -> Gains:
    """Gains of rows with these codes, halved where they are now."""
    gains = Gains(found=[lower, upper])
    gains.halve(np.array(codes))
    return gains


def test_gains_when_counted_then_each_half_has_its_own() -> None:
    gains = gains_of([1, 2, 3, 4], 0.0, 0.0)
    assert gains.middle == 2
    gains.count(np.array([1, 2, 4]), None)
    gains.count(np.array([2, 3]), np.array([10, 100]))
    assert gains.found == [12.0, 101.0]
    gains.fade()
    assert 0 < gains.found[0] < 12.0
    assert gains.found[0] / gains.found[1] == pytest.approx(12 / 101)


def test_poorer_half_when_halves_are_even_then_is_the_one_that_yields_less() -> None:
    codes = np.arange(10)
    assert gains_of(codes.tolist(), 100.0, 5.0).of_poorer_half(codes) == pytest.approx(1.0)
    assert gains_of(codes.tolist(), 5.0, 100.0).of_poorer_half(codes) == pytest.approx(1.0)


def test_poorer_half_when_most_rows_have_one_code_then_is_filled_up_from_them() -> None:
    codes = np.array([0] * 8 + [7, 9])
    gains = gains_of(codes.tolist(), 80.0, 0.0)
    assert gains.middle == 0
    assert gains.of_poorer_half(codes) == pytest.approx(3 * 10 / 5), "two of none, three of ten"
    lone = np.array([4])
    assert gains_of([4], 6.0, 0.0).of_poorer_half(lone) == pytest.approx(6.0)


def test_victim_when_one_relation_yields_far_less_then_is_that_one() -> None:
    codes = [[np.arange(50)], [np.arange(60)], [np.arange(40)]]
    rich, poor = [500.0, 500.0], [900.0, 100.0]
    gains = [[gains_of(some[0].tolist(), *rich)] for some in codes]
    assert victim(codes, gains) == 1, "the largest, if none is worse"
    gains[2] = [gains_of(codes[2][0].tolist(), *poor)]
    assert victim(codes, gains) == 2


def test_victim_when_a_relation_is_small_already_then_is_left_alone() -> None:
    codes = [[np.arange(100)], [np.arange(8)]]
    gains = [[gains_of(list(range(100)), 500.0, 500.0)], [gains_of(list(range(8)), 50.0, 0.0)]]
    assert victim(codes, gains) == 0


def test_victim_when_results_are_few_then_is_the_largest() -> None:
    codes = [[np.arange(60)], [np.arange(50)]]
    gains = [[gains_of(list(range(60)), 20.0, 20.0)], [gains_of(list(range(50)), 1.0, 0.0)]]
    assert victim(codes, gains) == 0


def test_victim_when_a_relation_has_two_attributes_then_the_worse_one_tells() -> None:
    codes = [[np.arange(60)], [np.arange(50), np.arange(50)]]
    gains = [
        [gains_of(list(range(60)), 600.0, 600.0)],
        [gains_of(list(range(50)), 500.0, 500.0), gains_of(list(range(50)), 990.0, 10.0)],
    ]
    assert victim(codes, gains) == 1
