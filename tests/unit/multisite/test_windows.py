"""Constraint 3 by time and by count, and what may leave a window."""

import numpy as np
import pytest

from dovetail.errors import ArgumentError
from dovetail.multisite.windows import CountWindow, TimeWindow


def test_time_window_when_limited_then_includes_the_lower_end_and_not_the_head() -> None:
    times = np.array([4, 5, 104, 105, 110])
    heads = np.full(5, 105)
    within = TimeWindow(100).limit(heads, times, ties=False)
    assert within.tolist() == [False, True, True, False, False]  # [5, 105), Fig. 1(b)


def test_time_window_when_times_are_equal_then_the_lower_rank_comes_first() -> None:
    one = np.array([105])
    assert TimeWindow(100).limit(one, one, ties=True).all()
    assert not TimeWindow(100).limit(one, one, ties=False).any()


def test_count_window_when_limited_then_has_the_last_rows_before_the_head() -> None:
    window = CountWindow(2)
    clock = np.array([1, 3, 3, 7])
    before = window.before(np.array([3, 8]), clock, ties=False)
    assert before.tolist() == [1, 4]
    assert window.before(np.array([3]), clock, ties=True).tolist() == [3]
    numbers = np.arange(4)
    assert window.limit(np.full(4, before[1]), numbers).tolist() == [False, False, True, True]


def test_first_needed_when_an_interval_is_settled_then_keeps_what_later_heads_meet() -> None:
    times = np.array([0, 10, 20, 30])
    assert TimeWindow(15).first_needed(times, 30) == 2  # a head at 30 meets 15 and later
    assert TimeWindow(20).first_needed(times, 30) == 1
    assert CountWindow(2).first_needed(times, 30) == 1  # a head at 30 meets 10 and 20
    assert CountWindow(9).first_needed(times, 30) == 0


@pytest.mark.parametrize("make", [lambda: TimeWindow(-1), lambda: CountWindow(0)])
def test_window_when_its_size_is_impossible_then_refuses(make) -> None:
    with pytest.raises(ArgumentError, match="must"):
        make()
