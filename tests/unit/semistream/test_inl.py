"""INL: which pages are read, which stay in the pool, and that border keys find all their rows."""

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from dovetail.semistream.inl import IndexNestedLoops
from dovetail.semistream.table import Page
from dovetail.testing.semistream import Bench

MakeBench = Callable[..., Bench]

TABLE = list(range(0, 100, 2))  # on pages of ten: 0-18, 20-38, 40-58, 60-78, 80-98


def inl(bench: Bench) -> IndexNestedLoops:
    assert isinstance(bench.operator, IndexNestedLoops)
    return bench.operator


def pool(bench: Bench) -> list[int]:
    """The pages in the pool, the one that goes first in front."""
    return list(inl(bench)._pool)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Callable[[Bench], list[int]]:
    """The pages that an operator reads from now on."""

    def watch(bench: Bench) -> list[int]:
        numbers: list[int] = []
        read = bench.operator.table.page

        def page(number: int) -> Page:
            numbers.append(number)
            return read(number)

        monkeypatch.setattr(bench.operator.table, "page", page)
        return numbers

    return watch


Reads = Callable[[Bench], list[int]]


# -- the pool -----------------------------------------------------------------------------------


def test_page_when_rows_of_a_batch_share_it_then_is_read_once(
    make_bench: MakeBench, reads: Reads
) -> None:
    """The worked example: 3 and 4 share a page, 50 has another; the next batch finds both."""
    bench = make_bench("inl", TABLE, page_rows=10, how="left")
    numbers = reads(bench)
    assert Counter(bench.feed([3, 50, 4])) == Counter({(0, None): 1, (1, 25): 1, (2, 2): 1})
    assert numbers == [0, 2]
    bench.feed([50, 5, 6])
    assert numbers == [0, 2]
    bench.assert_exactly_once()


def open_large(make_bench: MakeBench) -> Bench:
    """Seven pages of 2000 rows, and a pool that holds four."""
    return make_bench("inl", list(range(14_000)), page_rows=2_000, budget_bytes=450_000)


def test_pool_when_it_is_full_then_the_least_recently_used_page_goes(
    make_bench: MakeBench, reads: Reads
) -> None:
    bench = open_large(make_bench)
    numbers = reads(bench)
    for page in (0, 1, 2, 3):
        bench.feed([2_000 * page + 5])
    assert pool(bench) == [0, 1, 2, 3]
    bench.feed([7])
    assert pool(bench) == [1, 2, 3, 0]
    bench.feed([12_005])
    assert pool(bench) == [2, 3, 0, 6]
    bench.feed([2_005])
    assert pool(bench) == [3, 0, 6, 1]
    assert numbers == [0, 1, 2, 3, 6, 1]
    bench.assert_exactly_once()


def test_pool_when_it_is_full_then_takes_no_more_than_half_of_the_budget(
    make_bench: MakeBench,
) -> None:
    bench = open_large(make_bench)
    for key in range(0, 14_000, 100):
        bench.feed([key])
        held = bench.operator.ctx.budget.components["page pool"]
        assert held <= 225_000
    assert held > 150_000
    bench.assert_exactly_once()


def test_pool_when_an_input_batch_needs_its_room_then_pages_go(make_bench: MakeBench) -> None:
    """450 kB less working memory and the batch of 300 kB leave no room for a page of 48 kB."""
    bench = open_large(make_bench)
    for page in range(4):
        bench.feed([2_000 * page + 5])
    assert len(pool(bench)) == 4
    assert len(bench.feed([3] * 18_750)) == 18_750
    assert bench.operator.ctx.budget.peak_bytes <= 450_000
    assert len(pool(bench)) <= 1
    bench.assert_exactly_once()


def test_page_when_the_pool_has_no_room_for_any_then_is_used_all_the_same(
    make_bench: MakeBench,
) -> None:
    bench = open_large(make_bench)
    budget = bench.operator.ctx.budget
    budget.reserve("others", 450_000 - budget.used_bytes - 1_000)
    bench.feed([5, 6_000, 13_999, 14_000])
    assert pool(bench) == []
    bench.assert_exactly_once()


# -- border keys --------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["inner", "left", "semi", "anti"])
@pytest.mark.parametrize("ordered", [False, True])
def test_key_when_at_the_border_of_a_page_then_finds_all_its_rows(
    make_bench: MakeBench, how: str, ordered: bool
) -> None:
    """The first and last key of every page, what lies between, and keys that fill pages."""
    table = [1, 1, 1, 1, 2, 3, 3, 3, 3, 3, 3, 3, 3, 3, 5, 5, 6, 8, 8, 8, 8, 9]
    bench = make_bench("inl", table, page_rows=4, how=how, ordered=ordered)
    for batch in ([*range(11)], [3], [3, 3, 4, 0], [None, 8, 9, 100, -100, 5]):
        bench.feed(batch)
        assert bench.operator.pending() == 0
    rows = [row for row, _ in bench.results()]
    assert not ordered or rows == sorted(rows)
    bench.assert_exactly_once()


def test_fence_when_the_page_before_may_end_with_it_then_both_pages_are_read(
    make_bench: MakeBench, reads: Reads
) -> None:
    bench = make_bench("inl", TABLE, page_rows=10)
    numbers = reads(bench)
    assert bench.feed([40]) == [(0, 20)]
    assert numbers == [1, 2]


def test_key_when_it_fills_many_pages_then_only_the_first_and_last_are_read(
    make_bench: MakeBench, reads: Reads
) -> None:
    bench = make_bench("inl", [1] * 3 + [5] * 100 + [9] * 5, page_rows=4)
    numbers = reads(bench)
    assert len(bench.feed([5])) == 100
    assert numbers == [0, 25]
    bench.assert_exactly_once()


@pytest.mark.parametrize("seed", range(3))
def test_join_when_batches_are_random_then_each_result_comes_once(
    make_bench: MakeBench, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    bench = make_bench("inl", rng.integers(0, 60, 300).tolist(), page_rows=7, how="left")
    for _ in range(15):
        bench.feed(rng.integers(-3, 63, int(rng.integers(1, 50))).tolist())
        if rng.random() < 0.3:
            bench.restore()
    bench.assert_exactly_once()


def test_restore_when_a_row_came_before_then_the_order_goes_on(make_bench: MakeBench) -> None:
    bench = make_bench("inl", TABLE, page_rows=10, ordered=True)
    bench.feed([4, 2])
    bench.restore()
    assert inl(bench)._arrived == 2
    assert bench.feed([98, 0]) == [(2, 49), (3, 0)]
