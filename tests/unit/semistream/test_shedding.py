"""Which rows each strategy keeps, and how f_R is found."""

import numpy as np
import pytest
from numpy.typing import NDArray

from dovetail.errors import ArgumentError
from dovetail.semistream.shedding import SHEDDERS, Frequencies, SketchedFrequencies, rows_to_keep

EXTREMES = [-(1 << 63), -1, 0, (1 << 63) - 1]


def relation_of(counts: list[int]) -> Frequencies:
    """In which code i occurs `counts[i]` times."""
    return Frequencies(np.arange(len(counts)), np.array(counts, dtype=np.int64))


def frequencies(codes: NDArray[np.int64]) -> Frequencies:
    return Frequencies(*np.unique(codes, return_counts=True))


def kept(name: str, counts: list[int], w: int, seed: int = 1) -> list[int]:
    """The rows kept of a stream whose row i has `counts[i]` matches."""
    rng = np.random.default_rng(seed)
    rows = rows_to_keep(name, np.arange(len(counts)), w, relation_of(counts), rng)
    return rows.tolist()


def times_kept(name: str, counts: list[int], w: int, draws: int) -> NDArray[np.int64]:
    """How often each row is kept in so many draws."""
    rng = np.random.default_rng(11)
    codes, relation = np.arange(len(counts)), relation_of(counts)
    drawn = [rows_to_keep(name, codes, w, relation, rng) for _ in range(draws)]
    return np.bincount(np.concatenate(drawn), minlength=len(counts))


# -- all strategies -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHEDDERS)
@pytest.mark.parametrize("w", [0, 1, 7, 49, 50, 51])
def test_kept_when_w_varies_then_is_that_many_different_rows_in_order(name: str, w: int) -> None:
    for seed in range(20):
        counts = np.random.default_rng(seed).integers(0, 4, 50).tolist()
        rows = kept(name, counts, w, seed)
        assert len(rows) == min(w, 50), f"{seed=} {counts=}"
        assert rows == sorted(set(rows)), f"{seed=} {counts=}"
        assert not rows or (rows[0] >= 0 and rows[-1] < 50), f"{seed=} {counts=}"


@pytest.mark.parametrize("name", SHEDDERS)
def test_kept_when_no_row_came_then_is_empty(name: str) -> None:
    assert kept(name, [], 3) == []


@pytest.mark.parametrize("name", SHEDDERS)
def test_kept_when_no_row_has_a_match_then_is_still_w_rows(name: str) -> None:
    assert len(kept(name, [0] * 10, 4)) == 4


@pytest.mark.parametrize("name", SHEDDERS)
def test_kept_when_the_seed_is_the_same_then_is_the_same(name: str) -> None:
    counts = np.random.default_rng(2).integers(0, 9, 60).tolist()
    assert kept(name, counts, 20, seed=5) == kept(name, counts, 20, seed=5)


@pytest.mark.parametrize("name", SHEDDERS)
def test_kept_when_w_is_negative_then_is_refused(name: str) -> None:
    with pytest.raises(ArgumentError, match="0 or more, not -1"):
        kept(name, [1, 2], -1)


# -- each strategy ------------------------------------------------------------------------------


def test_keep_when_later_rows_have_more_matches_then_keeps_the_first() -> None:
    assert kept("keep", [0, 1, 5, 9], 2) == [0, 1]


def test_sample_when_drawn_often_then_every_row_is_as_likely() -> None:
    found = times_kept("sample", [0, 0, 1, 1, 9, 9, 50, 50], w=3, draws=8000)
    # 3000 expected, with a standard deviation of 43
    assert np.abs(found - 3000).max() < 200, found


def test_sample_when_drawn_often_then_every_pair_is_as_likely() -> None:
    rng = np.random.default_rng(3)
    codes, relation = np.arange(5), relation_of([1] * 5)
    drawn = [rows_to_keep("sample", codes, 2, relation, rng) for _ in range(5000)]
    found = np.unique(np.stack(drawn), axis=0, return_counts=True)[1]
    assert len(found) == 10
    # 500 expected, with a standard deviation of 21
    assert np.abs(found - 500).max() < 105, found


def test_topw_when_counts_differ_then_keeps_the_largest() -> None:
    assert kept("topw", [3, 9, 1, 7, 0, 8], 3) == [1, 3, 5]


def test_topw_when_counts_are_equal_then_keeps_the_earliest() -> None:
    assert kept("topw", [2, 5, 2, 5, 2, 2], 4) == [0, 1, 2, 3]
    assert kept("topw", [4] * 6, 2) == [0, 1]


def test_topw_when_counts_are_random_then_agrees_with_a_stable_sort() -> None:
    for seed in range(50):
        rng = np.random.default_rng(seed)
        counts = rng.integers(0, 6, 40).tolist()
        w = int(rng.integers(1, 40))
        expected = sorted(sorted(range(40), key=lambda row: -counts[row])[:w])
        assert kept("topw", counts, w) == expected, f"{seed=} {w=} {counts=}"


def test_cluster_when_drawn_often_then_chances_are_proportional_to_the_matches() -> None:
    counts = [1, 2, 3, 4, 5, 5, 10, 10]
    found = times_kept("cluster", counts, w=3, draws=8000)
    expected = 3 * np.array(counts) / 40 * 8000
    # the standard deviation is at most 45
    assert np.abs(found - expected).max() < 200, found


def test_cluster_when_a_chance_would_exceed_1_then_the_row_is_certain() -> None:
    counts = [1000, 1, 2, 3, 4]
    found = times_kept("cluster", counts, w=3, draws=6000)
    assert found[0] == 6000
    expected = 2 * np.array(counts[1:]) / 10 * 6000
    assert np.abs(found[1:] - expected).max() < 200, found


def test_cluster_when_rows_stand_next_to_each_other_then_may_be_kept_together() -> None:
    # without the shuffle, marks at equal distances could never hit two neighbours
    rows = [kept("cluster", [1] * 6, 2, seed) for seed in range(200)]
    assert [0, 1] in rows
    assert [0, 3] in rows


def test_cluster_when_fewer_rows_match_than_fit_then_fills_up_with_any_others() -> None:
    counts = [0, 0, 7, 0, 1, 0]
    found = times_kept("cluster", counts, w=4, draws=2000)
    assert found[2] == found[4] == 2000
    others = found[[0, 1, 3, 5]]
    # 1000 expected, with a standard deviation of 22
    assert np.abs(others - 1000).max() < 110, found


def test_cluster_when_enough_rows_match_then_none_without_a_match_is_kept() -> None:
    counts = [0, 1, 0, 100, 2, 0, 1]
    assert times_kept("cluster", counts, w=3, draws=500)[[0, 2, 5]].sum() == 0
    assert kept("cluster", counts, 4) == [1, 3, 4, 6]


def test_cluster_when_counts_are_huge_then_nothing_overflows() -> None:
    class Huge:
        def of(self, codes: NDArray[np.int64]) -> NDArray[np.int64]:
            return np.full(len(codes), 1 << 45) + codes

    codes = np.arange(100_000)
    rows = rows_to_keep("cluster", codes, 60_000, Huge(), np.random.default_rng(1))
    assert len(np.unique(rows)) == 60_000


# -- frequencies --------------------------------------------------------------------------------


def test_frequencies_when_codes_are_looked_up_then_are_their_counts() -> None:
    found = frequencies(np.array([-3, -3, 0, 5, 5, 5]))
    assert found.of(np.array([5, 4, -3, 9, 0, -9, 5])).tolist() == [3, 0, 2, 0, 1, 0, 3]
    assert len(found.codes) == len(found.counts) == 3


def test_frequencies_when_codes_are_extreme_then_are_found() -> None:
    found = frequencies(np.array(EXTREMES))
    assert found.of(np.array(EXTREMES)).tolist() == [1, 1, 1, 1]


def test_frequencies_when_the_relation_is_empty_then_are_0() -> None:
    found = frequencies(np.zeros(0, dtype=np.int64))
    assert found.of(np.array([1, 2])).tolist() == [0, 0]
    assert found.of(np.zeros(0, dtype=np.int64)).tolist() == []


def skewed_codes(seed: int) -> NDArray[np.int64]:
    rng = np.random.default_rng(seed)
    return np.sort(rng.zipf(1.5, 50_000) % 100_000)


def test_sketch_when_the_budget_is_ample_then_is_exact() -> None:
    sketch = SketchedFrequencies(1_000_000)
    sketch.add(np.sort(np.array(EXTREMES * 3)))
    assert sketch.of(np.array([*EXTREMES, 77])).tolist() == [3, 3, 3, 3, 0]
    assert sketch.of(np.zeros(0, dtype=np.int64)).tolist() == []


def test_sketch_when_the_budget_is_small_then_keeps_to_it_and_never_estimates_too_low() -> None:
    codes = skewed_codes(4)
    exact, sketch = frequencies(codes), SketchedFrequencies(8_000)
    for part in np.array_split(codes, 7):  # a code may be in two of them
        sketch.add(part)
    asked = np.unique(codes)
    excess = sketch.of(asked) - exact.of(asked)
    assert sketch.counters.nbytes <= 8_000 < exact.codes.nbytes + exact.counts.nbytes
    assert excess.min() >= 0
    assert excess.max() > 0, "nothing was estimated: the budget is too large for this test"
    buckets = 8_000 // 32
    assert np.mean(excess > np.e / buckets * len(codes)) < 0.05


@pytest.mark.parametrize("apart", [1, 10, 1 << 20, (1 << 32) + 1, None])
@pytest.mark.parametrize("budget_bytes", [4_000, 32_768, 100_000])
def test_sketch_when_codes_lie_in_any_pattern_then_keeps_to_its_error(
    budget_bytes: int, apart: int | None
) -> None:
    """Numbered keys, keys with gaps of one length, and hashed ones."""
    rng = np.random.default_rng(budget_bytes)
    values = np.arange(20_000) * apart if apart else rng.integers(-(1 << 63), 1 << 63, 20_000)
    codes = np.sort(np.concatenate([values, rng.choice(values[:200], 20_000)]))
    exact, sketch = frequencies(codes), SketchedFrequencies(budget_bytes)
    sketch.add(codes)
    excess = sketch.of(values) - exact.of(values)
    assert excess.min() >= 0
    assert np.mean(excess > np.e / (budget_bytes // 32) * len(codes)) <= np.e**-4


def test_topw_when_frequencies_are_sketched_then_keeps_nearly_as_many_results() -> None:
    codes = skewed_codes(4)
    exact, sketch = frequencies(codes), SketchedFrequencies(8_000)
    sketch.add(codes)
    rng = np.random.default_rng(9)
    stream = rng.choice(np.unique(codes), 400)
    results = [
        int(exact.of(stream[rows_to_keep("topw", stream, 100, lookup, rng)]).sum())
        for lookup in (exact, sketch)
    ]
    first = int(exact.of(stream[:100]).sum())
    assert first < results[1] <= results[0]
    assert results[1] > 0.8 * results[0]


def test_sketch_when_the_budget_is_too_small_then_names_the_least() -> None:
    with pytest.raises(ArgumentError, match="at least 96 bytes, and 95 were given"):
        SketchedFrequencies(95)


def test_sketch_when_the_budget_is_the_least_then_works() -> None:
    sketch = SketchedFrequencies(96)
    sketch.add(np.array([1, 1, 2]))
    assert sketch.of(np.array([1]))[0] >= 2
    assert sketch.counters.nbytes == 96
