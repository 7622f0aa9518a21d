"""The offline optimum, against every subset of tiny streams."""

from collections.abc import Iterable
from itertools import combinations

import numpy as np
import pytest

from dovetail.errors import ArgumentError
from dovetail.semistream.shedding import Frequencies, rows_to_keep
from dovetail_bench.mesh.offline_shed import optimal_loss, optimal_losses


def fits(kept: tuple[int, ...], w: int, c_loop: int, first_request: int) -> bool:
    """Whether these rows can all be kept: the times of the transfers follow from them."""
    request, transfer = first_request, 0
    for start in range(0, len(kept), w):
        packet = kept[start : start + w]
        if packet[0] < transfer:
            return False
        # a full buffer goes over as soon as the join wants it
        transfer = max(packet[-1] + 1, request)
        request = transfer + c_loop
    return True


def subsets(rows: int) -> Iterable[tuple[int, ...]]:
    for size in range(rows + 1):
        yield from combinations(range(rows), size)


def least_loss_of_all(counts: list[int], w: int, c_loop: int, first_request: int) -> int:
    feasible = (kept for kept in subsets(len(counts)) if fits(kept, w, c_loop, first_request))
    return sum(counts) - max(sum(counts[row] for row in kept) for kept in feasible)


def topw_loss(counts: list[int], w: int, c_loop: int) -> int:
    relation = Frequencies(np.arange(len(counts)), np.array(counts))
    codes = np.arange(len(counts))
    rng = np.random.default_rng(1)
    kept = 0
    for start in range(0, len(codes), c_loop):
        interval = codes[start : start + c_loop]
        rows = rows_to_keep("topw", interval, w, relation, rng)
        kept += int(relation.of(interval[rows]).sum())
    return sum(counts) - kept


@pytest.mark.parametrize("w", [1, 2, 3])
@pytest.mark.parametrize("c_loop", [1, 2, 3, 4, 5])
def test_optimum_when_streams_are_tiny_then_is_the_best_of_all_subsets(w: int, c_loop: int) -> None:
    rng = np.random.default_rng(100 * w + c_loop)
    for rows in (1, 2, 5, 8, 10):
        counts = rng.integers(0, 7, rows).tolist()
        for first_request in {0, c_loop // 2, c_loop}:
            found = optimal_loss(np.array(counts), w, c_loop, first_request)
            expected = least_loss_of_all(counts, w, c_loop, first_request)
            assert found == expected, f"{counts=} {first_request=}"


def test_optimum_when_the_join_is_stalled_as_in_fig_8_then_loses_4_where_topw_loses_10() -> None:
    # Rows 4 and 5 go over at 6 instead of two of the first four at 4, so that 6 and 7 have room.
    counts = [1, 1, 1, 1, 4, 4, 4, 4]
    assert topw_loss(counts, w=2, c_loop=4) == 10
    assert optimal_loss(np.array(counts), w=2, c_loop=4, first_request=4) == 4


def test_optimum_when_the_first_request_is_at_0_then_has_one_buffer_more() -> None:
    # optloss(0, 0, 0) of the paper: rows 0 and 1 go over at 2, 4 and 5 at 6, and then 6 and 7.
    counts = [2, 2, 2, 2, 3, 3, 3, 3]
    assert topw_loss(counts, w=2, c_loop=4) == 10
    assert optimal_loss(np.array(counts), w=2, c_loop=4) == 4
    assert optimal_loss(np.array(counts), w=2, c_loop=4, first_request=4) == 8


def test_optimum_when_topw_runs_on_the_same_stream_then_is_no_worse() -> None:
    rng = np.random.default_rng(7)
    better = 0
    for w, c_loop in ((1, 2), (3, 5), (4, 8), (5, 6)):
        counts = rng.integers(0, 50, 10 * c_loop).tolist()
        best = optimal_loss(np.array(counts), w, c_loop, c_loop)
        online = topw_loss(counts, w, c_loop)
        assert best <= online, f"{w=} {c_loop=} {counts=}"
        better += best < online
    assert better, "the optimum never had an advantage: the test tells nothing"


def test_optimum_when_the_buffer_is_as_large_as_the_interval_then_loses_nothing() -> None:
    counts = np.random.default_rng(3).integers(1, 9, 40)
    assert optimal_loss(counts, w=4, c_loop=4) == 0


def test_optimum_when_several_streams_are_given_then_each_is_for_itself() -> None:
    streams = np.random.default_rng(5).integers(0, 20, (4, 30))
    found = optimal_losses(streams, 3, 6)
    assert found.tolist() == [optimal_loss(stream, 3, 6) for stream in streams]


def test_optimum_when_the_stream_is_empty_then_is_0() -> None:
    assert optimal_loss(np.zeros(0, dtype=np.int64), 2, 4) == 0


@pytest.mark.parametrize(
    ("w", "c_loop", "first_request"), [(0, 4, 0), (2, 0, 0), (2, 4, -1), (2, 4, 5)]
)
def test_optimum_when_an_argument_is_out_of_range_then_says_so(
    w: int, c_loop: int, first_request: int
) -> None:
    with pytest.raises(ArgumentError, match="must be"):
        optimal_loss(np.array([1, 2]), w, c_loop, first_request)
