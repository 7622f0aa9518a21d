"""The rows that wait for Seek: who joins a sweep under way, and when memory is given back."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from dovetail.kernel.memory import Budget, Reservation
from dovetail.kernel.runs import Run
from dovetail.semistream.seek.operator import Seek
from dovetail.semistream.seek.sweep import Sweep
from support.semistream import Bench

MakeBench = Callable[..., Bench]
TABLE = list(range(4_000))


def run_of(codes: list[int], text: str = "x") -> Run:
    rows = pa.record_batch({"code": codes, "text": [text * code for code in codes]})
    return Run(np.array(codes), np.arange(len(codes)), rows)


@pytest.fixture
def sweep() -> Sweep:
    return Sweep(Reservation(Budget(1 << 30), "window"))


def add(sweep: Sweep, codes: list[int]) -> None:
    run = run_of(codes)
    sweep._window.grow(run.nbytes)
    sweep.add(run)
    sweep.check()


def settle(sweep: Sweep, most: int) -> list[int]:
    """The next piece."""
    heads, cut = sweep.heads(most)
    sweep.settle([len(head) for head in heads], cut)
    sweep.check()
    return sorted(int(code) for head in heads for code in head)


def test_rows_when_they_lie_ahead_then_join_the_sweep_and_others_wait_for_the_next(
    sweep: Sweep,
) -> None:
    add(sweep, [1, 3, 5, 7, 9])
    assert settle(sweep, 2) == [1, 3]
    add(sweep, [2, 3, 4, 8])  # 3 has been passed
    assert settle(sweep, 2) == [4, 5, 7]
    assert settle(sweep, 2) == [8, 9]
    assert sweep.position is None  # the next sweep begins
    assert settle(sweep, 2) == [2, 3]
    assert len(sweep) == 0


def test_code_when_a_piece_ends_amid_its_rows_then_the_others_are_next(sweep: Sweep) -> None:
    add(sweep, [1, 5, 5, 5, 5, 9])
    add(sweep, [5, 7])
    assert settle(sweep, 3) == [1, 5, 5, 5]
    add(sweep, [5, 6])
    assert settle(sweep, 3) == [5, 5, 6, 7, 9]
    assert settle(sweep, 3) == [5]


def test_memory_when_rows_are_settled_then_is_given_back_before_their_run_is_done(
    sweep: Sweep,
) -> None:
    add(sweep, list(range(100)))
    window, whole = sweep._window, sweep._window.nbytes
    settle(sweep, 40)
    assert window.nbytes == whole
    settle(sweep, 20)
    assert window.nbytes < whole  # but the last rows are the longest
    assert window.nbytes >= sweep.ahead[0].run.nbytes
    settle(sweep, 39)
    settle(sweep, 1)
    assert window.nbytes == 0


def test_rows_when_a_run_is_split_then_neither_part_holds_the_memory_of_the_other(
    sweep: Sweep,
) -> None:
    add(sweep, [10, 20, 30])
    settle(sweep, 1)
    add(sweep, list(range(100)))
    early = sweep.behind[0].run.rows
    assert early.num_rows == 11
    assert early.get_total_buffer_size() < 2_000


def test_short_runs_when_merged_then_none_is_longer_than_the_limit(sweep: Sweep) -> None:
    for start in range(20):
        add(sweep, list(range(start, 200, 20)))
    limit = 8 * run_of(list(range(0, 200, 20))).nbytes
    sweep.merge(limit)
    sweep.check()
    assert 2 <= len(sweep.ahead) < 6
    assert all(one.held <= limit for one in sweep.ahead)
    assert settle(sweep, 1_000) == list(range(200))


@pytest.mark.parametrize("restores", [False, True])
@pytest.mark.parametrize("algorithm", ["seek", "seek-uncached"])
@pytest.mark.parametrize("how", ["inner", "left", "semi", "anti"])
def test_seek_when_rows_come_between_pieces_then_each_is_settled_once(
    make_bench: MakeBench, algorithm: str, how: str, restores: bool
) -> None:
    bench = make_bench(algorithm, TABLE, page_rows=10, how=how)
    rng = np.random.default_rng(3)
    amid = 0
    for _ in range(60):
        operator = bench.operator
        assert isinstance(operator, Seek)
        operator.sweep_pages = 40
        bench.feed(rng.integers(-50, 4_100, 30).tolist())
        bench.work(1)
        assert isinstance(bench.operator, Seek)
        amid += bool(bench.operator._sweep.behind)
        if restores:
            bench.restore()
    assert amid > 10
    bench.assert_exactly_once()


def test_seek_when_rows_keep_coming_then_a_full_window_serves_more_of_them_in_a_sweep(
    make_bench: MakeBench,
) -> None:
    """A row stays for half a sweep, so in a sweep more rows come and go than the window holds."""
    bench = make_bench("seek-uncached", TABLE, page_rows=10, budget_bytes=400_000)
    operator = bench.operator
    assert isinstance(operator, Seek)
    operator.sweep_pages = 10
    rng = np.random.default_rng(4)
    most, sweeps, came = 0, 0, 0
    while sweeps < 5:
        amid = operator._sweep.position is not None
        bench.feed(rng.integers(0, 4_000, 200).tolist())
        came += 200
        most = max(most, operator.pending())
        sweeps += amid and operator._sweep.position is None
    assert came / sweeps > 1.3 * most
    bench.assert_exactly_once()
