"""INL: which leaves are read, which stay in the pool, and that border keys find all their rows."""

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from dovetail.semistream.inl import operator as inl_module
from dovetail.semistream.inl.operator import IndexNestedLoops
from support.semistream import Bench, by_age

MakeBench = Callable[..., Bench]

TABLE = list(range(0, 100, 2))  # on pages of ten: 0-18, 20-38, 40-58, 60-78, 80-98
LARGE = list(range(14_000))  # on pages of 2,000, and leaves of 341: 8 KiB of rows of 24 bytes
LEAF = 341


def inl(bench: Bench) -> IndexNestedLoops:
    assert isinstance(bench.operator, IndexNestedLoops)
    return bench.operator


def pool(bench: Bench) -> list[int]:
    """The leaves in the pool, the one that goes first in front."""
    return by_age(inl(bench)._pool)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Callable[[Bench], list[int]]:
    """The leaves that an operator reads from now on."""

    def watch(bench: Bench) -> list[int]:
        numbers: list[int] = []
        leaves = inl(bench)._leaves
        count = leaves.table._count_read

        def read(begin: int, end: int) -> None:
            number = begin // leaves.rows
            assert leaves.starts(np.array([number, number + 1])).tolist() == [begin, end]
            numbers.append(number)
            count(begin, end)

        monkeypatch.setattr(leaves.table, "_count_read", read)
        return numbers

    return watch


Reads = Callable[[Bench], list[int]]


# -- the pool -----------------------------------------------------------------------------------


def test_leaf_when_rows_of_a_batch_share_it_then_is_read_once(
    make_bench: MakeBench, reads: Reads
) -> None:
    """The worked example: 3 and 4 share a leaf, 50 has another; the next batch finds both."""
    bench = make_bench("inl", TABLE, page_rows=10, how="left")
    numbers = reads(bench)
    assert Counter(bench.feed([3, 50, 4])) == Counter({(0, None): 1, (1, 25): 1, (2, 2): 1})
    assert numbers == [0, 2]
    bench.feed([50, 5, 6])
    assert numbers == [0, 2]
    bench.assert_exactly_once()


def open_large(make_bench: MakeBench, budget_bytes: int = 450_000) -> Bench:
    """Seven pages or 42 leaves, and a pool that holds 21 leaves."""
    return make_bench("inl", LARGE, page_rows=2_000, budget_bytes=budget_bytes)


def test_leaf_when_pages_are_large_then_is_what_a_lookup_reads(make_bench: MakeBench) -> None:
    bench = open_large(make_bench)
    counters = bench.operator.ctx.counters
    before = counters.bytes_read
    assert bench.feed([5_000]) == [(0, 5_000)]
    assert counters.bytes_read - before == LEAF * 24
    bench.assert_exactly_once()


def test_leaf_when_the_index_may_not_take_its_fences_then_is_larger(
    make_bench: MakeBench,
) -> None:
    options = {"index_bytes": 80}
    bench = make_bench("inl", LARGE, page_rows=2_000, options=options)
    assert len(inl(bench)._leaves) == 10
    bench.feed([0, 1_399, 1_400, 1_401, 13_999, 14_000])
    bench.assert_exactly_once()
    pages = make_bench("inl", LARGE, page_rows=2_000, options={"index_bytes": 8})
    assert len(inl(pages)._leaves) == 7
    assert inl(pages)._leaves.nbytes == 0
    pages.feed([0, 1_999, 2_000, 13_999, 14_000])
    pages.assert_exactly_once()


def test_index_when_it_is_made_then_has_the_first_code_of_every_leaf(
    make_bench: MakeBench,
) -> None:
    """Whatever is read at a time: a page here, and all of it without a budget."""
    for budget in (450_000, None):
        leaves = inl(make_bench("inl", LARGE, page_rows=2_000, budget_bytes=budget))._leaves
        assert leaves.rows == LEAF
        codes = leaves.table.codes(0, leaves.table.pages)
        assert leaves.fences.tolist() == codes[::LEAF].tolist()
        assert leaves.nbytes == 8 * 42


def test_pool_when_it_is_full_then_the_least_recently_used_leaf_goes(
    make_bench: MakeBench, reads: Reads
) -> None:
    bench = open_large(make_bench)
    numbers = reads(bench)
    for leaf in range(21):
        bench.feed([LEAF * leaf + 5])
    assert pool(bench) == list(range(21))
    bench.feed([7])
    assert pool(bench) == [*range(1, 21), 0]
    bench.feed([LEAF * 40 + 5])
    assert pool(bench) == [*range(2, 21), 0, 40]
    bench.feed([LEAF + 5])
    assert pool(bench) == [*range(3, 21), 0, 40, 1]
    assert numbers == [*range(21), 40, 1]
    bench.assert_exactly_once()


def test_pool_when_a_batch_needs_more_than_it_holds_then_hits_are_not_lost_to_it(
    make_bench: MakeBench, reads: Reads
) -> None:
    """Leaves 38 to 41 are used again and again, beside all others: they stay."""
    bench = open_large(make_bench)
    bench.feed([LEAF * leaf + 5 for leaf in range(38, 42)])
    kept = 4
    for _ in range(2):
        numbers = reads(bench)
        bench.feed([LEAF * leaf + 5 for leaf in range(42)])
        assert not set(numbers) & {38, 39, 40, 41}
        assert len(numbers) == 42 - kept
        kept = len(pool(bench))
        assert kept == 22  # of which the last is short
    bench.assert_exactly_once()


def test_heap_when_much_was_read_then_holes_are_given_back(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    monkeypatch.setattr(inl_module, "give_back_freed", lambda: calls.append(1))
    bench = open_large(make_bench)
    for leaf in range(42):
        bench.feed([LEAF * leaf + 5])
    assert len(calls) == 2  # after 14 leaves each time, of which the last is short
    bench.assert_exactly_once()


def test_pool_when_it_is_full_then_takes_no_more_than_half_of_the_budget(
    make_bench: MakeBench,
) -> None:
    bench = open_large(make_bench)
    for key in range(0, 14_000, 100):
        bench.feed([key])
        held = bench.operator.ctx.budget.components["page pool"]
        assert held <= 225_000
    assert held > 210_000
    bench.assert_exactly_once()


def test_pool_when_an_input_batch_needs_its_room_then_leaves_go(make_bench: MakeBench) -> None:
    """Half of a batch of 300 kB counts, and takes the room of some leaves of 8 kB."""
    bench = open_large(make_bench)
    for leaf in range(21):
        bench.feed([LEAF * leaf + 5])
    assert len(pool(bench)) == 21
    assert len(bench.feed([3] * 18_750)) == 18_750
    assert bench.operator.ctx.budget.peak_bytes <= 450_000
    assert len(pool(bench)) < 21
    bench.assert_exactly_once()


def test_leaf_when_the_pool_has_no_room_for_any_then_is_used_all_the_same(
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
def test_key_when_at_the_border_of_a_leaf_then_finds_all_its_rows(
    make_bench: MakeBench, how: str, ordered: bool
) -> None:
    """The first and last key of every leaf, what lies between, and keys that fill leaves."""
    table = [1, 1, 1, 1, 2, 3, 3, 3, 3, 3, 3, 3, 3, 3, 5, 5, 6, 8, 8, 8, 8, 9]
    bench = make_bench("inl", table, page_rows=4, how=how, ordered=ordered)
    for batch in ([*range(11)], [3], [3, 3, 4, 0], [None, 8, 9, 100, -100, 5]):
        bench.feed(batch)
        assert bench.operator.pending() == 0
    rows = [row for row, _ in bench.results()]
    assert not ordered or rows == sorted(rows)
    bench.assert_exactly_once()


def test_fence_when_the_leaf_before_may_end_with_it_then_both_are_read(
    make_bench: MakeBench, reads: Reads
) -> None:
    bench = make_bench("inl", TABLE, page_rows=10)
    numbers = reads(bench)
    assert bench.feed([40]) == [(0, 20)]
    assert numbers == [1, 2]


def test_key_when_it_fills_many_leaves_then_only_the_first_and_last_are_read(
    make_bench: MakeBench, reads: Reads
) -> None:
    bench = make_bench("inl", [1] * 3 + [5] * 100 + [9] * 5, page_rows=4)
    numbers = reads(bench)
    assert len(bench.feed([5])) == 100
    assert numbers == [0, 25]
    bench.assert_exactly_once()


@pytest.mark.parametrize("seed", range(3))
def test_join_when_leaves_are_smaller_than_pages_then_each_result_comes_once(
    make_bench: MakeBench, seed: int
) -> None:
    """Keys in runs, some of them longer than a leaf; the pool is full or forgets everything."""
    rng = np.random.default_rng([seed, 1])
    table = rng.integers(0, 400, 6_000).tolist() + [7] * 900
    budget = [400_000, None][seed % 2]
    bench = make_bench("inl", table, page_rows=1_000, how="left", budget_bytes=budget)
    assert len(inl(bench)._leaves) == 21
    for _ in range(10):
        bench.feed(rng.integers(-3, 403, int(rng.integers(1, 50))).tolist())
        if rng.random() < 0.3:
            bench.restore()
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
    assert inl(bench).arrived == 2
    assert bench.feed([98, 0]) == [(2, 49), (3, 0)]
