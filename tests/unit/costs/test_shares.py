"""Shares: every combination that matches meets in exactly one cell, and the load is the least."""

import itertools
import math

import numpy as np
import pyarrow as pa
import pytest

from dovetail.costs.shares import Dimension, Grid, choose_grid, dimensions_of
from dovetail.multiway import multiway_spec


def spec_of(columns: dict[str, str], on: list[tuple[object, ...]]) -> object:
    schemas = {
        name: pa.schema([(c, pa.int64()) for c in names] + [(f"{name}_x", pa.int8())])
        for name, names in columns.items()
    }
    return multiway_spec(schemas, on)


def chain(inputs: int) -> tuple[Dimension, ...]:
    letters = "abcdefgh"
    columns = {
        f"r{i}": "".join(letters[e] for e in (i - 1, i) if 0 <= e < inputs - 1)
        for i in range(inputs)
    }
    on = [(f"r{i}.{letters[i]}", f"r{i + 1}.{letters[i]}") for i in range(inputs - 1)]
    return dimensions_of(spec_of(columns, on))


def test_dimensions_when_all_share_one_attribute_then_there_is_one() -> None:
    on = [("r.a", "s.a"), ("s.a", "t.b")]
    (one,) = dimensions_of(spec_of({"r": "a", "s": "a", "t": "b"}, on))
    assert one.columns == (("a",), ("a",), ("b",))


def test_dimensions_when_a_key_is_composite_then_its_columns_are_hashed_together() -> None:
    both = [("r.a", "s.a"), ("r.b", "s.b")]
    (one,) = dimensions_of(spec_of({"r": "ab", "s": "ab"}, both))
    assert one.columns == (("a", "b"), ("a", "b"))
    # a third input has only one of them: this one alone can be cut without copies
    found = dimensions_of(spec_of({"r": "ab", "s": "ab", "t": "a"}, [*both, ("s.a", "t.a")]))
    assert [d.columns for d in found] == [(("a",), ("a",), ("a",)), (("b",), ("b",), ())]
    assert choose_grid(found, [1, 1, 1], 8).shares == (8, 1)


def test_dimensions_when_two_columns_must_be_equal_then_either_tells_the_cell() -> None:
    (one,) = dimensions_of(spec_of({"r": "ab", "s": "a"}, [("r.a", "s.a"), ("r.b", "s.a")]))
    assert one.columns == (("a",), ("a",))


def test_dimensions_when_bands_follow_each_other_then_the_anchor_is_in_their_middle() -> None:
    columns = {"r": "a", "s": "a", "t": "a", "u": "a"}
    on = [("r.a", "s.a", 3), ("s.a", "t.a", 4), ("t.a", "u.a")]
    (one,) = dimensions_of(spec_of(columns, on))
    assert one.reach == 4
    assert one.anchored == (False, True, False, False)


def test_dimensions_when_a_band_has_no_ranges_then_is_not_cut() -> None:
    schemas = {n: pa.schema([("t", pa.time64("us")), ("k", pa.int8())]) for n in "rst"}
    found = dimensions_of(multiway_spec(schemas, [("r.t", "s.t", 5), ("s.k", "t.k")]))
    assert [one.divisible for one in found] == [True, False]
    assert choose_grid(found, [1, 1, 1], 6).shares == (6, 1)
    endless = dimensions_of(spec_of({"r": "a", "s": "a"}, [("r.a", "s.a", 2**62)]))
    assert choose_grid(endless, [1, 1], 6).shares == (1,)


@pytest.mark.parametrize("partitions", [1, 2, 3, 4, 7, 12, 30])
@pytest.mark.parametrize("inputs", [2, 3, 4])
def test_shares_when_chosen_then_no_others_bring_less_to_a_partition(
    inputs: int, partitions: int
) -> None:
    rng = np.random.default_rng([inputs, partitions])
    dimensions = chain(inputs)
    for _ in range(5):
        weights = [float(w) for w in 10.0 ** rng.uniform(0, 4, inputs)]
        grid = choose_grid(dimensions, weights, partitions)
        assert grid.partitions <= partitions
        least = min(
            sum(
                w / math.prod(s for d, s in zip(dimensions, shares, strict=True) if i in d)
                for i, w in enumerate(weights)
            )
            for shares in itertools.product(range(1, partitions + 1), repeat=len(dimensions))
            if math.prod(shares) <= partitions
        )
        assert load(grid, weights) == pytest.approx(least), (grid, weights)


def load(grid: Grid, weights: list[float]) -> float:
    return sum(w * grid.copies(i) for i, w in enumerate(weights)) / grid.partitions


def test_shares_when_a_join_is_long_and_partitions_many_then_are_found_all_the_same() -> None:
    grid = choose_grid(chain(8), [1.0] * 8, 1000)
    assert 500 < grid.partitions <= 1000


def test_copies_when_an_input_lacks_an_attribute_then_are_its_share() -> None:
    first, second = chain(3)
    grid = Grid((first, second), (2, 5))
    assert [grid.copies(relation) for relation in range(3)] == [5, 1, 2]
