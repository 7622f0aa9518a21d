"""DINER's index and regions by themselves, against plain sorting and counting."""

import numpy as np
import pyarrow as pa
import pytest

from dovetail.kernel.keys import KeyCodec
from dovetail.kernel.runs import Run, sort_run
from dovetail.twoway.diner.index import Found, MarkedRuns
from dovetail.twoway.diner.regions import LEAST, LOWER, MIDDLE, MOST, UPPER, Regions

PIECE_BYTES = 400  # about ten rows, so that merged runs come in several pieces


def filled(codes: list[int] | np.ndarray, batch: int = 7) -> MarkedRuns:
    """An index of rows that hold their own code, inserted a few at a time."""
    index = MarkedRuns(1 << 20, PIECE_BYTES)
    codes = np.asarray(codes, dtype=np.int64)
    for tick, start in enumerate(range(0, len(codes), batch)):
        part = codes[start : start + batch]
        index.insert(sort_run(part, tick, pa.record_batch({"code": part})))
    index.check()
    return index


def codes_of(runs: list[Run]) -> list[int]:
    for run in runs:
        assert run.rows.column(0).to_pylist() == run.codes.tolist(), "rows and codes went apart"
    return sorted(code for run in runs for code in run.codes.tolist())


@pytest.mark.parametrize("count", [1, 5, 40, 1000])
@pytest.mark.parametrize("seed", range(5))
def test_take_when_lowest_or_highest_then_takes_what_sorting_says(seed: int, count: int) -> None:
    codes = np.random.default_rng(seed).integers(-30, 30, 150)
    low, high = -20, 22
    within = sorted(codes[(codes >= low) & (codes <= high)].tolist())
    for taken_first in (True, False):
        index = filled(codes)
        take = index.take_lowest if taken_first else index.take_highest
        taken = codes_of(take(count, low, high))
        assert taken == (within[:count] if taken_first else within[-count:])
        index.check()
        assert sorted(codes_of(index.runs) + taken) == sorted(codes.tolist())


@pytest.mark.parametrize("count", [1, 7, 60, 500])
def test_bounds_when_asked_for_a_number_of_rows_then_hold_at_least_so_many(count: int) -> None:
    codes = np.random.default_rng(count).integers(-30, 30, 150)
    index = filled(codes)
    lower, upper = index.nth_lowest(count), index.nth_highest(count)
    assert lower == sorted(codes)[min(count, len(codes)) - 1]
    assert upper == sorted(codes, reverse=True)[min(count, len(codes)) - 1]
    if lower < upper:
        counted = index.count_regions(lower, upper)
        middle = int(((codes > lower) & (codes < upper)).sum())
        assert counted == [int((codes <= lower).sum()), middle, int((codes >= upper).sum())]


@pytest.mark.parametrize("within", [None, 3])
def test_probe_when_rows_match_then_counts_them_and_sets_their_bits(within: int | None) -> None:
    rng = np.random.default_rng(4)
    codes, probing = rng.integers(0, 400, 200), np.sort(rng.integers(0, 400, 60))
    index = filled(codes)
    low, high = KeyCodec((pa.int64(),), within).candidates(probing)
    spans, found = list(index.probe(low, high)), Found(index, len(probing))
    for run, span in spans:
        found.note(run, span)
    near = np.abs(probing[:, None] - codes[None, :]) <= (within or 0)
    assert found.counts().tolist() == near.sum(axis=1).tolist()
    assert sum(int((span.high - span.low).sum()) for _, span in spans) == near.sum()
    matched = set(codes[near.any(axis=0)].tolist())
    assert 0 < len(matched) < len(set(codes.tolist()))
    for piece in index.pieces:
        assert piece.joined.tolist() == [code in matched for code in piece.codes.tolist()]


def test_bits_when_runs_are_merged_then_stay_with_their_rows() -> None:
    index = MarkedRuns(1 << 20, PIECE_BYTES)
    for tick in range(40):
        codes = np.arange(tick, 400, 40)
        index.insert(sort_run(codes, tick, pa.record_batch({"code": codes})), codes % 3 == 0)
    assert len(index.runs) < len(index) / 5, "nothing was merged"
    for piece in index.pieces:
        assert (piece.joined == (piece.codes % 3 == 0)).all()


def test_loaded_rows_when_probed_then_are_found_but_not_counted() -> None:
    index = filled([1, 2, 3])
    codes = np.array([3, 4])
    index.loaded.append(sort_run(codes, 0, pa.record_batch({"code": codes})))
    low = np.array([3, 4])
    found = Found(index, len(low))
    spans = list(index.probe(low, low))
    for run, span in spans:
        found.note(run, span)
    assert len(spans) == 2
    assert found.counts().tolist() == [1, 0]
    assert len(index) == 3


# -- the clock hand -------------------------------------------------------------------------


def with_bits(codes: list[int], joined: set[int]) -> MarkedRuns:
    index = filled(codes, batch=4)
    for piece in index.pieces:
        piece.joined[:] = np.isin(piece.codes, list(joined))
    return index


def bits(index: MarkedRuns) -> dict[int, bool]:
    pairs = ((p.codes.tolist(), p.joined.tolist()) for p in index.pieces)
    return {code: bit for codes, some in pairs for code, bit in zip(codes, some, strict=True)}


def test_hand_when_it_goes_round_then_takes_rows_without_bit_and_clears_the_others() -> None:
    index = with_bits(list(range(12)), joined={3, 4, 6, 9})
    taken, reached = index.take_unset(3, 3, 11)
    assert codes_of(taken) == [5, 7, 8]
    assert reached == 8
    assert bits(index) == {0: 0, 1: 0, 2: 0, 3: 0, 4: 0, 6: 0, 9: 1, 10: 0, 11: 0}


def test_hand_when_too_few_bits_are_unset_then_says_it_went_through() -> None:
    index = with_bits(list(range(12)), joined={3, 4, 6, 9})
    taken, reached = index.take_unset(50, 3, 6)
    assert (codes_of(taken), reached) == ([5], None)
    assert bits(index)[9], "beyond the range"
    assert not bits(index)[3]


def test_hand_when_a_code_has_many_rows_then_takes_no_more_than_asked() -> None:
    index = with_bits([5] * 20 + [6], joined=set())
    taken, reached = index.take_unset(8, LEAST, MOST)
    assert (codes_of(taken), reached) == ([5] * 8, 5)
    assert len(index) == 13


# -- regions --------------------------------------------------------------------------------


def regions(lower: int, upper: int) -> Regions:
    known = Regions()
    known.set_bounds(lower, upper)
    return known


def test_statistics_when_rows_come_then_count_in_the_region_of_their_own_value() -> None:
    """Algorithm 3: rows at a bound belong to the outer region; the other side counts joins only."""
    known = regions(10, 20)
    codes = np.array([9, 10, 11, 19, 20, 25])
    known.arrived(codes, np.array([1, 2, 4, 8, 16, 32]))
    assert (known.joins, known.rows) == ([3, 12, 48], [2, 2, 2])
    known.probed(codes, np.array([1, 1, 1, 1, 1, 0]))
    assert (known.joins, known.rows) == ([5, 14, 49], [2, 2, 2])


def test_statistics_when_no_bounds_are_known_then_all_is_middle() -> None:
    known = Regions()
    known.arrived(np.array([LEAST, 0, MOST]), np.array([1, 0, 1]))
    assert (known.joins, known.rows) == ([0, 2, 0], [0, 3, 0])
    assert known.victims() == [MIDDLE]


@pytest.mark.parametrize(
    ("joins", "rows", "order"),
    [
        ([1, 10, 10], [10, 10, 10], [LOWER, UPPER, MIDDLE]),
        ([10, 1, 10], [10, 10, 10], [MIDDLE, UPPER, LOWER]),
        ([5, 5, 5], [5, 5, 5], [UPPER, LOWER, MIDDLE]),  # a tie: as Algorithm 2 asks
        ([1, 10, 5], [1, 100, 10], [MIDDLE, UPPER, LOWER]),  # joins per row
        ([0, 10, 9], [0, 10, 10], [UPPER, MIDDLE]),  # nothing to take from an empty region
    ],
)
def test_victims_when_benefits_differ_then_the_least_comes_first(
    joins: list[int], rows: list[int], order: list[int]
) -> None:
    known = regions(10, 20)
    known.joins, known.rows = joins, rows
    assert known.victims() == order


def test_bounds_when_moved_anyhow_then_never_overlap() -> None:
    rng = np.random.default_rng(0)
    known = regions(0, 0)
    values = [LEAST, LEAST + 1, -3, -2, -1, 0, 1, 2, 3, MOST - 1, MOST]
    for _ in range(500):
        value = values[rng.integers(len(values))]
        (known.set_lower, known.set_upper, lambda v: known.set_bounds(v, v))[rng.integers(3)](value)
        known.check()
        reaches = [known.reach(region) for region in (LOWER, MIDDLE, UPPER)]
        assert reaches[0][1] + 1 == reaches[1][0]
        assert reaches[1][1] + 1 == reaches[2][0]


def test_joins_when_flushed_then_start_anew_with_the_next_row_and_not_before() -> None:
    known = regions(10, 20)
    known.probed(np.array([5]), np.array([7]))
    known.flushed = True
    assert known.joins == [7, 0, 0], "a second flush is decided on what is known"
    known.probed(np.array([15]), np.array([2]))
    assert known.joins == [0, 2, 0]
