"""Rows out of order within a bound: the results of the ordered stream."""

import numpy as np
import pyarrow as pa
import pytest

from dovetail.errors import ArgumentError
from dovetail.sites import Algorithm, Arrivals, Plan, Query, Simulation, Step, Stream, TimeWindow
from support.sites import counted, window_join

SCHEMA = pa.schema([("ts", pa.int64()), ("k", pa.int64())])


def query(lateness: int) -> Query:
    streams = tuple(Stream(name, SCHEMA, TimeWindow(30)) for name in "AB")
    return Query(streams, (("A.k", "B.k"),), tau=10, delta=5, lateness=lateness)


def batch(*times: int) -> pa.RecordBatch:
    return pa.record_batch({"ts": pa.array(times, pa.int64()), "k": [1] * len(times)})


def test_take_when_rows_came_in_any_order_then_are_sorted_and_cut() -> None:
    arrivals = Arrivals(query(5).stream("A"), query(5))
    arrivals.push(batch(12, 3, 9))
    arrivals.push(batch(25, 1))
    taken = [arrivals.take(n) for n in (1, 2, 3, 4)]
    assert [rows and rows.column("ts").to_pylist() for rows in taken] == [
        [1, 3, 9],
        [12],
        [25],
        None,
    ]


def test_push_when_the_interval_is_closed_then_counts_the_row_as_late() -> None:
    arrivals = Arrivals(query(5).stream("A"), query(5))
    arrivals.take(1)
    arrivals.push(batch(9, 10, 2))
    assert arrivals.late == 2
    assert arrivals.take(2).column("ts").to_pylist() == [10]


def test_push_when_a_time_is_null_then_refuses() -> None:
    arrivals = Arrivals(query(5).stream("A"), query(5))
    with pytest.raises(ArgumentError, match="without a time"):
        arrivals.push(pa.record_batch({"ts": pa.array([None], pa.int64()), "k": [1]}))


@pytest.mark.parametrize("algorithm", [Algorithm.SP_S, Algorithm.SM_D2])
def test_results_when_rows_are_late_within_the_bound_then_are_those_of_the_ordered_streams(
    algorithm: Algorithm,
) -> None:
    rng = np.random.default_rng(7)
    bounded = query(lateness=12)
    ordered = {
        name: pa.record_batch(
            {"ts": np.sort(rng.integers(0, 100, 90)), "k": rng.integers(0, 5, 90)}
        )
        for name in "AB"
    }
    plan = Plan(bounded, {"A": [Step("B", algorithm)], "B": [Step("A", algorithm)]})
    simulation = Simulation(plan, lambda _: int(rng.integers(0, 6)))
    arrival = {n: b.column("ts").to_numpy() + rng.integers(0, 12, 90) for n, b in ordered.items()}
    shuffled = 0
    for interval in range(1, 11):
        now = bounded.tick_time(interval)
        for name, rows in ordered.items():
            before = bounded.tick_time(interval - 1) if interval > 1 else 0
            here = np.flatnonzero((arrival[name] >= before) & (arrival[name] < now))
            here = here[np.argsort(arrival[name][here], kind="stable")]
            shuffled += int((np.diff(here) < 0).sum())
            simulation.offer({name: rows.take(pa.array(here))})
        simulation.step()
    simulation.drain()
    assert shuffled > 10
    for interval, expected in window_join(bounded, ordered, 10).items():
        assert counted(simulation.table(interval)) == expected
