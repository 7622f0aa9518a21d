"""The clairvoyant bound against policies, and against all that policies could do."""

import itertools
from collections import Counter

import numpy as np
import pytest

from dovetail.errors import ArgumentError
from dovetail_bench.diner.clairvoyant import (
    Arrivals,
    most_by_prices,
    most_by_segments,
    most_online_results,
)


def arrivals_of(text: str, within: int = 0) -> Arrivals:
    """`"L1 R1"`: a left row with key 1, then a right row with key 1."""
    rows = text.split()
    sides = np.array([0 if row[0] == "L" else 1 for row in rows], dtype=np.int8)
    return Arrivals(sides, np.array([int(row[1:]) for row in rows], dtype=np.int64), within)


def random_arrivals(rng: np.random.Generator, rows: int, domain: int, within: int = 0) -> Arrivals:
    sides = rng.integers(0, 2, rows).astype(np.int8)
    return Arrivals(sides, rng.integers(0, domain, rows), within)


def matching(arrivals: Arrivals, one: int, other: int) -> bool:
    apart = abs(int(arrivals.keys[one]) - int(arrivals.keys[other]))
    return arrivals.sides[one] != arrivals.sides[other] and apart <= arrivals.within


def best_of_dropping(arrivals: Arrivals, capacity: int) -> int:
    """The best that dropping alone can do: every choice of rows to keep, after every arrival."""
    best = {frozenset[int](): 0}
    for time in range(len(arrivals.keys)):
        after: dict[frozenset[int], int] = {}
        for kept, found in best.items():
            total = found + sum(matching(arrivals, row, time) for row in kept)
            held = kept | {time}
            # a row with no partner to come is worth nothing, and neither is an empty place
            useful = [
                row
                for row in held
                if any(
                    matching(arrivals, row, later) for later in range(time + 1, len(arrivals.keys))
                )
            ]
            for choice in itertools.combinations(useful, min(capacity, len(useful))):
                chosen = frozenset(choice)
                after[chosen] = max(after.get(chosen, 0), total)
        best = after
    return max(best.values())


def largest_set_of_segments(arrivals: Arrivals, capacity: int) -> int:
    """By trying all sets of segments."""
    segments = []
    for row in range(len(arrivals.keys)):
        later = range(row + 1, len(arrivals.keys))
        met = [row, *(time for time in later if matching(arrivals, row, time))]
        segments += list(itertools.pairwise(met))
    for size in range(len(segments), 0, -1):
        for some in itertools.combinations(segments, size):
            alive = np.zeros(len(arrivals.keys), dtype=int)
            for begin, end in some:
                alive[begin:end] += 1
            if alive.max() <= capacity:
                return size
    return 0


def found_by_random_drops(arrivals: Arrivals, capacity: int, rng: np.random.Generator) -> int:
    kept: list[int] = []
    found = 0
    for time in range(len(arrivals.keys)):
        found += sum(matching(arrivals, row, time) for row in kept)
        kept.append(time)
        if len(kept) > capacity:
            kept.pop(int(rng.integers(len(kept))))
    return found


def test_bound_when_memory_holds_everything_then_is_the_whole_join() -> None:
    rng = np.random.default_rng(1)
    for within in (0, 2):
        arrivals = random_arrivals(rng, 80, 12, within)
        pairs = itertools.combinations(range(80), 2)
        whole = sum(matching(arrivals, one, other) for one, other in pairs)
        assert most_online_results(arrivals, 80) == whole
        assert most_online_results(arrivals, 0) == 0


def test_bound_when_one_row_fits_then_keeps_the_one_that_is_met_first() -> None:
    arrivals = arrivals_of("L1 L2 R2 R1")
    assert most_online_results(arrivals, 1) == 1
    assert most_online_results(arrivals, 2) == 2
    assert most_online_results(arrivals_of("L1 L2 R2 R2 R2 R1"), 1) == 3


def test_bound_when_keys_are_near_then_a_band_counts_them() -> None:
    arrivals = arrivals_of("L1 R3 R5 L4", within=2)
    assert most_online_results(arrivals, 4) == 3
    assert most_online_results(arrivals_of("L1 R3 R5 L4"), 4) == 0


@pytest.mark.parametrize("within", [0, 1])
def test_segments_when_all_sets_are_tried_then_are_the_largest(within: int) -> None:
    rng = np.random.default_rng([2, within])
    compared = 0
    while compared < 60:
        arrivals = random_arrivals(rng, 8, 5 if within else 3, within)
        capacity = int(rng.integers(1, 4))
        if most_online_results(arrivals, 8) > 12:
            continue  # too many sets to try
        compared += 1
        found = most_by_segments(arrivals, capacity)
        assert found == largest_set_of_segments(arrivals, capacity), (arrivals, capacity)


@pytest.mark.parametrize("within", [0, 1])
def test_bounds_when_policies_only_drop_then_are_never_below_the_best_and_little_above(
    within: int,
) -> None:
    rng = np.random.default_rng([3, within])
    totals: Counter[str] = Counter()
    cases = 120
    for _ in range(cases):
        arrivals = random_arrivals(rng, 11, 6 if within else 4, within)
        capacity = int(rng.integers(1, 4))
        best = best_of_dropping(arrivals, capacity)
        bounds = {
            "segments": most_by_segments(arrivals, capacity),
            "prices": most_by_prices(arrivals, capacity),
            "both": most_online_results(arrivals, capacity),
        }
        assert min(bounds.values()) >= best, (arrivals, capacity, bounds)
        totals += Counter(bounds) + Counter(best=best, met=int(bounds["both"] == best))
    assert totals["best"] < totals["segments"], "nothing shows the relaxation: too easy?"
    # measured: segments 0.8 and 1.6 % above the best, prices 2.3 and 1.5 %, both 0.2 and 0.1 %
    assert totals["segments"] <= 1.03 * totals["best"], totals
    assert totals["prices"] <= 1.04 * totals["best"], totals
    assert totals["both"] <= 1.01 * totals["best"], totals
    assert totals["met"] >= 0.95 * cases, totals


def test_prices_when_keys_repeat_much_then_bound_far_below_segments() -> None:
    rng = np.random.default_rng(9)
    arrivals = random_arrivals(rng, 2_000, 10)
    prices, segments = most_by_prices(arrivals, 60), most_by_segments(arrivals, 60)
    assert prices < 0.9 * segments
    # at best, each row that stays is kept to the end: 60 rows meet a tenth of the other side's
    assert prices >= max(found_by_random_drops(arrivals, 60, rng) for _ in range(3))


def test_prices_when_searched_for_longer_then_the_bound_only_gets_lower() -> None:
    arrivals = random_arrivals(np.random.default_rng(10), 600, 25)
    found = [most_by_prices(arrivals, 40, rounds=rounds) for rounds in (0, 20, 200)]
    assert found == sorted(found, reverse=True)
    assert found[-1] < found[0]


def test_bound_when_rows_are_dropped_at_random_then_is_not_exceeded() -> None:
    rng = np.random.default_rng(4)
    for within in (0, 3):
        arrivals = random_arrivals(rng, 300, 25, within)
        bound = most_online_results(arrivals, 30)
        found = [found_by_random_drops(arrivals, 30, rng) for _ in range(5)]
        assert 0 < max(found) < bound


def by_rate(arrivals: Arrivals, capacity: int) -> int:
    """What a policy finds that knows what comes, and drops the rows that gain least.

    What a row gains is the most meetings for each arrival until some time ahead.
    """
    keys, sides = arrivals.keys, arrivals.sides
    values, group = np.unique(keys, return_inverse=True)
    came = np.zeros((2, len(values), len(keys) + 1))  # rows of a side and key until each time
    for side in range(2):
        came[side, group[sides == side], np.flatnonzero(sides == side) + 1] = 1
    came = came.cumsum(axis=2)
    spans = np.unique(np.geomspace(4, len(keys), 24).astype(np.int64))
    held = np.zeros((2, len(values)), dtype=np.int64)
    found = 0
    for time, (side, mine) in enumerate(zip(sides.tolist(), group.tolist(), strict=True), 1):
        found += int(held[1 - side, mine])
        held[side, mine] += 1
        if held.sum() > capacity:
            ahead = spans[: np.searchsorted(spans, len(keys) - time) + 1]
            until = np.minimum(time + ahead, len(keys))
            gained = came[::-1][:, :, until] - came[::-1][:, :, [time]]  # they meet the other side
            rate = (gained / ahead).max(axis=2)
            held.flat[int(np.where(held, rate, np.inf).argmin())] -= 1
    return found


@pytest.mark.parametrize("law", ["zipf", "normal", "uniform"])
def test_bound_when_thousands_of_rows_come_then_a_policy_that_knows_what_comes_has_nine_tenths(
    law: str,
) -> None:
    rng = np.random.default_rng(21)
    weights = 1 / np.arange(1, 300)
    keys = {
        "zipf": rng.choice(299, 3_000, p=weights / weights.sum()),
        "normal": np.rint(rng.normal(500, 7, 3_000)).astype(np.int64),
        "uniform": rng.integers(0, 300, 3_000),
    }[law]
    arrivals = Arrivals(rng.integers(0, 2, 3_000).astype(np.int8), keys)
    bound, found = most_online_results(arrivals, 80), by_rate(arrivals, 80)
    assert 0.9 * bound <= found <= bound


def test_bound_when_an_ended_side_may_be_loaded_then_counts_what_fits_at_each_arrival() -> None:
    arrivals = arrivals_of("L1 L2 L1 R2 L9 R1 R2")
    # R2 finds the one row; then the left side ends: R1 could meet two rows, R2 one
    assert most_online_results(arrivals, 1) == 2
    assert most_online_results(arrivals, 1, loads_ended=True) == 3
    assert most_online_results(arrivals, 2, loads_ended=True) == 4


def test_bound_when_arguments_make_no_sense_then_says_so() -> None:
    with pytest.raises(ArgumentError, match="capacity"):
        most_online_results(arrivals_of("L1"), -1)
    with pytest.raises(ArgumentError, match="within"):
        arrivals_of("L1", within=-1)
    with pytest.raises(ArgumentError, match="sides"):
        Arrivals(np.zeros(2, dtype=np.int8), np.zeros(3, dtype=np.int64))


def test_bound_when_there_is_one_side_or_no_row_then_is_zero() -> None:
    assert most_online_results(arrivals_of("L1 L1"), 3, loads_ended=True) == 0
    assert most_online_results(arrivals_of(""), 3, loads_ended=True) == 0
