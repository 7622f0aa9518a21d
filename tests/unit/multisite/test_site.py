"""Sites on a virtual network: the constraints, late messages, plan changes, bad input."""

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from dovetail.errors import ArgumentError
from dovetail.sites import (
    Algorithm,
    CountWindow,
    Kind,
    Message,
    Plan,
    Planner,
    Prices,
    Query,
    Simulation,
    Site,
    Step,
    Stream,
    TimeWindow,
    encode,
    topology,
)
from support.sites import counted, window_join

Streams = dict[str, pa.RecordBatch]
SCHEMA = pa.schema([("ts", pa.int64()), ("k", pa.int64())])


def both_ways(query: Query, there: Algorithm, back: Algorithm) -> Plan:
    a, b = query.names
    return Plan(query, {a: [Step(b, there)], b: [Step(a, back)]})


def wrong(simulation: Simulation, query: Query, streams: Streams, intervals: int) -> Counter[str]:
    """How many results are missing, and how many should not be."""
    tally: Counter[str] = Counter()
    for interval, expected in window_join(query, streams, intervals).items():
        found = counted(simulation.table(interval))
        tally["lost"] += (expected - found).total()
        tally["extra"] += (found - expected).total()
        tally["right"] += (expected & found).total()
    return tally


def figure_1(s1: int, *s2: int) -> tuple[Query, Streams]:
    """One key; the streams of Fig. 1, windows of 100, latency 10."""
    streams = tuple(Stream(name, SCHEMA, TimeWindow(100)) for name in ("S1", "S2"))
    rows = {
        "S1": pa.record_batch({"ts": [s1], "k": [1]}),
        "S2": pa.record_batch({"ts": list(s2), "k": [1] * len(s2)}),
    }
    return Query(streams, (("S1.k", "S2.k"),), tau=5, delta=10), rows


@pytest.mark.parametrize("algorithm", Algorithm)
def test_one_way_join_when_it_is_figure_1_then_meets_just_the_rows_in_reach(
    algorithm: Algorithm,
) -> None:
    # s2 = 5 is due to expire when s1 reaches N2, 4 is out of reach, 107 and 110 come after s1
    query, rows = figure_1(105, 4, 5, 104, 107, 110)
    plan = Plan(query, {"S1": [Step("S2", algorithm)]}, one_way=True)
    simulation = Simulation(plan, lambda _: 10)
    simulation.run(rows, 30)
    (found,) = (simulation.table(n) for n in simulation.results)
    assert sorted(found["S2.ts"].to_pylist()) == [5, 104]


def later(query: Query, share: float, seed: int = 3) -> Callable[[Message], int]:
    """A share of messages takes up to five times delta."""
    rng = np.random.default_rng(seed)

    def latency(_: Message) -> int:
        most = 5 * query.delta if rng.random() < share else query.delta
        return int(rng.integers(0, most + 1))

    return latency


@pytest.mark.parametrize("algorithm", Algorithm)
def test_heartbeats_when_messages_take_longer_than_delta_then_results_are_right(
    pair: tuple[Query, Streams], algorithm: Algorithm
) -> None:
    query, streams = pair
    plan = both_ways(query, algorithm, algorithm)
    simulation = Simulation(plan, later(query, 0.3), heartbeats=True)
    simulation.run(streams, 10)
    tally = wrong(simulation, query, streams, 10)
    assert tally["lost"] == tally["extra"] == 0
    assert tally["right"] > 100


class Watched(Simulation):
    """Looks whether messages arrive as they were sent."""

    changed = 0

    def watch(self) -> None:
        self._sent: dict[int, tuple[Message, bytes]] = {}
        self.network.log = lambda m: self._sent.update({id(m): (m, encode(m))})

    def deliver(self, message: Message) -> None:
        self.changed += self._sent[id(message)][1] != encode(message)
        super().deliver(message)


@pytest.mark.parametrize("window", [TimeWindow(5), CountWindow(2)])
@pytest.mark.parametrize("algorithm", Algorithm)
def test_messages_when_they_travel_for_intervals_then_arrive_as_they_were_sent(
    make, algorithm: Algorithm, window: TimeWindow | CountWindow
) -> None:
    # the sender gives up rows of its window, and takes others in, while a message is on its way
    query, streams = make(*[(4, range(6), 4, window)] * 2, delta=35, intervals=15)
    simulation = Watched(both_ways(query, algorithm, algorithm), lambda _: 35)
    simulation.watch()
    simulation.run(streams, 15)
    assert simulation.changed == 0
    tally = wrong(simulation, query, streams, 15)
    assert tally["lost"] == tally["extra"] == 0
    assert tally["right"] > 100


def late_messages(simulation: Simulation) -> int:
    return sum(site.late for site in simulation.sites.values())


@pytest.mark.parametrize("window", [TimeWindow(15), CountWindow(12)])
@pytest.mark.parametrize("algorithm", Algorithm)
def test_timed_when_messages_take_longer_than_delta_then_what_is_lost_was_counted(
    make, algorithm: Algorithm, window: TimeWindow | CountWindow
) -> None:
    lossy = 0
    for seed, share in itertools.product(range(3), (0.0, 0.05, 0.5)):
        query, streams = make(*[(1, range(3), 4, window)] * 2, intervals=8, seed=seed)
        simulation = Simulation(both_ways(query, algorithm, algorithm), later(query, share, seed))
        simulation.run(streams, 8)
        tally = wrong(simulation, query, streams, 8)
        assert late_messages(simulation) or tally["lost"] == tally["extra"] == 0, (seed, share)
        assert share or not late_messages(simulation), seed
        lossy += tally["lost"] > 0
    assert lossy > 1  # why there are heartbeats


def test_plan_when_changed_and_messages_take_longer_than_delta_then_what_is_lost_was_counted(
    make,
) -> None:
    lossy = 0
    for seed in range(3):
        query, streams = make(*[(1, range(4), 4, TimeWindow(20))] * 3, intervals=9, seed=seed)
        rng = np.random.default_rng(seed)

        def plan(query: Query = query, rng: np.random.Generator = rng) -> Plan:
            orders = {"A": "BC", "B": "AC", "C": "BA"}
            chosen = {
                head: [Step(name, list(Algorithm)[rng.integers(8)]) for name in names]
                for head, names in orders.items()
            }
            return Plan(query, chosen)

        simulation = Simulation(plan(), later(query, 0.3, seed))
        simulation.planner = Planner(plan(), simulation.network, Prices())
        simulation.offer(streams)
        for interval in range(9):
            simulation.step()
            if interval % 3 == 1:
                simulation.planner.change(plan(), simulation.network.now)
        simulation.drain()
        tally = wrong(simulation, query, streams, 9)
        assert late_messages(simulation) or tally["lost"] == tally["extra"] == 0, seed
        lossy += tally["lost"] > 0
    assert lossy > 1


@pytest.mark.parametrize(
    ("delay", "head", "lost"),
    [
        (10, 104, 0),  # the update of S2 is there in time
        (11, 104, 1),  # S1 was joined without it
        (11, 109, 0),  # it was there when the row of the next interval was joined
    ],
)
def test_update_when_later_than_delta_then_is_counted_if_the_copy_had_been_probed(
    delay: int, head: int, lost: int
) -> None:
    query, rows = figure_1(head, 103)
    plan = Plan(query, {"S1": [Step("S2", Algorithm.SP_S)]}, one_way=True)
    simulation = Simulation(plan, lambda m: delay if m.header.kind == Kind.UPDATE else 0)
    simulation.run(rows, 30)
    assert sum(simulation.table(n).num_rows for n in simulation.results) == 1 - lost
    assert late_messages(simulation) == lost


@pytest.mark.parametrize(("delay", "lost"), [(10, 0), (12, 0), (16, 1)])
def test_probe_when_later_than_delta_then_is_counted_if_rows_had_left_the_window(
    delay: int, lost: int
) -> None:
    query, rows = figure_1(104, 4)  # due to leave with the first tick more than 10 after 105
    plan = Plan(query, {"S1": [Step("S2", Algorithm.SP_D)]}, one_way=True)
    simulation = Simulation(plan, lambda _: delay)
    simulation.run(rows, 30)
    assert sum(simulation.table(n).num_rows for n in simulation.results) == 1 - lost
    assert late_messages(simulation) == lost


def test_window_when_intervals_are_over_then_rows_leave_it_and_its_copies(
    pair: tuple[Query, Streams],
) -> None:
    query, streams = pair
    for heartbeats in (False, True):
        plan = both_ways(query, Algorithm.SP_S, Algorithm.SP_S)
        simulation = Simulation(plan, lambda _: 5, heartbeats=heartbeats)
        simulation.run(streams, 10)
        rows = {name: batch.num_rows for name, batch in streams.items()}
        for name, site in simulation.sites.items():
            (other,) = (n for n in query.names if n != name)
            assert 0 < len(site.window) < 0.7 * rows[name], heartbeats
            assert 0 < len(site.copy(other).store) < 0.7 * rows[other], heartbeats


def test_rows_when_both_directions_join_at_one_site_then_go_over_the_link_once(
    pair: tuple[Query, Streams],
) -> None:
    query, streams = pair
    simulation = Simulation(both_ways(query, Algorithm.SP_D, Algorithm.SP_S), lambda _: 5)
    simulation.run(streams, 10)
    tally = wrong(simulation, query, streams, 10)
    assert tally["lost"] == tally["extra"] == 0
    assert tally["right"] > 100
    usage = simulation.network.usage
    assert set(usage) == {("A", "B")}
    assert usage["A", "B"].rows == streams["A"].num_rows


def test_simulation_when_run_twice_then_sends_the_same_messages(
    pair: tuple[Query, Streams],
) -> None:
    query, streams = pair
    logs: list[list[tuple[Kind, int]]] = []
    for _ in range(2):
        simulation = Simulation(
            both_ways(query, Algorithm.SM_S2, Algorithm.SM_D2), later(query, 0.0)
        )
        log: list[tuple[Kind, int]] = []
        simulation.network.log = lambda m, log=log: log.append((m.header.kind, m.nbytes))
        simulation.run(streams, 10)
        logs.append(log)
    assert logs[0] == logs[1] != []


def test_streams_when_they_share_a_host_then_ship_for_nothing() -> None:
    streams = tuple(Stream(n, SCHEMA, TimeWindow(20), site=s) for n, s in ("Ax", "Bx", "Cy"))
    query = Query(streams, tuple(topology("chain", "ABC", ["k"])), 10, 5)
    rng = np.random.default_rng(5)
    rows = {
        n: pa.record_batch({"ts": np.sort(rng.integers(0, 60, 40)), "k": rng.integers(0, 4, 40)})
        for n in "ABC"
    }
    steps = {
        head: [Step(n, Algorithm.SP_D) for n in order]
        for head, order in {"A": "BC", "B": "AC", "C": "BA"}.items()
    }
    simulation = Simulation(Plan(query, steps), lambda _: 5)
    simulation.run(rows, 6)
    assert set(simulation.network.usage) == {("x", "y"), ("y", "x")}
    assert wrong(simulation, query, rows, 6)["lost"] == 0


def test_results_when_times_are_timestamps_then_are_those_of_the_same_numbers() -> None:
    rng = np.random.default_rng(6)
    rows = {n: (np.sort(rng.integers(0, 60, 40)), rng.integers(0, 4, 40)) for n in "AB"}
    found = []
    for type_ in (pa.int64(), pa.timestamp("us", "UTC")):
        schema = pa.schema([("ts", type_), ("k", pa.int64())])
        streams = tuple(Stream(n, schema, TimeWindow(20)) for n in "AB")
        query = Query(streams, (("A.k", "B.k"),), 10, 5)
        batches = {
            n: pa.RecordBatch.from_arrays([pa.array(t).cast(type_), pa.array(k)], schema=schema)
            for n, (t, k) in rows.items()
        }
        simulation = Simulation(both_ways(query, Algorithm.SM_S1, Algorithm.SM_D1), lambda _: 5)
        simulation.run(batches, 6)
        table = pa.concat_tables(simulation.table(n) for n in range(1, 7))
        times = [table[f"{n}.ts"].cast(pa.int64()).to_pylist() for n in "AB"]
        found.append(Counter(zip(*times, table["A.k"].to_pylist(), strict=True)))
    assert found[0] == found[1]
    assert found[0].total() > 50


# -- changes of plan -------------------------------------------------------------------------


@pytest.mark.parametrize("heartbeats", [False, True])
@pytest.mark.parametrize("window", [TimeWindow(30), CountWindow(25)])
def test_plan_when_changed_again_and_again_then_no_result_is_lost_or_repeated(
    make, heartbeats: bool, window: TimeWindow | CountWindow
) -> None:
    query, streams = make(*[(1, range(8), 4, window)] * 2, intervals=20)
    plans = itertools.cycle(
        both_ways(query, there, back)
        for there, back in itertools.product(Algorithm, Algorithm)
        if there != back
    )
    latency = later(query, 0.3 if heartbeats else 0.0)
    simulation = Simulation(next(plans), latency, heartbeats=heartbeats)
    simulation.planner = Planner(next(plans), simulation.network, Prices())
    simulation.offer(streams)
    for interval in range(20):
        simulation.step()
        if interval % 2:
            simulation.planner.change(next(plans), simulation.network.now)
    simulation.drain()
    tally = wrong(simulation, query, streams, 20)
    assert tally["lost"] == tally["extra"] == 0
    assert tally["right"] > 100
    assert len(simulation.planner.changes) > 4


@pytest.mark.parametrize("window", [TimeWindow(20), CountWindow(40)])
def test_plan_when_a_link_begins_to_carry_rows_late_then_results_are_right(
    make, window: TimeWindow | CountWindow
) -> None:
    query, streams = make(*[(2, range(30), 4, window)] * 2, intervals=30)
    first = both_ways(query, Algorithm.SM_D1, Algorithm.SM_D1)
    simulation = Simulation(first, lambda _: 5)
    simulation.planner = Planner(first, simulation.network, Prices())
    simulation.offer(streams)
    plans = {15: Algorithm.SM_S1, 19: Algorithm.SM_D1, 24: Algorithm.SM_S2}
    for interval in range(30):
        simulation.step()
        if interval in plans:
            plan = both_ways(query, plans[interval], plans[interval])
            simulation.planner.change(plan, simulation.network.now)
    simulation.drain()
    assert len(simulation.planner.changes) == 3
    tally = wrong(simulation, query, streams, 30)
    assert tally["lost"] == tally["extra"] == 0
    assert tally["right"] > 500


@pytest.mark.parametrize("held", [30, 60])  # three intervals, and six
def test_plan_when_agreed_on_late_by_streams_of_one_host_then_results_are_right(
    make, held: int
) -> None:
    # the sites then go through several intervals at once before each other's messages are taken in
    query, streams = make(*[(8, range(20), 4, CountWindow(10))] * 2, intervals=12, seed=1)
    query = replace(query, streams=tuple(replace(s, site="x") for s in query.streams))
    first = both_ways(query, Algorithm.SM_D1, Algorithm.SP_S)
    simulation = Simulation(
        first, lambda m: held if m.header.kind == Kind.COMMIT else 0, heartbeats=True
    )
    simulation.planner = Planner(first, simulation.network, Prices())
    simulation.offer(streams)
    for interval in range(12):
        simulation.step()
        if interval == 3:
            plan = both_ways(query, Algorithm.SP_S, Algorithm.SP_S)
            simulation.planner.change(plan, simulation.network.now)
    simulation.drain()
    tally = wrong(simulation, query, streams, 12)
    assert tally["lost"] == tally["extra"] == 0
    assert tally["right"] > 500


# -- bad input --------------------------------------------------------------------------------


class Nowhere:
    def send(self, message: Message) -> None:
        raise AssertionError("nothing is to be sent")


def lone_site(query: Query) -> Site:
    plan = both_ways(query, Algorithm.SP_D, Algorithm.SP_D)
    return Site("S1", plan, Nowhere(), lambda *_: None)


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ({"ts": [3, 2], "k": [1, 1]}, "order"),
        ({"ts": [7], "k": [1]}, "outside"),
        ({"ts": [1], "other": [1]}, "columns"),
    ],
)
def test_tick_when_rows_are_not_as_agreed_then_says_what_is_wrong(rows, says: str) -> None:
    query, _ = figure_1(1, 1)
    site = lone_site(query)
    with pytest.raises(ArgumentError, match=says):
        site.tick(1, pa.record_batch(rows), 5)
    site.tick(1, None, 5)  # as if nothing had been
    assert site.ticked == 1


def test_tick_when_an_interval_is_left_out_then_refuses() -> None:
    query, _ = figure_1(1, 1)
    with pytest.raises(ArgumentError, match="interval 2 after 0"):
        lone_site(query).tick(2, None, 10)
