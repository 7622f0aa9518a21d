"""The load of each cell by a sample, and the shares whose fullest cell is smallest."""

import itertools
import math

import numpy as np
import pyarrow as pa
import pytest

from dovetail.costs import cellloads
from dovetail.costs.cellloads import HashSample, cell_loads, choose_by_sample, fullest
from dovetail.costs.shares import Dimension, Grid, choose_grid, dimensions_of, likely_grids
from dovetail.multiway import multiway_spec

SEED = 31
ON = [("r1.a", "r2.a"), ("r2.b", "r3.b")]
COLUMNS = {"r1": "a", "r2": "ab", "r3": "b"}


def chain() -> tuple[Dimension, ...]:
    schemas = {n: pa.schema([(c, pa.int64()) for c in names]) for n, names in COLUMNS.items()}
    return dimensions_of(multiway_spec(schemas, ON))


def sample_of(*hashes: np.ndarray | None) -> HashSample:
    """Hashes of one part each are given flat."""
    found = [
        None if some is None else some.astype(np.int32).reshape(len(some), -1) for some in hashes
    ]
    return HashSample(max(len(some) for some in found if some is not None), tuple(found))


def drawn(rng: np.random.Generator, rows: int, heavy: float = 0.0) -> np.ndarray:
    """Hashes, such a share of which is that of one value."""
    hashes = rng.integers(-(2**31), 2**31, rows)
    return np.where(rng.random(rows) < heavy, -123_457, hashes)


def every_largest(dimensions: int, partitions: int) -> list[tuple[int, ...]]:
    """Shares none of which could be larger."""
    fitting = {
        shares
        for shares in itertools.product(range(1, partitions + 1), repeat=dimensions)
        if math.prod(shares) <= partitions
    }
    return sorted(
        shares
        for shares in fitting
        if not any(
            (*shares[:i], shares[i] + 1, *shares[i + 1 :]) in fitting for i in range(len(shares))
        )
    )


def counted(
    shares: tuple[int, ...], samples: list[HashSample], weights: list[float]
) -> list[float]:
    """The load of each cell, row by row."""
    loads = dict.fromkeys(itertools.product(*map(range, shares)), 0.0)
    for sample, weight in zip(samples, weights, strict=True):
        for row in range(sample.rows):
            parts = [
                range(share) if hashes is None else {int(h) % share for h in hashes[row]}
                for share, hashes in zip(shares, sample.hashes, strict=True)
            ]
            for cell in itertools.product(*parts):
                loads[cell] += weight / sample.rows
    return [loads[cell[::-1]] for cell in sorted(key[::-1] for key in loads)]


@pytest.mark.parametrize("partitions", [1, 4, 7, 12])
def test_likely_grids_when_all_are_asked_for_then_are_all_that_could_not_be_larger(
    partitions: int,
) -> None:
    weights = [3.0, 1.0, 7.0]
    found = likely_grids(chain(), weights, partitions, 1000)
    assert sorted(grid.shares for grid in found) == every_largest(2, partitions)
    loads = [
        sum(w * grid.copies(i) for i, w in enumerate(weights)) / grid.partitions for grid in found
    ]
    assert loads == sorted(loads)
    assert found[0] == choose_grid(chain(), weights, partitions)
    assert likely_grids(chain(), weights, partitions, 2) == found[:2]


def test_loads_when_rows_go_to_one_part_or_two_or_all_then_are_those_counted_row_by_row() -> None:
    rng = np.random.default_rng(SEED)
    shares = (3, 1, 4)
    samples = [
        sample_of(drawn(rng, 50), drawn(rng, 50), drawn(rng, 50, heavy=0.3)),
        sample_of(drawn(rng, 80).reshape(40, 2), None, drawn(rng, 80).reshape(40, 2)),
        sample_of(None, drawn(rng, 30), drawn(rng, 30)),
        HashSample(20, (None, None, None)),
    ]
    weights = [100.0, 40.0, 9.0, 1.0]
    dimensions = tuple(Dimension(((),) * 4) for _ in shares)
    loads = cell_loads(Grid(dimensions, shares), weights, samples)
    assert loads.tolist() == pytest.approx(counted(shares, samples, weights))


@pytest.mark.parametrize("partitions", [4, 12, 16])
def test_choice_when_a_value_is_heavy_then_its_fullest_cell_is_the_smallest_there_is(
    partitions: int,
) -> None:
    rng = np.random.default_rng([SEED, partitions])
    samples = [
        sample_of(drawn(rng, 4000), None),
        sample_of(drawn(rng, 4000, heavy=0.8), drawn(rng, 4000)),
        sample_of(None, drawn(rng, 4000)),
    ]
    weights = [1000.0, 6000.0, 1000.0]
    even = choose_grid(chain(), weights, partitions)
    chosen = choose_by_sample(chain(), weights, partitions, samples)
    assert even.shares[0] > 1, "the attribute with the heavy value is cut for nothing"
    assert fullest(chosen, weights, samples) < 0.9 * fullest(even, weights, samples)
    every = [Grid(chain(), shares) for shares in every_largest(2, partitions)]
    assert len(every) <= cellloads.CANDIDATES
    assert fullest(chosen, weights, samples) == min(fullest(g, weights, samples) for g in every)


@pytest.mark.parametrize("partitions", [4, 12, 16])
def test_choice_when_keys_are_spread_evenly_then_is_that_by_the_mean_load(partitions: int) -> None:
    hashes = np.arange(-720, 720)  # each residue of small numbers is as frequent as the others
    both = np.stack(np.meshgrid(np.arange(48), np.arange(48)), axis=-1).reshape(-1, 2)
    samples = [
        sample_of(hashes, None),
        sample_of(both[:, 0], both[:, 1]),
        sample_of(None, hashes),
    ]
    for weights in ([1.0, 1.0, 1.0], [1.0, 4.0, 9.0]):
        even = choose_grid(chain(), weights, partitions)
        chosen = choose_by_sample(chain(), weights, partitions, samples)
        mean = sum(w * even.copies(i) for i, w in enumerate(weights)) / even.partitions
        assert fullest(chosen, weights, samples) == pytest.approx(mean)
        assert chosen == even


def test_choice_when_a_sample_is_empty_then_others_decide() -> None:
    rng = np.random.default_rng(SEED)
    none = np.zeros(0)
    samples = [
        HashSample(0, (none.astype(np.int32).reshape(0, 1), None)),
        sample_of(drawn(rng, 500), drawn(rng, 500)),
        sample_of(None, drawn(rng, 500)),
    ]
    assert choose_by_sample(chain(), [0.0, 1.0, 1.0], 4, samples).shares == (1, 4)
