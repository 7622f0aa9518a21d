"""What a cascade of two-way joins costs, against all orders written out by hand."""

import itertools
import math

import numpy as np
import pyarrow as pa
import pytest

from dovetail.costs.cascade import Counted, best_cascade, cost_of_all, results_of
from dovetail.costs.shares import Grid, choose_grid, dimensions_of
from dovetail.kernel.runs import INDEX_BYTES_PER_ROW
from dovetail.multiway import MultiWaySpec, multiway_spec

#: The parent of each input but the first.
TREES = {"chain": (0, 1, 2), "star": (0, 0, 0), "snowflake": (0, 0, 1)}


def tree(parents: tuple[int, ...]) -> MultiWaySpec:
    names = [f"r{i}" for i in range(len(parents) + 1)]
    columns = {name: [f"{name}_x"] for name in names}
    on = []
    for child, parent in enumerate(parents, 1):
        for end in (parent, child):
            columns[names[end]].append(f"a{child}")
        on.append((f"r{parent}.a{child}", f"r{child}.a{child}"))
    schemas = {name: pa.schema([(c, pa.int64()) for c in found]) for name, found in columns.items()}
    return multiway_spec(schemas, on)


def state_of(
    spec: MultiWaySpec, counted: Counted, widths: list[float], order: tuple[int, ...]
) -> float:
    """All that the joins of an order keep; endless if one of them would be a product."""
    rows, width = counted.rows[order[0]], widths[order[0]]
    kept = rows * (width + INDEX_BYTES_PER_ROW)
    for place, new in enumerate(order[1:], 1):
        found = [
            n
            for n, e in enumerate(spec.edges)
            if new in e.ends and {*e.ends} <= {*order[: place + 1]}
        ]
        if not found:
            return math.inf
        if place > 1:
            kept += rows * (width + INDEX_BYTES_PER_ROW)
        kept += counted.rows[new] * (widths[new] + INDEX_BYTES_PER_ROW)
        (a, b) = spec.edges[found[0]].ends
        chance = counted.pairs[found[0]] / (counted.rows[a] * counted.rows[b])
        rows, width = rows * counted.rows[new] * chance, width + widths[new]
    return kept


@pytest.mark.parametrize("shape", TREES)
def test_cascade_when_chosen_then_no_other_order_keeps_less(shape: str) -> None:
    spec = tree(TREES[shape])
    rng = np.random.default_rng(len(shape))
    for _ in range(20):
        rows = tuple(float(n) for n in rng.integers(10, 10_000, 4))
        pairs = tuple(float(n) for n in rng.integers(1, 1_000_000, 3))
        widths = [float(n) for n in rng.integers(8, 200, 4)]
        counted = Counted(rows, pairs, rows)
        best = best_cascade(spec, counted, widths)
        every = (state_of(spec, counted, widths, o) for o in itertools.permutations(range(4)))
        assert best.cost.state_bytes == pytest.approx(min(every)), (rows, pairs, widths)


def test_results_when_edges_are_independent_then_are_the_product_of_their_chances() -> None:
    spec = tree(TREES["chain"])
    counted = Counted((100.0, 200.0, 50.0, 10.0), (400.0, 100.0, 5.0), (0.0,) * 4)
    assert results_of(spec, counted, [0, 1]) == pytest.approx(400)
    assert results_of(spec, counted, [0, 1, 2]) == pytest.approx(200)
    assert results_of(spec, counted, range(4)) == pytest.approx(20)


def test_cost_of_all_when_rows_are_copied_then_counts_each_copy() -> None:
    spec = tree((0, 1))
    grid = Grid(dimensions_of(spec), (2, 3))
    cost = cost_of_all(spec, grid, [10.0, 20.0, 30.0], [8.0, 8.0, 8.0])
    assert cost.rows == 10 * 3 + 20 + 30 * 2
    assert cost.shuffled_bytes == 8 * cost.rows
    single = choose_grid(grid.dimensions, [1, 1, 1], 1)
    alone = cost_of_all(spec, single, [10.0, 20.0, 30.0], [8.0] * 3)
    assert alone.rows == 60
    assert alone.state_bytes > alone.shuffled_bytes
