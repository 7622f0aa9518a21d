"""Hosts as they are in processes, with trees and linear plans: they emit what one place would.

The rows, the plan and the delays follow from a case's seed, so that a case is repeated by its
printed value alone.
"""

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.multisite.live.deployment import Deployment
from dovetail.multisite.plan import Algorithm
from dovetail.multisite.query import Query, Stream, topology
from dovetail.multisite.site import Site
from dovetail.multisite.windows import TimeWindow
from support.depth import full_or
from support.site_hosts import VirtualHosts, random_plan, random_tree
from support.sites import window_join

pytestmark = pytest.mark.fuzz

CASES = settings.default.max_examples // 2  #: of each pace
TAU, INTERVALS = 10, 6
SIMPLE = (Algorithm.SP_S, Algorithm.SP_D)
SCHEMA = pa.schema([("ts", pa.int64()), ("a", pa.int64()), ("b", pa.string())])


@dataclass(frozen=True)
class Case:
    """The circumstances of one distributed join."""

    seed: int
    tree: bool = True
    streams: int = 3
    graph: str = "chain"
    columns: tuple[str, ...] = ("a",)
    algorithms: tuple[Algorithm, ...] = tuple(Algorithm)
    hosts: int = 0  #: that the streams share, in turn; 0: each has its own
    heartbeats: bool = True
    delta: int = 7
    grain: int = 1  #: how often hosts look at the clock
    slow: bool = False  #: messages take up to four times delta
    ahead: int = 32
    kills: bool = False
    rows: int = 25
    domain: int = 5

    def query(self, rng: np.random.Generator) -> Query:
        names = [f"S{i}" for i in range(self.streams)]
        streams = tuple(
            Stream(
                name, SCHEMA, TimeWindow(int(rng.integers(0, 4 * TAU))),
                site=f"h{i % (self.hosts or self.streams)}",
            )
            for i, name in enumerate(names)
        )  # fmt: skip
        on = tuple(topology(self.graph, names, self.columns))
        return Query(streams, on, TAU, self.delta, int(rng.integers(0, TAU)))

    def latency(self, rng: np.random.Generator) -> int:
        """What is left of delta when a host has looked at the clock late; or more."""
        longest = 4 * self.delta if self.slow else max(0, self.delta - self.grain + 1)
        return self.grain * int(rng.integers(0, longest // self.grain + 1))

    def batch(self, rng: np.random.Generator) -> pa.RecordBatch:
        count = rng.poisson(self.rows)
        keys = rng.integers(0, self.domain, count)
        columns = [
            pa.array(np.sort(rng.integers(0, TAU * INTERVALS, count))),
            pa.array(keys, mask=rng.random(count) < 0.05),
            pa.array(rng.integers(0, 2, count).astype(str).tolist(), pa.string()),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def check(case: Case) -> Counter[str]:
    """Run a case and compare every interval with the answer; returns what happened."""
    rng = np.random.default_rng(case.seed)
    query = case.query(rng)
    streams = {name: case.batch(rng) for name in query.names}
    plan = (random_tree if case.tree else random_plan)(query, rng, case.algorithms)
    addresses = {stream.site: "grpc://127.0.0.1:1" for stream in query.streams}
    deployment = Deployment("q", plan, addresses, heartbeats=case.heartbeats, ahead=case.ahead)
    hosts = VirtualHosts(
        deployment, lambda: case.latency(rng), grain=case.grain, kills=rng if case.kills else None
    )
    hosts.run(streams, INTERVALS)
    answer = window_join(query, streams, INTERVALS)
    for interval, expected in answer.items():
        found = hosts.results.pop(interval, Counter())
        assert found == expected, (
            f"{case}\n{plan}\ninterval {interval}: lost {expected - found}, not to be "
            f"{found - expected}"
        )
    assert not hosts.results
    late = {site.name: site.late for site in hosts.sites() if site.late}
    assert not late, f"{case}\n{plan}: messages that came too late: {late}"
    return Counter(
        cases=1, results=sum(map(Counter.total, answer.values())), kills=hosts.killed,
        waiting=sum(prefix.rows for m in hosts.machines.values() for prefix in m.prefixes.values()),
    )  # fmt: skip


def cases(heartbeats: bool) -> st.SearchStrategy[Case]:
    drawn = st.builds(
        Case,
        seed=st.integers(0, 2**32 - 1),
        tree=st.sampled_from([True, True, False]),
        streams=st.sampled_from([2, 3, 3, 4]),
        graph=st.sampled_from(["chain", "star", "cycle", "full"]),
        columns=st.sampled_from([("a",), ("b",), ("a", "b")]),
        algorithms=st.sampled_from([tuple(Algorithm), SIMPLE]),
        hosts=st.sampled_from([0, 0, 1, 2]),
        heartbeats=st.just(heartbeats),
        delta=st.sampled_from([0, 4, 13]),
        grain=st.sampled_from([1, 1, 4]),
        slow=st.booleans() if heartbeats else st.just(False),
        ahead=st.sampled_from([2, 32]),
        kills=st.booleans(),
        domain=st.sampled_from([3, 8]),
    )
    return drawn.map(_possible)


def _possible(case: Case) -> Case:
    """Few results where many rows match; and hosts that keep to delta."""
    if case.streams == 4 or case.columns == ("b",):
        case = replace(case, rows=12)
    return replace(case, grain=1) if case.grain > case.delta else case


@pytest.mark.parametrize("heartbeats", [True, False])
def test_plan_when_hosts_run_it_then_emits_what_one_place_would(heartbeats: bool) -> None:
    happened: Counter[str] = Counter()

    @settings(max_examples=CASES)
    @given(cases(heartbeats))
    def run(case: Case) -> None:
        happened.update(check(case))

    run()
    assert happened["cases"] >= CASES
    assert happened["results"] > full_or(1_000, 0)
    least = full_or(1_000, 0)
    assert happened["waiting"] > least, "hardly a row went from one level to the next"
    assert happened["kills"] > full_or(CASES, 0)


def test_check_when_a_level_takes_intervals_that_are_not_complete_then_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = Case(3, slow=True, rows=60)
    check(case)
    monkeypatch.setattr(Site, "complete", lambda site, _now: site.ticked)
    with pytest.raises(AssertionError):
        check(case)


def test_check_when_messages_take_longer_than_delta_and_nobody_waits_then_fails() -> None:
    case = Case(3, slow=True, rows=60, heartbeats=False)
    check(replace(case, slow=False))
    with pytest.raises(AssertionError):
        check(case)
