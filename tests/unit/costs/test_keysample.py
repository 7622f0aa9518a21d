"""A sample stands for all rows and for all pairs, whatever the keys are like."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail.costs.keysample import BUCKETS, KeySample, heavy_buckets
from support.generators import draw_ranks
from support.samples import draw_sample

ROWS = 40_000
FRACTION = 0.1


def estimated_pairs(sample: KeySample, low: float, high: float, within: int = 0) -> float:
    """The pairs of a part of the sample by brute force, each for as many as it stands for."""
    share = high - low
    left, right = sample.part(low, high)
    a = sample.left.keys.to_numpy()[left.rows]
    b = sample.right.keys.to_numpy()[right.rows]
    total = 0.0
    for by_chance in (False, True):
        for certain in (False, True):
            ordered = np.sort(b[right.flags == certain])
            mine = a[left.flags == by_chance]
            first = np.searchsorted(ordered, mine - within)
            pairs = (np.searchsorted(ordered, mine + within, side="right") - first).sum()
            total += pairs / (share**2 if by_chance and not certain else share)
    return float(total)


def true_pairs(left: np.ndarray, right: np.ndarray, within: int = 0) -> int:
    ordered = np.sort(right)
    first = np.searchsorted(ordered, left - within)
    return int((np.searchsorted(ordered, left + within, side="right") - first).sum())


@pytest.mark.parametrize("within", [0, 3])
@pytest.mark.parametrize(
    ("distribution", "domain"),
    [("uniform", 40_000), ("uniform", 50), ("zipf", 10**9)],
    ids=["rare", "frequent", "skewed"],
)
def test_sample_when_drawn_then_stands_for_all_rows_and_pairs(
    distribution: str, domain: int, within: int
) -> None:
    rng = np.random.default_rng(1)
    keys = tuple(draw_ranks(rng, ROWS, distribution, domain) for _ in range(2))  # type: ignore[arg-type]
    found, sampled = [], []
    for seed in range(3):
        sample = draw_sample(keys, int(ROWS * FRACTION), within or None, seed)
        sampled.append(len(sample.left))
        found.append(estimated_pairs(sample, 0.0, FRACTION, within))
        # rows near the border of a cell are taken for both: a quarter more, at most
        assert len(sample.right) <= 1.4 * ROWS * FRACTION
    assert np.mean(sampled) == pytest.approx(ROWS * FRACTION, rel=0.1)
    assert np.mean(found) == pytest.approx(true_pairs(*keys, within), rel=0.15)


def test_part_when_keys_are_rare_then_has_all_rows_of_its_keys_and_no_other_part_has_any() -> None:
    rng = np.random.default_rng(2)
    keys = tuple(rng.integers(0, 20_000, 30_000) for _ in range(2))
    sample = draw_sample(keys, 3_000)
    assert not sample.heavy.any()
    seen: list[set[int]] = []
    for low, high in ((0.0, 0.04), (0.04, 0.1)):
        left, right = sample.part(low, high)
        values = [
            side.keys.to_numpy()[chosen.rows]
            for side, chosen in zip(sample.sides, (left, right), strict=True)
        ]
        mine = set(values[0].tolist()) | set(values[1].tolist())
        for side in range(2):
            assert len(values[side]) == np.isin(keys[side], list(mine)).sum()
        seen.append(mine)
    assert not seen[0] & seen[1]


def test_heavy_buckets_when_one_of_many_rare_keys_is_frequent_then_is_the_only_one() -> None:
    counts = np.random.default_rng(3).poisson(2, BUCKETS)
    counts[77] = 5_000
    heavy = heavy_buckets((counts, counts[::-1].copy()), 0.001, 1_000)
    assert set(np.flatnonzero(heavy)) == {77, BUCKETS - 78}


def test_heavy_buckets_when_rows_by_chance_leave_enough_pairs_then_are_all_of_them() -> None:
    counts = np.zeros(BUCKETS, dtype=np.int64)
    counts[:10] = 5_000
    assert heavy_buckets((counts, counts), 0.1, 5_000).all()
    assert not heavy_buckets((counts, counts), 0.001, 10**6).any()
