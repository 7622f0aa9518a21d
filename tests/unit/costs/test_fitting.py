"""Factors from measurements."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.costs.fitting import fit

STEPS = np.array(
    [
        [2.0, 16, 1e5, 64],
        [2.0, 16, 1e5, 2048],
        [5.0, 16, 6e4, 4096],
        [17.0, 16, 1e4, 128],
        [33.0, 32, 8e3, 9],
    ]
)
FACTORS = np.array([1e-4, 5e-5, 2e-9, 3e-7])
ROUNDING = 1e-15


def error(factors: np.ndarray, seconds: np.ndarray) -> float:
    return float(np.square(STEPS @ factors / seconds - 1).sum())


def test_fit_when_seconds_are_linear_then_finds_the_factors() -> None:
    assert fit(STEPS, STEPS @ FACTORS) == pytest.approx(FACTORS, rel=1e-6)


@given(st.lists(st.floats(0.3, 3.0), min_size=5, max_size=5))
def test_fit_when_seconds_are_noisy_then_no_factor_is_below_0_and_none_nearby_is_better(
    noise: list[float],
) -> None:
    seconds = STEPS @ FACTORS * np.array(noise)
    found = fit(STEPS, seconds)
    assert (found >= 0).all()
    least = error(found, seconds)
    assert least <= error(FACTORS, seconds) * (1 + 1e-9) + ROUNDING
    for place in range(len(FACTORS)):
        for change in (-0.01, 0.01):
            near = found.copy()
            near[place] = max(0.0, near[place] + change * FACTORS[place])
            assert least <= error(near, seconds) * (1 + 1e-9) + ROUNDING, (place, change)


def test_fit_when_a_step_costs_nothing_or_is_never_done_then_is_0() -> None:
    seconds = STEPS @ (FACTORS * [1, 1, 0, 1])
    assert fit(STEPS, seconds) == pytest.approx(FACTORS * [1, 1, 0, 1], abs=1e-12)
    never = STEPS * [1, 0, 1, 1]
    assert fit(never, never @ FACTORS) == pytest.approx(FACTORS * [1, 0, 1, 1])
    dear = STEPS @ (FACTORS * [1, 1, -1, 1])  # which nothing can be
    assert fit(STEPS, dear)[2] == 0
