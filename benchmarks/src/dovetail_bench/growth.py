"""Does the cost of an arrival grow with the state? Quarters and a fitted slope.

Two answers. The ratio of the first quarter's time to the last quarter's: about 1 if nothing grows.
And a least-squares fit of

    seconds = fixed + by_state * state_rows + by_result * results

over all arrivals: `by_state` is what is left of the growth once the results that an arrival
produced are taken out.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dovetail_bench.result import significant

Middle = Callable[[list[float]], float]
STEADY = 0.1  #: results that vary by less than this share tell nothing about their cost
LEAST_ARRIVALS = 8  #: two in each quarter


@dataclass(frozen=True)
class Arrival:
    """The arrival of one batch."""

    seconds: float
    state_rows: int  #: rows of both sides that had come before
    results: int


def quarters(arrivals: Sequence[Arrival], middle: Middle = statistics.median) -> float | None:
    """The first quarter's middle time over the last quarter's; None for too few arrivals."""
    if len(arrivals) < LEAST_ARRIVALS:
        return None
    size = len(arrivals) // 4
    seconds = [arrival.seconds for arrival in arrivals]
    return middle(seconds[:size]) / middle(seconds[-size:])


def fit(arrivals: Sequence[Arrival]) -> dict[str, Any] | None:
    """The fitted costs, for the facts; None if there are too few arrivals to fit anything."""
    if len(arrivals) < LEAST_ARRIVALS:
        return None
    seconds = np.array([arrival.seconds for arrival in arrivals])
    state = np.array([arrival.state_rows for arrival in arrivals], dtype=np.float64)
    results = np.array([arrival.results for arrival in arrivals], dtype=np.float64)
    # in millions, so that the columns are of one order of magnitude
    columns = np.column_stack([np.ones_like(state), state / 1e6, results / 1e6])
    if results.std() <= STEADY * results.mean():
        columns[:, 2] = 0  # about as many every time: what they cost is part of the fixed cost
    (fixed, by_state, by_result), *_ = np.linalg.lstsq(columns, seconds)
    grown = by_state * (state.max() - state.min()) / 1e6
    return {
        "fixed_ms": significant(float(fixed) * 1e3),
        "ms_per_million_state_rows": significant(float(by_state) * 1e3),
        "ms_per_million_results": significant(float(by_result) * 1e3),
        "growth_over_the_run": significant(float(grown / seconds.mean())),
        "arrivals": len(arrivals),
    }


def by_position(runs: Sequence[Sequence[Arrival]], parts: int | None = None) -> list[float]:
    """Milliseconds an arrival in the order of arrival, the median over the runs.

    With `parts`, the arrivals are first averaged over that many equal stretches.
    """
    rows = []
    for run in runs:
        seconds = np.array([arrival.seconds for arrival in run])
        pieces = np.array_split(seconds, parts or len(seconds))
        rows.append([float(piece.mean()) * 1e3 for piece in pieces if len(piece)])
    return [significant(statistics.median(column)) or 0.0 for column in zip(*rows, strict=False)]
