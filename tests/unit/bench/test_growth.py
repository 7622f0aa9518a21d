"""Whether a cost grows: quarters and the fitted slope."""

import statistics

import numpy as np
import pytest

from dovetail_bench.growth import Arrival, by_position, fit, quarters


def arrivals(count: int, by_state: float, by_result: float, seed: int = 1) -> list[Arrival]:
    rng = np.random.default_rng(seed)
    found = []
    for number in range(count):
        state, results = number * 200_000, int(rng.integers(0, 100_000))
        seconds = 0.5 + by_state * state / 1e6 + by_result * results / 1e6
        found.append(Arrival(seconds, state, results))
    return found


def test_quarters_when_nothing_grows_then_is_one() -> None:
    assert quarters(arrivals(40, 0.0, 0.0)) == pytest.approx(1.0)


def test_quarters_when_the_cost_doubles_then_is_below_one() -> None:
    run = [Arrival(1.0, 0, 0)] * 4 + [Arrival(1.5, 0, 0)] * 8 + [Arrival(2.0, 0, 0)] * 4
    assert quarters(run) == 0.5
    assert quarters(run, statistics.fmean) == 0.5


def test_quarters_when_there_are_too_few_arrivals_then_is_none() -> None:
    assert quarters(arrivals(7, 0.0, 0.0)) is None
    assert fit(arrivals(7, 0.0, 0.0)) is None


def test_fit_when_only_the_results_cost_then_the_state_costs_nothing() -> None:
    found = fit(arrivals(40, 0.0, 3.0))
    assert found is not None
    assert found["ms_per_million_state_rows"] == pytest.approx(0.0, abs=1e-6)
    assert found["ms_per_million_results"] == pytest.approx(3000)
    assert found["fixed_ms"] == pytest.approx(500)


def test_fit_when_the_state_costs_then_finds_how_much() -> None:
    found = fit(arrivals(40, 0.25, 3.0))
    assert found is not None
    assert found["ms_per_million_state_rows"] == pytest.approx(250)
    assert found["growth_over_the_run"] > 1


def test_fit_when_every_arrival_has_as_many_results_then_their_cost_is_fixed() -> None:
    found = fit([Arrival(0.5 + 0.1 * number, number * 1_000_000, 7_000) for number in range(20)])
    assert found is not None
    assert found["ms_per_million_state_rows"] == pytest.approx(100)
    assert found["ms_per_million_results"] == 0
    assert found["fixed_ms"] == pytest.approx(500)


def test_by_position_when_runs_differ_then_takes_the_median_of_each_stretch() -> None:
    runs = [[Arrival(seconds, 0, 0) for seconds in row] for row in ([1, 3], [2, 4], [9, 9])]
    assert by_position(runs) == [2000.0, 4000.0]
    assert by_position(runs, parts=1) == [3000.0]
