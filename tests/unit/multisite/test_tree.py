"""Tree ordering: the same results as any other plan, and costs that follow the bytes."""

import itertools
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from dovetail.errors import ArgumentError
from dovetail.multisite.plan import Plan, Step
from dovetail.multisite.tree import TreeJoin, TreePlan, TreeSimulation, levels_of, plan_of_json
from dovetail.multisite.tree_costs import cheapest_tree, tree_cost
from dovetail.sites import (
    PAPER,
    Algorithm,
    CountWindow,
    LinkPrice,
    Prices,
    Query,
    Statistics,
    Stream,
    StreamStatistics,
    TimeWindow,
    topology,
)
from support.site_hosts import random_tree
from support.sites import counted, window_join

AT_SOURCE = [a for a in PAPER if a.at_source]
AT_DESTINATION = [a for a in PAPER if not a.at_source]
PAIRS = [
    *itertools.product(AT_SOURCE, AT_DESTINATION),
    *itertools.product(AT_DESTINATION, AT_SOURCE),
]


def drawn(
    graph: str, names: str, seed: int, columns: tuple[str, ...] = ("a",)
) -> tuple[Query, dict[str, pa.RecordBatch], np.random.Generator]:
    rng = np.random.default_rng(seed)
    schema = pa.schema([("ts", pa.int64()), ("a", pa.int64()), ("b", pa.int64())])
    streams = tuple(Stream(n, schema, TimeWindow(int(rng.integers(8, 40)))) for n in names)
    query = Query(streams, tuple(topology(graph, names, columns)), 10, int(rng.integers(0, 15)))
    rows = {
        n: pa.record_batch(
            {
                "ts": np.sort(rng.integers(0, 80, 50)),
                "a": rng.integers(0, 9, 50),
                "b": rng.integers(0, 3, 50),
            }
        )
        for n in names
    }
    return query, rows, rng


@pytest.mark.parametrize("graph", ["chain", "star", "cycle", "full"])
@pytest.mark.parametrize("seed", range(6))
def test_tree_when_drawn_at_random_then_emits_what_one_place_would(graph: str, seed: int) -> None:
    query, rows, rng = drawn(graph, "ABC" if seed % 2 else "ABCD", seed, ("a", "b")[: 1 + seed % 2])
    plan = random_tree(query, rng)
    simulation = TreeSimulation(plan, lambda _: int(rng.integers(0, query.delta + 1)))
    simulation.run(rows, 8)
    answer = window_join(query, rows, 8)
    assert sum(found.total() for found in answer.values()) > 10
    for interval, expected in answer.items():
        assert counted(simulation.table(interval)) == expected, (interval, plan.joins)


def refused(*joins: TreeJoin, window: TimeWindow | CountWindow | None = None) -> None:
    schema = pa.schema([("ts", pa.int64()), ("a", pa.int64())])
    streams = tuple(Stream(n, schema, window or TimeWindow(9)) for n in "ABC")
    TreePlan(Query(streams, tuple(topology("chain", "ABC", ["a"])), 10, 5), "A", joins)


def test_tree_when_a_level_leaves_results_at_two_sites_then_refuses() -> None:
    with pytest.raises(ArgumentError, match="two sites"):
        refused(
            TreeJoin("B", Algorithm.SP_D, Algorithm.SP_D),
            TreeJoin("C", Algorithm.SP_D, Algorithm.SP_S),
        )


@pytest.mark.parametrize(
    ("order", "says"), [("B", "every stream once"), ("BB", "every stream once"), ("CB", "no equal")]
)
def test_tree_when_its_order_cannot_be_then_refuses(order: str, says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        refused(*(TreeJoin(name, Algorithm.SP_D, Algorithm.SP_S) for name in order))


def test_tree_when_a_window_is_by_count_then_refuses() -> None:
    with pytest.raises(ArgumentError, match="by count"):
        refused(
            *(TreeJoin(name, Algorithm.SP_D, Algorithm.SP_S) for name in "BC"),
            window=CountWindow(5),
        )


def test_tree_cost_when_streams_are_as_assumed_then_predicts_bytes(make) -> None:
    query, rows = make(*[(2, range(60), 30, TimeWindow(30))] * 3, intervals=80)
    statistics = Statistics({n: StreamStatistics(2, 46, {f"{n}.a": 60}) for n in "ABC"})
    pair = (Algorithm.SM_S1, Algorithm.SP_D)
    plan = TreePlan(query, "A", [TreeJoin("B", *pair), TreeJoin("C", *pair)])
    simulation = TreeSimulation(plan, lambda _: 5)
    simulation.run(rows, 80)
    used = sum(usage.nbytes for usage in simulation.usage.values())
    predicted = tree_cost(plan, statistics, Prices()).nbytes * 800
    assert predicted == pytest.approx(used, rel=0.35)  # a level's two joins share a link


def test_cheapest_tree_when_compared_with_all_pairs_then_none_is_cheaper(make) -> None:
    query, _ = make(
        (0, [0], 1, TimeWindow(400)), (0, [0], 1, TimeWindow(2000)), tau=100, intervals=1
    )
    statistics = Statistics(
        {"A": StreamStatistics(0.2, 50, {"A.a": 50}), "B": StreamStatistics(0.01, 900, {"B.a": 10})}
    )
    prices = Prices(LinkPrice(25, 131))
    costs = [
        tree_cost(TreePlan(query, first, [TreeJoin(other, *pair)]), statistics, prices).time
        for first, other in ("AB", "BA")
        for pair in PAIRS
    ]
    chosen = cheapest_tree(query, statistics, prices)
    assert tree_cost(chosen, statistics, prices).time == pytest.approx(min(costs))


def test_tree_when_written_as_json_then_is_read_as_it_was() -> None:
    query, _, rng = drawn("chain", "ABC", 1)
    tree = random_tree(query, rng)
    again = plan_of_json(query, tree.to_json())
    assert again == tree
    assert hash(again) == hash(tree)
    assert [level.home for level in levels_of(again)] == [level.home for level in tree.levels]
    steps = {"A": "BC", "B": "AC", "C": "BA"}
    plan = Plan(query, {h: [Step(n, Algorithm.SP_D) for n in way] for h, way in steps.items()})
    assert plan_of_json(query, plan.to_json()) == plan
    assert [level.plan for level in levels_of(plan)] == [plan]


def test_tree_when_a_stream_is_called_as_a_join_would_be_then_refuses() -> None:
    query, _, _ = drawn("chain", "ABC", 1)
    named = tuple(replace(s, name=n) for s, n in zip(query.streams, ("A", "B", "A+B"), strict=True))
    on = (("A.a", "B.a"), ("B.a", "A+B.a"))
    pair = (Algorithm.SP_D, Algorithm.SP_S)
    joins = [TreeJoin(name, *pair) for name in ("B", "A+B")]
    clashing = replace(query, streams=named, on=on)
    with pytest.raises(ArgumentError, match="in its name"):
        TreePlan(clashing, "A", joins)


def test_cheapest_tree_when_algorithms_join_at_one_end_only_then_refuses() -> None:
    query, _, _ = drawn("chain", "ABC", 1)
    with pytest.raises(ArgumentError, match="no tree can be made"):
        cheapest_tree(query, Statistics({}), Prices(), (Algorithm.SP_D, Algorithm.SM_D2))
