"""Seek: which pages are read, and what its cache takes in."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from dovetail.semistream.seek.operator import Seek, gap_pages
from support.semistream import Bench

MakeBench = Callable[..., Bench]
Reads = Callable[[Bench], list[tuple[int, int]]]

PAGE_ROWS = 10
SPARSE = list(range(0, 10_000, 2))  # 500 pages of ten rows, each of twenty codes


@pytest.fixture(autouse=True, scope="module")
def short_gaps() -> Iterator[None]:
    """Tables are tiny here: skip what would be read through."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Seek, "gap_bytes", 0)
        yield


def seek(bench: Bench) -> Seek:
    assert isinstance(bench.operator, Seek)
    return bench.operator


def cached(bench: Bench) -> dict[int, int]:
    """The cached keys, whose codes are themselves, and the number of their table rows."""
    return {
        int(key): int(rows)
        for part in seek(bench).cache.parts
        for key, rows in zip(part.keys, np.diff(part.starts), strict=True)
    }


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    """The ranges of pages whose codes an operator reads from now on."""

    def watch(bench: Bench) -> list[tuple[int, int]]:
        ranges: list[tuple[int, int]] = []
        read = bench.operator.table.view

        def view(first: int, stop: int) -> NDArray[np.int64]:
            ranges.append((first, stop))
            return read(first, stop)

        monkeypatch.setattr(bench.operator.table, "view", view)
        return ranges

    return watch


# -- which pages are read -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("page_rows", "pages"), [(1, 192 * 128), (60, 409), (2_000, 12), (20_000, 2)]
)
def test_gap_when_pages_are_small_then_is_of_as_many_bytes(page_rows: int, pages: int) -> None:
    assert gap_pages(page_rows) == pages


def test_pages_when_no_row_waits_for_them_then_are_not_read(
    make_bench: MakeBench, reads: Reads
) -> None:
    """Three rows far apart: three pages of five hundred."""
    bench = make_bench("seek-uncached", SPARSE, page_rows=PAGE_ROWS)
    ranges = reads(bench)
    bench.feed([6_006, 21, 8])
    assert ranges == []  # they wait
    bench.finish()
    assert ranges == [(0, 2), (300, 301)]
    assert bench.operator.ctx.counters.bytes_read == 8 * PAGE_ROWS * 3
    bench.assert_exactly_once()


def test_page_when_many_rows_wait_for_it_then_is_read_once(
    make_bench: MakeBench, reads: Reads
) -> None:
    bench = make_bench("seek-uncached", SPARSE, page_rows=PAGE_ROWS)
    ranges = reads(bench)
    for _ in range(20):
        bench.feed([4_002, 4_004, 4_005] * 3)
    assert bench.operator.pending() == 180
    bench.finish()
    assert ranges == [(200, 201)]
    bench.assert_exactly_once()


def test_gap_when_it_is_wide_then_is_skipped_and_when_narrow_then_is_read_through(
    make_bench: MakeBench, reads: Reads
) -> None:
    """Pages 10 and 12 are one request; 20 is another."""
    bench = make_bench("seek-uncached", SPARSE, page_rows=PAGE_ROWS)
    ranges = reads(bench)
    bench.feed([20 * 10 + 1, 20 * 12 + 1, 20 * 20 + 1])
    bench.finish()
    assert ranges == [(10, 13), (20, 21)]
    bench.assert_exactly_once()


def test_pages_when_every_one_has_a_row_then_are_read_once_in_order(
    make_bench: MakeBench, reads: Reads
) -> None:
    """Under load this is a shared sequential scan, in stretches that may stay mapped."""
    bench = make_bench("seek-uncached", SPARSE, page_rows=PAGE_ROWS, budget_bytes=400_000)
    bench.operator.table.mapped.most_bytes = 5_000
    seek(bench)._piece_pages = 5_000 // (8 * PAGE_ROWS)
    ranges = reads(bench)
    bench.feed(np.random.default_rng(0).permutation(np.arange(1, 10_000, 4)).tolist())
    bench.finish()
    assert ranges == sorted(ranges)
    assert sum(stop - first for first, stop in ranges) <= 500 + len(ranges)
    for first, stop in ranges:
        assert 8 * PAGE_ROWS * (stop - first) <= bench.operator.table.mapped.most_bytes
    bench.assert_exactly_once()


@pytest.mark.parametrize("algorithm", ["seek", "seek-uncached"])
@pytest.mark.parametrize("how", ["inner", "left", "semi", "anti"])
@pytest.mark.parametrize("ordered", [False, True])
def test_code_when_it_fills_more_pages_than_a_piece_then_only_its_ends_are_read(
    make_bench: MakeBench, reads: Reads, algorithm: str, how: str, ordered: bool
) -> None:
    bench = make_bench(
        algorithm, [1] * 3 + [5] * 4_000 + [7, 9, 9], page_rows=4, how=how, ordered=ordered,
        budget_bytes=400_000,
    )  # fmt: skip
    seek(bench)._piece_pages = 6
    ranges = reads(bench)
    bench.feed([5, 1, 7, 5, 9, 8, 0])
    bench.assert_exactly_once()
    assert bench.operator.table.pages > 1_000
    assert sum(stop - first for first, stop in ranges) < 25


@pytest.mark.parametrize("how", ["inner", "left", "semi", "anti"])
@pytest.mark.parametrize("piece", [1, 2, 5])
def test_code_when_at_the_border_of_a_page_or_piece_then_finds_all_its_rows(
    make_bench: MakeBench, how: str, piece: int
) -> None:
    table = [1, 1, 1, 1, 2, 3, 3, 3, 3, 3, 3, 3, 3, 3, 5, 5, 6, 8, 8, 8, 8, 9]
    bench = make_bench("seek", table, page_rows=4, how=how)
    seek(bench)._piece_pages = piece
    for batch in ([*range(11)], [3], [3, 3, 4, 0], [None, 8, 9, 100, -100, 5]):
        bench.feed(batch)
        bench.restore()
        seek(bench)._piece_pages = piece
        bench.work()
    bench.assert_exactly_once()


@pytest.mark.parametrize("how", ["inner", "left", "semi", "anti"])
def test_row_when_the_table_is_empty_then_is_settled(make_bench: MakeBench, how: str) -> None:
    bench = make_bench("seek", [], how=how)
    bench.feed([1, None, 3])
    bench.assert_exactly_once()


# -- the cache ----------------------------------------------------------------------------------


def test_cached_value_when_it_comes_again_then_its_rows_come_at_once_without_a_read(
    make_bench: MakeBench, reads: Reads
) -> None:
    bench = make_bench("seek", [1, 5, 5, 9], page_rows=2)
    bench.feed([5, 1])
    assert bench.operator.pending() == 2
    bench.work(1 << 20)
    assert cached(bench) == {1: 1, 5: 2}
    ranges = reads(bench)
    assert sorted(bench.feed([5, 5])) == [(2, 1), (2, 2), (3, 1), (3, 2)]
    assert ranges == []
    assert bench.operator.pending() == 0
    bench.assert_exactly_once()


@pytest.mark.parametrize("how", ["inner", "left", "semi", "anti"])
def test_value_without_table_rows_when_it_comes_again_then_is_settled_at_once(
    make_bench: MakeBench, how: str
) -> None:
    bench = make_bench("seek", [1, 5, 5, 9], page_rows=2, how=how)
    bench.feed([7])
    bench.work(1 << 20)
    assert cached(bench) == {7: 0}
    assert bench.feed([7]) == ([(1, None)] if how in ("left", "anti") else [])
    assert bench.operator.pending() == 0
    bench.assert_exactly_once()


def test_cache_when_not_everything_fits_then_takes_the_most_hits_a_byte(
    make_bench: MakeBench,
) -> None:
    """A value with one row and many hits before one with a thousand rows and as many hits."""
    table = [1] * 1_000 + [2] * 1_000 + list(range(10, 30))
    bench = make_bench("seek", table, page_rows=100, budget_bytes=400_000)
    seek(bench).cache.most = seek(bench).cache.limit = (
        12_000  # a quarter of it may be filled at once
    )
    bench.feed([1, 2] * 50 + list(range(10, 30)) * 40)
    bench.work(1 << 30)
    assert set(cached(bench)) == set(range(10, 30))
    bench.assert_exactly_once()


def test_cache_when_the_stream_changes_then_better_values_take_the_place_of_others(
    make_bench: MakeBench,
) -> None:
    bench = make_bench("seek", list(range(4_000)), page_rows=100, budget_bytes=400_000)
    seek(bench).cache.most = seek(bench).cache.limit = 12_000  # some two hundred values
    for start in (0, 2_000):
        for _ in range(60):
            bench.feed(list(range(start, start + 200)) * 8)
            bench.work(1 << 30)
        assert sum(start <= key < start + 200 for key in cached(bench)) > 100
    bench.assert_exactly_once()


def test_cache_when_values_are_replaced_then_stays_below_its_limit(make_bench: MakeBench) -> None:
    bench = make_bench("seek", list(range(4_000)), page_rows=100, budget_bytes=400_000)
    cache = seek(bench).cache
    cache.most = cache.limit = 12_000
    for start in (0, 2_000):
        for _ in range(60):
            bench.feed(list(range(start, start + 200)) * 8)
            bench.work(1 << 30)
            assert cache.nbytes <= cache.limit


def test_value_when_it_is_cached_while_more_of_its_rows_come_then_is_cached_once(
    make_bench: MakeBench,
) -> None:
    """A batch that is larger than the window: settling its first rows makes room for the last."""
    bench = make_bench("seek", list(range(2_000)), page_rows=100, budget_bytes=400_000)
    for _ in range(3):
        bench.feed([7] * 12_000)
    bench.assert_exactly_once()


@pytest.mark.parametrize(("algorithm", "ordered"), [("seek", True), ("seek-uncached", False)])
def test_cache_when_ordered_or_not_wanted_then_stays_empty(
    make_bench: MakeBench, algorithm: str, ordered: bool
) -> None:
    bench = make_bench(algorithm, [1, 5, 5, 9], page_rows=2, ordered=ordered)
    for _ in range(4):
        bench.feed([5, 1, 7])
        bench.work(1 << 20)
    assert cached(bench) == {}
    assert bench.operator.ctx.budget.components.get("cache", 0) == 0
    rows = [row for row, _ in bench.results()]
    assert not ordered or rows == sorted(rows)
    bench.assert_exactly_once()


def test_hit_rate_when_the_stream_is_zipf_then_rises(make_bench: MakeBench) -> None:
    rng = np.random.default_rng(5)
    table = np.repeat(np.arange(3_000), rng.integers(1, 4, 3_000)).tolist()
    bench = make_bench("seek", table, page_rows=40, budget_bytes=400_000)
    rates = []
    for _ in range(8):
        waited = 0
        for _ in range(10):
            bench.feed(((rng.zipf(1.4, 400) - 1) % 3_000).tolist())
            waited += bench.operator.pending()
            bench.work(1 << 30)
        rates.append(1 - waited / 4_000)
    assert rates[0] < rates[-1]
    assert rates[-1] > 0.7
    bench.assert_exactly_once()


# -- on restart ---------------------------------------------------------------------------------


def test_restore_when_rows_wait_and_values_are_cached_then_both_are_there_again(
    make_bench: MakeBench, reads: Reads
) -> None:
    bench = make_bench("seek", [1, 5, 5, 9], page_rows=2)
    bench.feed([5, 7])
    bench.work(1 << 20)
    bench.feed([9])
    bench.restore()
    assert cached(bench) == {5: 2, 7: 0}
    assert bench.operator.pending() == 1
    ranges = reads(bench)
    assert bench.feed([5]) == [(3, 1), (3, 2)]
    assert ranges == []
    bench.assert_exactly_once()


def test_restore_when_some_of_the_waiting_rows_are_settled_then_the_rest_come_once(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dovetail.semistream.seek.operator._SETTLED_ROWS", 1)
    bench = make_bench("seek-uncached", SPARSE, page_rows=PAGE_ROWS)
    bench.feed(list(range(1, 10_000, 499)))
    while bench.operator.pending():
        bench.work(1)
        bench.restore()
    assert bench.drive.restores > 5
    bench.assert_exactly_once()


@pytest.mark.parametrize("algorithm", ["seek", "ssbj"])
def test_hits_when_they_came_after_a_snapshot_then_the_next_one_has_them(
    make_bench: MakeBench, algorithm: str
) -> None:
    """Without them a value that is in use looks as if it were not, and is evicted."""
    bench = make_bench(algorithm, [0] * 40 + [5, 5], page_rows=2)
    for _ in range(8):
        bench.feed([5] * 9 + [0])
        bench.work(1 << 20)
    bench.operator.snapshot()
    bench.feed([5] * 100)
    cache = bench.operator.cache  # type: ignore[attr-defined]
    before = {int(k): int(h) for p in cache.parts for k, h in zip(p.keys, p.hits, strict=True)}
    assert before[5] >= 100
    bench.restore()
    cache = bench.operator.cache  # type: ignore[attr-defined]
    after = {int(k): int(h) for p in cache.parts for k, h in zip(p.keys, p.hits, strict=True)}
    assert after == before


# -- cache and window share the budget ------------------------------------------------------------


def overload(bench: Bench, keys: Callable[[], NDArray[np.int64]], batches: int) -> list[int]:
    """Batches without a pause, for which there is no memory; the cache's size after each."""
    sizes = []
    for _ in range(batches):
        bench.feed(keys().tolist())
        sizes.append(seek(bench).cache.nbytes)
    return sizes


def test_cache_when_memory_is_short_and_hits_are_few_then_gives_its_memory_to_the_window(
    make_bench: MakeBench,
) -> None:
    rng = np.random.default_rng(6)
    bench = make_bench("seek", list(range(50_000)), page_rows=200, budget_bytes=400_000)
    for _ in range(20):  # with pauses, it fills
        bench.feed(rng.integers(0, 50_000, 3_000).tolist())
        bench.work(1 << 30)
    before = seek(bench).cache.nbytes
    assert before > seek(bench).cache.most / 5
    sizes = overload(bench, lambda: rng.integers(0, 50_000, 2_000), 25)
    assert sizes[-1] < before / 4
    assert seek(bench).cache.limit >= seek(bench).cache.most // 32
    bench.restore()
    assert seek(bench).cache.limit < seek(bench).cache.most / 4  # it is known on restart
    bench.assert_exactly_once()


def test_cache_when_memory_is_short_and_hits_are_many_then_keeps_its_memory(
    make_bench: MakeBench,
) -> None:
    rng = np.random.default_rng(7)
    bench = make_bench("seek", list(range(50_000)), page_rows=200, budget_bytes=400_000)
    sizes = overload(bench, lambda: (rng.zipf(1.3, 4_000) - 1) % 50_000, 40)
    assert sizes[-1] > 0.5 * seek(bench).cache.most
    assert seek(bench).cache.limit == seek(bench).cache.most
    bench.assert_exactly_once()


def test_cache_when_memory_is_plentiful_again_then_grows_again(make_bench: MakeBench) -> None:
    rng = np.random.default_rng(8)
    bench = make_bench("seek", list(range(50_000)), page_rows=200, budget_bytes=400_000)
    overload(bench, lambda: rng.integers(0, 50_000, 2_000), 25)
    shrunk = seek(bench).cache.limit
    for _ in range(8):
        bench.feed(rng.integers(0, 50_000, 50).tolist())
        bench.work(1 << 30)
    assert seek(bench).cache.limit == seek(bench).cache.most > 4 * shrunk
    bench.assert_exactly_once()
