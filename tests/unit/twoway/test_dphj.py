"""DPHJ from within: which bucket overflows, and what happens to rows that come for it later."""

from typing import Any

import numpy as np
import pytest

from dovetail.kernel.blocks import LOGGED
from dovetail.kernel.protocol import LEFT, RIGHT, SIDES, Status
from dovetail.kernel.shell import quietly
from dovetail.twoway.base import MIN_BUDGET_BYTES
from dovetail.twoway.rivals.dphj import BUFFER_SHARE
from support.arrivals import Finish, Poll, Push, Restore, Step


def cell_of(bench: Any, key: int) -> int:
    operator = bench.operator
    return int(operator._part_of(operator._codes(np.array([key])))[0])


def overflow(bench: Any, key: int) -> None:
    operator = bench.operator
    operator.flush_cells(SIDES, np.arange(len(operator.cells)) == cell_of(bench, key))
    quietly(operator._settle_rows())
    operator.check()


def in_another_cell(bench: Any, key: int) -> int:
    return next(k for k in range(100) if cell_of(bench, k) != cell_of(bench, key))


# -- first stage ----------------------------------------------------------------------------


def test_bucket_when_it_has_the_most_rows_then_overflows_with_both_sides(make_bench: Any) -> None:
    bench = make_bench("dphj")
    small = in_another_cell(bench, 1)
    bench.push(LEFT, [small] * 4 + [1] * 3)
    bench.push(RIGHT, [1] * 3)
    assert bench.operator._make_room()
    bench.operator.check()
    assert np.flatnonzero(bench.operator.overflown.cells).tolist() == [cell_of(bench, 1)]
    assert bench.operator.cells[cell_of(bench, 1)].disk_rows == [3, 3]
    assert bench.operator.cell_rows.sum(axis=0).tolist() == [4, 0]


def test_row_when_its_bucket_has_overflowed_then_waits_for_the_second_stage(
    make_bench: Any,
) -> None:
    bench = make_bench("dphj")
    bench.push(LEFT, [1])
    assert bench.push(RIGHT, [1]) == [(0, 0)]
    overflow(bench, 1)
    assert bench.push(LEFT, [1]) == []
    assert bench.push(RIGHT, [1]) == [], "marked rows are not joined with each other, either"
    assert bench.operator.cell_rows.sum() == 0
    assert bench.operator.marked_rows.sum() == 2
    assert sorted(bench.complete()) == [(0, 1), (1, 0), (1, 1)]
    assert bench.phases == {"arriving": 1, "cleanup": 3}


def test_row_when_another_bucket_has_overflowed_then_is_joined_as_before(make_bench: Any) -> None:
    bench = make_bench("dphj")
    other = in_another_cell(bench, 1)
    bench.push(LEFT, [1, other])
    overflow(bench, 1)
    assert bench.push(RIGHT, [other, 1]) == [(1, 0)]
    bench.complete()
    bench.assert_each_pair_once()


def test_pair_when_neither_row_is_marked_then_never_comes_again(make_bench: Any) -> None:
    bench = make_bench("dphj")
    bench.push(LEFT, [1, 1])
    bench.push(RIGHT, [1, 1])
    overflow(bench, 1)
    assert bench.complete() == []
    assert bench.operator.ctx.counters.bytes_read == 0, "the ticks tell without a look"


def test_marked_rows_when_they_are_few_then_stay_until_there_are_more(make_bench: Any) -> None:
    bench = make_bench("dphj", payload_bytes=100)
    other = in_another_cell(bench, 1)
    bench.push(LEFT, [1])
    overflow(bench, 1)
    bench.push(LEFT, [1])
    bench.push(RIGHT, [other] * 30)
    operator = bench.operator
    marked = operator.memory[LEFT].marked.nbytes
    assert marked < BUFFER_SHARE * operator._held_bytes()
    operator._make_room()
    assert operator.marked_rows.sum() == 1
    assert operator.overflown.cells.sum() == 2, "a bucket goes instead"
    operator._make_room()
    assert operator.marked_rows.sum() == 0, "nothing else is left in memory"
    assert not operator._make_room()
    operator.check()


@pytest.mark.parametrize("restored", [False, True], ids=["", "restored"])
def test_marked_rows_when_written_then_meet_all_that_they_missed(
    make_bench: Any, restored: bool
) -> None:
    """Old rows, and rows of several fillings of the buffer, in all combinations."""
    bench = make_bench("dphj")
    for side in SIDES:
        bench.push(side, [1])
    overflow(bench, 1)
    for _ in range(3):
        for side in SIDES:
            bench.push(side, [1, 1])
        if restored:
            bench.restore()
        bench.operator._write_marked()
        bench.operator.check()
    bench.push(LEFT, [1])
    bench.complete()
    bench.assert_each_pair_once()


def test_bucket_when_it_has_overflowed_then_never_comes_back(make_bench: Any) -> None:
    bench = make_bench("dphj", budget=MIN_BUDGET_BYTES, payload_bytes=300)
    keys = np.random.default_rng(0).integers(0, 40, (2, 150))
    before = 0
    for start in range(0, 150, 10):
        for side in SIDES:
            bench.push(side, keys[side][start : start + 10])
        now = int(bench.operator.overflown.cells.sum())
        assert now >= before
        before = now
        bench.restore()
        assert bench.operator.overflown.cells.sum() == now
    assert before > 1
    bench.complete()
    bench.assert_each_pair_once()


# -- second stage ---------------------------------------------------------------------------


def test_poll_when_inputs_have_not_ended_then_does_nothing(make_bench: Any) -> None:
    bench = make_bench("dphj")
    bench.push(LEFT, [1])
    overflow(bench, 1)
    bench.push(RIGHT, [1])
    assert bench.operator.pending() > 0
    assert bench.poll() == []
    assert bench.operator.status() is Status.IDLE
    assert bench.operator.ctx.counters.bytes_read == 0


def test_second_stage_when_inputs_re_open_then_joins_only_what_is_new(make_bench: Any) -> None:
    bench = make_bench("dphj")
    for side in SIDES:
        bench.push(side, [1])
    overflow(bench, 1)
    for number in range(4):
        for side in SIDES:
            bench.push(side, [1])
        bench.complete()
        bench.assert_each_pair_once()
        if number % 2:
            bench.restore()


def test_second_stage_when_marked_rows_have_nobody_to_meet_then_they_are_not_written(
    make_bench: Any,
) -> None:
    bench = make_bench("dphj")
    bench.push(LEFT, [1])
    overflow(bench, 1)
    written = bench.operator.ctx.counters.blocks_written
    bench.push(LEFT, [1])
    assert bench.complete() == []
    assert bench.operator.ctx.counters.blocks_written == written


def test_join_when_interrupted_after_every_block_then_emits_each_pair_once(
    run_interrupted: Any,
) -> None:
    """Fuel for one block at a time, and another operator goes on after each."""
    script: list[Step] = [Push(LEFT, 7), Push(RIGHT, 7)] * 8 + [Finish(LEFT), Finish(RIGHT)]
    script += [Poll(1), Restore()] * 10
    script += [Push(LEFT, 7), Push(RIGHT, 7), Finish(LEFT), Finish(RIGHT)]
    script += [Poll(1), Restore()] * 60
    outcome = run_interrupted("dphj", script)
    assert set(outcome.rows_out) == {"arriving", "cleanup"}
    assert outcome.events["interrupted cleanups"] > 5


def test_snapshot_when_marked_rows_are_in_memory_then_they_come_back_apart(
    make_bench: Any,
) -> None:
    bench = make_bench("dphj")
    other = in_another_cell(bench, 1)
    bench.push(LEFT, [1, other])
    overflow(bench, 1)
    bench.push(LEFT, [1, other, 1])
    snapshot = bench.operator.snapshot()
    assert (snapshot.blocks["kind"] < LOGGED).sum() == 3
    bench.restore()
    assert bench.operator.marked_rows.sum() == 2
    assert bench.operator.cell_rows.sum() == 2
    assert bench.push(RIGHT, [other, 1]) == [(1, 0), (3, 0)]
    bench.complete()
    bench.assert_each_pair_once()
