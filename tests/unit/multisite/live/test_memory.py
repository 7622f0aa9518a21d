"""What a host keeps: as much as its windows and its limits, however long it runs."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dovetail.errors import ArgumentError, SiteError, SiteUnavailableError
from dovetail.multisite.live import link as link_module
from dovetail.multisite.live.deployment import Deployment
from dovetail.multisite.live.driver import Driver
from dovetail.multisite.live.events import Event, What
from dovetail.multisite.live.limits import Limits
from dovetail.multisite.live.link import CallSize
from dovetail.multisite.live.machine import Machine
from dovetail.multisite.live.wire import MOST_CALL_BYTES
from dovetail.sites import Algorithm, CountWindow, Plan, Query, Step, Stream, TimeWindow
from support.site_hosts import snapshot_of

TAU = 10
SCHEMA = pa.schema([("ts", pa.int64()), ("a", pa.int64()), ("text", pa.string())])


def made_query(window: Any, hosts: tuple[str, str] = ("A", "B")) -> Query:
    streams = tuple(
        Stream(name, SCHEMA, window, site=host)
        for name, host in zip(("A", "B"), hosts, strict=True)
    )
    return Query(streams, (("A.a", "B.a"),), TAU, 5)


def deployed(query: Query, algorithm: Algorithm, **settings: Any) -> Deployment:
    plan = Plan(query, {"A": [Step("B", algorithm)], "B": [Step("A", algorithm)]})
    addresses = {stream.site: "grpc://127.0.0.1:1" for stream in query.streams}
    return Deployment("q", plan, addresses, clock="rows", **settings)


def rows(interval: int, seed: int, count: int = 40) -> pa.RecordBatch:
    """Keys come and go: they are of the time."""
    rng = np.random.default_rng([interval, seed])
    times = np.sort(rng.integers((interval - 1) * TAU, interval * TAU, count))
    keys = 10 * interval + rng.integers(0, 40, count)
    texts = [f"{key} is the key" for key in keys]
    return pa.RecordBatch.from_arrays(
        [pa.array(times), pa.array(keys), pa.array(texts)], schema=SCHEMA
    )


class Endless:
    """Two hosts without a network, that run as long as one likes."""

    def __init__(self, deployment: Deployment) -> None:
        self.machines = {host: Machine(deployment, host) for host in deployment.hosts}
        self.results = 0
        self.interval = 0

    def go_on(self, until: int) -> None:
        while self.interval < until:
            self.interval += 1
            for seed, name in enumerate(self.machines):
                event = Event(What.INPUT, 0, {"stream": name})
                self.machines[name].apply(event, rows(self.interval, seed))
            for name in self.machines:
                self._happen(name, Event(What.TICK, self.interval * TAU, {"stream": name}))

    def _happen(self, host: str, event: Event) -> None:
        self.machines[host].apply(event)
        outputs = self.machines[host].take()
        self.results += len(outputs.results)
        for peer, seq, body in outputs.messages:
            self._happen(peer, Event(What.MESSAGE, 0, {"peer": host, "seq": seq}, body))

    def sizes(self) -> np.ndarray:
        """By host, what it says that it keeps, and what a snapshot of it takes."""
        return np.array([[m.nbytes, len(snapshot_of(m))] for m in self.machines.values()])


WINDOWS = {"time": TimeWindow(45), "count": CountWindow(150)}
CASES = [(a, "time") for a in Algorithm] + [(Algorithm(a), "count") for a in ("SP-S", "SM-S2")]


@pytest.mark.parametrize(("algorithm", "window"), CASES)
def test_machine_when_it_runs_for_long_then_keeps_no_more(
    algorithm: Algorithm, window: str
) -> None:
    endless = Endless(deployed(made_query(WINDOWS[window]), algorithm))

    def most(first: int) -> np.ndarray:
        """Over some intervals: stores give up what is dead now and then, not at once."""
        found = np.zeros((2, 2))
        for interval in range(first, first + 24, 3):
            endless.go_on(interval)
            found = np.maximum(found, endless.sizes())
        return found

    early, late = most(30), most(150)
    assert endless.results > 150
    assert (late <= 1.25 * early).all(), (early, late)


def put(driver: Driver, stream: str, interval: int, seconds: float = 20.0) -> tuple[bool, int]:
    facts = {"producer": "p", "batch": interval, "part": 0, "until": interval * TAU}
    return driver.put(stream, rows(interval, ord(stream)), facts, seconds)


def test_driver_when_windows_outgrow_the_limit_then_stops_until_it_is_raised(
    tmp_path: Path,
) -> None:
    query = made_query(TimeWindow(10_000), ("here", "here"))
    deployment = deployed(query, Algorithm.SP_D)
    driver = Driver(deployment, "here", tmp_path, Limits(state_bytes=30_000, durable=False))
    driver.start()

    def put_all(to: Driver) -> None:
        for interval in range(1, 13):
            for stream in ("A", "B"):
                put(to, stream, interval)

    with pytest.raises(SiteError, match=r"more than the 30,000 of the limit \(state_bytes\)"):
        put_all(driver)
    driver.stop()
    again = Driver(deployment, "here", tmp_path, Limits(durable=False))
    again.start()
    put_all(again)
    status = again.status()
    assert status["error"] is None
    assert status["streams"]["A"]["rows"] == 12 * 40
    assert status["streams"]["A"]["kept_bytes"] > 30_000
    again.stop()


def test_driver_when_nobody_reads_the_results_then_inputs_wait_until_somebody_does(
    tmp_path: Path,
) -> None:
    query = made_query(TimeWindow(30), ("here", "here"))
    limits = Limits(result_bytes=5_000, input_bytes=4_000, durable=False)
    driver = Driver(deployed(query, Algorithm.SP_D), "here", tmp_path, limits)
    driver.start()

    def put_until(last: int, seconds: float) -> None:
        for interval in range(1, last + 1):
            for stream in ("A", "B"):
                put(driver, stream, interval, seconds)

    with pytest.raises(SiteUnavailableError, match=r"results wait to be read .*result_bytes"):
        put_until(40, 0.2)
    before = driver.results.range()[1]
    assert 5_000 < driver.results.nbytes < 40_000
    for _ in range(100):  # who reads gives up what was read
        driver.results.trim(driver.results.range()[1])
        driver.wake()
        try:
            put_until(40, 0.1)
            break
        except SiteUnavailableError:
            pass
    assert driver.results.range()[1] > before
    assert driver.status()["streams"]["A"]["rows"] == 40 * 40
    driver.stop()


def test_call_when_the_link_is_slow_then_the_next_is_smaller() -> None:
    size = CallSize()
    first = size.nbytes
    size.took(0.01)
    assert size.nbytes == 2 * first
    for _ in range(20):
        size.took(0.01)
    assert size.nbytes == MOST_CALL_BYTES
    size.took(1.0)
    assert size.nbytes == MOST_CALL_BYTES
    size.took(5.0)
    assert size.nbytes == MOST_CALL_BYTES // 2
    for _ in range(20):
        size.failed()
    assert size.nbytes == link_module._LEAST_BYTES


@pytest.mark.parametrize("limit", ["state_bytes", "result_bytes", "snapshot_bytes"])
def test_limit_when_it_is_none_then_is_refused(limit: str) -> None:
    with pytest.raises(ArgumentError, match="1 byte or more"):
        Limits(**{limit: 0})
