"""Real sites: processes on this machine that talk over Arrow Flight."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dovetail.multisite.live.client import SiteClient
from dovetail.multisite.live.deployment import Deployment
from dovetail.multisite.live.local import LocalSites
from dovetail.multisite.plan import PAPER, Algorithm
from dovetail.sites import CountWindow, Query, Stream, TimeWindow, topology
from support.site_hosts import random_plan, random_tree
from support.sites import counted, window_join

HOSTS = ("h0", "h1", "h2")
SCHEMA = pa.schema([("ts", pa.int64()), ("a", pa.int64()), ("b", pa.string()), ("id", pa.int32())])
Found = dict[int, Counter[tuple[Any, ...]]]


def random_query(seed: int, hosts: tuple[str, ...] = HOSTS, *, by_time: bool = False) -> Query:
    """Two to four streams with any join graph and windows, at these hosts in turn."""
    rng = np.random.default_rng(seed)
    names = [f"S{i}" for i in range(rng.integers(2, 5))]
    graph = str(rng.choice(["chain", "star", "cycle", "full"]))
    columns = [["a"], ["b"], ["a", "b"]][rng.integers(3)]
    windows = [
        TimeWindow(int(rng.integers(5, 30)))
        if rng.random() < 0.6 or by_time
        else CountWindow(int(rng.integers(2, 9)))
        for _ in names
    ]
    streams = tuple(
        Stream(name, SCHEMA, window, site=hosts[i % len(hosts)])
        for i, (name, window) in enumerate(zip(names, windows, strict=True))
    )
    return Query(streams, tuple(topology(graph, names, columns)), tau=10, delta=5)


def random_streams(
    query: Query, intervals: int, seed: int, rows: int = 4
) -> dict[str, pa.RecordBatch]:
    """Some rows an interval; keys of which some occur often, and a few nulls."""
    rng = np.random.default_rng([seed, 2])
    streams = {}
    for name in query.names:
        count = rng.poisson(rows * intervals)
        times = np.sort(rng.integers(0, query.tau * intervals, count))
        keys = rng.integers(0, 5, count)
        streams[name] = pa.RecordBatch.from_arrays(
            [
                pa.array(times),
                pa.array(keys, mask=rng.random(count) < 0.1),
                pa.array([f"key {key}" for key in rng.integers(0, 4, count)]),
                pa.array(np.arange(count), pa.int32()),
            ],
            schema=SCHEMA,
        )
    return streams


@dataclass
class Running:
    """A query at sites that are there, and its rows."""

    sites: LocalSites
    deployment: Deployment
    streams: Mapping[str, pa.RecordBatch]
    intervals: int
    clients: dict[str, SiteClient] = field(default_factory=dict)

    def __post_init__(self) -> None:
        access = self.sites.access
        for host, address in self.deployment.addresses.items():
            self.clients[host] = SiteClient(address, access)
            self.clients[host].start(self.deployment)

    @property
    def name(self) -> str:
        return self.deployment.name

    def client_of(self, stream: str) -> SiteClient:
        return self.clients[self.deployment.query.stream(stream).site]

    def rows_of(self, stream: str, interval: int) -> pa.RecordBatch:
        rows, tau = self.streams[stream], self.deployment.query.tau
        times = np.asarray(rows.column("ts"))
        first, end = np.searchsorted(times, [(interval - 1) * tau, interval * tau])
        return rows.slice(first, end - first)

    def put(self, stream: str, interval: int, timeout: float = 180) -> Any:
        """The rows of an interval, and that they are all."""
        return self.client_of(stream).put(
            self.name, stream, self.rows_of(stream, interval), producer="test", batch=interval,
            until=self.deployment.query.boundary(interval), timeout=timeout,
        )  # fmt: skip

    def feed(self, first: int, last: int, *, without: str = "") -> None:
        """The rows of some intervals, of all streams but those of one host."""
        for interval in range(first, last + 1):
            for stream in self.deployment.query.streams:
                if stream.site != without:
                    self.put(stream.name, interval)

    def settled(self) -> int:
        statuses = [client.status(self.name) for client in self.clients.values()]
        assert [status.error for status in statuses] == [None] * len(statuses)
        return min(s.settled for status in statuses for s in status.streams.values())

    def drain(self, seconds: float = 180) -> None:
        """Let time pass until all results of all intervals are there."""
        deadline = time.monotonic() + seconds
        beyond = self.intervals
        while self.settled() < self.intervals:
            assert time.monotonic() < deadline, "the sites do not come to an end"
            beyond += 1
            for stream in self.deployment.query.names:
                until = self.deployment.query.boundary(beyond)
                self.client_of(stream).advance(self.name, stream, until)

    def results(self) -> dict[tuple[str, int], tuple[int, pa.RecordBatch]]:
        """All results, by host and number."""
        return {
            (host, result.seq): (result.interval, result.rows)
            for host, client in self.clients.items()
            for result in client.results(self.name)
        }

    def check(self) -> int:
        """Compare every interval with the answer; returns the number of results."""
        found: Found = {}
        for interval, rows in self.results().values():
            found.setdefault(interval, Counter()).update(counted(pa.Table.from_batches([rows])))
        answer = window_join(self.deployment.query, self.streams, self.intervals)
        for interval, expected in answer.items():
            here = found.pop(interval, Counter())
            assert here == expected, (
                f"{self.deployment.plan}, interval {interval}: lost {expected - here}, not to be "
                f"{here - expected}"
            )
        assert not found
        return sum(expected.total() for expected in answer.values())

    def close(self) -> None:
        for client in self.clients.values():
            client.close()


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalSites]:
    """Three sites that run the queries of many tests."""
    sites = LocalSites(tmp_path_factory.mktemp("sites"), HOSTS, {"durable": False})
    for host in HOSTS:
        sites.start(host)
    sites.addresses()
    yield sites
    sites.stop()


@pytest.fixture
def make_fleet(tmp_path: Path) -> Iterator[Callable[..., LocalSites]]:
    """Starts two sites to be mistreated, with these limits."""
    made: list[LocalSites] = []

    def start(**limits: object) -> LocalSites:
        made.append(LocalSites(tmp_path, HOSTS[:2], limits))
        for host in made[-1].hosts:
            made[-1].start(host)
        return made[-1]

    yield start
    for sites in made:
        sites.stop()


@pytest.fixture
def own_fleet(make_fleet: Callable[..., LocalSites]) -> LocalSites:
    return make_fleet(snapshot_bytes="20 KB")


@pytest.fixture
def run() -> Iterator[Callable[..., Running]]:
    """Starts a random query at some sites, by its seed; its rows are still to be fed."""
    started: list[Running] = []

    def start(
        sites: LocalSites, seed: int, algorithms: tuple[Algorithm, ...] = PAPER,
        intervals: int = 8, rows: int = 4, hosts: tuple[str, ...] = (), tree: bool = False,
        **settings: Any,
    ) -> Running:  # fmt: skip
        query = random_query(seed, hosts or sites.hosts, by_time=tree)
        addresses = {stream.site: sites.address(stream.site) for stream in query.streams}
        name = f"{'tree' if tree else 'q'}{seed}-{'-'.join(algorithms[:2])}"
        settings = {"clock": "rows", **settings}
        rng = np.random.default_rng([seed, 1])
        plan = random_tree(query, rng) if tree else random_plan(query, rng, algorithms)
        deployment = Deployment(name, plan, addresses, **settings)
        streams = random_streams(query, intervals, seed, rows)
        started.append(Running(sites, deployment, streams, intervals))
        return started[-1]

    yield start
    for running in started:
        running.close()
