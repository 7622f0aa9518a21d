"""PMJ from within: when it joins, what it writes, and how its runs are merged."""

from typing import Any

import numpy as np
import pytest

from dovetail.kernel.protocol import LEFT, RIGHT, SIDES, Status
from dovetail.twoway.base import MIN_BUDGET_BYTES
from dovetail.twoway.rivals.merging import Merge, Merger
from dovetail.twoway.rivals.windows import Task
from support.arrivals import Finish, Poll, Push, Restore, Step


def segments_of(bench: Any) -> list[Any]:
    segments: list[Any] = bench.segments(0)
    return segments


def fill(bench: Any, rounds: int, rng: np.random.Generator, domain: int = 40) -> None:
    for _ in range(rounds):
        for side in SIDES:
            bench.push(side, rng.integers(0, domain, 10))


# -- arriving -------------------------------------------------------------------------------


def test_rows_when_memory_is_not_full_then_are_not_joined_before_the_end(make_bench: Any) -> None:
    bench = make_bench("pmj")
    bench.push(LEFT, [1, 2])
    assert bench.push(RIGHT, [2, 1]) == []
    assert bench.operator.pending() == 4
    assert bench.poll() == [], "silence is not the end"
    assert bench.operator.status() is Status.IDLE
    assert sorted(bench.complete()) == [(0, 1), (1, 0)]
    assert bench.phases == {"cleanup": 2}
    assert bench.operator.ctx.counters.blocks_written == 0, "all of it fitted in memory"


def test_rows_when_memory_is_full_then_are_joined_and_written_as_one_segment(
    make_bench: Any,
) -> None:
    bench = make_bench("pmj", budget=MIN_BUDGET_BYTES, payload_bytes=300)
    rng = np.random.default_rng(0)
    found: list[tuple[int, int]] = []
    while not found:
        before = [len(keys) for keys in bench.keys]
        for side in SIDES:
            keys = rng.integers(0, 40, 10)
            found += bench.push(side, keys)
    (segment,) = segments_of(bench)
    written = [segment.rows[side] for side in SIDES]
    assert all(rows in (n, n + 10) for rows, n in zip(written, before, strict=True))
    left, right = (bench.keys[side][: written[side]] for side in SIDES)
    expected = [(i, j) for i, a in enumerate(left) for j, b in enumerate(right) if a == b]
    assert sorted(found) == expected, "the pairs of this filling of memory, all of them"


def test_memory_when_joined_at_the_end_and_re_opened_then_old_pairs_do_not_come_again(
    make_bench: Any,
) -> None:
    bench = make_bench("pmj")
    for number in range(4):
        for side in SIDES:
            bench.push(side, [1, 2])
        bench.complete()
        bench.assert_each_pair_once()
        if number % 2:
            bench.restore()


@pytest.mark.parametrize("ended_before", [False, True])
def test_restore_when_rows_must_go_before_they_were_joined_then_the_merge_joins_them(
    make_bench: Any, ended_before: bool
) -> None:
    """The budget shrinks, and there is nobody to take the results that a join would bring."""
    bench = make_bench("pmj", payload_bytes=400)
    fill(bench, 8, np.random.default_rng(0))
    if ended_before:
        bench.complete()
        fill(bench, 4, np.random.default_rng(1))
    bench.restore(budget=MIN_BUDGET_BYTES)
    assert bench.operator.ctx.counters.flushed_rows > 0
    assert len({segment.group for segment in segments_of(bench)}) == (3 if ended_before else 2)
    fill(bench, 6, np.random.default_rng(2))
    bench.complete()
    bench.assert_each_pair_once()


# -- merging --------------------------------------------------------------------------------


@pytest.mark.parametrize("fan_in", [2, 3, 5])
@pytest.mark.parametrize("count", [1, 2, 3, 5, 6, 9, 12])
def test_merge_when_fan_in_is_given_then_takes_no_more_and_the_last_writes_nothing(
    make_bench: Any, monkeypatch: pytest.MonkeyPatch, fan_in: int, count: int
) -> None:
    bench = make_bench("pmj")
    found: list[tuple[int, int]] = []
    rng = np.random.default_rng(count)
    for _ in range(count):
        fill(bench, 2, rng)
        # what a full memory does
        for out in bench.operator._reclaim(0):
            ids = (out[name].to_pylist() for name in ("left_id", "right_id"))
            found += zip(*ids, strict=True)
    merger = bench.operator.merger
    merger._asked_fan_in = fan_in
    widths: list[tuple[int, bool]] = []
    begin = merger.begin

    def watch(part: int) -> None:
        begin(part)
        widths.append((len(merger.merge.inputs), merger.merge.output is not None))

    monkeypatch.setattr(merger, "begin", watch)
    bench.complete()
    assert sorted(found + bench.found) == bench.expected()
    assert len(segments_of(bench)) == min(count, fan_in)
    if count == 1:
        assert widths == []
        return
    assert all(width <= fan_in for width, _ in widths)
    assert [written for _, written in widths] == [True] * (len(widths) - 1) + [False]
    assert all(width == fan_in for width, _ in widths[1:]), "only the first may be narrow"
    assert sum(width - 1 for width, written in widths if written) == max(0, count - fan_in)


def test_merge_when_written_then_gives_the_catalogue_back_and_keeps_every_row(
    make_bench: Any,
) -> None:
    bench = make_bench("pmj")
    bench.operator.merger._asked_fan_in = 2
    fill(bench, 20, np.random.default_rng(0))
    for _ in range(5):
        fill(bench, 1, np.random.default_rng(1))
        bench.operator._make_room()
    bench.complete()
    operator = bench.operator
    for side, name in enumerate(("left_id", "right_id")):
        ids: list[int] = []
        for segment in segments_of(bench):
            for block in segment.blocks[side]:
                ids += operator.ctx.store.read(block).rows[name].to_pylist()
        assert sorted(ids) == list(range(len(bench.keys[side])))
    assert operator.ctx.budget.components["catalogue"] == operator._pages.tail_bytes


def test_merge_when_inputs_re_open_midway_then_goes_on_when_they_have_ended_again(
    make_bench: Any,
) -> None:
    bench = make_bench("pmj", budget=MIN_BUDGET_BYTES, payload_bytes=300)
    rng = np.random.default_rng(0)
    fill(bench, 15, rng)
    interrupted = 0
    while bench.operator.status() is not Status.DONE:
        bench.finish()
        bench.poll(1)
        if bench.operator.merger.merge is not None and len(bench.keys[LEFT]) < 250:
            interrupted += 1
            begun = bench.operator.merger.merge
            fill(bench, 1, rng)
            bench.restore()
            assert bench.operator.merger.merge == begun
            bench.poll(1)
            assert bench.operator.merger.merge == begun, "an open input has it wait"
    assert interrupted > 5
    bench.assert_each_pair_once()


def test_merge_when_one_code_fills_more_than_a_window_then_its_rows_are_copied(
    make_bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make_bench("pmj", budget=MIN_BUDGET_BYTES, payload_bytes=1_800)
    copied: list[int] = []
    copy = Merger._copy

    def watch(merger: Merger, at: Merge, task: Task) -> None:
        copied.append(task.side)
        copy(merger, at, task)

    monkeypatch.setattr(Merger, "_copy", watch)
    for _ in range(9):
        bench.push(LEFT, [3, 7, 7, 7, 7])
        bench.push(RIGHT, [7, 7, 9])
    assert len(segments_of(bench)) > bench.operator.merger.fan_in
    bench.finish()
    polls = 0
    while bench.operator.status() is not Status.DONE:
        bench.poll(1)
        polls += 1
        if polls % 4 == 0:
            bench.restore()
    bench.assert_each_pair_once()
    assert set(copied) == set(SIDES)


@pytest.mark.parametrize("within", [1, 10, 10_000])
def test_band_join_when_merged_in_windows_then_emits_each_pair_once(
    make_bench: Any, within: int
) -> None:
    """Rows within reach of each other lie in different windows, blocks and segments."""
    bench = make_bench("pmj", budget=MIN_BUDGET_BYTES, payload_bytes=1_800, within=within)
    rng = np.random.default_rng(0)
    for _ in range(7):
        for side in SIDES:
            bench.push(side, rng.integers(-50, 50, 5))
    assert len(segments_of(bench)) > 2
    bench.finish()
    while bench.operator.status() is not Status.DONE:
        bench.poll(200)
        bench.restore()
    bench.assert_each_pair_once()


def test_join_when_interrupted_after_every_block_then_emits_each_pair_once(
    run_interrupted: Any,
) -> None:
    """Fuel for one block at a time, and another operator goes on after each."""
    script: list[Step] = [Push(LEFT, 7), Push(RIGHT, 7)] * 10 + [Finish(LEFT), Finish(RIGHT)]
    script += [Poll(1), Restore()] * 120
    outcome = run_interrupted("pmj", script)
    assert set(outcome.rows_out) == {"arriving", "cleanup"}
    assert outcome.events["interrupted cleanups"] > 20
