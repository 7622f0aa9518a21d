"""MESHJOIN and AMESHJOIN: the queue after each iteration, and that every row meets every page."""

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from dovetail.errors import ArgumentError
from dovetail.semistream.scan.meshjoin import AMeshJoin, MeshJoin
from dovetail.semistream.table.reading import CODE_BYTES
from support.semistream import Bench, Result

MakeBench = Callable[..., Bench]


def mesh(bench: Bench) -> AMeshJoin:
    assert isinstance(bench.operator, AMeshJoin)
    return bench.operator


def queue(bench: Bench) -> list[tuple[list[int], int, list[int]]]:
    """Of each packet the numbers of its rows, its first page, and the pages that it has met."""
    assert isinstance(bench.operator, MeshJoin)
    pages = bench.operator.table.pages
    return [
        (
            sorted(packet.run.rows["left_id"].to_pylist()),
            packet.start,
            sorted((packet.start + step) % pages for step in range(packet.seen)),
        )
        for packet in bench.operator.packets
    ]


# -- Example 3.1 of the paper -------------------------------------------------------------------


@pytest.mark.parametrize("restored", [False, True], ids=["", "restored after every loop"])
def test_queue_when_as_in_example_3_1_then_is_as_in_the_paper(
    make_bench: MakeBench, restored: bool
) -> None:
    """Three pages, w = 1, b = 1 and then 2: the paper's tables, entry by entry.

    Every page has one row of the one key, so that a row's results show which pages it met, in
    which order. The paper shows the middle of the third loop too: s0 leaves before p0 is joined.
    """
    bench = make_bench("ameshjoin", [7, 7, 7], page_rows=1, options={"w": 1, "b": 1})
    rest = bench.restore if restored else (lambda: None)
    assert bench.feed([7]) == [(0, 0)]
    assert mesh(bench).page == 1
    assert queue(bench) == [([0], 0, [0])]
    rest()
    assert bench.feed([7]) == [(0, 1), (1, 1)]
    assert mesh(bench).page == 2
    assert queue(bench) == [([0], 0, [0, 1]), ([1], 1, [1])]
    rest()
    mesh(bench).tune(w=1, b=2)
    assert bench.feed([7]) == [(0, 2), (1, 2), (2, 2), (1, 0), (2, 0)]
    assert mesh(bench).page == 1
    assert queue(bench) == [([2], 2, [0, 2])]
    rest()
    assert bench.work() == [(2, 1)]
    assert queue(bench) == []
    bench.assert_exactly_once()


# -- every row meets every page once ------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_row_when_settings_change_at_random_then_meets_every_page_once(
    make_bench: MakeBench, seed: int
) -> None:
    """One row of the one key on each page: a row's results are the pages it met."""
    rng = np.random.default_rng(seed)
    pages = int(rng.integers(1, 12))
    bench = make_bench("ameshjoin", [5] * pages, page_rows=1)
    for _ in range(40):
        mesh(bench).tune(w=int(rng.integers(1, 6)), b=int(rng.integers(1, 2 * pages + 1)))
        if rng.random() < 0.7:
            bench.feed([5] * int(rng.integers(1, 9)))
        else:
            bench.work(int(rng.integers(1, 30)))
        if rng.random() < 0.2:
            bench.restore()
    bench.finish()
    rows = len(bench.keys)
    assert Counter(bench.results()) == Counter(
        {(row, page): 1 for row in range(rows) for page in range(pages)}
    )


def test_row_when_it_meets_pages_then_in_the_order_of_the_scan(make_bench: MakeBench) -> None:
    bench = make_bench("ameshjoin", [5] * 6, page_rows=1, options={"w": 2, "b": 2})
    for _ in range(3):
        bench.feed([5, 5])
    bench.finish()
    met: dict[int, list[int | None]] = {}
    for row, page in bench.results():
        met.setdefault(row, []).append(page)
    assert met[0] == met[1] == [0, 1, 2, 3, 4, 5]
    assert met[2] == met[3] == [2, 3, 4, 5, 0, 1]
    assert met[4] == met[5] == [4, 5, 0, 1, 2, 3]


@pytest.mark.parametrize("how", ["inner", "left", "semi", "anti"])
@pytest.mark.parametrize("algorithm", ["meshjoin", "ameshjoin"])
def test_join_when_w_and_b_are_one_then_each_result_comes_once(
    make_bench: MakeBench, algorithm: str, how: str
) -> None:
    options = {"w": 1, "b": 1}
    bench = make_bench(algorithm, [1, 1, 2, 2, 2, 4, 6], page_rows=2, how=how, options=options)
    for start in range(5):
        bench.feed([start, 2, None, 9])
    bench.assert_exactly_once()


# -- the settings -------------------------------------------------------------------------------


def test_b_when_larger_than_the_table_then_an_iteration_is_a_whole_scan(
    make_bench: MakeBench,
) -> None:
    bench = make_bench(
        "ameshjoin", [1, 2, 3, 3], page_rows=1, how="left", options={"w": 9, "b": 99}
    )
    assert mesh(bench).b == 4
    bench.feed([3, 8])
    assert Counter(bench.work()) == Counter({(0, 2): 1, (0, 3): 1, (1, None): 1})
    assert bench.operator.pending() == 0
    mesh(bench).tune(w=1, b=1_000)
    assert mesh(bench).b == 4
    assert bench.feed([1]) == [(2, 0)]
    bench.assert_exactly_once()


@pytest.mark.parametrize("w", [1, 2, 7, 100, 1_000])
def test_packet_when_w_is_set_then_has_no_more_rows_than_that(
    make_bench: MakeBench, w: int
) -> None:
    """A null makes the mean size of a row a fraction of a byte more, which must not add up."""
    bench = make_bench("ameshjoin", list(range(50)), page_rows=1, options={"w": w, "b": 1})
    bench.feed([*range(2_500), None])
    sizes = [len(rows) for rows, _, _ in queue(bench)]
    assert max(sizes) == w
    bench.assert_exactly_once()


def test_tune_when_a_setting_is_below_one_then_is_refused(make_bench: MakeBench) -> None:
    bench = make_bench("ameshjoin", [1])
    for w, b in ((0, 1), (1, 0)):
        with pytest.raises(ArgumentError, match="at least 1"):
            mesh(bench).tune(w, b)


def test_tune_when_w_changes_then_holds_from_the_next_packet_on(make_bench: MakeBench) -> None:
    bench = make_bench("ameshjoin", [1] * 20, page_rows=1, options={"w": 4, "b": 1})
    bench.feed([1] * 8)
    mesh(bench).tune(w=2, b=1)
    bench.feed([1] * 4)
    assert [len(rows) for rows, _, _ in queue(bench)] == [4, 4, 2, 2]


def test_read_when_b_pages_are_more_than_working_memory_then_is_in_pieces(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`b` says how far an iteration goes; how much of it is in memory is up to the budget."""
    table = list(range(100_000))
    bench = make_bench("ameshjoin", table, page_rows=100, how="left", budget_bytes=400_000)
    operator = mesh(bench)
    operator.tune(w=1_000, b=10_000)
    assert operator.b == operator.table.pages
    sizes = []
    read = operator.table.codes

    def codes(first: int, stop: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        sizes.append(CODE_BYTES * 100 * (stop - first))
        return read(first, stop)

    monkeypatch.setattr(operator.table, "codes", codes)
    bench.feed([5, 77_777])
    assert len(bench.work()) == 2
    assert sum(sizes) >= CODE_BYTES * len(table)
    assert max(sizes) <= operator.working_bytes // 4


def test_read_when_b_does_not_divide_the_table_then_is_not_cut_where_packets_leave(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make_bench("ameshjoin", range(100), page_rows=10, options={"w": 5, "b": 4})
    table = mesh(bench).table
    reads = []
    read = table.codes

    def codes(first: int, stop: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        reads.append((first, stop))
        return read(first, stop)

    monkeypatch.setattr(table, "codes", codes)
    for start in range(0, 100, 5):
        bench.feed(range(start, start + 5))
    assert reads[:8] == [(0, 4), (4, 8), (8, 10), (0, 2), (2, 6), (6, 10), (0, 4), (4, 8)]
    assert len(reads) == 20 + 20 * 4 // 20  # a read an iteration, and one more in every other scan
    bench.finish()
    bench.assert_exactly_once()


# -- the open packet ----------------------------------------------------------------------------


@pytest.mark.parametrize("restored", [False, True], ids=["", "restored after every batch"])
@pytest.mark.parametrize("algorithm", ["meshjoin", "ssbj"])
def test_packet_when_batches_are_small_then_is_filled_by_several_of_them(
    make_bench: MakeBench, algorithm: str, restored: bool
) -> None:
    """A batch of three rows does not cost an iteration: 30 make nine packets of ten rows."""
    bench = make_bench(algorithm, range(100), page_rows=1, how="left", options={"w": 10, "b": 1})
    for number in range(30):
        bench.feed([number, 40 + number, 200])
        assert bench.operator.pending() == 3 * (number + 1)
        assert bench.operator.oldest() == 0
        if restored:
            bench.restore()
        assert isinstance(bench.operator, MeshJoin)
        assert bench.operator.page == 3 * (number + 1) // 10
    assert [len(rows) for rows, _, _ in queue(bench)] == [10] * 9
    bench.assert_exactly_once()


def test_open_packet_when_work_is_done_then_begins_its_scan(make_bench: MakeBench) -> None:
    bench = make_bench("meshjoin", range(10), page_rows=1, options={"w": 1_000, "b": 1})
    bench.feed([3, 5])
    bench.feed([4])
    assert (queue(bench), bench.operator.pending()) == ([], 3)
    bench.work()
    assert queue(bench) == [([0, 1, 2], 0, [0])]
    bench.assert_exactly_once()


def test_open_packet_when_memory_is_full_then_counts_and_gives_way(make_bench: MakeBench) -> None:
    """Only the open packet is there, and input finds no room: its scan begins before it is full."""
    bench = make_bench(
        "meshjoin", range(1_000), page_rows=20, budget_bytes=270_000,
        options={"w": 1_000_000, "b": 5},
    )  # fmt: skip
    operator = bench.operator
    assert isinstance(operator, MeshJoin)
    while not operator.scanned:
        bench.feed(range(500))
        assert operator.ctx.budget.components["window"] >= 41 * operator.pending()
    bench.assert_exactly_once()


# -- degenerate tables --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "settled"),
    [
        ("inner", []),
        ("semi", []),
        ("left", [(0, None), (1, None), (2, None)]),
        ("anti", [(0, None), (1, None), (2, None)]),
    ],
)
@pytest.mark.parametrize("ordered", [False, True])
def test_row_when_the_table_is_empty_then_is_settled_at_once(
    make_bench: MakeBench, how: str, settled: list[Result], ordered: bool
) -> None:
    bench = make_bench("meshjoin", [], how=how, ordered=ordered)
    assert sorted(bench.feed([1, None, 1])) == settled
    assert bench.operator.pending() == 0
    bench.assert_exactly_once()


# -- rows without a match -----------------------------------------------------------------------


@pytest.mark.parametrize("how", ["left", "anti"])
def test_row_without_a_match_when_it_waits_then_comes_only_after_the_whole_table(
    make_bench: MakeBench, how: str
) -> None:
    """The row starts at the third of four pages, and leaves when the second has been joined."""
    bench = make_bench("meshjoin", [1, 2, 3, 4], page_rows=1, how=how, options={"w": 1, "b": 1})
    bench.feed([4])
    bench.feed([4])
    missing = (2, None)
    came = [missing in bench.feed([99])]
    while bench.operator.pending():
        came.append(missing in bench.work())
    assert came == [False, False, False, True]
    bench.assert_exactly_once()


def test_null_key_when_the_join_is_left_then_is_settled_as_it_comes(make_bench: MakeBench) -> None:
    bench = make_bench("meshjoin", [1, 2], page_rows=1, how="left", options={"w": 5, "b": 1})
    assert bench.feed([None]) == [(0, None)]
    assert bench.operator.pending() == 0


def test_semi_row_when_it_has_many_matches_then_comes_with_the_first(make_bench: MakeBench) -> None:
    bench = make_bench("meshjoin", [5] * 4, page_rows=1, how="semi", options={"w": 1, "b": 1})
    assert bench.feed([5]) == [(0, None)]
    bench.restore()
    assert bench.work(1_000_000) == []
    bench.assert_exactly_once()


def test_ordered_when_rows_of_a_packet_wait_then_come_whole_and_in_order(
    make_bench: MakeBench,
) -> None:
    bench = make_bench("meshjoin", [1, 1, 2, 3, 3], page_rows=1, ordered=True, how="left",
                       options={"w": 2, "b": 2})  # fmt: skip
    for keys in ([3, 1], [2, None], [9, 3]):
        bench.feed(keys)
    bench.finish()
    numbers = [row for row, _ in bench.results()]
    assert numbers == sorted(numbers)
    assert Counter(bench.results()) == bench.expected()


@pytest.mark.parametrize("algorithm", ["meshjoin", "ssbj"])
@pytest.mark.parametrize("how", ["inner", "left", "semi", "anti"])
def test_ordered_when_restored_after_every_piece_of_work_then_ends_and_is_in_order(
    make_bench: MakeBench, algorithm: str, how: str
) -> None:
    """Ten pages, and no operator lives for more than one; some rows begin amid their candidates."""
    table = sorted([*range(10), *[3] * 7, *[6] * 5, 8, 8])
    bench = make_bench(
        algorithm, table, page_rows=3, ordered=True, how=how, options={"w": 4, "b": 1}
    )
    bench.feed([3, 11, 6])
    for keys in ([6, 3, None, 0], [3, 9, 3, 8]):
        bench.feed(keys)
        bench.work()
        bench.restore()
    steps = 0
    while bench.operator.pending():
        bench.work()
        bench.restore()
        steps += 1
        assert steps <= bench.operator.table.pages
    numbers = [row for row, _ in bench.results()]
    assert numbers == sorted(numbers)
    bench.assert_exactly_once()


def test_snapshot_when_one_follows_the_other_then_has_only_what_has_been_met_since(
    make_bench: MakeBench,
) -> None:
    """50 pages and a snapshot after each: what rows have met is written once, not 50 times."""
    rows = 1_000
    bench = make_bench(
        "meshjoin", range(rows), page_rows=20, ordered=True, options={"w": rows, "b": 1}
    )
    bench.feed(range(rows))
    written = set()
    while bench.operator.pending():
        blocks = bench.operator.snapshot().blocks
        written |= {tuple(block) for block in blocks[["file", "offset", "rows"]]}
        bench.work()
    assert rows < sum(block[2] for block in written) <= 2 * rows
    bench.assert_exactly_once()


# -- memory -------------------------------------------------------------------------------------


def test_packet_when_it_is_of_a_band_join_then_its_ranges_are_reserved(
    make_bench: MakeBench,
) -> None:
    """A band join keeps the two ends of each row's range besides the row."""
    held = {}
    for within in (None, 3):
        options = {"w": 1_000, "b": 1}
        bench = make_bench("meshjoin", [1, 2], page_rows=1, within=within, options=options)
        bench.feed(range(1_000))
        held[within] = bench.operator.ctx.budget.components["window"]
    assert held[3] - (held[None] or 0) == 2 * 8 * 1_000


def test_memory_when_all_packets_have_left_then_is_given_back(make_bench: MakeBench) -> None:
    bench = make_bench("meshjoin", list(range(100)), page_rows=10, budget_bytes=400_000)
    budget = bench.operator.ctx.budget
    before = budget.used_bytes
    bench.feed(range(1_000))
    bench.finish()
    assert budget.used_bytes == before
