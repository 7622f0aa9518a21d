"""`semi-plans`: four-way joins by greedy and by exhaustive plans (Table 3, Fig. 8).

For each join graph, random queries with the parameters of Table 2. Every plan runs on the same
streams over the virtual network.

- `exhaustive`: the cheapest plan there is by the sum of its steps (equation 1).
- `algorithm-10`: the paper's greedy plan; `greedy`: ours, with a look ahead. T_G / T_E of Table 3
  is one of them over `exhaustive`.
- `joint`: the plan that is found if copies that steps share are counted once, with equalities that
  follow from those of the graph. When a plan runs they are sent once; equation 1 leaves that out.
- `random`: any order with any algorithms. `central`: no plan, all rows go to one site.

A ratio is the time of one of them over that of `joint`.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dovetail.multisite.planner import StepCosts
from dovetail.sites import PAPER, CostModel, Plan, Query, Step, algorithm_10, exhaustive
from dovetail_bench.charts import line_chart
from dovetail_bench.progress import Reporter
from dovetail_bench.registry import Benchmark, Config
from dovetail_bench.result import Result, Spread, goal, significant
from dovetail_bench.runner import Points, over_points
from dovetail_bench.semi.formulas import PaperCosts
from dovetail_bench.semi.runs import (
    ALGORITHM_10,
    CENTRAL,
    EXHAUSTIVE,
    GREEDY,
    JOINT,
    WHY_CENTRAL,
    Choice,
    Feed,
    Net,
    Rng,
    Span,
    draw,
    make_query,
    meets_at_one_site,
    planned,
    rank_correlation,
    ship_all,
    simple_share,
    statistics_of,
)

RANDOM = "random"
RIVALS = (GREEDY, EXHAUSTIVE, ALGORITHM_10, RANDOM, CENTRAL)
TABLE_3 = {"star": 1.02, "chain": 1.06, "cycle": 1.08, "full": 1.14}  #: means of T_G / T_E
QUERIES = 100
COUNTED = 20  #: intervals: two seconds
RANK_GOAL = 0.9
NAMES = ("S1", "S2", "S3", "S4")
# Table 2
_ATTRIBUTES = (10, 50, 100, 150, 200)  # of five bytes each
_SELECTIVITIES = (0.02, 0.04, 0.06, 0.08, 0.1)
_RATES = (10, 50, 100, 150, 200)
_WINDOWS = (400, 800, 1200, 1600, 2000)

WHY_LOOK_AHEAD = (
    "the cheapest next step may leave the rows at the wrong place, or leave too many. While they "
    "are few they can be taken to the stream whose window is dear to copy; Algorithm 10 may copy "
    "that window in the end, or join early with a stream that multiplies the rows"
)
WHY_BELOW_1 = (
    "the exhaustive plan is the cheapest by equation 1, which charges each step for a copy of its "
    "own. When a plan runs, steps that use the same copy of a window have it sent once, so a plan "
    "that is dearer by equation 1 may send less"
)
WHY_JOINT = (
    "equation 1 cannot tell that a copy is there already, so planners that go by it may spread the "
    "joins over the sites where, with copies counted once, it is cheaper to let all streams meet"
)
WHY_FEW_LEFT_OUT = (
    "with the parameters of Table 2 many windows have rows of nearly every key, so that semijoins "
    "leave few rows out"
)


def drawn_feeds(rng: Rng) -> dict[str, Feed]:
    """Four streams with parameters of Table 2."""
    return {
        name: Feed(
            rate=float(rng.choice(_RATES)),
            row_bytes=5 * int(rng.choice(_ATTRIBUTES)),
            keys=round(1 / float(rng.choice(_SELECTIVITIES))),
            window=int(rng.choice(_WINDOWS)),
        )
        for name in NAMES
    }


def random_plan(query: Query, rng: Rng) -> Plan:
    sequences = {}
    for head in query.names:
        done, steps = [head], []
        while len(done) < len(query.names):
            open_ = [n for n in query.names if n not in done and query.key(done, n) is not None]
            done.append(str(rng.choice(open_)))
            steps.append(Step(done[-1], PAPER[rng.integers(len(PAPER))]))
        sequences[head] = steps
    return Plan(query, sequences)


def added(costs: StepCosts, plan: Plan) -> float:
    """Equation 1."""
    total = 0.0
    for head, placed in plan.placed.items():
        done: tuple[str, ...] = (head,)
        for step in placed:
            total += costs.step(done, step.source, step.stream, step.algorithm).time
            done = (*done, step.stream)
    return total


@dataclass
class Asked:
    """One query: by plan the measured time, the predicted one, and that of equation 1."""

    measured: Mapping[str, float]
    predicted: Mapping[str, float]
    added: Mapping[str, float]
    by_the_paper: float = 1.0  #: Algorithm 10 over the optimum, by the printed formulas
    plans: Mapping[str, Plan] = field(default_factory=dict)

    def pairs(self) -> list[tuple[float, float]]:
        """Of every plan, the predicted and the measured time."""
        return [(time, self.measured[name]) for name, time in self.predicted.items()]


def ask(graph: str, feeds: Mapping[str, Feed], seed: Sequence[int], config: Config) -> Asked:
    """Every plan of a query on the same streams."""
    net = Net()
    query = make_query(feeds, graph, net)
    model = CostModel(query, statistics_of(query, feeds), net.prices)
    choices = planned(model)
    choices[RANDOM] = Choice(random_plan(query, np.random.default_rng([*seed, 0])), model)
    span = Span.of(query, COUNTED)
    sizes = {name: feed.row_bytes for name, feed in feeds.items()}
    runs = []
    for repetition in range(1, config.repetitions_of(graph) + 1):
        streams = draw(feeds, np.random.default_rng([*seed, repetition]), span.end)
        runs.append(ship_all(choices, streams, sizes, net, span))
    printed = PaperCosts(query, feeds, net)
    return Asked(
        {name: statistics.fmean(run[name] for run in runs) for name in runs[0]},
        {name: choice.predicted for name, choice in choices.items()},
        {name: choice.added for name, choice in choices.items()},
        added(printed, algorithm_10(printed)) / added(printed, exhaustive(printed)),
        {name: choice.plan for name, choice in choices.items()},
    )


def run_plans(config: Config, reporter: Reporter) -> Result:
    """Table 3 and Fig. 8."""

    def once(graph: str, number: int) -> Asked:
        seed = [config.seed, list(TABLE_3).index(graph), number]
        return ask(graph, drawn_feeds(np.random.default_rng(seed)), seed, config)

    # a query is measured on several streams, so it is queries that are counted here
    queries = Points(tuple(TABLE_3), times=lambda _: config.rows)
    found = over_points(queries, once, config, reporter)
    ratios = {
        f"{rival}/{graph}": Spread.of(one.measured[rival] / one.measured[JOINT] for one in asked)
        for graph, asked in found.at.items()
        for rival in RIVALS
    }
    return found.result("semi-plans", ratios, _facts(found.at, config))


def _facts(found: Mapping[str, list[Asked]], config: Config) -> dict[str, Any]:
    over: dict[str, Callable[[Asked], float]] = {
        "measured, greedy": lambda one: one.measured[GREEDY] / one.measured[EXHAUSTIVE],
        "measured, Algorithm 10": lambda one: one.measured[ALGORITHM_10] / one.measured[EXHAUSTIVE],
        "equation 1, greedy": lambda one: one.added[GREEDY] / one.added[EXHAUSTIVE],
        "equation 1, Algorithm 10": lambda one: one.added[ALGORITHM_10] / one.added[EXHAUSTIVE],
        "Appendix B as printed, Algorithm 10": lambda one: one.by_the_paper,
    }
    table = {
        title: {graph: summary([value(one) for one in asked]) for graph, asked in found.items()}
        for title, value in over.items()
    }
    return {
        "queries of each join graph": config.rows,
        "seconds that count": COUNTED * 0.1,
        "Table 3, means": TABLE_3,
        "T_G / T_E": table,
        "why a look ahead": WHY_LOOK_AHEAD,
        "why some measured ratios are below 1": WHY_BELOW_1,
        "why joint is cheaper than exhaustive": WHY_JOINT,
        "why central is a little cheaper": f"{WHY_FEW_LEFT_OUT}; {WHY_CENTRAL}",
        "plans of": {name: kinds(found, name) for name in (JOINT, GREEDY, EXHAUSTIVE)},
        "predicted beside measured": {g: agreement(asked) for g, asked in found.items()},
        "goals": _goals(found),
        "charts": _charts(found),
    }


def kinds(found: Mapping[str, list[Asked]], planner: str) -> dict[str, dict[str, float | None]]:
    """What the plans of a planner are like, by join graph."""
    answer = {}
    for graph, asked in found.items():
        plans = [one.plans[planner] for one in asked if planner in one.plans]
        if plans:
            answer[graph] = {
                "share of steps that are simple joins": significant(
                    statistics.fmean(map(simple_share, plans))
                ),
                "share of plans that let all rows meet at one site": significant(
                    statistics.fmean(map(meets_at_one_site, plans))
                ),
            }
    return answer


def summary(values: Sequence[float]) -> dict[str, float | None]:
    """A row of Table 3."""
    if not values:
        return {}
    return {
        "mean": significant(statistics.fmean(values)),
        "median": significant(statistics.median(values)),
        "standard deviation": significant(statistics.pstdev(values)),
        "max": significant(max(values)),
    }


def agreement(asked: Sequence[Asked]) -> dict[str, float | None]:
    """Predicted against measured times: over all plans, and among the plans of one query."""
    pairs = [pair for one in asked for pair in one.pairs()]
    within = [rank_correlation(*_unzipped(one.pairs())) for one in asked]
    errors = [abs(predicted / measured - 1) for predicted, measured in pairs]
    known = [value for value in within if value is not None]
    return {
        "rank correlation": significant(rank_correlation(*_unzipped(pairs))),
        "rank correlation within a query, median": significant(
            statistics.median(known) if known else None
        ),
        "error, median": significant(statistics.median(errors) if errors else None),
    }


def _unzipped(pairs: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [a for a, _ in pairs], [b for _, b in pairs]


def _goals(found: Mapping[str, list[Asked]]) -> dict[str, Any]:
    goals: dict[str, Any] = {}
    for graph, asked in found.items():
        if not asked:
            continue
        for name, title in ((GREEDY, ""), (ALGORITHM_10, ", Algorithm 10")):
            mean = statistics.fmean(one.measured[name] / one.measured[EXHAUSTIVE] for one in asked)
            goals[f"mean T_G / T_E at most, {graph}{title}"] = goal(
                TABLE_3[graph], mean, at_most=True
            )
        rank = agreement(asked)["rank correlation"]
        goals[f"rank correlation, {graph}"] = goal(RANK_GOAL, rank)
    return goals


def _charts(found: Mapping[str, list[Asked]]) -> list[dict[str, Any]]:
    frequencies: dict[str, list[tuple[float, float]]] = {}
    for rival in (GREEDY, ALGORITHM_10):
        for graph, asked in found.items():
            ratios = [one.measured[rival] / one.measured[EXHAUSTIVE] for one in asked]
            tenths, counts = np.unique(np.round(ratios, 1), return_counts=True)
            frequencies[f"{rival}, {graph}"] = list(
                zip(tenths.tolist(), counts.tolist(), strict=True)
            )
    points = {
        graph: [pair for one in asked for pair in one.pairs()] for graph, asked in found.items()
    }
    dashed = [name for name in frequencies if name.startswith(ALGORITHM_10)]
    return [
        line_chart("Fig. 8", "T_G / T_E, to a tenth", "queries", frequencies, dashed=dashed),
        line_chart(
            "Every plan",
            "predicted, s a second",
            "measured, s a second",
            points,
            points=True,
            log=True,
        ),
    ]


BENCHMARK = Benchmark(
    "semi-plans",
    "Table 3 and Fig. 8 of the semijoin paper: greedy four-way plans against exhaustive ones",
    QUERIES,
    "random queries of each join graph",
    tuple(TABLE_3),
    run_plans,
)
