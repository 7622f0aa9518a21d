"""`semi-real`: greedy and exhaustive plans on a web log (Fig. 10).

The paper joins four days of the access log of the 1998 World Cup's web site on the client. That log
cannot be had here, so this is a generated one with the numbers that the paper publishes of it:
2,370, 3,670, 3,500 and 4,200 requests a second, 142 bytes each, and selectivity factors of 0.0024,
0.0017, 0.0015 and 0.001. Clients are drawn by Zipf's law, with an exponent for each day at which
two of its rows have the same client with the probability that is its selectivity factor. A client
that is busy on one day is likely to be busy on the others, but not as likely as on the same day.

The planners go by statistics of samples of the windows, as sites send them, and not by what the
streams were drawn from.
"""

import statistics as stats
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.multisite.statistics import Sample, compare, matched
from dovetail.sites import CostModel, Query, Statistics, StreamStatistics
from dovetail_bench.charts import line_chart
from dovetail_bench.progress import Reporter
from dovetail_bench.registry import Benchmark, Config
from dovetail_bench.result import Result, Spread, goal, significant
from dovetail_bench.runner import Points, over_points
from dovetail_bench.semi.runs import (
    ALGORITHM_10,
    CENTRAL,
    EXHAUSTIVE,
    GREEDY,
    JOINT,
    WHY_CENTRAL,
    Feed,
    Net,
    Rng,
    Span,
    Streams,
    make_query,
    meets_at_one_site,
    planned,
    rank_correlation,
    rows_of,
    ship_all,
    times_and_keys,
)

COUNTED = 10  #: intervals: one second
WINDOWS = (400, 800, 1200, 1600, 2000)
DAYS = {
    "day30": (2370, 0.0024), "day31": (3670, 0.0017), "day32": (3500, 0.0015),
    "day33": (4200, 0.001),
}  # fmt: skip
ROW_BYTES = 142
WHY_ONE_SITE = (
    "the larger the share of the rows of a window whose client another day's window has, too, the "
    "less semijoins leave out; once copies are shared, they may cost more than that"
)
PAPER_MOST = 1.25  #: T_G / T_E at the worst of its windows
CLIENTS = 4000  #: of a day
_CHANGE = 0.5  # standard deviation of the logarithm by which a client's activity changes in a day


def zipf_weights(selectivity: float, clients: int = CLIENTS) -> NDArray[np.float64]:
    """Shares of the clients, busiest first, so that two rows agree with this probability."""
    low, high = 0.0, 3.0
    for _ in range(60):
        middle = (low + high) / 2
        weights = np.arange(1, clients + 1, dtype=np.float64) ** -middle
        weights /= weights.sum()
        low, high = (middle, high) if (weights**2).sum() < selectivity else (low, middle)
    return weights


def trace(rng: Rng, end: int) -> Streams:
    """Requests of four days until a time, as if they came side by side."""
    activity = np.log(np.arange(1, CLIENTS + 1, dtype=np.float64))
    streams = {}
    for name, (rate, selectivity) in DAYS.items():
        order = np.argsort(activity + rng.normal(0, _CHANGE, CLIENTS))
        count = rng.poisson(rate * end / 1000)
        clients = order[rng.choice(CLIENTS, count, p=zipf_weights(selectivity))]
        streams[name] = rows_of(np.sort(rng.integers(0, end, count)), clients)
    return streams


def sampled(query: Query, streams: Streams, now: int, window: int) -> Statistics:
    """What the sites would send of their windows at a time."""
    samples, known = {}, {}
    for name, rows in streams.items():
        times, clients = times_and_keys(rows)
        here = (times >= now - window) & (times < now)
        column = f"{name}.a"
        samples[column] = Sample.of(clients[here])
        rate = np.count_nonzero(here) / window
        known[name] = StreamStatistics(rate, ROW_BYTES, {column: samples[column].distinct})
    compared = {pair: compare(samples[pair[0]], samples[pair[1]]) for pair in query.on}
    return Statistics(
        known,
        {pair: shared for pair, (shared, _) in compared.items()},
        {pair: selectivity for pair, (_, selectivity) in compared.items()},
        {
            (left, right): matched(samples[left], samples[right])
            for pair in query.on
            for left, right in (pair, pair[::-1])
        },
    )


@dataclass(frozen=True)
class Seen:
    """By plan, the measured and the predicted time."""

    measured: Mapping[str, float]
    predicted: Mapping[str, float]
    one_site: bool  #: joint lets all rows meet at one
    matched: float  #: of the rows of a window, the share whose client another day's has; the mean


def run_window(window: int, rng: Rng, counted: int) -> Seen:
    """All plans on one log."""
    net = Net()
    feeds = {name: Feed(rate, ROW_BYTES, CLIENTS, window) for name, (rate, _) in DAYS.items()}
    query = make_query(feeds, "full", net)
    span = Span.of(query, counted)
    streams = trace(rng, span.end)
    known = sampled(query, streams, span.begin, window)
    choices = planned(CostModel(query, known, net.prices))
    measured = ship_all(choices, streams, dict.fromkeys(DAYS, ROW_BYTES), net, span)
    return Seen(
        measured,
        {name: choice.predicted for name, choice in choices.items()},
        meets_at_one_site(choices[JOINT].plan),
        stats.fmean(known.matched.values()),
    )


def run_real(config: Config, reporter: Reporter) -> Result:
    """Fig. 10."""

    def once(window: int, repetition: int) -> Seen:
        return run_window(window, np.random.default_rng([config.seed, repetition]), config.rows)

    points = Points(WINDOWS, label=lambda window: f"window={window}")
    found = over_points(points, once, config, reporter)
    ratios = {
        f"{rival}/window={window}": Spread.of(
            one.measured[rival] / one.measured[JOINT] for one in seen
        )
        for rival in (GREEDY, EXHAUSTIVE, ALGORITHM_10, CENTRAL)
        for window, seen in found.at.items()
    }
    return found.result("semi-real", ratios, _facts(found.at, config))


def _facts(found: Mapping[int, list[Seen]], config: Config) -> dict[str, Any]:
    lines: dict[str, list[tuple[float, float]]] = {}
    over = []
    for window, seen in found.items():
        over += [one.measured[GREEDY] / one.measured[EXHAUSTIVE] for one in seen]
        for name in seen[0].measured if seen else ():
            time = stats.median(one.measured[name] for one in seen)
            lines.setdefault(name, []).append((float(window), time))
    worst = max(over, default=None)
    pairs = [
        (predicted, one.measured[name])
        for seen in found.values()
        for one in seen
        for name, predicted in one.predicted.items()
    ]
    return {
        "the log": "generated with the rates, the size of a row and the selectivity factors that "
        "the paper publishes of WorldCup98; not the log itself",
        "intervals that count": config.rows,
        "goals": {
            "T_G / T_E at most": goal(PAPER_MOST, worst, at_most=True)
        },
        "why all rows to one site": WHY_ONE_SITE,
        "all rows to one site": {
            f"window={window}": {
                "share of runs in which joint does": significant(
                    stats.fmean(one.one_site for one in seen)
                ),
                "rows whose client another day's window has": significant(
                    stats.fmean(one.matched for one in seen)
                ),
            }
            for window, seen in found.items()
            if seen
        },
        "why central is a little cheaper": WHY_CENTRAL,
        "rank correlation of predicted and measured time": significant(
            rank_correlation([a for a, _ in pairs], [b for _, b in pairs])
        ),
        "error of predictions, median": significant(
            stats.median(abs(a / b - 1) for a, b in pairs) if pairs else None
        ),
        "execution time, s for a second of arrivals": {
            name: {f"window={w:g}": significant(y) for w, y in line} for name, line in lines.items()
        },
        "charts": [line_chart("Fig. 10", "window, ms", "s for a second of arrivals", lines)],
    }  # fmt: skip


BENCHMARK = Benchmark(
    "semi-real",
    "Fig. 10 of the semijoin paper: greedy against exhaustive plans on a generated web log",
    COUNTED,
    "intervals of 100 ms that count",
    tuple(f"window={window}" for window in WINDOWS),
    run_real,
)
