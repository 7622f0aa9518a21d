"""HMJ from within: which partition is flushed and why, and what merging makes of the segments."""

from typing import Any

import numpy as np
import pytest

from dovetail.kernel.protocol import LEFT, RIGHT, SIDES, Status
from dovetail.twoway.base import MIN_BUDGET_BYTES
from dovetail.twoway.rivals.hmj import adaptive_victim
from support.arrivals import Finish, Poll, Push, Restore, Step

# -- Adaptive Flushing ----------------------------------------------------------------------


def test_victim_when_all_leave_a_balance_then_is_the_largest_pair() -> None:
    assert adaptive_victim(np.array([[5, 5], [9, 9], [6, 6], [4, 4]])) == 1


def test_victim_when_the_largest_would_upset_the_balance_then_is_a_smaller_pair() -> None:
    """Without partition 1 the left side would have 45 rows and the right one 19."""
    assert adaptive_victim(np.array([[20, 8], [8, 26], [13, 5], [12, 6]])) == 0


def test_victim_when_memory_is_out_of_balance_then_is_the_pair_that_mends_most_of_it() -> None:
    assert adaptive_victim(np.array([[9, 2], [30, 2], [20, 2], [14, 2]])) == 1


def test_victim_when_one_side_of_the_largest_is_tiny_then_is_one_with_enough_on_both() -> None:
    assert adaptive_victim(np.array([[11, 0], [5, 5], [0, 11], [4, 4]])) == 1


def test_victim_when_no_pair_has_enough_on_both_sides_then_small_ones_may_go() -> None:
    assert adaptive_victim(np.array([[7, 0], [0, 0], [9, 0], [0, 8]])) in (0, 2)


def test_victim_when_drawn_at_random_then_is_what_the_policy_says() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        rows = rng.poisson(rng.choice([1, 5, 40]), (int(rng.choice([4, 8, 32])), 2))
        if rows.any():
            assert adaptive_victim(rows) == _by_the_book(rows.tolist()), rows.tolist()


def _by_the_book(rows: list[list[int]]) -> int:
    """The policy once more, partition by partition."""
    mean = sum(map(sum, rows)) / len(rows)
    left, right = (sum(pair[side] for pair in rows) for side in SIDES)
    pairs = [number for number, pair in enumerate(rows) if min(pair) >= mean / 8 and sum(pair)]
    pairs = pairs or [number for number, pair in enumerate(rows) if sum(pair)]

    def left_over(number: int) -> int:
        return abs((left - rows[number][LEFT]) - (right - rows[number][RIGHT]))

    balanced = [number for number in pairs if left_over(number) <= mean]
    if balanced:
        return min(balanced, key=lambda number: (-sum(rows[number]), number))
    return min(pairs, key=lambda number: (left_over(number), number))


# -- flushes and segments -------------------------------------------------------------------


def flush_all(bench: Any) -> None:
    operator = bench.operator
    operator.flush_cells(SIDES, np.ones(len(operator.cells), dtype=bool))
    operator.check()


def cell_of(bench: Any, key: int) -> int:
    operator = bench.operator
    return int(operator._part_of(operator._codes(np.array([key])))[0])


def test_flush_when_memory_is_exhausted_then_takes_both_sides_at_one_tick(make_bench: Any) -> None:
    bench = make_bench("hmj", budget=MIN_BUDGET_BYTES, payload_bytes=300)
    keys = np.random.default_rng(0).integers(0, 30, (2, 120))
    for start in range(0, 120, 10):
        for side in SIDES:
            bench.push(side, keys[side][start : start + 10])
    segments = [s for part in bench.operator.merger.parts for s in bench.segments(part)]
    assert bench.operator.ctx.counters.flushed_rows > 0
    assert sum(1 for s in segments if s.rows[LEFT] and s.rows[RIGHT]) > len(segments) / 2
    assert len({s.group for s in segments}) > 2
    for segment in segments:
        for side in SIDES:
            blocks = segment.blocks[side]
            assert (blocks["dts"] == segment.number).all()
            codes = [operator_codes(bench, block) for block in blocks]
            if codes:
                assert (np.diff(np.concatenate(codes)) >= 0).all(), "a segment is sorted"
    bench.complete()
    bench.assert_each_pair_once()


def operator_codes(bench: Any, block: np.void) -> np.ndarray[Any, Any]:
    codes: np.ndarray[Any, Any] = bench.operator.ctx.store.read(block).codes
    return codes


def test_pair_when_flushed_together_then_never_comes_again(make_bench: Any) -> None:
    bench = make_bench("hmj")
    bench.push(LEFT, [1, 2])
    assert sorted(bench.push(RIGHT, [1, 2])) == [(0, 0), (1, 1)]
    flush_all(bench)
    assert bench.poll() == []
    assert bench.complete() == []
    assert bench.operator.ctx.counters.blocks_read == 0, "nothing is left to be merged"


def test_merging_when_inputs_are_silent_then_joins_rows_of_different_flushes(
    make_bench: Any,
) -> None:
    bench = make_bench("hmj")
    bench.push(LEFT, [1, 2])
    flush_all(bench)
    bench.push(RIGHT, [1, 3])
    flush_all(bench)
    assert bench.poll() == [(0, 0)]
    assert bench.phases == {"reactive": 1}
    assert bench.operator.status() is Status.IDLE
    assert bench.complete() == []


def test_cleanup_when_rows_are_left_in_memory_then_joins_them_with_the_disk(
    make_bench: Any,
) -> None:
    bench = make_bench("hmj")
    bench.push(LEFT, [1, 2])
    flush_all(bench)
    bench.push(RIGHT, [2, 3])
    assert bench.poll() == [], "rows in memory wait for the end"
    assert bench.operator.pending() > 0
    assert bench.complete() == [(1, 0)]
    assert bench.phases == {"cleanup": 1}


def test_cleanup_when_no_part_is_on_disk_then_flushes_nothing(make_bench: Any) -> None:
    bench = make_bench("hmj")
    bench.push(LEFT, range(50))
    bench.push(RIGHT, range(50))
    bench.complete()
    assert bench.operator.ctx.counters.blocks_written == 0


def test_merge_when_there_are_more_segments_than_the_fan_in_then_writes_fewer(
    make_bench: Any,
) -> None:
    bench = make_bench("hmj")
    bench.operator.merger._asked_fan_in = 3
    for _ in range(8):
        for side in SIDES:
            bench.push(side, [7, 7])
        flush_all(bench)
    held = bench.operator._catalogue.nbytes
    assert len(bench.operator.merger.parts[cell_of(bench, 7)]) == 8
    bench.poll()
    bench.assert_each_pair_once()
    segments = bench.segments(cell_of(bench, 7))
    assert len(segments) == 3
    assert len({segment.group for segment in segments}) == 1, "all of them have met"
    assert sum(segment.rows[LEFT] for segment in segments) == 16
    assert bench.operator._catalogue.nbytes < held


@pytest.mark.parametrize("restored", [False, True], ids=["", "restored"])
def test_merge_when_inputs_re_open_again_and_again_then_joins_only_what_is_new(
    make_bench: Any, restored: bool
) -> None:
    """Groups of several segments meet new ones, and have to be merged among themselves."""
    bench = make_bench("hmj")
    for _ in range(9):
        bench.operator.merger._asked_fan_in = 3
        for side in SIDES:
            bench.push(side, [1, 2, 3])
            flush_all(bench)
        bench.complete()
        bench.assert_each_pair_once()
        if restored:
            bench.restore()


def test_segments_when_a_merge_is_left_midway_then_new_ones_wait_for_the_next(
    make_bench: Any,
) -> None:
    bench = make_bench("hmj")
    for _ in range(3):
        bench.push(LEFT, [5])
        flush_all(bench)
        bench.push(RIGHT, [5])
        flush_all(bench)
    while not bench.poll(1):
        pass
    inputs = list(bench.operator.merger.merge.inputs)
    bench.push(LEFT, [5])
    flush_all(bench)
    assert bench.operator.merger.merge.inputs == inputs
    bench.restore()
    assert bench.operator.merger.merge.inputs == inputs
    bench.complete()
    bench.assert_each_pair_once()


# -- interruptions --------------------------------------------------------------------------


def test_join_when_interrupted_after_every_block_then_emits_each_pair_once(
    run_interrupted: Any,
) -> None:
    """Fuel for one block at a time, and another operator goes on after each."""
    script: list[Step] = [Push(LEFT, 7), Push(RIGHT, 7)] * 10
    script += [Poll(1), Restore()] * 60 + [Finish(LEFT), Finish(RIGHT)]
    script += [Poll(1), Restore()] * 60
    outcome = run_interrupted("hmj", script)
    assert outcome.rows_out["reactive"] > 0
    assert outcome.events["interrupted cleanups"] > 10


def test_restore_when_the_budget_is_smaller_now_then_flushes_and_goes_on(make_bench: Any) -> None:
    bench = make_bench("hmj", payload_bytes=400)
    keys = np.random.default_rng(0).integers(0, 50, (2, 200))
    bench.push(LEFT, keys[LEFT])
    bench.push(RIGHT, keys[RIGHT][:100])
    bench.restore(budget=MIN_BUDGET_BYTES)
    assert bench.operator.ctx.counters.flushed_rows > 0
    for start in range(100, 200, 10):
        bench.push(RIGHT, keys[RIGHT][start : start + 10])
    bench.complete()
    bench.assert_each_pair_once()
