"""`semi-equal`: greedy and exhaustive plans where all streams are alike (Fig. 9).

A four-way join over the fully connected graph, in which a greedy plan has most ways to go wrong.
Each of the four parameters of Table 2 varies for all streams at once. The paper says that greedy is
optimal then; of its 20 points 12 differ by less than 2 %, 17 by less than 6 % and all by less than
10 %, for it measures two runs of what should be one plan. A ratio is the time of a plan over that
of `joint`; see `plans` for what they are.
"""

import statistics
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dovetail.sites import CostModel
from dovetail_bench.charts import line_chart
from dovetail_bench.progress import Reporter
from dovetail_bench.registry import Benchmark, Config
from dovetail_bench.result import Result, Spread, goal, significant
from dovetail_bench.runner import Points, over_points
from dovetail_bench.semi.plans import NAMES
from dovetail_bench.semi.runs import (
    CENTRAL,
    EXHAUSTIVE,
    GREEDY,
    JOINT,
    WHY_CENTRAL,
    Feed,
    Net,
    Span,
    draw,
    make_query,
    planned,
    ship_all,
    statistics_of,
)

COUNTED = 20  #: intervals: two seconds
DEFAULT = Feed(rate=100, row_bytes=500, keys=17, window=1200)
_TITLES = {
    "size": ("9(a)", "bytes of a tuple"),
    "rate": ("9(b)", "tuples a second"),
    "selectivity": ("9(c)", "selectivity factor"),
    "window": ("9(d)", "window, ms"),
}
WHY_SAME = (
    "with all streams alike every next step costs the same and leaves the same to do, so the "
    "cheapest is as good as any: both planners have plans of one and the same cost"
)
WHY_FLAT = (
    "nearly all rows match, so the cheapest plans are of simple joins, which send every row "
    "whatever its key"
)
_WITHIN = {0.02: 12, 0.06: 17, 0.10: 20}  # how many of the paper's points differ by less


@dataclass(frozen=True)
class Case:
    """A point of the figure: what each of the four streams is like."""

    group: str
    value: float
    feed: Feed

    @property
    def label(self) -> str:
        return f"{self.group}={self.value:g}"


def cases() -> list[Case]:
    selectivities = (0.02, 0.04, 0.06, 0.08, 0.1)
    return [
        *(Case("size", 5 * n, replace(DEFAULT, row_bytes=5 * n)) for n in (10, 50, 100, 150, 200)),
        *(Case("rate", n, replace(DEFAULT, rate=n)) for n in (10, 50, 100, 150, 200)),
        *(Case("selectivity", f, replace(DEFAULT, keys=round(1 / f))) for f in selectivities),
        *(Case("window", n, replace(DEFAULT, window=n)) for n in (400, 800, 1200, 1600, 2000)),
    ]


def run_case(case: Case, seed: list[int], counted: int) -> dict[str, float]:
    """The measured time of every plan, on the same streams."""
    net, feeds = Net(), dict.fromkeys(NAMES, case.feed)
    query = make_query(feeds, "full", net)
    model = CostModel(query, statistics_of(query, feeds), net.prices)
    span = Span.of(query, counted)
    streams = draw(feeds, np.random.default_rng(seed), span.end)
    sizes = dict.fromkeys(NAMES, case.feed.row_bytes)
    return ship_all(planned(model), streams, sizes, net, span)


def run_equal(config: Config, reporter: Reporter) -> Result:
    """Fig. 9."""
    points = Points(cases(), label=lambda case: case.label, group=lambda case: case.group)

    def once(case: Case, repetition: int) -> dict[str, float]:
        return run_case(case, [config.seed, repetition], config.rows)

    found = over_points(points, once, config, reporter)
    ratios = {
        f"{rival}/{case.label}": Spread.of(one[rival] / one[JOINT] for one in times)
        for rival in (GREEDY, EXHAUSTIVE, CENTRAL)
        for case, times in found.at.items()
    }
    return found.result("semi-equal", ratios, _facts(found.at, config))


def _facts(found: dict[Case, list[dict[str, float]]], config: Config) -> dict[str, Any]:
    medians = {
        case: {n: statistics.median(one[n] for one in times) for n in times[0]}
        for case, times in found.items()
        if times
    }
    differences = [abs(times[GREEDY] / times[EXHAUSTIVE] - 1) for times in medians.values()]
    goals = {}
    for bound, paper in _WITHIN.items():
        share = sum(one < bound for one in differences) / max(1, len(differences))
        goals[f"share of points that differ by less than {bound:.0%}"] = goal(paper / 20, share)
    charts = []
    for group, (figure, x) in _TITLES.items():
        some = {case: times for case, times in medians.items() if case.group == group}
        if some:
            names = list(next(iter(some.values())))
            lines = {n: [(case.value, times[n]) for case, times in some.items()] for n in names}
            charts.append(line_chart(f"Fig. {figure}", x, "s for a second of arrivals", lines))
    return {
        "the defaults": "500 bytes, 100 rows/s, selectivity factor 0.06, window 1.2 s; fully "
        "connected",
        "intervals that count": config.rows,
        "goals": goals,
        "why greedy is optimal": WHY_SAME,
        "why the selectivity changes nothing": WHY_FLAT,
        "why central is a little cheaper": WHY_CENTRAL,
        "execution time, s for a second of arrivals": {
            case.label: {name: significant(time) for name, time in times.items()}
            for case, times in medians.items()
        },
        "charts": charts,
    }


BENCHMARK = Benchmark(
    "semi-equal",
    "Fig. 9 of the semijoin paper: greedy against exhaustive plans, all streams alike",
    COUNTED,
    "intervals of 100 ms that count",
    tuple(_TITLES),
    run_equal,
)
