"""SortedRuns against brute force: probing, taking ranges out, merging, remembering blocks."""

import itertools
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.kernel.blocks import BLOCK
from dovetail.kernel.probing import Directory, Span, probe_run
from dovetail.kernel.runs import (
    FAN_IN,
    INDEX_BYTES_PER_ROW,
    Run,
    SortedRuns,
    merge_runs,
    own,
    sort_run,
)

INT64 = np.iinfo(np.int64)
UNLIMITED = 1 << 62
Entries = list[tuple[int, int, int]]  #: code, tick, number of the row

code_lists = st.lists(
    st.one_of(st.integers(-8, 8), st.sampled_from([INT64.min, INT64.max])), max_size=30
)
_numbers = itertools.count()


def make_run(codes: list[int], ats: int = 1) -> Run:
    numbers = [next(_numbers) for _ in codes]
    rows = pa.record_batch({"n": pa.array(numbers, pa.int64()), "t": [f"row {n}" for n in numbers]})
    return sort_run(np.array(codes, dtype=np.int64), ats, rows)


def entries(run: Run) -> Entries:
    return list(zip(run.codes.tolist(), run.ats.tolist(), run.rows["n"].to_pylist(), strict=True))


def all_entries(runs: SortedRuns) -> Entries:
    return sorted(itertools.chain.from_iterable(entries(run) for run in runs.runs))


def bands(codes: list[int], width: int) -> tuple[np.ndarray, np.ndarray]:
    low = [max(code - width, INT64.min) for code in codes]
    high = [min(code + width, INT64.max) for code in codes]
    return np.array(low, dtype=np.int64), np.array(high, dtype=np.int64)


# -- runs -----------------------------------------------------------------------------------


@given(code_lists)
def test_sort_run_when_codes_are_in_any_order_then_rows_follow_them(codes: list[int]) -> None:
    run = make_run(codes, ats=7)
    first = min(run.rows["n"].to_pylist(), default=0)
    wanted = sorted((code, 7, first + position) for position, code in enumerate(codes))
    assert sorted(entries(run)) == wanted
    assert run.codes.tolist() == sorted(codes)
    assert run.rows["t"].to_pylist() == [f"row {n}" for _, _, n in entries(run)]


def test_run_when_sliced_then_counts_its_own_rows_only() -> None:
    run = make_run(list(range(100)))
    piece = run.slice(10, 20)
    assert entries(piece) == entries(run)[10:20]
    assert run.nbytes == run.rows.nbytes + 100 * INDEX_BYTES_PER_ROW
    assert piece.nbytes < run.nbytes // 5


def test_run_when_filtered_then_is_still_held_by_its_block() -> None:
    run = make_run([1, 2, 3, 4])
    run.block = np.zeros((), dtype=BLOCK)[()]
    kept = run.filter(np.array([True, False, True, False]))
    assert kept.block is run.block
    assert kept.codes.tolist() == [1, 3]


@given(st.lists(code_lists.filter(len), min_size=1, max_size=5))
def test_merge_when_given_runs_then_holds_all_rows_earlier_runs_first(
    lists: list[list[int]],
) -> None:
    runs = [make_run(codes, ats) for ats, codes in enumerate(lists)]
    merged = merge_runs(runs)
    everything = list(itertools.chain.from_iterable(map(entries, runs)))
    assert sorted(entries(merged)) == sorted(everything)
    order = [(code, ats) for code, ats, _ in entries(merged)]
    assert order == sorted(order), "the runs were numbered by their tick"


# -- probing --------------------------------------------------------------------------------


@given(st.lists(code_lists.filter(bool), min_size=2, max_size=4), st.data())
def test_merge_when_merged_again_then_gathers_and_slices_give_the_rows_of_their_codes(
    parts: list[list[int]], data: st.DataObject
) -> None:
    runs = [make_run(codes, ats=tick) for tick, codes in enumerate(parts)]
    number_to_code = {n: code for run in runs for code, _, n in entries(run)}
    merged = merge_runs([merge_runs(runs[:-1]), runs[-1]])
    merged.check()
    at = data.draw(st.lists(st.integers(0, len(merged) - 1), max_size=20))
    start = data.draw(st.integers(0, len(merged)))
    stop = data.draw(st.integers(start, len(merged)))
    gathered = merged.gather(np.array(at, dtype=np.int64))["n"].to_pylist()
    assert [number_to_code[n] for n in gathered] == merged.codes[at].tolist()
    sliced = entries(merged.slice(start, stop))
    assert sliced == entries(merged)[start:stop], "a slice is the same before and after sorting"
    assert merged.gather(np.array(at, dtype=np.int64))["n"].to_pylist() == gathered
    assert all(number_to_code[n] == code for code, _, n in entries(merged))
    merged.check()


def test_check_when_a_row_of_a_merged_run_is_named_twice_then_fails() -> None:
    run = merge_runs([make_run([1, 2]), make_run([3])])
    broken = Run(run.codes, run.ats, run.rows, places=np.array([0, 1, 1], dtype=np.int32))
    with pytest.raises(AssertionError, match="rows are lost"):
        broken.check()


TEXTS = ["", "short", None, "x" * 5000, "y" * 90, *["z"] * 7]
LONG = pa.array(TEXTS)


@pytest.mark.parametrize(
    "column",
    [
        LONG,
        LONG.cast(pa.large_string()),
        LONG.cast(pa.binary()),
        pa.StructArray.from_arrays([LONG], ["s"]),
        pa.array([[1] * len(text or "") for text in TEXTS]),
        pa.array([[(n, "v") for n in range(len(text or ""))] for text in TEXTS],
                 pa.map_(pa.int64(), pa.string())),
    ],
    ids=lambda column: str(column.type)[:12],
)  # fmt: skip
def test_sizes_when_one_value_is_far_longer_then_name_the_row_also_of_a_slice(
    column: pa.Array,
) -> None:
    codes = np.arange(len(TEXTS))
    rows = pa.record_batch({"v": pa.concat_arrays([column.slice(0, 2), column])}).slice(2)
    run = Run(codes, codes, rows)
    assert run.sizes is not None
    assert run.sizes.argmax() == 3
    assert run.sizes[0] == run.sizes[2]
    assert run.nbytes <= run.sizes.sum() <= 1.1 * run.nbytes + len(run)


def test_sizes_when_rows_are_alike_or_of_fixed_width_then_are_not_kept() -> None:
    codes = np.arange(3)
    alike = pa.record_batch({"n": [1, 2, 3], "t": ["aaa", "bbbb", "cccccc"]})
    fixed = pa.record_batch({"n": [1, 2, 3]})
    assert Run(codes, codes, alike).sizes is None
    assert Run(codes, codes, fixed).sizes is None


def test_sizes_when_runs_are_merged_then_follow_the_codes() -> None:
    texts = [["a", "b" * 9000], ["c", "d", *"efgh"]]
    runs = [
        sort_run(np.array(codes), 1, pa.record_batch({"t": text}))
        for codes, text in zip([[3, 1], [2, 0, 4, 5, 6, 7]], texts, strict=True)
    ]
    sizes = merge_runs(runs).sizes
    assert sizes is not None
    assert (sizes - sizes[0]).tolist() == [0, 8999, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("text_bytes", [[10] * 12, [5_000, 1, 3, 20_000, 1, 1, 9_000, 9_000, 7]])
@pytest.mark.parametrize("most_bytes", [1, 500, 10_000, 1 << 20])
def test_cuts_when_rows_differ_in_width_then_parts_fit_or_are_one_row(
    text_bytes: list[int], most_bytes: int
) -> None:
    codes = np.arange(len(text_bytes))
    run = Run(codes, codes, pa.record_batch({"t": ["x" * count for count in text_bytes]}))
    parts = list(run.cuts(0, len(run), most_bytes))
    assert [row for start, stop in parts for row in range(start, stop)] == codes.tolist()
    mean = run.nbytes // len(run)
    for start, stop in parts:
        assert stop - start == 1 or run.slice(start, stop).nbytes <= most_bytes + mean
    assert len(parts) <= 2 * run.nbytes // most_bytes + 1


@given(code_lists, code_lists, st.integers(0, 4), st.integers(1, 50))
def test_probe_when_compared_with_all_pairs_then_finds_the_same(
    stored: list[int], probing: list[int], width: int, limit: int
) -> None:
    run, codes = make_run(stored), make_run(probing).codes
    low, high = (codes, codes) if width == 0 else bands(codes.tolist(), width)
    span = probe_run(run.codes, low, high)
    found = [] if span is None else pairs_of(span, limit)
    wanted = [
        (i, j)
        for i, a in enumerate(codes.tolist())
        for j, b in enumerate(run.codes.tolist())
        if abs(a - b) <= width
    ]
    assert sorted(found) == wanted
    assert span is None or len(found) == len(set(found)) > 0


def pairs_of(span: Span, limit: int) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for one, two in span.pairs(limit):
        assert 0 < len(one) == len(two) <= limit
        found += zip(one.tolist(), two.tolist(), strict=True)
    return found


def test_probe_when_ranges_are_equal_but_not_identical_then_finds_the_same() -> None:
    """Equality may be asked as a band of no width."""
    stored, codes = np.array([1, 2, 2, 5]), np.array([2, 3, 5])
    one, two = probe_run(stored, codes, codes), probe_run(stored, codes, codes.copy())
    assert one is not None
    assert two is not None
    assert pairs_of(one, 10) == pairs_of(two, 10) == [(0, 1), (0, 2), (2, 3)]


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 1000])
def test_pairs_when_one_row_matches_more_than_the_limit_then_go_on_in_the_next_piece(
    limit: int,
) -> None:
    span = Span(np.array([3, 5, 9]), np.array([0, 10, 4]), np.array([8, 11, 9]))
    wanted = [(3, n) for n in range(8)] + [(5, 10)] + [(9, n) for n in range(4, 9)]
    assert pairs_of(span, limit) == wanted
    sizes = [len(one) for one, _ in span.pairs(limit)]
    assert all(size == limit for size in sizes[:-1]), "only the last piece may be smaller"


def test_probe_when_a_side_is_empty_then_finds_nothing() -> None:
    none, some = np.zeros(0, dtype=np.int64), np.array([1])
    assert probe_run(none, some, some) is None
    assert probe_run(some, none, none) is None


@given(
    st.lists(
        st.one_of(st.integers(-9, 9), st.integers(-(2**63), 2**63 - 1), st.just(3)), min_size=1
    ),
    st.lists(st.one_of(st.integers(-11, 11), st.integers(-(2**63), 2**63 - 1))),
)
def test_directory_when_compared_with_a_search_then_finds_the_same(
    stored: list[int], probing: list[int]
) -> None:
    """Crowded buckets, and codes at the ends of their range, included."""
    codes, sought = np.sort(np.array(stored)), np.sort(np.array(probing + stored[:3]))
    one, two = Directory(codes).probe(codes, sought), probe_run(codes, sought, sought)
    assert one is not None
    assert two is not None
    assert sorted(pairs_of(one, 50)) == sorted(pairs_of(two, 50))


def test_directory_when_codes_are_all_outside_or_between_then_finds_nothing() -> None:
    codes = np.array([10, 20, 30])
    assert Directory(codes).probe(codes, np.array([-5, 9, 31])) is None
    assert Directory(codes).probe(codes, np.array([11, 25])) is None


# -- the index ------------------------------------------------------------------------------


@given(st.lists(code_lists.filter(len), max_size=12), st.sampled_from([0, 2_000, UNLIMITED]))
def test_insert_when_runs_come_then_all_rows_are_found_by_a_probe(
    lists: list[list[int]], merge_bytes: int
) -> None:
    index = SortedRuns(merge_bytes)
    wanted: Entries = []
    for ats, codes in enumerate(lists):
        run = make_run(codes, ats)
        wanted += entries(run)
        index.insert(run)
        index.check()
    assert all_entries(index) == sorted(wanted)
    assert len(index) == len(wanted)
    probing = np.arange(-8, 9)
    found = [
        entries(run)[row]
        for run, span in index.probe(probing, probing)
        for _, rows in span.pairs(10)
        for row in rows.tolist()
    ]
    assert sorted(found) == sorted(entry for entry in wanted if abs(entry[0]) <= 8)


def test_insert_when_many_small_runs_come_then_stay_few() -> None:
    index = SortedRuns(UNLIMITED)
    for number in range(500):
        index.insert(make_run([number % 50, number % 7]))
    assert len(index) == 1000
    assert len(index.runs) <= 4 * FAN_IN


def test_insert_when_merging_would_exceed_the_limit_then_runs_stay_apart() -> None:
    small = make_run([1, 2, 3]).nbytes
    index = SortedRuns(FAN_IN * small + 64)
    for _ in range(40):
        index.insert(make_run([1, 2, 3]))
    assert max(run.nbytes for run in index.runs) <= FAN_IN * small + 64
    assert len(index.runs) >= 40 // FAN_IN


@given(st.lists(code_lists.filter(len), max_size=8), st.integers(-9, 9), st.integers(0, 6))
def test_take_range_when_compared_with_a_filter_then_takes_and_leaves_the_same(
    lists: list[list[int]], low: int, width: int
) -> None:
    index = SortedRuns(UNLIMITED)
    wanted: Entries = []
    for ats, codes in enumerate(lists):
        run = make_run(codes, ats)
        wanted += entries(run)
        index.insert(run)
    size = index.range_bytes(low, low + width)
    taken = [own(part) for part in index.take_range(low, low + width)]
    index.check()
    inside = sorted(entry for entry in wanted if low <= entry[0] <= low + width)
    assert all_entries(index) == sorted(entry for entry in wanted if entry not in inside)
    assert sorted(entry for part in taken for entry in entries(part)) == inside
    assert all((np.diff(part.codes) >= 0).all() for part in taken)
    assert (size > 0) == bool(inside)
    assert index.range_bytes(low, low + width) == 0


def test_take_range_when_rows_are_left_then_their_buffers_are_their_own() -> None:
    """What is taken must not keep alive what is left, nor the other way round."""
    index = SortedRuns(UNLIMITED)
    index.insert(make_run(list(range(1000))))
    (taken,) = [own(part) for part in index.take_range(100, 199)]
    for run in (taken, *index.runs):
        buffers = [b for column in run.rows.columns for b in column.buffers() if b is not None]
        assert sum(b.size for b in buffers) < 1.2 * run.rows.nbytes + 512
        assert run.codes.base is None or run.codes.base.nbytes == run.codes.nbytes


# -- blocks ---------------------------------------------------------------------------------


def writer() -> tuple[list[int], "Iterator[np.void]"]:
    written: list[int] = []

    def blocks() -> Iterator[np.void]:
        for number in itertools.count():
            entry = np.zeros((), dtype=BLOCK)
            entry["offset"] = number
            yield entry[()]

    return written, blocks()


def test_persist_when_called_again_then_writes_new_runs_only() -> None:
    written, blocks = writer()

    def write(run: Run) -> np.void:
        written.append(len(run))
        block = next(blocks)
        block["rows"] = len(run)
        return block

    index = SortedRuns(0)
    index.insert(make_run([1, 2, 3]))
    assert len(index.persist(write)) == 1
    index.insert(make_run([4, 5]))
    assert len(index.persist(write)) == 2
    assert len(index.persist(write)) == 2
    assert written == [3, 2]


def test_take_range_when_half_of_a_block_is_left_then_keeps_the_block_and_no_longer_after() -> None:
    written, blocks = writer()

    def write(run: Run) -> np.void:
        written.append(len(run))
        block = next(blocks)
        block["rows"] = len(run)
        return block

    index = SortedRuns(0)
    index.insert(make_run(list(range(10))))
    index.persist(write)
    list(index.take_range(0, 4))
    assert index.runs[0].block is not None
    index.persist(write)
    list(index.take_range(5, 5))
    assert index.runs[0].block is None
    index.persist(write)
    assert written == [10, 4]


def test_check_when_a_run_is_out_of_order_then_fails() -> None:
    index = SortedRuns(0)
    index.insert(make_run([1, 2]))
    index.runs[0].codes = np.array([2, 1])
    with pytest.raises(AssertionError, match="out of order"):
        index.check()
