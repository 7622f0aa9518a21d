"""The cost model against counted bytes and messages; the planners against each other."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from dovetail.errors import ArgumentError
from dovetail.multisite.windows import Window
from dovetail.sites import (
    PAPER,
    Algorithm,
    CostModel,
    CountWindow,
    LinkPrice,
    Plan,
    Prices,
    Simulation,
    Statistics,
    Step,
    StreamStatistics,
    TimeWindow,
    algorithm_10,
    exhaustive,
    greedy,
    implied,
    joint,
    refine,
)
from support.sites import counted, window_join

INTERVALS = 100
#: rate and keys of the flow, rate and keys of the window, and the window
CASES: dict[str, tuple[float, range, float, range, Window]] = {
    "half of the keys shared": (2, range(50), 2, range(25, 75), TimeWindow(40)),
    "a fast flow, few matches": (5, range(200), 1, range(100, 500), TimeWindow(100)),
    "a slow flow, a fast window": (0.5, range(20), 4, range(300), TimeWindow(60)),
    "by count": (2, range(50), 2, range(25, 75), CountWindow(80)),
}


@pytest.mark.parametrize(
    ("case", "compact"), [(case, number % 2 == 0) for number, case in enumerate(CASES)]
)
def test_model_when_streams_are_as_assumed_then_predicts_bytes_and_messages(
    make, case: str, compact: bool
) -> None:
    rate_1, keys_1, rate_2, keys_2, window = CASES[case]
    query, streams = make(
        (rate_1, keys_1, 80, TimeWindow(50)), (rate_2, keys_2, 100, window), intervals=INTERVALS
    )
    query = replace(query, compact=compact)
    statistics = Statistics(
        {
            "A": StreamStatistics(rate_1, 96, {"A.a": len(keys_1)}),
            "B": StreamStatistics(rate_2, 116, {"B.a": len(keys_2)}),
        },
        {("A.a", "B.a"): len(set(keys_1) & set(keys_2))},
    )
    model = CostModel(query, statistics, Prices())
    for algorithm in Algorithm:
        plan = Plan(query, {"A": [Step("B", algorithm)]}, one_way=True)
        simulation = Simulation(plan, lambda _: 5)
        simulation.run(streams, INTERVALS)
        counted, predicted = simulation.network.total, model.plan(plan)
        time = query.tau * INTERVALS
        assert predicted.nbytes * time == pytest.approx(counted.nbytes, rel=0.08), algorithm
        assert predicted.messages * time == pytest.approx(counted.messages, rel=0.1), algorithm


def test_model_when_links_have_prices_then_time_is_latency_and_transfer(make) -> None:
    query, _ = make((1, range(5), 4, TimeWindow(10)), (1, range(5), 4, TimeWindow(10)))
    statistics = even_statistics("AB", rate=100)
    free = CostModel(query, statistics, Prices()).plan(
        plan := Plan(query, {"A": [Step("B", Algorithm.SP_D)]}, one_way=True)
    )
    prices = Prices(links={("A", "B"): LinkPrice(latency=3, bandwidth=50)})
    cost = CostModel(query, statistics, prices).plan(plan)
    assert cost.time == pytest.approx(free.messages * 3 + free.nbytes / 50)
    assert free.time == 0


def test_model_when_scanned_then_a_probe_costs_the_whole_window(make) -> None:
    query, _ = make((1, range(5), 4, TimeWindow(1000)), (1, range(5), 4, TimeWindow(1000)))
    plan = Plan(query, {"A": [Step("B", Algorithm.SP_D)]}, one_way=True)
    times = [
        CostModel(query, even_statistics("AB"), Prices(probe=1, scanned=scanned)).plan(plan).time
        for scanned in (False, True)
    ]
    assert times[1] > 900 * times[0] > 0


def test_model_when_statistics_lack_a_column_then_says_which(make) -> None:
    query, _ = make((1, range(5), 4, TimeWindow(10)), (1, range(5), 4, TimeWindow(10)))
    lacking = Statistics({n: StreamStatistics(1, 10, {}) for n in "AB"})
    with pytest.raises(ArgumentError, match=r"A\.a"):
        greedy(CostModel(query, lacking, Prices()))


def even_statistics(names: str, rate: float = 1) -> Statistics:
    return Statistics({n: StreamStatistics(rate, 24, {f"{n}.a": 5}) for n in names})


def drawn_model(make, graph: str, streams: int, seed: int) -> CostModel:
    """A query with parameters as in Table 2 of the paper, in milliseconds."""
    rng = np.random.default_rng(seed)
    query, _ = make(
        *(
            (0, [0], 1, TimeWindow(int(size)))
            for size in rng.choice([400, 800, 1200, 1600, 2000], streams)
        ),
        graph=graph, tau=100, delta=25, intervals=1,
    )  # fmt: skip
    statistics = Statistics(
        {
            name: StreamStatistics(
                rng.choice([10, 50, 100, 150, 200]) / 1000,
                5 * rng.choice([10, 50, 100, 150, 200]),
                {f"{name}.a": 1 / rng.choice([0.02, 0.04, 0.06, 0.08, 0.1])},
            )
            for name in query.names
        }
    )
    return CostModel(query, statistics, Prices(LinkPrice(25, 131), probe=1e-4, insert=1e-4))


@pytest.mark.parametrize(
    ("graph", "table_3"), [("star", 1.02), ("chain", 1.06), ("cycle", 1.08), ("full", 1.14)]
)
def test_planners_when_compared_then_a_look_ahead_is_between_algorithm_10_and_the_optimum(
    make, graph: str, table_3: float
) -> None:
    ratios = []
    for seed in range(12):
        model = drawn_model(make, graph, 4, seed)
        paper, ours, best = (
            model.added(search(model)).time for search in (algorithm_10, greedy, exhaustive)
        )
        assert best <= ours * (1 + 1e-12)
        assert ours <= paper * (1 + 1e-12)
        ratios.append(ours / best)
    assert math.fsum(ratios) / len(ratios) <= table_3


def test_exhaustive_when_every_plan_is_tried_then_is_the_cheapest(make) -> None:
    model = drawn_model(make, "full", 3, 1)
    a, b, c = model.query.names
    costs = [
        model.step((a,), a, first, one).time
        + model.step((a, first), a if one.at_source else first, second, two).time
        for first, second in ((b, c), (c, b))
        for one, two in itertools.product(PAPER, PAPER)
    ]
    only = {a: exhaustive(model).sequences[a]}
    assert model.added(Plan(model.query, only, one_way=True)).time == pytest.approx(min(costs))


@pytest.mark.parametrize("case", CASES)
def test_model_when_both_ways_share_links_then_counts_what_is_shared_once(make, case) -> None:
    rate_1, keys_1, rate_2, keys_2, window = CASES[case]
    query, streams = make(
        (rate_1, keys_1, 80, window), (rate_2, keys_2, 100, window), intervals=INTERVALS
    )
    statistics = Statistics(
        {
            "A": StreamStatistics(rate_1, 96, {"A.a": len(keys_1)}),
            "B": StreamStatistics(rate_2, 116, {"B.a": len(keys_2)}),
        },
        {("A.a", "B.a"): len(set(keys_1) & set(keys_2))},
    )
    model = CostModel(query, statistics, Prices())
    for there, back in [
        (Algorithm.SP_D, Algorithm.SP_S),
        (Algorithm.SM_D1, Algorithm.SP_S),
        (Algorithm.SM_S2, Algorithm.SM_D1),
        (Algorithm.SM_S1, Algorithm.SM_S1),
    ]:
        plan = Plan(query, {"A": [Step("B", there)], "B": [Step("A", back)]})
        simulation = Simulation(plan, lambda _: 5)
        simulation.run(streams, INTERVALS)
        used = simulation.network.total.nbytes
        predicted = model.plan(plan).nbytes * query.tau * INTERVALS
        assert predicted == pytest.approx(used, rel=0.12), (there, back)


def test_refine_when_copies_can_be_shared_then_finds_a_cheaper_plan(make) -> None:
    savings = []
    for seed in range(8):
        model = drawn_model(make, "full", 3, seed)
        plan = exhaustive(model)
        savings.append(model.plan(refine(model, plan)).time / model.plan(plan).time)
    assert max(savings) <= 1
    assert min(savings) < 0.99


def test_greedy_when_all_parameters_are_the_same_then_is_as_cheap_as_exhaustive(make) -> None:
    query, _ = make(*[(0, [0], 1, TimeWindow(1200))] * 4, graph="full", tau=100, intervals=1)
    statistics = Statistics({n: StreamStatistics(0.1, 500, {f"{n}.a": 17}) for n in query.names})
    model = CostModel(query, statistics, Prices(LinkPrice(25, 131)))
    costs = [model.added(search(model)).time for search in (greedy, exhaustive)]
    assert costs[0] == pytest.approx(costs[1], rel=0.05)  # Fig. 9


def test_flow_when_streams_are_joined_in_another_order_then_is_the_same(make) -> None:
    for graph in ("full", "cycle"):
        model = drawn_model(make, graph, 4, 3)
        a, b, c, d = model.query.names
        assert model.flow((a, b, c, d)) == model.flow((a, d, c, b))


def test_flow_when_a_join_leaves_few_keys_then_the_next_one_knows(make) -> None:
    query, _ = make(*[(1, range(5), 4, TimeWindow(100))] * 3, graph="full")
    keys = {"A": 50, "B": 10, "C": 10}
    statistics = Statistics({n: StreamStatistics(1, 24, {f"{n}.a": k}) for n, k in keys.items()})
    model = CostModel(query, statistics, Prices())
    # of A's keys ten are B's, and these are C's: three rows agree with 10 / (50 * 10 * 10)
    assert model.flow(("A", "B", "C")).rate == pytest.approx(100 * 100 / 500)
    assert model.flow(("A", "B", "C")).events == pytest.approx(10 / 50, rel=0.01)


@pytest.mark.parametrize("second", [Algorithm.SM_D2, Algorithm.SM_S1, Algorithm.SM_D1])
def test_model_when_one_row_becomes_many_then_their_one_key_is_counted_once(make, second) -> None:
    intervals = 800
    query, streams = make(
        (0.05, range(10), 40, TimeWindow(50)), (2, range(10), 40, TimeWindow(50)),
        (1, range(20), 40, TimeWindow(50)), intervals=intervals,
    )  # fmt: skip
    rates = {"A": (0.05, 10), "B": (2, 10), "C": (1, 20)}
    model = CostModel(
        query,
        Statistics({n: StreamStatistics(r, 56, {f"{n}.a": k}) for n, (r, k) in rates.items()}),
        Prices(),
    )
    steps = [Step("B", Algorithm.SP_D), Step("C", second)]
    plan = Plan(query, {"A": steps}, one_way=True)
    simulation = Simulation(plan, lambda _: 5)
    simulation.run(streams, intervals)
    used, predicted = simulation.network.total, model.plan(plan)
    assert predicted.messages * query.tau * intervals == pytest.approx(used.messages, rel=0.1)
    assert predicted.nbytes * query.tau * intervals == pytest.approx(used.nbytes, rel=0.15)


def sequences_of(model: CostModel, head: str, algorithms) -> list[tuple[Step, ...]]:
    others = [name for name in model.query.names if name != head]
    return [
        tuple(map(Step, order, chosen))
        for order in itertools.permutations(others)
        for chosen in itertools.product(algorithms, repeat=len(others))
        if all(model.query.key((head, *order[:i]), name) for i, name in enumerate(order))
    ]


@pytest.mark.parametrize(
    ("streams", "algorithms"), [(2, PAPER), (3, (Algorithm.SP_S, Algorithm.SP_D))]
)
def test_joint_when_every_plan_is_tried_then_none_is_cheaper(make, streams, algorithms) -> None:
    for seed in range(3):
        model = drawn_model(make, "full", streams, seed)
        query = model.query
        tried = itertools.product(*(sequences_of(model, n, algorithms) for n in query.names))
        plans = (Plan(query, dict(zip(query.names, some, strict=True))) for some in tried)
        least = min(model.plan(plan).time for plan in plans)
        assert model.plan(joint(model, algorithms)).time == pytest.approx(least)


@pytest.mark.parametrize("graph", ["star", "full"])
def test_joint_when_steps_share_copies_then_is_cheaper_than_the_sum_of_steps_tells(
    make, graph: str
) -> None:
    ratios = []
    for seed in range(4):
        model = drawn_model(make, graph, 4, seed)
        ratios.append(model.plan(joint(model)).time / model.plan(exhaustive(model)).time)
    assert max(ratios) <= 1
    assert min(ratios) < 0.9


def test_implied_when_two_streams_equal_a_third_then_they_can_be_joined_directly(make) -> None:
    query, streams = make(*[(0.5, range(4), 4, TimeWindow(30))] * 3, intervals=12)
    wider = implied(query)
    assert query.key({"A"}, "C") is None
    assert set(wider.on) == {*query.on, ("A.a", "C.a")}
    step = Algorithm.SP_D
    plan = Plan(
        wider,
        {
            "A": [Step("C", step), Step("B", step)],
            "B": [Step("A", step), Step("C", step)],
            "C": [Step("A", step), Step("B", step)],
        },
    )
    simulation = Simulation(plan, lambda _: 5)
    simulation.run(streams, 12)
    answer = window_join(query, streams, 12)
    assert sum(found.total() for found in answer.values()) > 50
    for interval, expected in answer.items():
        assert counted(simulation.table(interval)) == expected
