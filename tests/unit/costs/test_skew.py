"""The skew of keys, from a sample of them."""

import numpy as np
import pytest

from dovetail.costs.skew import Skew, expected_repeats, measured_skew
from dovetail.costs.ssbj import zipf

VALUES = 200_000


def drawn(exponent: float, rows: int, seed: int) -> np.ndarray:
    """Zipfian keys that lie anywhere."""
    rng = np.random.default_rng(seed)
    ranks = np.searchsorted(np.cumsum(zipf(VALUES, exponent)), rng.random(rows))
    return rng.permutation(VALUES)[np.minimum(ranks, VALUES - 1)]


@pytest.mark.parametrize("exponent", [0.0, 0.5, 0.8, 1.0, 1.3, 2.0])
@pytest.mark.parametrize("seed", range(3))
def test_skew_when_keys_are_zipfian_then_is_about_their_exponent(
    exponent: float, seed: int
) -> None:
    found = measured_skew(drawn(exponent, 20_000, seed), VALUES)
    assert found.exponent == pytest.approx(exponent, abs=0.08), f"seed {seed}"
    assert found.rows == 20_000


def test_skew_when_a_few_keys_are_all_there_are_then_is_strong() -> None:
    """Nothing Zipfian: three keys, of a table of many."""
    found = measured_skew(np.arange(3_000) % 3, VALUES)
    assert found.repeated == 1
    assert found.exponent > 2


def test_skew_when_there_is_nothing_to_tell_from_then_is_none() -> None:
    empty = np.zeros(0, dtype=np.int64)
    assert measured_skew(empty, VALUES) == Skew()
    assert measured_skew(np.arange(1), VALUES).exponent == 0
    assert measured_skew(np.zeros(50, dtype=np.int64), 1).exponent == 0
    assert measured_skew(np.arange(1_000), VALUES).exponent == 0


@pytest.mark.parametrize("exponent", [0.0, 0.7, 1.2])
def test_repeats_when_computed_from_some_ranks_then_are_those_of_all(exponent: float) -> None:
    shares = zipf(VALUES, exponent)
    exact = float((shares * -np.expm1(5_000 * np.log1p(-shares))).sum())
    assert expected_repeats(VALUES, exponent, 5_000) == pytest.approx(exact, rel=0.01)


def test_skew_when_printed_then_says_where_it_comes_from() -> None:
    assert str(Skew()) == "uniform keys"
    assert str(Skew(1.0)) == "keys skewed like Zipf with exponent 1"
    sampled = "keys skewed like Zipf with exponent 0.93, as in a sample of 20,000 rows"
    assert str(Skew(0.93, 20_000, 0.4)) == sampled
    assert str(Skew(0.0, 500, 0.0)) == "uniform keys, as in a sample of 500 rows"
