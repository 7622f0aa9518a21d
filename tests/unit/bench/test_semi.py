"""The semijoin figures at a tiny size, and the parts they are made of."""

from collections.abc import Callable

import numpy as np
import pytest

from dovetail.multisite.messages import HEADER_BYTES
from dovetail.sites import Algorithm, Plan, Simulation, Step
from dovetail_bench import registry
from dovetail_bench.progress import Silent
from dovetail_bench.result import Result
from dovetail_bench.semi import bound as semi_bound
from dovetail_bench.semi import real as semi_real
from dovetail_bench.semi.formulas import OPERATION, PaperCosts
from dovetail_bench.semi.observations import OBSERVATIONS, observations
from dovetail_bench.semi.oneway import DEFAULT, one_way, pairs_of, settings
from dovetail_bench.semi.plans import (
    ALGORITHM_10,
    EXHAUSTIVE,
    GREEDY,
    TABLE_3,
    Asked,
    _goals,
    random_plan,
)
from dovetail_bench.semi.runs import (
    Feed,
    Net,
    Span,
    Streams,
    central,
    draw,
    make_query,
    meets_at_one_site,
    rank_correlation,
    rows_of,
    ship,
    simple_share,
    times_and_keys,
)
from support.sites import window_join

NAMES = ("semi-oneway", "semi-plans", "semi-equal", "semi-real", "semi-bound", "semi-pace")
NET = Net()
SMALL = {"S1": Feed(60, 100, 6, 300), "S2": Feed(40, 30, 9, 500), "S3": Feed(50, 16, 4, 400)}
Sound = Callable[[Result], None]


def result(name: str, only: str | None, rows: int) -> Result:
    benchmark = registry.find(name)
    config = benchmark.configure(rows=rows, repetitions=("1",), only=only)
    return registry.run(benchmark, config, Silent())


def two(first: Feed, second: Feed) -> dict[str, Feed]:
    return {"S1": first, "S2": second}


def test_benchmarks_when_listed_then_are_all_there() -> None:
    assert set(NAMES) <= set(registry.benchmarks())


def test_oneway_when_tiny_then_semijoins_pay_where_few_rows_match(assert_sound: Sound) -> None:
    found = result("semi-oneway", "selectivity", 60)
    assert_sound(found)
    ratios = {label: spread.median or 0 for label, spread in found.ratios.items()}
    assert ratios["simple/selectivity=0.02"] > 2
    assert ratios["simple/selectivity=0.1"] == pytest.approx(1, rel=0.05)  # all rows match
    told = found.facts["observations of the paper"]
    assert told["7(c): the simple joins stay the same"]["holds"]
    assert told["7(c): SM-S1 and SM-S2 grow until f2 = f1, then are nearly constant"]["holds"]
    steps = found.facts["one step against two"]
    assert steps["SM-S2 over SM-S1"]["points at which two steps are cheaper, measured"] == 5
    assert steps["SM-D2 over SM-D1"]["points at which two steps are cheaper, measured"] == 0
    assert {told["which is right"] for told in steps.values()} == {"its explanation"}
    kilobytes = found.facts["KB sent in a second of arrivals"]["selectivity=0.02"]
    assert kilobytes["SM-S2"] < 0.3 * kilobytes["SP-S"]


def test_plans_when_tiny_then_every_planner_is_measured(assert_sound: Sound) -> None:
    found = result("semi-plans", "full", 1)
    assert_sound(found)
    rivals = ("greedy", "exhaustive", "algorithm-10", "random", "central")
    assert set(found.ratios) == {f"{rival}/full" for rival in rivals}
    mean = "mean T_G / T_E at most, full"
    assert set(found.facts["goals"]) == {mean, f"{mean}, Algorithm 10", "rank correlation, full"}
    joint = found.facts["plans of"]["joint"]["full"]
    assert 0 <= joint["share of steps that are simple joins"] <= 1
    table = found.facts["T_G / T_E"]
    assert table["equation 1, Algorithm 10"]["full"]["mean"] >= 1
    assert 1 <= table["equation 1, greedy"]["full"]["mean"] < 1.3
    assert found.facts["predicted beside measured"]["full"]["error, median"] < 0.3


def test_equal_when_tiny_then_greedy_and_exhaustive_are_level(assert_sound: Sound) -> None:
    found = result("semi-equal", "size", 3)
    assert_sound(found)
    assert all(goal["met"] for goal in found.facts["goals"].values())
    assert (found.ratios["greedy/size=500"].median or 0) > 1.5  # copies are shared


def test_real_when_tiny_then_the_plan_is_about_as_good_as_all_to_one_site(
    assert_sound: Sound,
) -> None:
    found = result("semi-real", "window=400", 2)
    assert_sound(found)
    assert (found.ratios["central/window=400"].median or 0) > 0.9
    assert "not the log itself" in found.facts["the log"]


def test_bound_when_tiny_then_nothing_sends_less_than_the_least(assert_sound: Sound) -> None:
    found = result("semi-bound", "half of 2,000 keys shared", 4)
    assert_sound(found)
    sent = found.facts["KB sent in a second of arrivals"]["half of 2,000 keys shared"]
    least = sent.pop("lower bound")
    assert least > 0
    # rows that were asked for before the intervals that count are not sent again
    assert all(bytes_ > 0.6 * least for bytes_ in sent.values())


def test_run_when_an_algorithm_loses_results_then_is_shown_as_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dovetail_bench.semi.oneway.pairs_of", lambda *_: 3)
    found = result("semi-oneway", "latency", 30)
    assert not found.ok
    assert "the join has 3" in found.failures[0].error


# --- the parts -----------------------------------------------------------------------------------


def small(graph: str, seed: int = 1) -> tuple[Span, Streams]:
    query = make_query(SMALL, graph, NET)
    span = Span(0, 15)
    assert query.tau == span.tau
    return span, draw(SMALL, np.random.default_rng(seed), span.end)


def test_ship_when_rows_have_no_more_than_time_and_key_then_bytes_are_the_network_s() -> None:
    span, streams = small("chain")
    sizes = dict.fromkeys(SMALL, 16)  # of a time and a key
    for seed in range(3):
        rng = np.random.default_rng(seed)
        plan = random_plan(make_query(SMALL, "chain", NET), rng)
        simulation = Simulation(plan, lambda _: NET.latency)
        simulation.run(streams, span.intervals)
        shipped = ship(plan, streams, sizes, NET, span, results=True)
        assert round(shipped.nbytes * span.seconds) == simulation.network.total.nbytes
        assert shipped.messages * span.seconds <= simulation.network.total.messages
        assert shipped.results == sum(
            rows.num_rows for found in simulation.results.values() for rows in found
        )


def test_ship_when_last_joins_are_left_out_then_sends_the_same() -> None:
    span, streams = small("full")
    sizes = {name: feed.row_bytes for name, feed in SMALL.items()}
    for seed in range(4):
        plan = random_plan(make_query(SMALL, "full", NET), np.random.default_rng(seed))
        whole, part = (ship(plan, streams, sizes, NET, span, results=r) for r in (True, False))
        assert (whole.messages, whole.nbytes) == (part.messages, part.nbytes)
        assert whole.results > 0
        assert part.results == 0


def test_ship_when_rows_are_wide_then_only_sent_rows_weigh_more() -> None:
    query = make_query(two(Feed(50, 0, 5, 200), Feed(50, 0, 5, 200)), "chain", NET)
    span = Span(0, 10)
    streams = {n: rows_of(range(0, 1000, 20), np.arange(50) % 5) for n in query.names}
    plan = one_way(query, Algorithm.SP_D)
    narrow, wide = (ship(plan, streams, {"S1": size, "S2": 9999}, NET, span) for size in (16, 1016))
    assert wide.nbytes - narrow.nbytes == 50 * 1000
    assert narrow.messages == 10
    assert narrow.seconds == pytest.approx((10 * 25 + narrow.nbytes / NET.bandwidth) / 1000)


def test_central_when_all_rows_go_to_one_site_then_that_is_the_one_with_the_most_bytes() -> None:
    span = Span(0, 10)
    streams = {
        "S1": rows_of(range(0, 1000, 100), [0] * 10),
        "S2": rows_of(range(0, 1000, 200), [0] * 5),
    }
    nbytes = 5 * (HEADER_BYTES + 50)
    expected = (5 * 25 + nbytes / NET.bandwidth) / 1000
    assert central(streams, {"S1": 100, "S2": 50}, NET, span) == pytest.approx(expected)


def test_pairs_when_counted_by_key_then_are_the_oracle_s() -> None:
    feeds = two(SMALL["S1"], SMALL["S2"])
    query = make_query(feeds, "chain", NET)
    span = Span(8, 6)
    streams = draw(feeds, np.random.default_rng(5), span.end)
    head_only = {
        interval: sum(n for row, n in found.items() if row[0] >= row[2])
        for interval, found in window_join(query, streams, span.intervals).items()
    }
    # of a result, the head is the later row; of equal times, that of S2
    ties = sum(
        n
        for interval, found in window_join(query, streams, span.intervals).items()
        for row, n in found.items()
        if interval > span.warm and row[0] == row[2]
    )
    expected = sum(n for interval, n in head_only.items() if interval > span.warm) - ties
    assert pairs_of(feeds, streams, span) == expected > 0


def test_least_when_counted_by_loops_then_is_the_same() -> None:
    case = semi_bound.Case("here", Feed(60, 100, 30, 300), Feed(40, 30, 30, 500, 10))
    span = Span(8, 6)
    streams = draw(case.feeds, np.random.default_rng(5), span.end)
    (times_1, keys_1), (times_2, keys_2) = (times_and_keys(rows) for rows in streams.values())
    heads = [
        any(k == j and s - 500 <= t < s for t, j in zip(times_2, keys_2, strict=True))
        for s, k in zip(times_1, keys_1, strict=True)
        if s >= span.begin
    ]
    stored = [
        any(k == j and s - 500 <= t < s for s, k in zip(times_1, keys_1, strict=True))
        for t, j in zip(times_2, keys_2, strict=True)
        if span.begin - 500 <= t < span.end - 500
    ]
    assert 0 < sum(heads) < len(heads)
    expected = min(sum(heads) * 108, sum(stored) * 38) / span.seconds
    assert semi_bound.least_bytes(case, streams, span) == pytest.approx(expected)


def test_goals_when_algorithm_10_misses_what_greedy_reaches_then_say_so() -> None:
    measured = {GREEDY: 1.0, ALGORITHM_10: 3.0, EXHAUSTIVE: 1.0}
    goals = _goals({graph: [Asked(measured, measured, measured)] for graph in TABLE_3})
    for graph in TABLE_3:
        assert goals[f"mean T_G / T_E at most, {graph}"]["met"]
        missed = goals[f"mean T_G / T_E at most, {graph}, Algorithm 10"]
        assert (missed["reached"], missed["met"]) == (3.0, False)


def test_plan_when_described_then_says_where_rows_meet_and_by_what_joins() -> None:
    query = make_query(two(DEFAULT, DEFAULT), "chain", NET)
    for there, back, one_site, simple in (
        (Algorithm.SP_S, Algorithm.SP_D, True, 1.0),
        (Algorithm.SP_D, Algorithm.SM_D1, False, 0.5),
        (Algorithm.SM_S1, Algorithm.SM_D2, True, 0.0),
    ):
        plan = Plan(query, {"S1": [Step("S2", there)], "S2": [Step("S1", back)]})
        assert (meets_at_one_site(plan), simple_share(plan)) == (one_site, simple)


def test_weights_when_a_selectivity_is_given_then_two_rows_agree_that_often() -> None:
    for selectivity in (0.001, 0.0024):
        weights = semi_real.zipf_weights(selectivity)
        assert (weights**2).sum() == pytest.approx(selectivity)
        assert weights.sum() == pytest.approx(1)


def test_formulas_when_at_the_defaults_then_are_those_printed() -> None:
    feeds = two(DEFAULT, DEFAULT)
    costs = PaperCosts(make_query(feeds, "chain", NET), feeds, NET)
    bare = PaperCosts(make_query(feeds, "chain", NET), feeds, NET, empty_ships=False)
    times = {a: costs.step(("S1",), "S1", "S2", a).time for a in Algorithm if not a.bloom}
    # thirty tuples of 1,250 bytes in an interval; each probes 900
    ships = 25 + 30 * 1250 / NET.bandwidth
    assert times[Algorithm.SP_D] == pytest.approx((ships + (60 + 30 * 900) * OPERATION) / 100)
    assert bare.step(("S1",), "S1", "S2", Algorithm.SM_S2).messages * 100 == pytest.approx(1)
    assert costs.step(("S1",), "S1", "S2", Algorithm.SM_S2).messages * 100 == pytest.approx(3)


def test_correlation_when_orders_agree_or_not_then_is_spearman_s() -> None:
    assert rank_correlation([1, 2, 3, 4], [10, 100, 1000, 1001]) == pytest.approx(1)
    assert rank_correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert rank_correlation([1, 2, 2, 3], [1, 2, 3, 4]) == pytest.approx(0.9486833)
    assert rank_correlation([1, 1], [1, 2]) is None


def test_observations_when_lines_are_flat_then_those_about_change_do_not_hold() -> None:
    flat = {a.value: [(0.0, 2.0), (1.0, 2.0), (2.0, 2.0)] for a in Algorithm}
    told = observations(dict.fromkeys(settings(), flat))
    assert len(told) == len(OBSERVATIONS)
    held = {says for says, found in told.items() if found["holds"]}
    assert "7(c): the simple joins stay the same" in held
    assert not [says for says in held if " fall " in says or " grow" in says]


def test_pace_when_tiny_then_heartbeats_and_lateness_lose_nothing(assert_sound: Sound) -> None:
    found = result("semi-pace", None, 8)
    assert_sound(found)
    medians = {label: spread.median for label, spread in found.ratios.items()}
    assert medians["delta/on time, bytes"] < 1, "heartbeats are sent, too"
    assert min(v for label, v in medians.items() if label.endswith("results")) >= 1
    assert medians["no lateness/unordered=300, results"] > 1
    assert medians["no lateness/unordered=300, delay"] < 1, "results wait for rows that are late"
