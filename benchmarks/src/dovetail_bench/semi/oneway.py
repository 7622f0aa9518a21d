"""`semi-oneway`: the six one-way joins while each of seven parameters varies (Fig. 7).

The six send what the paper's send (`compact` off); with them run two with Bloom filters. `ours` is
the one that the cost model picks of the eight, with all that makes messages shorter. A ratio is the
time of the cheaper simple join over ours: what semijoins and the planner are worth at this point.

The figures' axes are lost with the pictures. Bandwidth and latency vary as the text says, the rest
evenly around the defaults. The stream that varies is S2, as in the paper, and rows come as far
apart as the rate says.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dovetail.sites import Algorithm, CostModel, Plan, Query, Step
from dovetail_bench.charts import line_chart
from dovetail_bench.measure import expect_rows
from dovetail_bench.progress import Reporter
from dovetail_bench.registry import Benchmark, Config
from dovetail_bench.result import Result, Spread, goal, significant
from dovetail_bench.runner import Points, over_points
from dovetail_bench.semi.observations import Lines, Verdicts, observations, verdicts
from dovetail_bench.semi.runs import (
    TAU,
    Feed,
    Net,
    Shipped,
    Span,
    Streams,
    draw,
    make_query,
    rank_correlation,
    ship,
    statistics_of,
    times_and_keys,
)

SIMPLE, OURS = "simple", "ours"
ROWS = 900  #: of S1 that count: three seconds
DEFAULT = Feed(rate=300, row_bytes=1250, keys=10, window=3000)
_TITLES = {
    "size": ("7(a)", "bytes of a tuple of S2"),
    "rate": ("7(b)", "tuples of S2 a second"),
    "selectivity": ("7(c)", "selectivity factor of S2"),
    "window": ("7(d)", "window of S2, ms"),
    "latency": ("7(e)", "latency, ms"),
    "bandwidth": ("7(f)", "bandwidth, Kbps, powers of two"),
    "interval": ("7(g)", "execution interval, ms"),
}


@dataclass(frozen=True)
class Setting:
    """A point of one of the figures."""

    group: str
    value: float
    second: Feed = DEFAULT
    net: Net = field(default_factory=Net)
    tau: int = TAU

    @property
    def label(self) -> str:
        return f"{self.group}={self.value:g}"

    @property
    def feeds(self) -> dict[str, Feed]:
        return {"S1": DEFAULT, "S2": self.second}

    def query(self, *, compact: bool) -> Query:
        return make_query(self.feeds, "chain", self.net, self.tau, compact=compact)


def settings() -> dict[str, list[Setting]]:
    """By parameter; the defaults are a point of every one."""
    keys = {0.02: 50, 0.06: 17, 0.1: 10, 0.14: 7, 0.18: 6}
    return {
        "size": [
            Setting("size", n, replace(DEFAULT, row_bytes=n)) for n in (250, 750, 1250, 1750, 2250)
        ],
        "rate": [Setting("rate", n, replace(DEFAULT, rate=n)) for n in (100, 200, 300, 400, 500)],
        "selectivity": [
            Setting("selectivity", f, replace(DEFAULT, keys=n)) for f, n in keys.items()
        ],
        "window": [
            Setting("window", n, replace(DEFAULT, window=n)) for n in (1000, 2000, 3000, 4000, 5000)
        ],
        "latency": [Setting("latency", n, net=Net(latency=n)) for n in (5, 15, 25, 35, 45)],
        "bandwidth": [
            Setting("bandwidth", n, net=Net(kbps=n)) for n in (256, 512, 1024, 2048, 4096)
        ],
        "interval": [Setting("interval", n, tau=n) for n in (50, 100, 150, 200, 250)],
    }


@dataclass
class Point:
    """What was found at a setting, by algorithm and repetition."""

    picked: Algorithm
    predicted: Mapping[str, float]
    found: Mapping[str, list[Shipped]]

    def seconds(self, name: str) -> float:
        return statistics.median(one.seconds for one in self.found[name])

    def kilobytes(self, name: str) -> float:
        return statistics.median(one.nbytes for one in self.found[name]) / 1000

    def ratio(self) -> Spread:
        simple = zip(self.found[Algorithm.SP_S], self.found[Algorithm.SP_D], strict=True)
        least = [min(a.seconds, b.seconds) for a, b in simple]
        ours = self.found[OURS]
        return Spread.of(a / b.seconds for a, b in zip(least, ours, strict=True))


def one_way(query: Query, algorithm: Algorithm) -> Plan:
    first, second = query.names
    return Plan(query, {first: [Step(second, algorithm)]}, one_way=True)


def pairs_of(setting_feeds: Mapping[str, Feed], streams: Streams, span: Span) -> int:
    """How many results the one-way join has, counted key by key."""
    (times_1, keys_1), (times_2, keys_2) = (times_and_keys(rows) for rows in streams.values())
    counts = (times_1 >= span.begin) & (times_1 < span.end)
    size = list(setting_feeds.values())[1].window
    total = 0
    for key in np.unique(keys_2):
        heads, stored = times_1[counts & (keys_1 == key)], times_2[keys_2 == key]
        ends = np.searchsorted(stored, heads, "left") - np.searchsorted(
            stored, heads - size, "left"
        )
        total += int(ends.sum())
    return total


@dataclass(frozen=True)
class Planned:
    """What runs at a setting: a plan for each algorithm, and the one that costs are least of."""

    plans: Mapping[str, Plan]
    span: Span
    picked: Algorithm
    predicted: Mapping[str, float]


def plan(setting: Setting, rows: int) -> Planned:
    """All algorithms, and ours; `rows` of the first stream count."""
    plain, compact = (setting.query(compact=compact) for compact in (False, True))
    model = CostModel(compact, statistics_of(compact, setting.feeds), setting.net.prices)
    known = CostModel(plain, statistics_of(plain, setting.feeds), setting.net.prices)
    ends = (("S1",), "S1", "S2")
    picked = min(Algorithm, key=lambda a: model.step(*ends, a).time)
    plans = {a.value: one_way(plain, a) for a in Algorithm} | {OURS: one_way(compact, picked)}
    span = Span.of(plain, max(1, round(rows / DEFAULT.rate * 1000 / setting.tau)))
    return Planned(plans, span, picked, {a.value: known.step(*ends, a).time for a in Algorithm})


def run_once(setting: Setting, planned: Planned, seed: list[int]) -> dict[str, Shipped]:
    """Every algorithm on the same streams."""
    span = planned.span
    streams = draw(setting.feeds, np.random.default_rng(seed), span.end, evenly=True)
    sizes = {name: feed.row_bytes for name, feed in setting.feeds.items()}
    expected = pairs_of(setting.feeds, streams, span)
    found = {}
    for name, one in planned.plans.items():
        found[name] = ship(one, streams, sizes, setting.net, span, results=True)
        expect_rows(found[name].results, expected)
    return found


def point_of(planned: Planned, runs: Sequence[Mapping[str, Shipped]]) -> Point | None:
    """What all repetitions found; None if none came to its end."""
    if not runs:
        return None
    return Point(planned.picked, planned.predicted, {n: [one[n] for one in runs] for n in runs[0]})


def run_oneway(config: Config, reporter: Reporter) -> Result:
    """Fig. 7."""
    figures = settings()
    every = [setting for some in figures.values() for setting in some]
    wanted = Points(every, label=lambda one: one.label, group=lambda one: one.group)
    known = {setting: plan(setting, config.rows) for setting in wanted.wanted(config)}

    def once(setting: Setting, repetition: int) -> dict[str, Shipped]:
        return run_once(setting, known[setting], [config.seed, repetition])

    found = over_points(wanted, once, config, reporter)
    measured = {setting: point_of(known[setting], runs) for setting, runs in found.at.items()}
    ratios = {
        f"{SIMPLE}/{setting.label}": point.ratio() if point else Spread.of(())
        for setting, point in measured.items()
    }
    points: dict[str, dict[Setting, Point]] = {}
    for group, some in figures.items():
        whole = {one: point for one in some if (point := measured.get(one)) is not None}
        if len(whole) == len(some):  # with a point missing there is no line to look at
            points[group] = whole
    everything = {s.label: p for group in points.values() for s, p in group.items()}
    seconds = {group: _lines(some, Point.seconds) for group, some in points.items()}
    facts = {
        "rows of S1 that count": config.rows,
        "the defaults": "1,250 bytes, 300 rows/s, selectivity factor 0.1, window 3 s; 25 ms, "
        "1,024 Kbps, interval 100 ms",
        "observations of the paper": observations(seconds),
        "one step against two": verdicts(_verdicts(points)),
        "goals": _goal(everything),
        "picked by the cost model": {label: p.picked.value for label, p in everything.items()},
        "processing here, ms for a second of arrivals, at most": significant(_most_cpu(everything)),
        "execution time, s for a second of arrivals": {
            label: {name: significant(point.seconds(name)) for name in point.found}
            for label, point in everything.items()
        },
        "KB sent in a second of arrivals": {
            label: {name: significant(point.kilobytes(name)) for name in point.found}
            for label, point in everything.items()
        },
        "charts": _charts(points),
    }
    return found.result("semi-oneway", ratios, facts)


def _lines(points: Mapping[Setting, Point], value: Any) -> Lines:
    """By algorithm, the values along an axis."""
    names = [*(a.value for a in Algorithm), OURS]
    return {name: [(s.value, value(p, name)) for s, p in points.items()] for name in names}


def _verdicts(points: Mapping[str, Mapping[Setting, Point]]) -> list[Verdicts]:
    return [
        Verdicts(
            setting.label,
            setting.query(compact=False),
            setting.feeds,
            setting.net,
            {a: point.seconds(a.value) for a in Algorithm},
        )
        for group in points.values()
        for setting, point in group.items()
    ]


def _goal(points: Mapping[str, Point]) -> dict[str, Any]:
    predicted, measured = [], []
    for point in points.values():
        for algorithm in Algorithm:
            predicted.append(point.predicted[algorithm.value])
            measured.append(point.seconds(algorithm.value))
    reached = rank_correlation(predicted, measured)
    return {"rank correlation of predicted and measured time": goal(0.9, reached)}


def _most_cpu(points: Mapping[str, Point]) -> float:
    runs = [one for point in points.values() for some in point.found.values() for one in some]
    return max((1000 * one.cpu_seconds for one in runs), default=0.0)


def _charts(points: Mapping[str, Mapping[Setting, Point]]) -> list[dict[str, Any]]:
    drawn = []
    for group, some in points.items():
        figure, x = _TITLES[group]
        more: dict[str, Any] = {"dashed": [OURS]}
        seconds, kilobytes = (_lines(some, value) for value in (Point.seconds, Point.kilobytes))
        if group == "bandwidth":
            more["ticks"] = {f"{s.value:g}": float(np.log2(s.value)) for s in some}
            seconds, kilobytes = (
                {name: [(float(np.log2(x)), y) for x, y in line] for name, line in lines.items()}
                for lines in (seconds, kilobytes)
            )
        drawn.append(line_chart(f"Fig. {figure}", x, "s for a second of arrivals", seconds, **more))
        drawn.append(line_chart(f"Fig. {figure}, bytes", x, "KB in a second", kilobytes, **more))
    return drawn


BENCHMARK = Benchmark(
    "semi-oneway",
    "Fig. 7 of the semijoin paper: time and bytes of the one-way joins, by seven parameters",
    ROWS,
    "rows of the first stream that count",
    tuple(_TITLES),
    run_oneway,
)
